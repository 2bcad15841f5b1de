"""Temporary names beside final ones, and what dead processes left under them.

==========================  ==========================================================================================
``.NAME.*.tmp``             a file, before it is renamed to ``NAME``
``.NAME.*.unfinished``      a directory, before it is renamed to ``NAME``; or a scratch directory
``.NAME.*.replaced``        the earlier content of the directory ``NAME`` while it is replaced
``.NAME.*.deleted``         a directory that is being deleted
==========================  ==========================================================================================

A process holds a lock (``flock``) on the file or directory as long as it works on it. The lock ends with the process,
so a file whose lock can be taken is a leftover. On a file system without locks nothing counts as a leftover.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankfall import _disk
from rankfall._notices import RankfallWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

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
def held_file(path: Path) -> Iterator[Path]:
    """Create an empty temporary file beside `path` and hold it. It is deleted at the end, unless it was renamed."""
    with _held(path.parent, path.name, TEMPORARY) as temporary:
        yield temporary


@contextmanager
def held_directory(parent: Path, name: str) -> Iterator[Path]:
    """Create a temporary directory and hold it. It is deleted at the end, unless it was renamed."""
    with _held(parent, name, UNFINISHED) as directory:
        yield directory


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
def _held(parent: Path, name: str, kind: str) -> Iterator[Path]:
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
    for place, names, _ in os.walk(directory, onerror=_raise):
        names.sort()
        for path, match in _temporary_names(Path(place)):
            try:
                yield from _settle(path, path.with_name(match["name"]), dry_run=dry_run)
            except OSError as error:
                yield error
            if path.name in names:
                names.remove(path.name)  # what is left of it belongs to a living process


def _raise(error: OSError) -> None:
    raise error


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
