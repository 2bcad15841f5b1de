"""Write events that clients report, in a thread of its own: all calls that wait meanwhile are written at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from rankfall.serving.recording.clock import MAX_TIME
from rankfall.serving.recording.guarded_sink import GuardedSink
from rankfall.serving.recording.record_schemas import EVENT_SCHEMA, EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.serving.recording.clock import Clock
    from rankfall.serving.recording.sinks.sink import Sink

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.1


class Event(NamedTuple):
    """Something that a user did with an item of an answer; see :mod:`.record_schemas`."""

    id: str
    request: str
    item: str
    kind: str
    value: float
    time: int


class QueueFullError(Exception):
    """So many events wait to be written that no more are taken."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits until its events are written."""

    events: Sequence[Event]
    future: asyncio.Future[None]


class EventWriter:
    """A bounded queue of events, and the thread that writes them to a sink.

    Args:
        sink: Takes the records.
        clock: The clock of the service.
        count: Called with ``written`` or ``refused`` and a number of events.
        count_error: Called after each error of the sink.
        max_events: Events that may wait.
    """

    def __init__(
        self,
        sink: Sink,
        clock: Clock,
        *,
        count: Callable[[str, int], None],
        count_error: Callable[[], None],
        max_events: int,
    ) -> None:
        self._sink = GuardedSink(sink, EVENTS, count_error)
        self._clock = clock
        self._count = count
        self._max_events = max_events
        self._changed = threading.Condition()  # protects the queue
        self._queue: list[_Waiting] = []
        self._waiting = 0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="rankfall-events", daemon=True)

    def start(self) -> None:
        """Start the thread; calls of :meth:`write` wait in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def write(self, events: Sequence[Event]) -> None:
        """Return when the events are durable.

        Raises:
            QueueFullError: Too many events wait.
            OSError: The sink did not take them.
        """
        waiting = _Waiting(events, asyncio.get_running_loop().create_future())
        with self._changed:
            is_full = self._waiting + len(events) > self._max_events or self._stopping
            if not is_full:
                self._queue.append(waiting)
                self._waiting += len(events)
                self._changed.notify()
        if is_full:
            self._count("refused", len(events))
            raise QueueFullError
        await waiting.future

    @property
    def is_working(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """Write what is queued, close the sink and stop the thread; wait at most `seconds` for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("events: the sink did not take the last events within %g seconds", seconds)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping, _TICK_SECONDS)
                waiting, self._queue, is_stopping = self._queue, [], self._stopping
            if waiting:
                self._commit(waiting)
            self._sink.tick()
        self._sink.close()

    def _commit(self, waiting: Sequence[_Waiting]) -> None:
        """Write the events of all calls that wait, and tell them."""
        events = [event for one in waiting for event in one.events]
        error: Exception | None
        try:
            error = self._sink.write(self._batch(events), durable=True)
        except Exception as unexpected:
            _log.exception("%d events cannot be written", len(events))
            error = unexpected
        self._count("written" if error is None else "refused", len(events))
        with self._changed:
            self._waiting -= len(events)
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, and with it all connections
            self._loop.call_soon_threadsafe(_resolve, [one.future for one in waiting], error)

    def _batch(self, events: Sequence[Event]) -> pa.RecordBatch:
        now = self._clock.now()
        received = max(0, min(MAX_TIME, max(event.time for event in events))) if now is None else now
        columns = [*zip(*events, strict=True), [received] * len(events)]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)],
            schema=EVENT_SCHEMA,
        )


def _resolve(futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():  # the call has ended
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
