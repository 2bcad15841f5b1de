"""Users that ask a service over HTTP and report what they did, over a few connections that stay open."""

from __future__ import annotations

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CONNECTIONS = 4
TIMEOUT_SECONDS = 60.0
TRIES, PAUSE_SECONDS = 20, 0.5  # of a call that the service refuses for the moment
DEADLINE_MS = 30_000  # users of a demonstration are patient: other programs may use the processors
TWICE, LATER = 0.03, 0.02  # shares of events that are sent twice, and of requests whose events are sent later
_BUSY = (503, 504)


class ServiceError(OSError):
    """The service did not answer, or refused a call."""


class ServedModel(NamedTuple):
    """The name of a model in answers, and the day after which it was bundled."""

    model: str
    day: str


class HttpUsers:
    """A client of a service on this machine.

    Args:
        port: The port of the service.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="users")
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close all connections."""
        self._threads.shutdown(cancel_futures=True)
        for connection in self._opened:
            connection.close()

    def rank(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests to ``POST /rank``, and return their answers in the same order."""
        return self._all(lambda body: self.call("POST", "/rank", {**body, "deadline": DEADLINE_MS}), bodies)

    def report(self, calls: Iterable[Sequence[dict[str, Any]]]) -> int:
        """Send the events of each call to ``POST /events``, and return the number of events that were accepted."""
        answers = self._all(lambda events: self.call("POST", "/events", {"events": events}), filter(None, calls))
        return sum(answer["accepted"] for answer in answers)

    def served(self) -> ServedModel | None:
        """Return the model that is served; None while the service starts."""
        try:
            status, text = self._send("GET", "/model", None)
        except (OSError, http.client.HTTPException):
            self._forget()
            return None
        main = json.loads(text)["bundles"]["main"] if status == 200 else None
        return None if main is None else ServedModel(main["model"], main["path"])

    def _all(self, send: Callable[[Any], dict[str, Any]], bodies: Iterable[Any]) -> list[dict[str, Any]]:
        return list(self._threads.map(send, bodies))

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a call and return the content of its answer; a busy service is asked again.

        Raises:
            ServiceError: The service does not answer, or refuses the call.
        """
        content = None if body is None else json.dumps(body)
        for tries in range(TRIES):
            if tries:
                time.sleep(PAUSE_SECONDS)
            try:
                status, text = self._send(method, path, content)
            except (OSError, http.client.HTTPException) as error:
                self._forget()
                if tries == TRIES - 1:
                    raise ServiceError(f"{method} {path}: the service does not answer ({error})") from None
                continue
            if status == 200:
                answer: dict[str, Any] = json.loads(text)
                return answer
            if status not in _BUSY:
                break
        raise ServiceError(f"{method} {path}: the service answered {status}: {text[:500]}")

    def _send(self, method: str, path: str, content: str | None) -> tuple[int, str]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
            self._local.connection = connection
            self._opened.append(connection)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def _forget(self) -> None:
        """Close the connection of this thread; the next call opens another one."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def with_repetitions(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events of which some occur twice, as from clients that did not receive the first answer."""
    return [event for event in events for _ in range(2 if _share(event["id"]) < TWICE else 1)]


def is_late(request: str) -> bool:
    """Return whether the events of a request are sent later than those of others."""
    return _share(request) < LATER


def _share(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone."""
    return crc32(text.encode()) / 2**32
