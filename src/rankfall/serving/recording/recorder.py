"""Record answered requests in a thread of its own, which never delays an answer."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from rankfall.serving.recording.guarded_sink import GuardedSink
from rankfall.serving.recording.record_schemas import SAMPLES
from rankfall.serving.recording.sample_records import sample_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from rankfall.serving.recording.sample_records import ServedRequest
    from rankfall.serving.recording.sinks.sink import Sink

_log = logging.getLogger(__name__)
_SECONDS = 0.2  # between writes: what was answered meanwhile is one batch, as small ones cost as much as large ones
_MOST_AT_ONCE = 1024  # requests of a batch


class Recorder:
    """A bounded queue of answered requests, and the thread that writes them to a sink.

    Requests that do not fit into the queue, or that the sink does not take, are dropped and counted.

    Args:
        sink: Takes the records.
        count: Called with ``written``, ``unsampled`` or ``dropped`` and a number of requests.
        count_error: Called after each error of the sink.
        counts: Number of items to draw from what each stage dropped.
        max_requests: Requests that may wait.
        max_bytes: Memory that they may take.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        count: Callable[[str, int], None],
        count_error: Callable[[], None],
        counts: Sequence[int],
        max_requests: int,
        max_bytes: int,
    ) -> None:
        self._sink = GuardedSink(sink, SAMPLES, count_error)
        self._count = count
        self._counts = counts
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._lock = threading.Lock()  # of the queue
        self._queue: list[ServedRequest] = []
        self._bytes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankfall-samples", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._queue)

    def put(self, served: Sequence[ServedRequest]) -> None:
        """Queue answered requests, or drop them if the queue is full. Returns at once."""
        size = sum(one.memory for one in served)
        with self._lock:
            is_full = len(self._queue) + len(served) > self._max_requests or self._bytes + size > self._max_bytes
            if not is_full:
                self._queue += served
                self._bytes += size
        if is_full:
            self._count("dropped", len(served))

    @property
    def is_working(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """Write what is queued, close the sink and stop the thread; wait at most `seconds` for it."""
        self._stopping.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("samples: the sink did not take the last samples within %g seconds", seconds)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_SECONDS):
            self._write_queued()
            self._sink.tick()
        self._write_queued()
        self._sink.close()
        self._count("dropped", self._sink.take_lost())

    def _write_queued(self) -> None:
        with self._lock:
            served, self._queue, self._bytes = self._queue, [], 0
        for start in range(0, len(served), _MOST_AT_ONCE):
            self._write(served[start : start + _MOST_AT_ONCE])
        self._count("dropped", self._sink.take_lost())

    def _write(self, served: Sequence[ServedRequest]) -> None:
        left = len(served)
        try:
            for batch in sample_batches(served, self._counts):
                left -= len(batch)
                error = self._sink.write(batch, durable=False)
                self._count_batch(batch, is_written=error is None)
        except Exception:  # later requests may succeed
            _log.exception("samples of %d requests cannot be recorded", left)
            self._count("dropped", left)

    def _count_batch(self, batch: pa.RecordBatch, *, is_written: bool) -> None:
        sampled = batch["sampled"].true_count
        if is_written:
            self._count("written", sampled)
            self._count("unsampled", len(batch) - sampled)
        else:
            self._count("dropped", len(batch))
