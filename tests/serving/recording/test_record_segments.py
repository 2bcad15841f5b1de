"""Segments of records: what readers see while they are written, after a death at any byte, and after errors."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from rankfall.serving.recording.record_segments import (
    EVENT_SCHEMA,
    OPEN,
    DamagedSegmentError,
    SegmentWriter,
    first_open,
    recover,
    sample_schema,
    segments,
)
from rankfall.storage import disk as _disk

if TYPE_CHECKING:
    from pathlib import Path


def events(*ids: str, received: int = 1_700_000_000_000) -> pa.RecordBatch:
    rows = [
        {"id": one, "request": "r", "item": "7", "kind": "click", "value": 1.0, "time": received, "received": received}
        for one in ids
    ]
    return pa.RecordBatch.from_pylist(rows, EVENT_SCHEMA)


def ids_in(directory: Path) -> list[str]:
    return [one for segment in segments(directory) for batch in segment.batches() for one in batch["id"].to_pylist()]


def test_records_are_visible_when_their_segment_is_complete(tmp_path: Path) -> None:
    clock = [0.0]
    writer = SegmentWriter(tmp_path, max_seconds=10, now=lambda: clock[0])
    writer.write(events("a", "b"))
    writer.write(events("c", received=1_600_000_000_000), durable=True)
    clock[0] = 9.9
    writer.complete_if_due()
    assert segments(tmp_path) == []
    assert first_open(tmp_path) == 1_700_000_000_000
    clock[0] = 10.0
    writer.complete_if_due()
    assert ids_in(tmp_path) == ["a", "b", "c"]
    assert first_open(tmp_path) is None
    writer.write(events("d", received=1_700_000_000_001))
    writer.close()
    writer.close()
    assert ids_in(tmp_path) == ["a", "b", "c", "d"]


def test_large_segment_and_other_schema_begin_a_new_segment(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, max_bytes=1)
    writer.write(events("a"))
    assert ids_in(tmp_path) == ["a"]
    writer = SegmentWriter(tmp_path)
    for ids in (pa.int64(), pa.string()):
        row = {"request": "r", "time": 0, "received": 5, "sampled": False}
        writer.write(pa.RecordBatch.from_pylist([row], sample_schema(ids)))
    writer.close()
    assert [segment.first for segment in segments(tmp_path)] == [5, 5, 1_700_000_000_000]


def open_segment(directory: Path) -> tuple[Path, list[int], SegmentWriter]:
    """Write three batches; return their segment, its size after each batch, and the writer, which holds its lock."""
    writer = SegmentWriter(directory)
    sizes = []
    for one in "abc":
        writer.write(events(one))
        (path,) = directory.iterdir()
        sizes.append(path.stat().st_size)
    return path, sizes, writer


def test_segment_of_a_dead_process_is_complete_up_to_its_last_batch(tmp_path: Path) -> None:
    """The process may die at any byte: only the batch that was being written is lost."""
    path, sizes, _writer = open_segment(tmp_path / "live")
    content = path.read_bytes()
    assert recover(tmp_path / "live") == []  # its process lives
    for size in range(0, len(content) + 1, 7):
        directory = tmp_path / str(size)
        directory.mkdir()
        (directory / path.name).write_bytes(content[:size])
        recover(directory)
        assert ids_in(directory) == list("abc"[: sum(size >= end for end in sizes)])
        assert not list(directory.glob(f"*{OPEN}"))
        shutil.rmtree(directory)


def test_full_disk_loses_the_batch_that_was_refused(tmp_path: Path) -> None:
    full = False

    def hook(operation: str, path: Path) -> None:
        if full and operation == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = SegmentWriter(tmp_path)
    with _disk.intercepted(hook):
        writer.write(events("a"))
        for one in ("b", "c"):
            full = True
            with pytest.raises(OSError, match="No space left"):
                writer.write(events(one))
            assert ids_in(tmp_path) == ["a"]
        full = False
        writer.write(events("d"))
        writer.close()
    assert ids_in(tmp_path) == ["a", "d"]
    assert len(list(tmp_path.iterdir())) == 2


def test_batch_without_its_content_is_cut_off(tmp_path: Path) -> None:
    """After a failure of the machine, the last pages of a file may be zeros although its length is right."""
    path, sizes, _writer = open_segment(tmp_path / "live")
    content = path.read_bytes()
    zeros = 100  # at the end of the body of the last batch
    (tmp_path / path.name).write_bytes(content[:-zeros] + bytes(zeros))
    assert sizes[2] - sizes[1] > zeros
    recover(tmp_path)
    assert ids_in(tmp_path) == ["a", "b"]


def test_batch_that_does_not_reach_the_disk_is_not_in_the_segment(tmp_path: Path) -> None:
    fails = False

    def hook(operation: str, path: Path) -> None:
        if fails and operation == "sync" and path.suffix == OPEN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = SegmentWriter(tmp_path)
    with _disk.intercepted(hook):
        writer.write(events("a"), durable=True)
        fails = True
        with pytest.raises(OSError, match="Input/output error"):
            writer.write(events("b"), durable=True)
        fails = False
        writer.write(events("c"), durable=True)
        writer.close()
    recover(tmp_path)  # the first segment could not be completed, either
    assert ids_in(tmp_path) == ["a", "c"]


def test_changed_segment_is_refused(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.write(events("a"))
    writer.close()
    (segment,) = segments(tmp_path)
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 1
    segment.path.write_bytes(content)
    with pytest.raises(DamagedSegmentError, match="does not match the checksum in its name"):
        list(segment.batches())
