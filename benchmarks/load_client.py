"""The checked load client, in a separate process: raw HTTP/1.1 over persistent connections, with prepared bodies.

In a closed loop each client sends its next request as soon as the last one is answered; this finds the largest rate.
In an open loop requests arrive at random times or at equal intervals, whether or not earlier ones are answered. Their
latency counts from the time at which they were due, so that it includes all waiting that a slow service causes. The
delay of the client itself and the share of requests sent in time are measured as well. Some answers are followed by
``POST /events``, on connections of their own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import secrets
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks import module_environment
from benchmarks.answer_check import AnswerChecker

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping

    from benchmarks.answer_check import UnexpectedItems

    Done = Callable[[int, bytes], None]

LOST = 0  # instead of a status code: the connection ended without a response
_MOST_CONNECTIONS = 512  # more than the default queue of a service; select() is limited to 1024 files
_IDLE = 2.0  # seconds after which an idle connection is not reused, because the service may close it
_MOST_EVENT_CONNECTIONS = 32  # for events
_QUOTED = 5  # unexpected responses that are kept for the report


@dataclass(frozen=True)
class Job:
    """The requests to send, and how."""

    port: int
    bodies: str  # file with one body per line
    seconds: float
    clients: int = 1  # of a closed loop
    rate: float | None = None  # requests per second of an open loop; None for a closed one
    even: bool = False  # whether an open loop sends at equal intervals instead of random times
    warm_up: float = 0.0  # seconds before the measurement
    patience: float = 30.0  # seconds to wait for the last responses
    expected: str | None = None  # file with the answers of each model, see AnswerChecker
    events: float | None = None  # share of answers whose clients report an event; None: ids are not noted either
    seed: int = 0


@dataclass
class Outcome:
    """The result of a job. Times are in milliseconds; `asked` and what concerns events include the warm-up."""

    seconds: float = 0.0
    asked: int = 0
    in_time: int = 0  # answered within the seconds
    sent: int = 0  # sent within the seconds, without the warm-up
    unsent: int = 0  # never sent, because no connection was free
    latency: dict[int, list[float]] = field(default_factory=dict)  # by status code, from the due times
    late: list[float] = field(default_factory=list)  # delay of the generator itself
    slowest: float = 0.0  # longest time until a response, including the wait for a connection
    parts: dict[str, list[float]] = field(default_factory=dict)  # times reported by the service, by stage
    models: dict[str, int] = field(default_factory=dict)  # answers by model
    verdicts: dict[str, int] = field(default_factory=dict)
    unexpected: list[UnexpectedItems] = field(default_factory=list)  # see AnswerChecker
    quoted: list[str] = field(default_factory=list)  # some wrong answers and errors
    answered: list[str] = field(default_factory=list)  # ids of requests, if events are reported
    events: list[str] = field(default_factory=list)  # ids of acknowledged events
    event_ms: list[float] = field(default_factory=list)  # until they were acknowledged
    events_refused: dict[str, int] = field(default_factory=dict)  # by status code

    def add(self, due: float, reached: float, end: float, code: int) -> None:
        """Record a request of the measurement."""
        self.latency.setdefault(code, []).append((end - due) * 1e3)
        self.late.append((reached - due) * 1e3)
        self.slowest = max(self.slowest, (end - reached) * 1e3)

    def read(self, answer: Any) -> None:
        """Record the model and the stage times of an answer."""
        self.models[answer["model"]] = self.models.get(answer["model"], 0) + 1
        for name, milliseconds in answer["milliseconds"].items():
            self.parts.setdefault(name, []).append(milliseconds)

    def quote(self, text: str) -> None:
        """Keep the first few unexpected responses."""
        if len(self.quoted) < _QUOTED:
            self.quoted.append(text[:500])

    def codes(self) -> dict[int, int]:
        """Return the number of requests by status code."""
        return {code: len(of) for code, of in sorted(self.latency.items())}

    def not_answered(self) -> dict[int, int]:
        """Return the number of requests without an answer by status code."""
        return {code: count for code, count in self.codes().items() if code != 200}

    @property
    def sent_share(self) -> float:
        """Share of the due requests that were sent in time."""
        due = sum(self.codes().values()) + self.unsent
        return self.sent / due if due else 1.0


# --- starting the process -----------------------------------------------------------------------------------------


@contextmanager
def started(job: Job) -> Iterator[Callable[[float | None], Outcome | None]]:
    """Start a job in a process; yield a function that waits some seconds for its outcome, or until the end for None."""
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch, "job.json"), Path(scratch, "outcome.json")
        files[0].write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "benchmarks.load_client", *map(str, files)]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=module_environment()
        )

        def wait(seconds: float | None) -> Outcome | None:
            try:
                _, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return None
            if process.returncode:
                raise OSError(f"the load generator ended with {process.returncode}: {errors[-2000:]}")
            found = json.loads(files[1].read_text())
            return Outcome(**found | {"latency": {int(code): of for code, of in found["latency"].items()}})

        try:
            yield wait
        finally:
            process.kill()
            process.wait()


def drive(job: Job) -> Outcome:
    """Run a job and return its outcome."""
    with started(job) as wait:
        outcome = wait(None)
    assert outcome is not None  # it waits until the end
    return outcome


def write_bodies(path: Path, bodies: list[Any]) -> None:
    """Write bodies to a file for jobs."""
    path.write_text("".join(json.dumps(body, separators=(",", ":")) + "\n" for body in bodies))


# --- in the process -----------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.since = time.perf_counter()  # time of the last use
        self._done: Done | None = None
        self._received = b""
        self._body = 0  # start of the body
        self._length = 0  # end of the body

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes, done: Done) -> None:
        self._done = done
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def give_up(self) -> None:
        """Close the connection and ignore any outstanding response."""
        self._done = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._length:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body = end + 4
            head = self._received[:end].lower()
            self._length = self._body + int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(self._received) >= self._length:
            code, body = int(self._received[9:12]), self._received[self._body :]
            self._received, self._length = b"", 0
            self._finish(code, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._finish(LOST, f"connection lost: {exc}".encode())

    def _finish(self, code: int, body: bytes) -> None:
        self.since = time.perf_counter()
        done, self._done = self._done, None
        if done is not None:
            done(code, body)


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
        if self._queue and self._open < _MOST_EVENT_CONNECTIONS:
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


class _Work:
    """The common part of both loops: the bodies in turn, and the outcome."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome = Outcome()
        self.checker = None if job.expected is None else AnswerChecker.read(Path(job.expected))
        head = "POST /rank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        self.requests = [
            f"{head}{len(body)}\r\n\r\n".encode() + body for body in Path(job.bodies).read_bytes().splitlines()
        ]
        self._places = count()
        self.counted = self.ends = 0.0  # end of the warm-up, and of the measurement
        self.waiting = 0  # outstanding responses
        self._connections: list[Connection] = []
        self._verdicts: Counter[str] = Counter()
        self._posts = None if job.events is None else EventPosts(self.connect, self.outcome, job.events, job.seed)

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.job.port)
        self._connections.append(connection)
        return connection

    def ask(self, connection: Connection, due: float, reached: float, then: Callable[[], None]) -> None:
        """Send the next request, see `Outcome.add`; `then` is called before its response is checked."""
        place = next(self._places) % len(self.requests)
        self.outcome.asked += 1
        self.outcome.sent += due >= self.counted and time.perf_counter() < self.ends
        self.waiting += 1

        def done(code: int, body: bytes) -> None:
            end = time.perf_counter()
            self.waiting -= 1
            then()
            self.outcome.in_time += code == 200 and self.counted <= end < self.ends
            answer = orjson.loads(body) if code == 200 else None
            if self._posts is not None and answer is not None:
                self.outcome.answered.append(answer["request"])
                self._posts.react(answer)
            if due >= self.counted:
                self._note(place, (due, reached, end), code, body, answer)

        connection.ask(self.requests[place], done)

    def _note(self, place: int, times: tuple[float, float, float], code: int, body: bytes, answer: Any) -> None:
        self.outcome.add(*times, code)
        if answer is None:
            self.outcome.quote(f"{code}: {body.decode(errors='replace')}")
            return
        self.outcome.read(answer)
        if self.checker is not None:
            verdict, why = self.checker(place, answer)
            self._verdicts[verdict] += 1
            if why:
                self.outcome.quote(f"{verdict}, request {place}: {why}")

    def lose(self, due: float, reached: float, error: OSError) -> None:
        """Record a request for which no connection could be opened."""
        now = time.perf_counter()
        self.outcome.asked += 1
        self.outcome.sent += due >= self.counted and now < self.ends
        self.outcome.add(due, reached, now, LOST)
        self.outcome.quote(f"not connected: {error}")

    def start(self) -> float:
        """Start the warm-up and return its time."""
        begin = time.perf_counter()
        self.counted = begin + self.job.warm_up
        self.ends = self.counted + self.job.seconds
        return begin

    @property
    def _reports(self) -> int:
        """Number of events that are not acknowledged yet."""
        return 0 if self._posts is None else self._posts.waiting

    async def finish(self, queue: Collection[Any] = ()) -> Outcome:
        """Wait for outstanding responses and queued requests, and return the outcome."""
        gives_up = time.perf_counter() + self.job.patience
        while (self.waiting or queue or self._reports) and time.perf_counter() < gives_up:
            await asyncio.sleep(0.01)
        self.outcome.unsent = len(queue)
        for connection in self._connections:
            connection.give_up()
        self.outcome.seconds = self.job.seconds
        for _ in range(self.waiting):
            self.outcome.add(0.0, 0.0, self.job.patience, LOST)
        self.outcome.verdicts = dict(self._verdicts)
        self.outcome.unexpected = [] if self.checker is None else self.checker.unexpected
        return self.outcome


async def _closed_loop(work: _Work) -> Outcome:
    """Run clients that send their next request as soon as the last one is answered."""
    connections = [await work.connect() for _ in range(work.job.clients)]
    work.start()

    def again(connection: Connection) -> None:
        now = time.perf_counter()
        if now < work.ends and not connection.closed:
            work.ask(connection, now, now, lambda: again(connection))

    for connection in connections:
        again(connection)
    await asyncio.sleep(work.job.warm_up + work.job.seconds)
    return await work.finish()


def intervals(rate: float, *, even: bool, seed: int) -> Iterator[float]:
    """Yield the seconds from one request to the next for a rate of requests per second."""
    dice = random.Random(seed)
    while True:
        yield 1 / rate if even else dice.expovariate(rate)


class _OpenLoop:
    """Requests at given times, each on any free connection."""

    def __init__(self, work: _Work, rate: float) -> None:
        self._work = work
        self._intervals = intervals(rate, even=work.job.even, seed=work.job.seed)
        self._free: list[Connection] = []
        self._open = 0
        self._queue: deque[tuple[float, float]] = deque()  # requests without a connection: times due and reached
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        due = self._work.start()
        while (due := due + next(self._intervals)) < self._work.ends:
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            self._send(due)
            if ahead <= 0:
                await asyncio.sleep(0)  # responses are read even if the generator is late
        return await self._work.finish(self._queue)

    def _send(self, due: float) -> None:
        reached = time.perf_counter()
        while self._free:
            connection = self._free.pop()
            if not connection.closed and reached - connection.since < _IDLE:
                self._ask(connection, due, reached)
                return
            connection.close()
            self._open -= 1
        self._queue.append((due, reached))
        self._open_one()

    def _open_one(self) -> None:
        if self._open < _MOST_CONNECTIONS:
            self._open += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            connection = await self._work.connect()
        except OSError as error:
            self._open -= 1
            if self._queue:
                self._work.lose(*self._queue.popleft(), error)
            if self._queue:
                self._open_one()
            return
        self._release(connection)

    def _ask(self, connection: Connection, due: float, reached: float) -> None:
        self._work.ask(connection, due, reached, lambda: self._release(connection))

    def _release(self, connection: Connection) -> None:
        if connection.closed:
            self._open -= 1
            if self._queue:  # a request waits for a connection
                self._open_one()
        elif self._queue:
            self._ask(connection, *self._queue.popleft())
        else:
            self._free.append(connection)


async def _run(job: Job) -> Outcome:
    work = _Work(job)
    gc.freeze()  # keep bodies and expected answers out of garbage collection
    return await (_closed_loop(work) if job.rate is None else _OpenLoop(work, job.rate).run())


def main(job: Path, outcome: Path) -> None:
    """Run the job of a file and write its outcome."""
    # epoll waits for whole milliseconds, select for fractions
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        found = runner.run(_run(Job(**json.loads(job.read_text()))))
    outcome.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
