"""Files that are read into memory and compared with their checksums, independent of what happens to them afterwards.

If a file that is mapped into memory is truncated, the process ends; if another process writes to it, answers change.
Processes that read the same files share the memory through copies in a directory of their own, which are mapped and
which no other program writes. A copy is locked as long as a process uses it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, BinaryIO

from rankfall._disk import delete, open_new, rename
from rankfall._files import locked, open_regular
from rankfall._leftovers import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PART = 2**20  # bytes that are read at once
_CHECKSUM = re.compile("[0-9a-f]{64}")
_LOCK = "copies.lock"
REMEDY = "export it again, or restore it from a copy"


@dataclass(frozen=True, eq=False)
class MemoryFile:
    """The content of a file, and its path for messages."""

    path: Path
    content: mmap.mmap | bytes


def read_file(path: Path, about: Mapping[str, Any] | None = None, *, shared: Path | None = None) -> MemoryFile:
    """Read a file into memory.

    Args:
        path: The file.
        about: Its size and checksum, ``bytes`` and ``sha256``, with which the content is compared.
        shared: Directory of copies, through which several processes share the memory of verified files.

    Raises:
        ValueError: If the file is missing, or differs from `about`.
        OSError: If it cannot be read, or copied to `shared`.
    """
    with _open(path) as source:
        size = os.fstat(source.fileno()).st_size
        if about is not None and size != about["bytes"]:
            why = "was cut off" if size < about["bytes"] else "has changed since it was written"
            raise ValueError(
                f"path: {path} has {size:,} bytes, its manifest says {about['bytes']:,}; it {why}; {REMEDY}"
            )
        expected = None if about is None else str(about["sha256"])
        if expected is None or shared is None or not size or not _CHECKSUM.fullmatch(expected):
            content: mmap.mmap | bytes = _read_private(source, path, size, expected)
        else:
            content = _read_shared(source, path, expected, shared)
    return MemoryFile(path, content)


def remove_unused_copies(shared: Path) -> None:
    """Remove the copies that no process uses."""
    with locked(shared / _LOCK, wait=True):
        for path in shared.iterdir():
            if _CHECKSUM.fullmatch(path.name):
                with path.open("rb") as copy, suppress(BlockingIOError):
                    fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    delete(path)


def _open(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise ValueError(f"path: {path} is missing; {REMEDY}") from None
    except ValueError:
        raise ValueError(f"path: {path} is missing: it is not a file; {REMEDY}") from None


def _read_private(source: BinaryIO, path: Path, size: int, expected: str | None) -> mmap.mmap | bytes:
    """Read a file into memory of this process."""
    if not size:
        _check(path, sha256(b"").hexdigest(), expected)
        return b""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place, digest = 0, sha256()
    for part in _parts(source):
        part = part[: size - place]  # the file may have become longer since
        memory[place : place + len(part)] = part
        place += len(part)
        digest.update(part)
    if place != size:
        raise ValueError(f"path: {path} has changed while it was read")
    _check(path, digest.hexdigest(), expected)
    return memory


def _read_shared(source: BinaryIO, path: Path, expected: str, shared: Path) -> mmap.mmap:
    """Map the copy of a file, which is created if no process has one."""
    with locked(shared / _LOCK, wait=True):  # otherwise processes that start together would all create one
        if not (shared / expected).exists():
            _create_copy(source, path, expected, shared)
        with (shared / expected).open("rb") as copy:
            fcntl.flock(copy, fcntl.LOCK_SH)  # until the mapping ends, which has its own handle of the open file
            return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)


def _create_copy(source: BinaryIO, path: Path, expected: str, shared: Path) -> None:
    temporary = shared / f".{expected}{TEMPORARY}"
    try:
        with open_new(temporary) as copy:
            digest = sha256()
            for part in _parts(source):
                copy.write(part)
                digest.update(part)
        _check(path, digest.hexdigest(), expected)
        rename(temporary, shared / expected)
    except OSError as error:
        raise OSError(f"path: {path} cannot be copied to {shared}: {error.strerror or error}") from None
    finally:
        delete(temporary, missing_ok=True)


def _parts(source: BinaryIO) -> Iterator[bytes]:
    while part := source.read(_PART):
        yield part


def _check(path: Path, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise ValueError(f"path: {path} has changed since it was written; {REMEDY}")
