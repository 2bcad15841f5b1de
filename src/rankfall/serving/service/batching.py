"""Requests of many callers, answered together by a few threads.

There is no waiting for a batch to fill: whoever came while all threads were at work is answered by those that are free
next, each of which takes its share. The line of those who wait is bounded, and nobody waits beyond a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from rankfall.serving.request_encoder import Batch, RequestError
from rankfall.serving.service.http_io import RETRY, RefusedError, late, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.serving.results import Ranking
    from rankfall.serving.service.bundle_slots import Served

_log = logging.getLogger(__name__)
_RECENT = 9  # batches whose median is expected of the next
_TRIES = 3  # of a batch, without those of its requests that are wrong


@dataclass(frozen=True, slots=True)
class Answered:
    """The rankings of one caller, or what else was asked, and how long everything took."""

    content: Any
    milliseconds: dict[str, float]


@dataclass(eq=False, slots=True)
class Pending:
    """A caller who waits. It keeps the bundle that it came to, whatever is served meanwhile."""

    served: Served
    count: int  # requests
    deadline: float
    answer: asyncio.Future[Answered]
    batch: Batch | None = None
    explain: bool = False
    work: Callable[[], Any] | None = None  # something else than a ranking, which is done alone
    arrived: float = field(default_factory=monotonic)

    def goes_with(self, other: Pending) -> bool:
        """Whether both can be answered by one call."""
        return (
            self.batch is not None
            and other.batch is not None
            and self.served is other.served
            and self.explain == other.explain
        )


class _WrongError(Exception):
    """A request of a batch is wrong: whose it is, and a message with its number in that call."""

    def __init__(self, error: RequestError, taken: Sequence[Pending]) -> None:
        place, callers = error.request, iter(taken)
        pending = next(callers)
        while place >= pending.count:
            place -= pending.count
            pending = next(callers)
        super().__init__(str(error).replace(f"requests[{error.request}]", f"requests[{place}]", 1))
        self.pending = pending


class Batcher:
    """The line, and the threads that work on it."""

    def __init__(
        self, *, threads: int, batch: int, queue: int, on_batch: Callable[[int, dict[str, float]], None]
    ) -> None:
        self._batch = batch
        self._queue = queue
        self._on_batch = on_batch  # hears the requests of a batch and the milliseconds of every stage
        self._line: deque[Pending] = deque()
        self._waiting = 0  # requests in the line
        self._lock = threading.Lock()  # of the line, of who sleeps, and of what batches took
        self._bell = SimpleQueue[None]()  # rung for a thread that sleeps; faster than a condition
        self._asleep = 0  # threads for which it was not rung yet
        self._stopping = False
        self._recent: deque[float] = deque(maxlen=_RECENT)  # seconds of batches
        self._usual = 0.0  # their median
        names = [f"rankfall-batches-{place}" for place in range(threads)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to work, for callers of the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """End when the batches at work are done."""
        self._stopping = True
        ends = monotonic() + seconds
        for _ in self._threads:
            self._bell.put(None)
        for thread in self._threads:
            thread.join(max(0.0, ends - monotonic()))

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._waiting

    @property
    def is_working(self) -> bool:
        """Whether there is somebody to answer."""
        return all(thread.is_alive() for thread in self._threads) and not self._stopping

    def check_line(self, seconds: float) -> None:
        """Refuse a call of which nothing is known yet if the line is full, or takes far more than so many seconds."""
        # a call may have more time than that, so that only a line of several batches is a reason
        self._check_room(1, seconds, 2 * self._batch)

    def _check_room(self, count: int, seconds: float, at_least: int) -> None:
        """Refuse if the line is full, or if `at_least` so many wait and that takes longer than so many seconds."""
        waiting = self._waiting
        at_once = self._batch * len(self._threads)
        is_slow = waiting >= at_least and (waiting / at_once + 1) * self._usual > seconds
        if waiting + count > self._queue or is_slow:
            limit = "there is no time for more before the deadline" if is_slow else f"at most {self._queue:,} may wait"
            message = f"requests: {waiting:,} wait and {count:,} came, {limit}; try again"
            raise RefusedError(503, message, headers=[RETRY], reason="queue")

    async def answer(self, pending: Pending) -> Answered:
        """Wait for an answer, at most until the deadline."""
        loop = asyncio.get_running_loop()
        left = pending.deadline - monotonic()
        if left <= 0:
            raise late()
        timer = loop.call_later(left, self.drop, pending, late())
        try:
            self._put(pending, left)
            return await pending.answer
        finally:
            timer.cancel()

    def drop(self, pending: Pending, error: Exception) -> None:
        """Tell a caller that there will be no answer, and forget the request if nobody works on it yet."""
        if not pending.answer.done():
            pending.answer.set_exception(error)
        with self._lock:
            if pending in self._line:
                self._line.remove(pending)
                self._waiting -= pending.count

    def _put(self, pending: Pending, seconds: float) -> None:
        with self._lock:
            # whoever finds nobody waiting is let in, or else one slow batch would keep everybody out for ever
            self._check_room(pending.count, seconds, at_least=1)
            self._line.append(pending)
            self._waiting += pending.count
            is_needed = self._asleep > 0
            self._asleep -= is_needed
        if is_needed:  # after everybody who came in the same moment
            asyncio.get_running_loop().call_soon(self._bell.put, None)

    # --- the threads --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._answer_some():
            pass

    def _answer_some(self) -> bool:
        """Answer what is waiting. Nothing of it may outlive this call: a bundle that was replaced would stay."""
        taken = self._take()
        if not taken:
            return False
        begin = monotonic()
        results = self._results(taken, begin)
        if taken[0].batch is not None and sum(pending.count for pending in taken) <= self._batch:
            self._note(monotonic() - begin)
        return self._tell(_deliver, taken, results)

    def _note(self, seconds: float) -> None:
        with self._lock:
            self._recent.append(seconds)
            self._usual = sorted(self._recent)[(len(self._recent) - 1) // 2]

    def _take(self) -> list[Pending]:
        """The first in the line and those who can be answered with it; none if the work is over."""
        while True:
            with self._lock:
                taken = self._first_batch() if self._line else []
                if taken or self._stopping:
                    return taken
                self._asleep += 1
            self._bell.get()

    def _first_batch(self) -> list[Pending]:
        soon = monotonic() + self._usual
        wanted = [pending for pending in self._line if not pending.answer.done()]
        in_time = [pending for pending in wanted if pending.deadline >= soon]
        too_late = [pending for pending in wanted if pending.deadline < soon]
        if too_late and not in_time:  # what a batch takes is known from batches alone, so that one is always tried
            in_time.append(too_late.pop())
        for pending in too_late:  # its answer would come too late, and others would wait for it
            self._tell(_fail, pending, late())
        taken, rest, count = in_time[:1], deque[Pending](), sum(pending.count for pending in in_time[:1])
        # a batch takes about as long as its requests one after another, so that nobody is to have all of them
        share = -(-sum(pending.count for pending in in_time) // len(self._threads))
        for pending in in_time[1:]:
            if count + pending.count <= min(share, self._batch) and pending.goes_with(taken[0]):
                taken.append(pending)
                count += pending.count
            else:
                rest.append(pending)
        self._line = rest
        self._waiting = sum(pending.count for pending in rest)
        return taken

    def _tell(self, what: Callable[..., None], *arguments: object) -> bool:
        """Do something in the event loop; whether it still runs."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # it is closed: nobody waits any more
            return False
        return True

    def _results(self, taken: Sequence[Pending], begin: float) -> list[Answered | Exception]:
        wrong: dict[Pending, Answered | Exception] = {}
        rest = list(taken)
        while len(rest) > 1 and len(wrong) < _TRIES:
            try:
                return _in_order(taken, wrong | self._together(rest, begin))
            except _WrongError as error:  # which is no fault of the others
                wrong[error.pending] = named(str(error))
                rest.remove(error.pending)
            except Exception:
                _log.exception("a batch of %d calls failed, each is answered alone", len(rest))
                break
        return _in_order(taken, wrong | {pending: self._alone(pending, begin) for pending in rest})

    def _together(self, taken: Sequence[Pending], begin: float) -> dict[Pending, Answered | Exception]:
        first = taken[0]
        joined = Batch.join([pending.batch for pending in taken if pending.batch is not None])
        try:
            answers = first.served.bundle.run(joined, explain=first.explain)
        except RequestError as error:
            raise _WrongError(error, taken) from None
        self._on_batch(len(joined), answers.milliseconds)
        results: dict[Pending, Answered | Exception] = {}
        start = 0
        for pending in taken:
            part = answers.rankings[start : start + pending.count]
            results[pending] = _answered(pending, part, answers.milliseconds, begin)
            start += pending.count
        return results

    def _alone(self, pending: Pending, begin: float) -> Answered | Exception:
        if pending.answer.done():
            return late()
        try:
            if pending.work is not None:
                return Answered(pending.work(), {})
            assert pending.batch is not None
            answers = pending.served.bundle.run(pending.batch, explain=pending.explain)
            self._on_batch(pending.count, answers.milliseconds)
            return _answered(pending, answers.rankings, answers.milliseconds, begin)
        except RequestError as error:
            return named(str(error))
        except Exception:
            _log.exception("a call failed")
            return RefusedError(500, "the service failed to answer, which its log explains")


def _in_order(taken: Sequence[Pending], results: dict[Pending, Answered | Exception]) -> list[Answered | Exception]:
    return [results[pending] for pending in taken]


def _answered(pending: Pending, part: list[Ranking], milliseconds: dict[str, float], begin: float) -> Answered:
    return Answered(part, {"queue": 1000 * (begin - pending.arrived), **milliseconds})


def _deliver(taken: Sequence[Pending], results: Sequence[Answered | Exception]) -> None:
    for pending, result in zip(taken, results, strict=True):
        if isinstance(result, Exception):
            _fail(pending, result)
        elif not pending.answer.done():
            pending.answer.set_result(result)


def _fail(pending: Pending, error: Exception) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)
