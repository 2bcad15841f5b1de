"""Atomic directories: complete or absent, and never a replacement of other content."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall._files import fresh_directory


def is_ours(path: Path) -> bool:
    return (path / "mark").exists()


def write(out: Path, text: str, *, force: bool = False) -> None:
    with fresh_directory(out, is_ours, force=force) as directory:
        (directory / "mark").write_text(text)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_existing_directory_is_replaced_only_with_force(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(ValueError, match="exists already; --force replaces it"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "mark").read_text() == "old"
    write(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "mark").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_directory_created_concurrently_is_kept(tmp_path: Path) -> None:
    def both() -> None:
        with fresh_directory(tmp_path / "out", is_ours) as directory:
            (directory / "mark").write_text("slow")
            write(tmp_path / "out", "quick")

    with pytest.raises(ValueError, match="exists already"):
        both()
    assert (tmp_path / "out" / "mark").read_text() == "quick"
    assert names(tmp_path) == ["out"]


def test_failed_replacement_restores_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "old")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".unfinished"):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        write(tmp_path / "out", "new", force=True)
    assert (tmp_path / "out" / "mark").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_symlink_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", "new")
    assert (tmp_path / "real" / "mark").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_current_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is the current directory, which cannot be replaced"):
        write(Path(), "new")
    assert names(tmp_path) == []
