"""Records as messages: what is written is read, and nothing else is taken for records."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from rankfall.serving.recording.record_segments import EVENT_SCHEMA, BadMessageError, Message, decode, encode
from support.records import events, hashes, samples


def test_batches_are_divided_below_the_largest_message() -> None:
    batch = events(*hashes(100))
    parts = encode(batch, 4000)
    assert len(parts) > 1
    assert all(len(payload) <= 4000 for payload, _ in parts)
    found = [decode(Message("events", "", payload)) for payload, _ in parts]
    assert [len(one) for one in found] == [records for _, records in parts]
    assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist()
    assert len(encode(batch, 1 << 20)) == 1


def test_record_above_the_largest_message_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a record has [0-9,]+ bytes, and a message at most 100"):
        encode(events("a", "b"), 100)


def _payload(batch: pa.RecordBatch) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(buffer.getvalue())


def _without_value(column: str) -> pa.RecordBatch:
    batch = events("a", "b")
    place = EVENT_SCHEMA.get_field_index(column)
    arrays = [*batch.columns[:place], pa.nulls(2, batch.schema[place].type), *batch.columns[place + 1 :]]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        ("clicks", b"", "found the kind 'clicks', expected samples or events"),
        ("events", b"", "it is no Arrow stream"),
        ("events", b"hello, world", "it is no Arrow stream"),
        ("events", _payload(samples("r")), "the columns are not those of events"),
        ("samples", _payload(events("a")), "the columns are not those of samples"),
        ("events", _payload(events()), "it has no records"),
        ("events", _payload(_without_value("received")), "received has no value"),
    ],
)
def test_other_messages_are_rejected(kind: str, payload: bytes, message: str) -> None:
    with pytest.raises(BadMessageError, match=message):
        decode(Message(kind, "", payload))


def test_damaged_messages_are_rejected_or_hold_valid_records() -> None:
    payload = encode(events("a", "b", "c"), 1 << 20)[0][0]
    choose = random.Random(0)
    rejected = 0
    for _ in range(500):
        damaged = bytearray(payload[: choose.choice([len(payload), choose.randrange(len(payload))])])
        for _ in range(choose.randrange(1, 4)):
            if damaged:
                damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        try:
            decode(Message("events", "", bytes(damaged))).validate(full=True)
        except BadMessageError:
            rejected += 1
    assert rejected > 100
