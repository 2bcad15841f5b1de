"""The sink of files: samples and events in segments of their own directories."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from rankfall.serving.recording.sinks import FileSink, open_sink
from rankfall.storage import disk as _disk
from support.records import events, ids_in, samples

if TYPE_CHECKING:
    from pathlib import Path


def test_kinds_have_their_directories(tmp_path: Path) -> None:
    sink = open_sink((tmp_path / "new").as_uri())
    sink.check()
    sink.write("samples", samples("r"), durable=False)
    sink.write("events", events("a", "b"), durable=True)
    sink.close()
    assert ids_in(tmp_path / "new" / "samples") == ["r"]
    assert ids_in(tmp_path / "new" / "events") == ["a", "b"]
    assert sink.take_lost() == 0


def test_tick_completes_segments(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, max_seconds=0)
    sink.write("events", events("a"), durable=False)
    assert ids_in(tmp_path / "events") == []
    sink.tick()
    assert ids_in(tmp_path / "events") == ["a"]


def test_failure_of_one_kind_leaves_the_other(tmp_path: Path) -> None:
    def hook(operation: str, path: Path) -> None:
        if operation == "rename" and path.parent.name == "samples" and path.suffix == ".arrows":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = FileSink(tmp_path)
    sink.write("samples", samples("r"), durable=False)
    sink.write("events", events("a"), durable=False)
    with _disk.intercepted(hook), pytest.raises(OSError, match="No space left"):
        sink.close()
    assert ids_in(tmp_path / "events") == ["a"]
