"""Atomic files and directories, locks and checksums, and what dead processes left.

A file or directory is written under a temporary name and renamed when it is on disk:

==========================  ==========================================================================================
``.NAME.*.tmp``             a file, before it is renamed to ``NAME``
``.NAME.*.unfinished``      a directory, before it is renamed to ``NAME``; or a scratch directory
``.NAME.*.replaced``        the earlier content of the directory ``NAME`` while it is replaced
``.NAME.*.deleted``         a directory that is being deleted
==========================  ==========================================================================================

A process holds a lock (``flock``) on the file or directory as long as it works on it. The lock ends with the process,
so a file whose lock can be taken is a leftover, which is removed with a warning. On a file system without locks nothing
counts as a leftover.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from rankfall._errors import RankfallError, RankfallWarning
from rankfall.storage import disk as _disk

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Action = Literal["removed", "restored"]

TEMPORARY, UNFINISHED, REPLACED, DELETED = ".tmp", ".unfinished", ".replaced", ".deleted"
CREATION_SECONDS = 0.1  # between the creation of a temporary file and its lock
_PATTERN = re.compile(r"\.(?P<name>.+)\.[0-9a-z_]{8}(?P<kind>\.tmp|\.unfinished|\.replaced|\.deleted)", re.DOTALL)


class LeftoverWarning(RankfallWarning):
    """Files of a process that has died were removed, or could not be removed."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or directory that a dead process left.

    Attributes:
        path: Its temporary name.
        final: The name that it would have got, or had.
        bytes: Size of its files.
        action: ``"removed"``, or ``"restored"`` for the earlier content of a directory that is missing.
    """

    path: Path
    final: Path
    bytes: int
    action: Action

    def __str__(self) -> str:
        """Return one line about what was done."""
        if self.action == "restored":
            return f"restored {self.final} from {self.path.name}, which a process that has died left"
        return f"removed {self.path} ({self.bytes:,} bytes), which a process that has died left"


# --- temporary names of this process ------------------------------------------------------------------------------


@contextmanager
def set_aside(path: Path, kind: str) -> Iterator[Path]:
    """Give a directory a temporary name and hold it. It is deleted at the end, unless it was renamed."""
    aside = _temporary_name(path.parent, path.name, kind)
    handle = os.open(path, os.O_RDONLY)
    try:
        _lock(handle, wait=False)  # a directory that another process has locked is safe, too
        _disk.rename(path, aside)
        yield aside
    finally:
        os.close(handle)
        try_to_delete(aside)


@contextmanager
def held(parent: Path, name: str, kind: str) -> Iterator[Path]:
    """Create an empty temporary file or directory and hold it. It is deleted at the end, unless it was renamed."""
    path, handle = _create(parent, name, kind)
    try:
        yield path
    finally:
        if _is_at(handle, path):
            try_to_delete(path)  # still locked, so that no other process takes what is left of it for a leftover
            os.close(handle)
        else:
            os.close(handle)  # first, since it has its final name now, where others lock it
            try_to_delete(path)  # earlier content, if both were exchanged


def _create(parent: Path, name: str, kind: str) -> tuple[Path, int]:
    """Create a temporary file or directory and lock it; return its path and the open file."""
    while True:
        path = _temporary_name(parent, name, kind)
        if kind == TEMPORARY:
            _disk.open_new(path).close()
        else:
            _disk.make_directory(path, parents=False, exist_ok=False, mode=0o700)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for a leftover before it was locked
            continue
        _lock(handle, wait=True)
        if _is_at(handle, path):
            return path, handle
        os.close(handle)


def _temporary_name(parent: Path, name: str, kind: str) -> Path:
    return parent / f".{name}.{os.urandom(4).hex()}{kind}"


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file; return False if another process holds the lock or the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def try_to_delete(path: Path) -> None:
    """Delete a temporary file or directory. After an error it stays, and is a leftover when the process ends."""
    try:
        _delete(path)
    except FileNotFoundError:
        pass  # it was renamed
    except OSError as error:
        warnings.warn(f"{path} cannot be deleted: {error}", LeftoverWarning, stacklevel=2)


def _delete(path: Path) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        _disk.delete_tree(path)
    else:
        _disk.delete(path)


# --- leftovers of other processes ---------------------------------------------------------------------------------


def sweep(directory: Path, name: str | None = None) -> None:
    """Remove leftovers in a directory, of one name or of all, with a :class:`LeftoverWarning` for each."""
    for path, match in _temporary_names(directory):
        if name in (None, match["name"]):
            try:
                for done in _settle(path, path.with_name(match["name"])):
                    warnings.warn(str(done), LeftoverWarning, stacklevel=2)
            except FileNotFoundError:
                pass  # another process removed it in the meantime
            except OSError as error:
                warnings.warn(f"{path} cannot be removed: {error}", LeftoverWarning, stacklevel=2)


def clean_tree(directory: Path, *, dry_run: bool = False) -> Iterator[Leftover | OSError]:
    """Remove all leftovers in a directory and its subdirectories; links are not followed.

    Args:
        directory: Directory to search.
        dry_run: Change nothing.

    Yields:
        Each leftover after it was removed or restored, or the error that prevented it.
    """

    def fail(error: OSError) -> None:
        raise error

    for place, names, _ in os.walk(directory, onerror=fail):
        names.sort()
        for path, match in _temporary_names(Path(place)):
            try:
                yield from _settle(path, path.with_name(match["name"]), dry_run=dry_run)
            except OSError as error:
                yield error
            if path.name in names:
                names.remove(path.name)  # what is left of it belongs to a living process


def _temporary_names(directory: Path) -> list[tuple[Path, re.Match[str]]]:
    names = sorted(name for name in os.listdir(directory) if name.startswith("."))
    return [(directory / name, match) for name in names if (match := _PATTERN.fullmatch(name))]


def _settle(path: Path, final: Path, *, dry_run: bool = False) -> Iterator[Leftover]:
    """Remove a leftover, or restore it if it is the earlier content of a directory that is missing."""
    with _abandoned(path) as is_leftover:
        if not is_leftover:
            return
        restored = path.name.endswith(REPLACED) and not final.exists() and any(path.iterdir())
        done = Leftover(path, final, _size(path), "restored" if restored else "removed")
        if not dry_run:
            if restored:
                _disk.rename(path, final)
                _disk.sync(final.parent)
            else:
                _delete(path)
        yield done


@contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Hold the lock of a temporary file or directory; yield False if a living process holds it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield False
        return
    except OSError:
        yield path.is_symlink()  # a link is renamed right after its creation and has no lock
        return
    try:
        if _lock(handle, wait=False) and _is_empty(path):
            # A process that has just created it locks it next.
            fcntl.flock(handle, fcntl.LOCK_UN)
            time.sleep(CREATION_SECONDS)
        yield _lock(handle, wait=False) and _is_at(handle, path)
    finally:
        os.close(handle)


def _is_empty(path: Path) -> bool:
    try:
        return not any(path.iterdir()) if path.is_dir() else path.stat().st_size == 0
    except FileNotFoundError:
        return True


def _size(path: Path) -> int:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return os.lstat(path).st_size
    files = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
    return sum(os.lstat(file).st_size for file in files)


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
    with held(path.parent, path.name, TEMPORARY) as temporary:
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
        raise RankfallError(f"out: {path} is a symbolic link that leads to itself") from None


def replace_link(path: Path, target: str) -> None:
    """Let a symbolic link point to a target, atomically."""
    sweep(path.parent, path.name)
    with held(path.parent, path.name, UNFINISHED) as directory:
        _disk.make_link(directory / path.name, target)
        _disk.rename(directory / path.name, path)
    _disk.sync(path.parent)


def is_temporary(path: Path) -> bool:
    """Return whether a file has the name of a temporary file, which a killed process may have left behind."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


class LockedError(RankfallError):
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
        raise RankfallError(f"path: {path} is not a file")
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
    with held(out.parent, out.name, UNFINISHED) as directory:
        yield directory
        mask = os.umask(0)
        os.umask(mask)
        directory.chmod(0o777 & ~mask)  # of an ordinary directory; only its owner could read it so far
        for path in (*directory.rglob("*"), directory):
            _disk.sync(path)
        _check_replaceable(out, is_ours, force)  # another process may have finished in the meantime
        _put(directory, out)


def _check_replaceable(out: Path, is_ours: Callable[[Path], bool], force: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        if out == Path.cwd():
            raise RankfallError(
                f"out: {out} is the current directory, which cannot be replaced; choose a directory inside it"
            )
        return
    if not is_ours(out):
        raise RankfallError(
            f"out: {out} exists and is not what this command writes, or is incomplete; choose another directory"
        )
    if not force:
        raise RankfallError(f"out: {out} exists already; --force replaces it")


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


@contextmanager
def scratch_directory(name: str, inside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary directory that is deleted at the end.

    Args:
        name: Purpose of the directory, part of its name.
        inside: Where it is created. Default: the directory of the system for temporary files.
    """
    place = Path(tempfile.gettempdir()) if inside is None else inside
    sweep(place, name)
    with held(place, name, UNFINISHED) as directory:
        yield directory


def remove_directory(path: Path) -> None:
    """Delete a directory such that no reader finds a part of it under its name."""
    with set_aside(path, DELETED):
        pass


LARGEST = 2**28  # bytes of a file, which take gigabytes as values


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: If it is not JSON, or is nested so deeply that Python cannot read it.

    >>> parse_json('{"days": [1, 2]}')
    {'days': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    rankfall.RankfallError: found values nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise RankfallError("found values nested too deeply") from None


def read_json_file(path: Path, largest: int = LARGEST) -> Any:
    """Read a JSON file of at most `largest` bytes.

    Raises:
        ValueError: If it is not a file, is too large, or is not JSON.
        OSError: If it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(min(largest, os.fstat(file.fileno()).st_size) + 1)  # not a buffer of so many bytes
    if len(content) > largest:
        raise RankfallError(f"path: {path} has more than {largest:,} bytes")
    return parse_json(content.decode())
