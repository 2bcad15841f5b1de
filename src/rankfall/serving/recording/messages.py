"""Records as messages of a broker: one record batch per message, as an Arrow stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rankfall.serving.recording.record_schemas import EVENT_SCHEMA, EVENTS, SAMPLES, sample_schema

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_SCHEMAS = {EVENTS: [EVENT_SCHEMA], SAMPLES: [sample_schema(pa.int64()), sample_schema(pa.string())]}


class BadMessageError(ValueError):
    """A message that holds no records."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a broker.

    Attributes:
        kind: Samples or events; a message of another program may have any other.
        id: A name that no other message has. It is empty if another program wrote the message.
        payload: The records.
        handle: What the broker needs to acknowledge it.
    """

    kind: str
    id: str
    payload: bytes
    handle: Any = None


def encode(batch: pa.RecordBatch, max_bytes: int) -> list[tuple[bytes, int]]:
    """Return the payloads of a batch and the number of records of each.

    Args:
        batch: At least one record.
        max_bytes: Size of the largest payload. Larger batches are divided.

    Raises:
        ValueError: If a single record is larger.
    """
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    payload = buffer.getvalue().to_pybytes()
    if len(payload) <= max_bytes:
        return [(payload, len(batch))]
    if len(batch) == 1:
        raise ValueError(f"a record has {len(payload):,} bytes, and a message at most {max_bytes:,}")
    half = len(batch) // 2
    return encode(batch.slice(0, half), max_bytes) + encode(batch.slice(half), max_bytes)


def decode(message: Message) -> pa.RecordBatch:
    """Return the records of a message.

    Raises:
        BadMessageError: If it holds none, or records of another form.
    """
    if message.kind not in _SCHEMAS:
        raise BadMessageError(f"found the kind {message.kind!r}, expected {SAMPLES} or {EVENTS}")
    try:
        with pa.ipc.open_stream(message.payload) as reader:
            table = reader.read_all().combine_chunks()
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadMessageError(f"it is no Arrow stream ({error})") from None
    schema = next((one for one in _SCHEMAS[message.kind] if one == table.schema), None)
    if schema is None:
        raise BadMessageError(f"the columns are not those of {message.kind}")
    empty = [field.name for field in schema if not field.nullable and table[field.name].null_count]
    if empty or not len(table):
        raise BadMessageError(f"{', '.join(empty)} has no value" if empty else "it has no records")
    (batch,) = table.to_batches()
    return batch
