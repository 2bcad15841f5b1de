"""Atomic files and directories, locks and checksums."""

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

TEMPORARY = ".tmp"  # suffix of files that are being written


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file atomically: a reader, even after a crash, finds either the old content or the new one."""
    with new_content(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_content(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces `path` atomically when the context ends without an error.

    The temporary file is synced to disk before the replacement, and deleted after an error.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, expected a file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # it exists only after an error
    sync(path.parent)  # so that the name is on disk, too


def is_temporary(path: Path) -> bool:
    """Return whether a file has the name of a temporary file, which a killed process may have left behind."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class LockedError(ValueError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, *, busy: str = "", wait: bool = False) -> Generator[None]:
    """Hold an exclusive lock on a directory or file. The lock ends with the process.

    Args:
        path: Directory or file, which is created if it is missing.
        busy: Message of the error if another process holds the lock.
        wait: Whether to wait for the other process instead of raising an error.

    Raises:
        LockedError: If another process holds the lock and `wait` is False.
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
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def about_file(path: Path) -> dict[str, Any]:
    """Return the manifest entry of an input file: path, size and SHA-256."""
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": checksum(path)}


@contextmanager
def fresh_directory(out: Path, is_ours: Callable[[Path], bool], *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary directory next to `out`, which becomes `out` when the context ends without an error.

    Existing content of `out` is replaced only if `is_ours` accepts it and `force` is True. After a crash there may be a
    directory ``.NAME.*.unfinished``, which no command reads as `NAME`; a crash during a replacement may leave the old
    content as ``.NAME.*.replaced``.

    Args:
        out: Directory to create or replace.
        is_ours: Function that returns whether an existing directory was written by the same command.
        force: Whether to replace an existing directory.
    """
    out = out.resolve()  # keep a link and replace its target
    _check_replaceable(out, is_ours, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".unfinished", dir=out.parent))
    try:
        yield directory
        _make_readable(directory)
        for path in (*directory.rglob("*"), directory):
            sync(path)
        _check_replaceable(out, is_ours, force)  # another process may have finished in the meantime
        _rename(directory, out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _check_replaceable(out: Path, is_ours: Callable[[Path], bool], force: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        if out == Path.cwd():
            raise ValueError(
                f"out: {out} is the current directory, which cannot be replaced; choose a directory inside it"
            )
        return
    if not is_ours(out):
        raise ValueError(
            f"out: {out} exists and is not what this command writes, or is incomplete; choose another directory"
        )
    if not force:
        raise ValueError(f"out: {out} exists already; --force replaces it")


def _rename(directory: Path, out: Path) -> None:
    """Rename a directory to its final name. The previous content is kept until this is done."""
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
    """Give a temporary directory, which only its owner can read, the permissions of an ordinary one."""
    mask = os.umask(0)
    os.umask(mask)
    directory.chmod(0o777 & ~mask)
