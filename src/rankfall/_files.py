"""Atomic files and directories, locks and checksums.

A file or directory is written under a temporary name (:mod:`rankfall._leftovers`) and renamed when it is on disk. What
a dead process left of an earlier attempt is removed before, with a warning.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rankfall import _disk
from rankfall._leftovers import DELETED, REPLACED, TEMPORARY, held_directory, held_file, set_aside, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator


def write_file(path: Path, content: bytes | str, *, mode: int | None = None) -> None:
    """Write a file atomically: a reader, even after a crash, finds either the old content or the new one.

    As with :func:`new_content`, a link stays and its target is replaced, and a device or a pipe is written to.

    Args:
        path: The file.
        content: Its content.
        mode: Its permissions, from before it has content. Default: those of new files.
    """
    with new_content(path) as temporary, _disk.open_new(temporary, "r+b") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_content(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file to write, which replaces `path` atomically when the context ends without an error.

    The temporary file is synced to disk before the replacement, and deleted after an error. Only a regular file is
    replaced: of a symbolic link, its target. The content is written to anything else, such as a device, a pipe, or the
    file that is standard output.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, expected a file")
    standard = standard_output(path)
    if standard is not None or (path.exists() and not path.is_file()):
        with scratch_directory("output") as directory:
            _disk.open_new(directory / "content").close()
            yield directory / "content"
            _disk.pour(directory / "content", path, standard)
        return
    path = _without_links(path) if path.is_symlink() else path
    sweep(path.parent, path.name)
    with held_file(path) as temporary:
        yield temporary
        _disk.sync(temporary)
        _disk.rename(temporary, path)
    _disk.sync(path.parent)  # so that the name is on disk, too


def standard_output(path: Path) -> int | None:
    """Return the number of standard output or standard error if it is the file at a path, such as ``/dev/stdout``."""
    for number in (1, 2):
        with suppress(OSError):  # closed, or no such file
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None


def _without_links(path: Path) -> Path:
    """Return the path to which symbolic links lead."""
    try:
        return path.resolve()
    except RuntimeError:
        raise ValueError(f"out: {path} is a symbolic link that leads to itself") from None


def replace_link(path: Path, target: str) -> None:
    """Let a symbolic link point to a target, atomically."""
    sweep(path.parent, path.name)
    with held_directory(path.parent, path.name) as directory:
        _disk.make_link(directory / path.name, target)
        _disk.rename(directory / path.name, path)
    _disk.sync(path.parent)


def is_temporary(path: Path) -> bool:
    """Return whether a file has the name of a temporary file, which a killed process may have left behind."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


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
    if not path.exists():
        _disk.announce("open", path)
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(busy or f"another process is working in {path}") from None
        yield
    finally:
        os.close(handle)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises:
        ValueError: If it is something else: a device may have no end, and a named pipe waits for a process that writes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"path: {path} is not a file")
    return open(handle, "rb", buffering=0)


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

    Existing content of `out` is replaced only if `is_ours` accepts it and `force` is True. No command reads the
    temporary directory as `out`, and the next one that writes `out` removes it if its process has died.

    Args:
        out: Directory to create or replace.
        is_ours: Function that returns whether an existing directory was written by the same command.
        force: Whether to replace an existing directory.
    """
    out = _without_links(out)  # keep a link and replace its target
    if out.parent.is_dir():
        sweep(out.parent, out.name)  # this may also restore `out`
    _check_replaceable(out, is_ours, force)
    _disk.make_directory(out.parent)
    with held_directory(out.parent, out.name) as directory:
        yield directory
        _make_readable(directory)
        for path in (*directory.rglob("*"), directory):
            _disk.sync(path)
        _check_replaceable(out, is_ours, force)  # another process may have finished in the meantime
        _put(directory, out)


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


def _put(directory: Path, out: Path) -> None:
    """Rename a directory to its final name.

    Earlier content of `out` is swapped with the directory in one step, so that `out` exists at any time. Where the file
    system cannot swap names, it is set aside before. If the process dies between these two steps, the next command that
    writes `out`, or ``rankfall clean``, restores it.
    """
    if not out.exists() or not any(out.iterdir()):
        _disk.rename(directory, out)
    elif not _disk.exchange(directory, out):
        with set_aside(out, REPLACED) as aside:
            try:
                _disk.rename(directory, out)
            except OSError:
                _disk.rename(aside, out)
                raise
            _disk.sync(out.parent)
    _disk.sync(out.parent)


def _make_readable(directory: Path) -> None:
    """Give a temporary directory, which only its owner can read, the permissions of an ordinary one."""
    mask = os.umask(0)
    os.umask(mask)
    directory.chmod(0o777 & ~mask)


@contextmanager
def scratch_directory(name: str, inside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary directory that is deleted at the end.

    Args:
        name: Purpose of the directory, part of its name.
        inside: Where it is created. Default: the directory of the system for temporary files.
    """
    place = Path(tempfile.gettempdir()) if inside is None else inside
    sweep(place, name)
    with held_directory(place, name) as directory:
        yield directory


def remove_directory(path: Path) -> None:
    """Delete a directory such that no reader finds a part of it under its name."""
    with set_aside(path, DELETED):
        pass
