"""Bytes of ``metrics.jsonl`` after errors and resumptions."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from rankfall.training.learner import append_epoch, restore_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = ['{"epoch": 1, "b": 0.5, "a": 1.0}\n', '{"epoch": 2, "b": 0.25, "a": 2.0}\n']
STORED = [{"a": 1.0, "b": 0.5, "epoch": 1}, {"a": 2.0, "b": 0.25, "epoch": 2}]  # as in a checkpoint


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("".join(LINES), "".join(LINES)),
        ("".join(LINES) + '{"epoch": 3, "b": 0.1, "a": 3.0}\n', "".join(LINES)),
        ("".join(LINES) + '{"epoch": 3, "b"', "".join(LINES)),
        (LINES[0] + LINES[1][:9], LINES[0] + '{"a": 2.0, "b": 0.25, "epoch": 2}\n'),
        (LINES[0].replace("0.5", "0.6") + LINES[1], '{"a": 1.0, "b": 0.5, "epoch": 1}\n' + LINES[1]),
        (LINES[0], LINES[0] + '{"a": 2.0, "b": 0.25, "epoch": 2}\n'),
        (None, '{"a": 1.0, "b": 0.5, "epoch": 1}\n{"a": 2.0, "b": 0.25, "epoch": 2}\n'),
    ],
    ids=["same", "later epoch", "part of a later epoch", "part of an epoch", "other epoch", "no line", "no file"],
)
def test_lines_of_a_checkpoint_keep_their_bytes(found: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    if found is not None:
        path.write_text(found)
    restore_epochs(path, STORED)
    assert path.read_text() == expected


@pytest.fixture
def short_files() -> Iterator[None]:
    """A disk on which files have at most 40 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("short_files")
def test_line_that_does_not_fit_leaves_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_epoch(path, {"epoch": 1, "b": 0.5, "a": 1.0})
    with pytest.raises(OSError, match="File too large"):
        append_epoch(path, {"epoch": 2, "b": 0.25, "a": 2.0})
    assert path.read_text() == LINES[0]
