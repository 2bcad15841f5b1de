"""A sink whose errors are counted and logged instead of raised."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from rankfall.serving.recording.sinks.sink import Kind, Sink

_log = logging.getLogger(__name__)


class GuardedSink:
    """Calls a sink. Of several failed writes in a row the first one is logged.

    Args:
        sink: Takes the records.
        kind: Kind of the records.
        count_error: Called after each error.
    """

    def __init__(self, sink: Sink, kind: Kind, count_error: Callable[[], None]) -> None:
        self._sink = sink
        self._kind: Kind = kind
        self._count_error = count_error
        self._is_failing = False
        self.take_lost = sink.take_lost

    def write(self, batch: pa.RecordBatch, *, durable: bool) -> OSError | None:
        """Write records; return the error if the sink did not take them."""
        try:
            self._sink.write(self._kind, batch, durable=durable)
        except OSError as error:
            self._count_error()
            if not self._is_failing:
                _log.warning("%s cannot be written: %s", self._kind, error)
            self._is_failing = True
            return error
        if self._is_failing:
            _log.warning("%s are written again", self._kind)
        self._is_failing = False
        return None

    def tick(self) -> None:
        """Let the sink do what is due."""
        self._guard(self._sink.tick)

    def close(self) -> None:
        """Close the sink."""
        self._guard(self._sink.close)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # the thread that calls the sink has to go on
            self._count_error()
            _log.warning("%s: %s", self._kind, error, exc_info=not isinstance(error, OSError))
