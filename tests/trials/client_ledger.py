"""Clients that ask a service, report events, and write down what the service acknowledged.

A call without a response is repeated until it succeeds, as clients of a service do: requests with the same id, events
with the same ids. Some events are sent again although they were acknowledged, and some of them late.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from trials.small_world import DAY_MS, KINDS, random_body

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CLIENTS = 8
_PAUSE = 0.1  # seconds before a call is repeated
_TIMEOUT = 20.0  # seconds
_MOST_HELD = 1 / 8  # of a day, until the events of a request are reported
_MOST_EVENTS = 4  # of one request
_REPEATED = 0.1  # share of calls with events that are sent again


@dataclass
class Asked:
    """A request, and the answer that its client received."""

    request: str
    body: dict[str, Any]
    attempts: int = 0
    answered: float | None = None  # time.monotonic()
    model: str = ""
    ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """An event that the service acknowledged."""

    id: str
    request: str
    item: int
    kind: str
    value: float


@dataclass
class Ledger:
    """What clients know."""

    asked: dict[str, Asked] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)  # acknowledged, each once
    event_calls: int = 0  # acknowledged
    repeated_calls: int = 0  # further attempts of all calls
    refused: dict[str, int] = field(default_factory=dict)  # responses other than 200, by path and code
    quoted: list[str] = field(default_factory=list)


class LedgerClients:
    """Threads that send requests one after the other; a context in which they run.

    The time of a request is a function of its number, so that a day has a fixed number of requests.

    Args:
        port: Port of the service.
        ledger: Receives what clients know.
        first_time: Time of the first request, in milliseconds since 1970.
        requests_per_day: Requests of a simulated day.
        rate: Requests per second of all clients, if the service is that fast.
    """

    def __init__(self, port: int, ledger: Ledger, *, first_time: int, requests_per_day: int, rate: float) -> None:
        self._ledger = ledger
        self._port = port
        self._first_time, self._requests_per_day = first_time, requests_per_day
        self._seconds = _CLIENTS / rate  # between two requests of a client
        self._numbers = count()
        self._ending = threading.Event()
        self._lock = threading.Lock()  # of the ledger
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(_CLIENTS)]
        self._errors: list[BaseException] = []

    def __enter__(self) -> LedgerClients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Let every client complete what it has begun, while the service runs."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Raise what ended a client."""
        if self._errors:
            raise self._errors[0]

    @property
    def days(self) -> float:
        """Simulated days so far."""
        return len(self._ledger.asked) / self._requests_per_day

    def _run(self, seed: int) -> None:
        caller = _Caller(self._port, self._ledger, self._lock)
        try:
            self._work(random.Random(seed), caller)
        except BaseException as error:
            self._errors.append(error)
        finally:
            caller.close()

    def _work(self, chance: random.Random, caller: _Caller) -> None:
        held: list[tuple[float, list[Event]]] = []  # events and the number of the request after which they are reported
        due = time.monotonic()
        while not self._ending.is_set():
            number = next(self._numbers)
            events = self._ask(number, chance, caller)
            if events:
                held_for = chance.choice([0, 0, chance.uniform(0, _MOST_HELD)]) * self._requests_per_day
                held.append((number + held_for, events))
            for one in [one for one in held if one[0] <= number]:
                self._report(one[1], chance, caller)
                held.remove(one)
            due += chance.uniform(0, 2 * self._seconds)
            self._ending.wait(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1.0)  # what was missed while the service was down is not made up for
        for _, events in held:
            self._report(events, chance, caller)

    def _ask(self, number: int, chance: random.Random, caller: _Caller) -> list[Event]:
        """Send a request; return the events that its user will cause."""
        body = random_body(chance, self._first_time + number * DAY_MS // self._requests_per_day)
        asked = Asked(f"r{number}", body)
        with self._lock:
            self._ledger.asked[asked.request] = asked
        answer, asked.attempts = caller.call("/rank", {"request": asked.request, **body})
        asked.model, asked.ids, asked.scores = answer["model"], answer["ids"], answer["scores"]
        asked.answered = time.monotonic()
        events = []
        for place in range(chance.randrange(_MOST_EVENTS + 1)):
            kind = chance.choice(KINDS)
            value = 1.0 if kind == "click" else chance.choice([0.5, 2.25, 12.0])
            events.append(Event(f"e{place}", asked.request, chance.choice(asked.ids), kind, value))
        return events

    def _report(self, events: Sequence[Event], chance: random.Random, caller: _Caller) -> None:
        content = {
            "events": [
                {**asdict(one), "time": self._ledger.asked[one.request].body["time"]}  # a clock may have none yet
                for one in events
            ]
        }
        for _ in range(1 + (chance.random() < _REPEATED)):
            answer, _ = caller.call("/events", content)
            assert answer == {"accepted": len(events)}
        with self._lock:
            self._ledger.events += events
            self._ledger.event_calls += 1


class _Caller:
    """A connection that is opened again after errors."""

    def __init__(self, port: int, ledger: Ledger, lock: threading.Lock) -> None:
        self._port = port
        self._ledger = ledger
        self._lock = lock
        self._connection: http.client.HTTPConnection | None = None

    def call(self, path: str, content: Mapping[str, Any]) -> tuple[Any, int]:
        """Send a call until it succeeds; return the response and the number of attempts."""
        body = json.dumps(content)
        for attempt in count(1):
            try:
                code, answer = self._try(path, body)
            except (OSError, http.client.HTTPException):  # the service was killed, or does not listen yet
                self.close()
            else:
                if code == 200:
                    return answer, attempt
                self._note(path, code, answer)
            with self._lock:
                self._ledger.repeated_calls += 1
            time.sleep(_PAUSE)
        raise AssertionError  # count() does not end

    def _try(self, path: str, body: str) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT)
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def _note(self, path: str, code: int, answer: Any) -> None:
        """Count a refused call; those that cannot succeed end the trial."""
        with self._lock:
            key = f"{path} {code}"
            self._ledger.refused[key] = self._ledger.refused.get(key, 0) + 1
            if len(self._ledger.quoted) < 5:
                self._ledger.quoted.append(f"{key}: {answer}")
        if code < 500:
            raise OSError(f"{path} was refused with {code}: {answer}")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
