"""``rankfall clean``: what it removes, restores, counts and leaves alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import rankfall as rf
from rankfall.storage import disk as _disk
from rankfall.storage.files import fresh_directory
from support.command_line import run
from support.fault_commands import write_leftovers

if TYPE_CHECKING:
    from pathlib import Path

REMOVED = [".file.00000000.tmp", ".log.00000000.unfinished"]


def test_leftovers_are_listed_removed_and_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths are short: long ones would be folded
    (tmp_path / "below").mkdir()
    write_leftovers(tmp_path / "below")
    before = sorted(path.name for path in (tmp_path / "below").iterdir())
    assert run("clean", "below", "--dry-run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["path"].rpartition("/")[2], row["bytes"], row["action"]) for row in found["leftovers"]] == [
        (".file.00000000.tmp", 4, "removed"),
        (".log.00000000.unfinished", 7, "removed"),
        (".old.00000000.replaced", 7, "restored"),
    ]
    assert found["bytes"] == 11
    assert sorted(path.name for path in (tmp_path / "below").iterdir()) == before
    assert run("clean", "below") == 0
    printed = capsys.readouterr()
    assert all(name in printed.out for name in before)
    assert "restored as old" in printed.out
    assert printed.err == "removed 2 leftovers, 11 bytes\n"
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["old"]
    assert (tmp_path / "below" / "old" / "part").read_text() == "content"
    assert run("clean", "below") == 0
    assert capsys.readouterr().err == "nothing to remove\n"


def test_earlier_content_is_removed_if_the_new_one_has_its_name(tmp_path: Path) -> None:
    write_leftovers(tmp_path)
    (tmp_path / "old").mkdir()
    result = rf.clean(tmp_path)
    assert {one.path.name: one.action for one in result.leftovers}[".old.00000000.replaced"] == "removed"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert result.to_polars().columns == ["path", "bytes", "action"]


def test_command_beside_a_leftover_says_that_it_removes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".log.00000000.unfinished").mkdir()
    simulate = ("simulate", tmp_path / "log", "--preset", "tiny", "--days", "1", "--requests-per-day", "2")
    assert run(*simulate) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    expected = f"note: removed {tmp_path}/.log.00000000.unfinished (0 bytes), which a process that has died left"
    assert notes == [expected]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_living_process_keeps_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_directory(tmp_path / "log", lambda path: False) as directory:
        assert run("clean", tmp_path) == 0
        assert directory.is_dir()
    assert capsys.readouterr().err == "nothing to remove\n"


def test_leftover_that_cannot_be_removed_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_leftovers(tmp_path)

    def hook(operation: str, path: Path) -> None:
        if operation == "delete" and path.name == REMOVED[0]:
            raise PermissionError(f"{path} belongs to somebody else")

    with _disk.intercepted(hook):
        assert run("clean", tmp_path) == 1
    printed = capsys.readouterr()
    assert f"error: {tmp_path / REMOVED[0]} belongs to somebody else" in printed.err.replace("\n", " ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [REMOVED[0], "old"]


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"directories: .*nothing does not exist, expected a directory"):
        rf.clean(tmp_path / "nothing")
