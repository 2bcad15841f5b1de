"""A process that asks a service: raw HTTP/1.1 over connections that stay open, with bodies made beforehand.

In a closed loop so many clients each ask again as soon as they are answered, which finds the largest rate. In an open
loop requests arrive at random times, or at equal distances, whether or not earlier ones were answered, and their time
counts from when they should have been sent: nothing that a slow service delays is left out. By how much this process
itself was behind, and how much it sent in time, is measured beside it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
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

from rankfall.benchmarks.serving.answer_check import Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from rankfall.benchmarks.serving.answer_check import Strangers

    Done = Callable[[int, bytes], None]

LOST = 0  # in place of a code: the connection ended, or nothing came
_MOST_CONNECTIONS = 512  # more than a service lets wait by default; select() takes 1024 files
_IDLE = 2.0  # seconds after which a connection is not used again; services close those that are idle for longer
_QUOTED = 5  # answers that are not as expected, kept to be looked at


@dataclass(frozen=True)
class Job:
    """What is asked, and how."""

    port: int
    bodies: str  # a file with one body a line
    seconds: float
    clients: int = 1  # of a closed loop,
    rate: float | None = None  # or the requests a second of an open one,
    even: bool = False  # which come at equal distances, not at random times
    warm_up: float = 0.0  # seconds before them that do not count
    patience: float = 30.0  # seconds that answers are waited for at the end
    expected: str | None = None  # a file with the answers of each model, see Judge
    seed: int = 0


@dataclass
class Outcome:
    """What came of it. Times are in milliseconds; of a warm-up only `asked` knows."""

    seconds: float = 0.0
    asked: int = 0
    in_time: int = 0  # answered within the seconds
    sent: int = 0  # of those that count, within the seconds
    unsent: int = 0  # never, for want of a free connection
    latency: dict[int, list[float]] = field(default_factory=dict)  # by code, from when requests were due
    late: list[float] = field(default_factory=list)  # from then until this process got to them, which is its own fault
    slowest: float = 0.0  # from when it got to one until that was answered, with any wait for a connection
    parts: dict[str, list[float]] = field(default_factory=dict)  # what the service says that it took, by stage
    models: dict[str, int] = field(default_factory=dict)  # which answered
    verdicts: dict[str, int] = field(default_factory=dict)
    strangers: list[Strangers] = field(default_factory=list)  # see Judge
    quoted: list[str] = field(default_factory=list)  # some of what is wrong, or was not answered

    def add(self, due: float, reached: float, end: float, code: int) -> None:
        """Note a request that counts."""
        self.latency.setdefault(code, []).append((end - due) * 1e3)
        self.late.append((reached - due) * 1e3)
        self.slowest = max(self.slowest, (end - reached) * 1e3)

    def read(self, answer: Any) -> None:
        """Note what an answer says of itself."""
        self.models[answer["model"]] = self.models.get(answer["model"], 0) + 1
        for name, milliseconds in answer["milliseconds"].items():
            self.parts.setdefault(name, []).append(milliseconds)

    def quote(self, text: str) -> None:
        """Keep the first few of what is not as it should be."""
        if len(self.quoted) < _QUOTED:
            self.quoted.append(text[:500])

    def codes(self) -> dict[int, int]:
        """How many requests had which answer."""
        return {code: len(of) for code, of in sorted(self.latency.items())}

    def not_answered(self) -> dict[int, int]:
        """How many requests had an error, by its code."""
        return {code: count for code, count in self.codes().items() if code != 200}

    @property
    def sent_share(self) -> float:
        """How much of what was due within the seconds was sent within them."""
        due = sum(self.codes().values()) + self.unsent
        return self.sent / due if due else 1.0


# --- for those who start it ---------------------------------------------------------------------------------------


@contextmanager
def started(job: Job) -> Iterator[Callable[[float | None], Outcome | None]]:
    """A process at work; gives a function that waits so many seconds for what comes of it, None: until the end."""
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(scratch, "job.json"), Path(scratch, "outcome.json")
        files[0].write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "rankfall.benchmarks.serving.load_generator", *map(str, files)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        def wait(seconds: float | None) -> Outcome | None:
            try:
                _, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return None
            if process.returncode:
                raise OSError(f"the process that asks the service ended with {process.returncode}: {errors[-2000:]}")
            found = json.loads(files[1].read_text())
            return Outcome(**found | {"latency": {int(code): of for code, of in found["latency"].items()}})

        try:
            yield wait
        finally:
            process.kill()
            process.wait()


def drive(job: Job) -> Outcome:
    """Do a job to its end."""
    with started(job) as wait:
        outcome = wait(None)
    assert outcome is not None  # the end has come
    return outcome


def write_bodies(path: Path, bodies: list[Any]) -> None:
    """Bodies as jobs read them."""
    path.write_text("".join(json.dumps(body, separators=(",", ":")) + "\n" for body in bodies))


# --- the process --------------------------------------------------------------------------------------------------


class _Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self.since = time.perf_counter()  # when it was last used
        self._done: Done | None = None
        self._received = b""
        self._body = 0  # where it starts,
        self._length = 0  # and where it ends

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes, done: Done) -> None:
        self._done = done
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def give_up(self) -> None:
        """Close it whatever it waits for, of which nobody hears any more."""
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


class _Work:
    """What is common to both loops: bodies in turn, and what comes of them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome = Outcome()
        self.judge = None if job.expected is None else Judge.read(Path(job.expected))
        head = "POST /rank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        self.requests = [
            f"{head}{len(body)}\r\n\r\n".encode() + body for body in Path(job.bodies).read_bytes().splitlines()
        ]
        self._places = count()
        self.counted = self.ends = 0.0  # when the warm-up is over, and when all is
        self.waiting = 0  # for answers
        self._connections: list[_Connection] = []
        self._verdicts: Counter[str] = Counter()

    async def connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", self.job.port)
        self._connections.append(connection)
        return connection

    def ask(self, connection: _Connection, due: float, reached: float, then: Callable[[], None]) -> None:
        """Ask the next request, see `Outcome.add`; `then` comes before its answer is looked at."""
        place = next(self._places) % len(self.requests)
        self.outcome.asked += 1
        self.outcome.sent += due >= self.counted and time.perf_counter() < self.ends
        self.waiting += 1

        def done(code: int, body: bytes) -> None:
            end = time.perf_counter()
            self.waiting -= 1
            then()
            self.outcome.in_time += code == 200 and self.counted <= end < self.ends
            if due >= self.counted:
                self._note(place, (due, reached, end), code, body)

        connection.ask(self.requests[place], done)

    def _note(self, place: int, times: tuple[float, float, float], code: int, body: bytes) -> None:
        self.outcome.add(*times, code)
        if code != 200:
            self.outcome.quote(f"{code}: {body.decode(errors='replace')}")
            return
        answer = orjson.loads(body)
        self.outcome.read(answer)
        if self.judge is not None:
            verdict, why = self.judge(place, answer)
            self._verdicts[verdict] += 1
            if why:
                self.outcome.quote(f"{verdict}, request {place}: {why}")

    def lose(self, due: float, reached: float, error: OSError) -> None:
        """Note a request that nobody took."""
        now = time.perf_counter()
        self.outcome.asked += 1
        self.outcome.sent += due >= self.counted and now < self.ends
        self.outcome.add(due, reached, now, LOST)
        self.outcome.quote(f"not connected: {error}")

    def start(self) -> float:
        """Begin with the warm-up, and say when that is."""
        begin = time.perf_counter()
        self.counted = begin + self.job.warm_up
        self.ends = self.counted + self.job.seconds
        return begin

    async def finish(self, queue: Collection[Any] = ()) -> Outcome:
        """Wait for what was not answered yet, and for what waits to be sent."""
        gives_up = time.perf_counter() + self.job.patience
        while (self.waiting or queue) and time.perf_counter() < gives_up:
            await asyncio.sleep(0.01)
        self.outcome.unsent = len(queue)
        for connection in self._connections:
            connection.give_up()
        self.outcome.seconds = self.job.seconds
        for _ in range(self.waiting):
            self.outcome.add(0.0, 0.0, self.job.patience, LOST)
        self.outcome.verdicts = dict(self._verdicts)
        self.outcome.strangers = [] if self.judge is None else self.judge.strangers
        return self.outcome


async def _closed_loop(work: _Work) -> Outcome:
    """Clients that ask again as soon as they are answered."""
    connections = [await work.connect() for _ in range(work.job.clients)]
    work.start()

    def again(connection: _Connection) -> None:
        now = time.perf_counter()
        if now < work.ends and not connection.closed:
            work.ask(connection, now, now, lambda: again(connection))

    for connection in connections:
        again(connection)
    await asyncio.sleep(work.job.warm_up + work.job.seconds)
    return await work.finish()


def distances(rate: float, *, even: bool, seed: int) -> Iterator[float]:
    """Seconds from one request to the next, for so many a second."""
    dice = random.Random(seed)
    while True:
        yield 1 / rate if even else dice.expovariate(rate)


class _OpenLoop:
    """Requests at certain times, on whichever connection is free."""

    def __init__(self, work: _Work, rate: float) -> None:
        self._work = work
        self._distances = distances(rate, even=work.job.even, seed=work.job.seed)
        self._free: list[_Connection] = []
        self._open = 0
        self._queue: deque[tuple[float, float]] = deque()  # requests that found no connection: due, and got to
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        due = self._work.start()
        while (due := due + next(self._distances)) < self._work.ends:
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            self._send(due)
            if ahead <= 0:
                await asyncio.sleep(0)  # answers are read, however late it is
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

    def _ask(self, connection: _Connection, due: float, reached: float) -> None:
        self._work.ask(connection, due, reached, lambda: self._release(connection))

    def _release(self, connection: _Connection) -> None:
        if connection.closed:
            self._open -= 1
            if self._queue:  # somebody waited for it
                self._open_one()
        elif self._queue:
            self._ask(connection, *self._queue.popleft())
        else:
            self._free.append(connection)


async def _run(job: Job) -> Outcome:
    work = _Work(job)
    gc.freeze()  # bodies and expected answers need no more looking at
    return await (_closed_loop(work) if job.rate is None else _OpenLoop(work, job.rate).run())


def main(job: Path, outcome: Path) -> None:
    """Do the job of a file."""
    # epoll waits for whole milliseconds, select for as long as it is told
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        found = runner.run(_run(Job(**json.loads(job.read_text()))))
    outcome.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
