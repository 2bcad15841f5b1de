"""Records of a service for tests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa

from rankfall.serving.recording.record_segments import EVENT_SCHEMA, sample_schema, segments

if TYPE_CHECKING:
    from pathlib import Path

RECEIVED = 1_700_000_000_000


def events(*ids: str, received: int = RECEIVED) -> pa.RecordBatch:
    """Return one click per id."""
    rows = [
        {"id": one, "request": "r", "item": "7", "kind": "click", "value": 1.0, "time": received, "received": received}
        for one in ids
    ]
    return pa.RecordBatch.from_pylist(rows, EVENT_SCHEMA)


def samples(*requests: str, received: int = RECEIVED) -> pa.RecordBatch:
    """Return one record per request, which was not sampled."""
    rows = [{"request": one, "time": received, "received": received, "sampled": False} for one in requests]
    return pa.RecordBatch.from_pylist(rows, sample_schema(pa.int64()))


def hashes(count: int) -> list[str]:
    """Return ids that cannot be compressed by much."""
    return [hashlib.sha256(str(number).encode()).hexdigest() for number in range(count)]


def ids_in(directory: Path) -> list[str]:
    """Return the ids of events, or of requests, in the complete segments of a directory."""
    batches = [batch for segment in segments(directory) for batch in segment.batches()]
    return [one for batch in batches for one in batch["id" if "id" in batch.schema.names else "request"].to_pylist()]
