"""Files that are never half written."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

TEMPORARY = ".tmp"  # at the end of the names of files that are being written


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file such that whoever looks, even after a crash, finds all of the old content or all of the new."""
    with new_content(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_content(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` in one step once it is on disk, and disappears if that fails."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, expected a file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # still there only if something went wrong
    sync(path.parent)  # the name, too, is on disk


def is_temporary(path: Path) -> bool:
    """Whether a file has the name of one that was being written, by a process that may have been killed."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class LockedError(ValueError):
    """Somebody else is at work."""


@contextmanager
def locked(path: Path, *, busy: str = "", wait: bool = False) -> Generator[None]:
    """Nobody else holds this directory or file, which is made if it is missing; the lock ends with the process.

    Whoever holds it already is waited for, or is an error that says `busy`.
    """
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(busy or f"another process is working in {path}") from None
        yield
    finally:
        os.close(handle)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def about_file(path: Path) -> dict[str, Any]:
    """What a manifest says of a file that was read."""
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": checksum(path)}


@contextmanager
def fresh_directory(out: Path, is_ours: Callable[[Path], bool], *, force: bool = False) -> Iterator[Path]:
    """A directory beside `out` that becomes `out` if all goes well and disappears if not.

    What `out` holds already is replaced only if `is_ours` knows it and `force` says so. After a crash there may be a
    directory ``.NAME.*.unfinished``, which nothing takes for `NAME`, and in the moment of a replacement the old content
    as ``.NAME.*.replaced``.
    """
    out = out.resolve()  # a link stays, and what it leads to is replaced
    _check_replaceable(out, is_ours, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".unfinished", dir=out.parent))
    try:
        yield directory
        _make_readable(directory)
        for path in (*directory.rglob("*"), directory):
            sync(path)
        _check_replaceable(out, is_ours, force)  # somebody else may have finished meanwhile
        _put(directory, out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _check_replaceable(out: Path, is_ours: Callable[[Path], bool], force: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        if out == Path.cwd():
            raise ValueError(f"out: {out} is the current directory, which cannot be replaced; name one inside it")
        return
    if not is_ours(out):
        raise ValueError(
            f"out: {out} exists and is not what this command writes, or was never finished; choose another"
        )
    if not force:
        raise ValueError(f"out: {out} exists already; --force replaces it")


def _put(directory: Path, out: Path) -> None:
    """Give a directory its name; what had it before is kept until that is done."""
    if not out.exists() or not any(out.iterdir()):
        directory.rename(out)
        sync(out.parent)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".replaced", dir=out.parent))
    out.rename(aside)
    try:
        directory.rename(out)
    except OSError:
        aside.rename(out)
        raise
    sync(out.parent)
    shutil.rmtree(aside)


def _make_readable(directory: Path) -> None:
    """Temporary directories are for their owner alone; this one becomes an ordinary one."""
    mask = os.umask(0)
    os.umask(mask)
    directory.chmod(0o777 & ~mask)
