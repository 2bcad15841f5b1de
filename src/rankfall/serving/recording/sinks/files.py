"""A sink that writes segments to directories."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rankfall import _disk
from rankfall.serving.recording.record_schemas import EVENTS, SAMPLES
from rankfall.serving.recording.segments import SEGMENT_BYTES, SEGMENT_SECONDS, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from rankfall.serving.recording.sinks.sink import Kind

_PROBE_BYTES = 4096


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
        self._directories = [directory / kind for kind in (SAMPLES, EVENTS)]
        self._writers = {
            kind: SegmentWriter(directory / kind, max_bytes=max_bytes, max_seconds=max_seconds)
            for kind in (SAMPLES, EVENTS)
        }

    def check(self) -> None:
        for directory in self._directories:
            probe = directory / f".probe-{os.getpid()}"
            try:
                with _disk.open_new(probe) as file:
                    file.write(bytes(_PROBE_BYTES))
            finally:
                _disk.delete(probe, missing_ok=True)

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
