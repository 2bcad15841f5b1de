"""Events of a load generator: some answers are followed by ``POST /events``, on connections of their own."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from rankfall.benchmarks.serving.load_generator import Connection, Outcome

_MOST_CONNECTIONS = 32


class EventPosts:
    """Reports events, each in a call of its own.

    Args:
        connect: Opens a connection.
        outcome: Receives the ids of acknowledged events and their times.
        share: Share of answers that are followed by an event.
        seed: Seed of the choices.
    """

    def __init__(
        self, connect: Callable[[], Coroutine[Any, Any, Connection]], outcome: Outcome, share: float, seed: int
    ) -> None:
        self._connect = connect
        self._outcome = outcome
        self._share = share
        self._chance = random.Random(seed)
        self._writer = secrets.token_hex(4)  # ids of events differ from those of other generators
        self._number = 0
        self._free: list[Connection] = []
        self._open = 0
        self._queue: deque[tuple[str, bytes, float]] = deque()  # id, call and time of events
        self._opening: set[asyncio.Task[None]] = set()
        self.waiting = 0

    def react(self, answer: Mapping[str, Any]) -> None:
        """Report a click on an item of an answer, or nothing."""
        if self._chance.random() >= self._share or not answer["ids"]:
            return
        self._number += 1
        event = {
            "id": f"{self._writer}-{self._number}",
            "request": answer["request"],
            "item": self._chance.choice(answer["ids"]),
            "kind": "click",
        }
        body = json.dumps({"events": [event]}).encode()
        head = "POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        self.waiting += 1
        self._queue.append((event["id"], f"{head}{len(body)}\r\n\r\n".encode() + body, time.perf_counter()))
        self._send()

    def _send(self) -> None:
        while self._queue and self._free:
            connection = self._free.pop()
            if connection.closed:
                self._open -= 1
            else:
                self._post(connection, *self._queue.popleft())
        if self._queue and self._open < _MOST_CONNECTIONS:
            self._open += 1
            task = asyncio.get_running_loop().create_task(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_one(self) -> None:
        try:
            self._free.append(await self._connect())
        except OSError as error:
            self._open -= 1
            if self._queue:
                self._queue.popleft()
                self._refuse("not connected", str(error))
        self._send()

    def _post(self, connection: Connection, name: str, call: bytes, begin: float) -> None:
        def done(code: int, body: bytes) -> None:
            if code == 200:
                self.waiting -= 1
                self._outcome.events.append(name)
                self._outcome.event_ms.append((time.perf_counter() - begin) * 1e3)
            else:
                self._refuse(str(code), body.decode(errors="replace"))
            self._free.append(connection)
            self._send()

        connection.ask(call, done)

    def _refuse(self, code: str, why: str) -> None:
        self.waiting -= 1
        self._outcome.events_refused[code] = self._outcome.events_refused.get(code, 0) + 1
        self._outcome.quote(f"event, {code}: {why}")
