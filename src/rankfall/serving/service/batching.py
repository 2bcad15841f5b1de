"""Batching: a bounded queue of requests, computed in batches by a few threads.

A batch never waits to be filled. The requests that arrive while all threads are busy are computed by the next free
threads, each of which takes its share. No request waits beyond its deadline.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from statistics import median_low
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.serving.request_encoder import EncodedRequests, RequestError
from rankfall.serving.service import settings as limits
from rankfall.serving.service.http_io import RETRY_AFTER, ApiError, deadline_exceeded, invalid_field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.serving.service.bundle_slots import ServedBundle

_log = logging.getLogger(__name__)
_RECENT_BATCHES = 9  # the next batch is expected to take their median time


@dataclass(frozen=True, slots=True)
class CallResult:
    """The rankings of a call, or the return value of its `work`, and the time of every step."""

    content: Any
    milliseconds: dict[str, float]


@dataclass(eq=False, slots=True, kw_only=True)
class PendingCall:
    """A call that waits for its result. It keeps the bundle it was encoded for, even if that is replaced meanwhile.

    Args:
        served: The bundle that computes the result.
        batch: The encoded requests.
        deadline: Time of the monotonic clock at which the call fails.
        explain: Whether the result includes the traces of the stages.
        sampled: Which of the requests are sampled.
        work: A function to compute instead of a ranking; it is not batched.
        arrived: Time of the monotonic clock at which the call was made.
        future: Receives the result.
    """

    served: ServedBundle
    batch: EncodedRequests
    deadline: float
    explain: bool = False
    sampled: NDArray[np.bool_] | None = None
    work: Callable[[], Any] | None = None
    arrived: float = field(default_factory=monotonic)
    future: asyncio.Future[CallResult] = field(init=False)

    @property
    def count(self) -> int:
        """Number of requests of the call."""
        return len(self.batch)

    def can_join(self, other: PendingCall) -> bool:
        """Whether both calls can be computed in one batch."""
        return (
            self.work is other.work is None
            and self.served is other.served
            and self.explain == other.explain
            and (self.sampled is None) == (other.sampled is None)
        )


class _InvalidCallError(Exception):
    """An invalid request in a batch: the call it belongs to, and a message with its index within that call."""

    def __init__(self, error: RequestError, calls: Sequence[PendingCall]) -> None:
        place, rest = error.request, iter(calls)
        call = next(rest)
        while place >= call.count:
            place -= call.count
            call = next(rest)
        super().__init__(str(error).replace(f"requests[{error.request}]", f"requests[{place}]", 1))
        self.call = call


class Batcher:
    """The queue and the threads that compute its requests.

    Args:
        threads: Number of threads.
        batch: Maximum number of requests per batch; a call with more is computed alone.
        queue: Maximum number of requests that wait.
        on_batch: Called with the number of requests of each batch and the milliseconds of its stages.
    """

    def __init__(
        self, *, threads: int, batch: int, queue: int, on_batch: Callable[[int, dict[str, float]], None]
    ) -> None:
        self._max_batch = batch
        self._max_waiting = queue
        self._on_batch = on_batch
        self._queue: deque[PendingCall] = deque()
        self._waiting = 0  # requests in the queue
        self._lock = threading.Lock()  # of the queue, the number of idle threads and the batch times
        self._wakeups = SimpleQueue[None]()  # one entry wakes one idle thread; faster than a condition
        self._idle = 0  # threads that wait for a wakeup that is not sent yet
        self._stopping = False
        self._recent_seconds: deque[float] = deque(maxlen=_RECENT_BATCHES)
        self._batch_seconds = 0.0  # their median
        names = [f"rankfall-batches-{place}" for place in range(threads)]
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the threads; results are delivered to the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop the threads, and wait at most `seconds` for their current batches."""
        self._stopping = True
        end = monotonic() + seconds
        for _ in self._threads:
            self._wakeups.put(None)
        for thread in self._threads:
            thread.join(max(0.0, end - monotonic()))

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return self._waiting

    @property
    def is_working(self) -> bool:
        """Whether all threads are running."""
        return all(thread.is_alive() for thread in self._threads) and not self._stopping

    def check_queue(self, seconds: float) -> None:
        """Refuse a call that is not read yet if the queue is full or takes much longer than `seconds`.

        The call may set a longer deadline than the default, so that only a queue of several batches counts as slow.
        """
        self._check_capacity(1, seconds, slow_from=2 * self._max_batch)

    def _check_capacity(self, count: int, seconds: float, slow_from: int) -> None:
        """Refuse `count` requests if the queue is full, or has `slow_from` requests and takes more than `seconds`."""
        waiting = self._waiting
        parallel = self._max_batch * len(self._threads)
        is_slow = waiting >= slow_from and (waiting / parallel + 1) * self._batch_seconds > seconds
        if waiting + count > self._max_waiting or is_slow:
            limit = f"at most {self._max_waiting:,} may be queued"
            limit = "the queue takes longer than the deadline" if is_slow else limit
            message = f"requests: {waiting:,} are queued and {count:,} arrived, {limit}; try again"
            raise ApiError(503, message, headers=RETRY_AFTER, reason="queue")

    async def compute(self, call: PendingCall) -> CallResult:
        """Queue a call and return its result.

        Raises:
            ApiError: 503 if the queue is full or too slow, 504 at the deadline, 422 for an invalid request.
        """
        loop = asyncio.get_running_loop()
        call.future = loop.create_future()
        seconds = call.deadline - monotonic()
        if seconds <= 0:
            raise deadline_exceeded()
        timer = loop.call_later(seconds, self.cancel, call, deadline_exceeded())
        try:
            self._put(call, seconds)
            return await call.future
        finally:
            timer.cancel()

    def cancel(self, call: PendingCall, error: Exception) -> None:
        """Fail a call with an error, and remove it from the queue if its computation has not started."""
        if not call.future.done():
            call.future.set_exception(error)
        with self._lock:
            if call in self._queue:
                self._queue.remove(call)
                self._waiting -= call.count

    def _put(self, call: PendingCall, seconds: float) -> None:
        with self._lock:
            # A call that finds an empty queue is always accepted; otherwise one slow batch would block all later calls.
            self._check_capacity(call.count, seconds, slow_from=1)
            self._queue.append(call)
            self._waiting += call.count
            wakes_thread = self._idle > 0
            self._idle -= wakes_thread
        if wakes_thread:  # after all calls that arrive in the same iteration of the event loop
            asyncio.get_running_loop().call_soon(self._wakeups.put, None)

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._compute_next():
            pass

    def _compute_next(self) -> bool:
        """Compute one batch; return False at the end.

        All references to the calls end with this function. Otherwise an idle thread would keep a replaced bundle.
        """
        calls = self._take()
        if not calls:
            return False
        start = monotonic()
        results = self._results(calls, start)
        if calls[0].work is None and sum(call.count for call in calls) <= self._max_batch:
            with self._lock:
                self._recent_seconds.append(monotonic() - start)
                self._batch_seconds = median_low(self._recent_seconds)
        return self._call_in_loop(_deliver, calls, results)

    def _take(self) -> list[PendingCall]:
        """Wait for the next batch and remove it from the queue; return an empty list at the end."""
        while True:
            with self._lock:
                calls = self._take_first_batch() if self._queue else []
                if calls or self._stopping:
                    return calls
                self._idle += 1
            self._wakeups.get()

    def _take_first_batch(self) -> list[PendingCall]:
        earliest_end = monotonic() + self._batch_seconds
        open_calls = [call for call in self._queue if not call.future.done()]
        in_time = [call for call in open_calls if call.deadline >= earliest_end]
        too_late = [call for call in open_calls if call.deadline < earliest_end]
        if too_late and not in_time:  # compute one anyway: only a batch shows how long batches take now
            in_time.append(too_late.pop())
        for call in too_late:  # its result would miss the deadline and delay other calls
            self._call_in_loop(_fail, call, deadline_exceeded())
        batch, rest, count = in_time[:1], deque[PendingCall](), sum(call.count for call in in_time[:1])
        # A batch takes about as long as its requests one after another, so that the threads share the queue evenly.
        share = -(-sum(call.count for call in in_time) // len(self._threads))
        for call in in_time[1:]:
            if count + call.count <= min(share, self._max_batch) and call.can_join(batch[0]):
                batch.append(call)
                count += call.count
            else:
                rest.append(call)
        self._queue = rest
        self._waiting = sum(call.count for call in rest)
        return batch

    def _call_in_loop(self, function: Callable[..., None], *arguments: object) -> bool:
        """Call a function in the event loop; return whether the loop is still running."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed, and with it all connections
            return False
        return True

    def _results(self, calls: Sequence[PendingCall], start: float) -> list[CallResult | Exception]:
        """Compute calls together, without those that turn out to be invalid, or one by one if that fails."""
        invalid: dict[PendingCall, CallResult | Exception] = {}
        rest = list(calls)
        while len(rest) > 1 and len(invalid) < limits.BATCH_ATTEMPTS:
            try:
                results = invalid | self._compute_together(rest, start)
                return [results[call] for call in calls]
            except _InvalidCallError as error:
                invalid[error.call] = invalid_field(str(error))
                rest.remove(error.call)
            except Exception:
                _log.exception("a batch of %d calls failed; each is computed alone", len(rest))
                break
        results = invalid | {call: self._compute_alone(call, start) for call in rest}
        return [results[call] for call in calls]

    def _compute_together(
        self, calls: Sequence[PendingCall], start: float
    ) -> dict[PendingCall, CallResult | Exception]:
        first = calls[0]
        joined = EncodedRequests.join([call.batch for call in calls])
        sampled = [call.sampled for call in calls if call.sampled is not None]
        try:
            answers = first.served.bundle.run(
                joined, explain=first.explain, sampled=np.concatenate(sampled) if sampled else None
            )
        except RequestError as error:
            raise _InvalidCallError(error, calls) from None
        self._on_batch(len(joined), answers.milliseconds)
        results: dict[PendingCall, CallResult | Exception] = {}
        place = 0
        for call in calls:
            times = {"queue": 1000 * (start - call.arrived), **answers.milliseconds}
            results[call] = CallResult(answers.rankings[place : place + call.count], times)
            place += call.count
        return results

    def _compute_alone(self, call: PendingCall, start: float) -> CallResult | Exception:
        if call.future.done():
            return deadline_exceeded()
        try:
            return CallResult(call.work(), {}) if call.work is not None else self._compute_together([call], start)[call]
        except (RequestError, _InvalidCallError) as error:
            return invalid_field(str(error))
        except Exception:
            _log.exception("a call failed")
            return ApiError(500, "internal error; the log of the service has details")


def _deliver(calls: Sequence[PendingCall], results: Sequence[CallResult | Exception]) -> None:
    for call, result in zip(calls, results, strict=True):
        if isinstance(result, Exception):
            _fail(call, result)
        elif not call.future.done():
            call.future.set_result(result)


def _fail(call: PendingCall, error: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(error)
