"""A sink that writes segments to directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.serving.recording.record_schemas import EVENTS, SAMPLES
from rankfall.serving.recording.segments import SEGMENT_BYTES, SEGMENT_SECONDS, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from rankfall.serving.recording.sinks.sink import Kind


class FileSink:
    """Writes samples to DIR/samples and events to DIR/events; implements :class:`~.sink.Sink`.

    Args:
        directory: DIR, which is created if it is missing.
        max_bytes: Size above which a segment is complete.
        max_seconds: Age after which a segment is complete.

    Raises:
        OSError: If the directories cannot be created.
    """

    def __init__(
        self, directory: Path, *, max_bytes: int = SEGMENT_BYTES, max_seconds: float = SEGMENT_SECONDS
    ) -> None:
        self._writers = {
            kind: SegmentWriter(directory / kind, max_bytes=max_bytes, max_seconds=max_seconds)
            for kind in (SAMPLES, EVENTS)
        }

    def check(self) -> None:
        """Do nothing: the directories exist since the sink was created."""

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        self._writers[kind].write(batch, durable=durable)

    def tick(self) -> None:
        self._for_each(SegmentWriter.complete_if_due)

    def take_lost(self) -> int:
        return 0

    def close(self) -> None:
        self._for_each(SegmentWriter.close)

    def _for_each(self, act: Callable[[SegmentWriter], None]) -> None:
        """Call a method of both writers, of the second one also if the first one fails."""
        first, second = self._writers.values()
        try:
            act(first)
        finally:
            act(second)
