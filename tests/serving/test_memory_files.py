"""Files in memory: verified while they are read, independent of later changes, shared by processes."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rankfall.serving import bundle_files as memory_files
from rankfall.serving.bundle_files import read_file, remove_unused_copies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

CONTENT = bytes(range(256)) * 10_000  # several parts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    path = tmp_path / "copies"
    path.mkdir()
    return path


def about(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def mapped(path: Path) -> bool:
    """Return whether this process has mapped a file."""
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("is_shared", [False, True])
def test_later_changes_of_a_file_have_no_effect(file: Path, copies: Path, is_shared: bool) -> None:
    read = read_file(file, about(CONTENT), shared=copies if is_shared else None)
    with file.open("r+b") as opened:
        opened.write(b"changed")
        opened.truncate(100)
    assert bytes(read.content) == CONTENT
    assert not mapped(file)
    file.unlink()
    assert bytes(read.content) == CONTENT


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("change", ["byte", "shorter", "longer", "missing", "directory", "pipe", "while reading"])
def test_files_that_differ_are_refused(
    file: Path, copies: Path, is_shared: bool, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "byte":
        file.write_bytes(CONTENT[:-1] + b"?")
    elif change in ("shorter", "longer"):
        file.write_bytes(CONTENT[:-1] if change == "shorter" else CONTENT + b"?")
    elif change == "while reading":
        parts = memory_files._parts

        def changing(source: BinaryIO) -> Iterator[bytes]:
            for part in parts(source):
                yield part
                os.truncate(file, 2**20 + 1)

        monkeypatch.setattr(memory_files, "_parts", changing)
    else:
        file.unlink()
        if change == "directory":
            file.mkdir()
        elif change == "pipe":
            os.mkfifo(file)
    with pytest.raises(ValueError, match=f"^path: {file} (has|is missing)"):
        read_file(file, about(CONTENT), shared=copies if is_shared else None)
    assert {path.name for path in copies.iterdir()} <= {"copies.lock"}  # nothing is left


def test_empty_files(file: Path, copies: Path) -> None:
    file.write_bytes(b"")
    assert read_file(file, about(b""), shared=copies).content == b""
    with pytest.raises(ValueError, match="has changed since it was written"):
        read_file(file, {"bytes": 0, "sha256": "0" * 64})


def test_processes_share_one_copy_until_the_last_one_ends(file: Path, copies: Path) -> None:
    first, second = (read_file(file, about(CONTENT), shared=copies) for _ in range(2))
    copy = copies / sha256(CONTENT).hexdigest()
    inode = copy.stat().st_ino
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(copy) in line]
    assert len(maps) == 2
    assert {int(line.split()[4]) for line in maps} == {inode}
    remove_unused_copies(copies)
    assert copy.exists()
    del first
    remove_unused_copies(copies)
    assert copy.exists()
    assert bytes(second.content) == CONTENT
    del second
    remove_unused_copies(copies)
    assert not copy.exists()


def test_checksums_are_no_paths(file: Path, copies: Path) -> None:
    with pytest.raises(ValueError, match="has changed since it was written"):
        read_file(file, {"bytes": len(CONTENT), "sha256": "../../outside"}, shared=copies)
    assert list(copies.iterdir()) == []


def test_full_disk_is_an_error(file: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path("/dev/full")
    if not copy.exists():
        pytest.skip("needs /dev/full")
    temporary = copies / f".{sha256(CONTENT).hexdigest()}.tmp"
    temporary.symlink_to(copy)
    with pytest.raises(OSError, match=f"path: {file} cannot be copied to {copies}: No space left"):
        read_file(file, about(CONTENT), shared=copies)
    assert [path.name for path in copies.iterdir()] == ["copies.lock"]
