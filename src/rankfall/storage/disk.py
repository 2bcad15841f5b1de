"""Single operations on disk: open, write, sync, rename, link, create and delete.

Every change that the package makes to a file system goes through this module; :mod:`rankfall.storage.files` builds
atomic files and directories from it. Tests can therefore let any operation fail, or end the process there: see
:func:`intercepted`.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Operation = Literal["open", "write", "sync", "rename", "renamed", "link", "mkdir", "delete"]
    Hook = Callable[[Operation, Path], None]  # may raise OSError

_hook: Hook | None = None
_CURRENT, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@contextmanager
def intercepted(hook: Hook) -> Iterator[None]:
    """Call a function before every operation, for tests of faults. ``renamed`` is called after a ``rename``."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


def announce(operation: Operation, path: Path) -> None:
    """Pass an operation that is about to happen to the function of :func:`intercepted`."""
    if _hook is not None:
        _hook(operation, path)


class _File(io.FileIO):
    """A file without a buffer that writes everything it receives.

    Without a buffer, a full disk is an error where something is written. Nothing is left to be written when the file is
    closed, or when it is deleted after another error.
    """

    def write(self, data: Any) -> int:
        announce("write", Path(os.fsdecode(self.name)))
        rest = memoryview(data).cast("B")
        while len(rest):
            rest = rest[super().write(rest) :]
        return memoryview(data).nbytes

    def __del__(self) -> None:
        """Close a file that an error left open, without a warning: no buffer is lost."""
        self.close()


def open_new(path: Path, mode: Literal["wb", "w+b", "r+b"] = "wb") -> io.FileIO:
    """Open a file for writing, without a buffer; pass many small parts through ``io.BufferedWriter``."""
    announce("open", path)
    return _File(path, mode)


def pour(path: Path, target: Path, number: int | None = None) -> None:
    """Write the content of a file to a device or a pipe, or to the open file of that number at its position."""
    announce("open", target)
    with path.open("rb") as source, open(target if number is None else os.dup(number), "wb") as file:
        announce("write", target)
        shutil.copyfileobj(source, file)


def allocate(path: Path, size: int) -> None:
    """Create a file of zeros whose blocks exist: writing to a mapped file without blocks ends the process."""
    with open_new(path) as file:
        announce("write", path)
        if size:
            os.posix_fallocate(file.fileno(), 0, size)


def append(path: Path, content: bytes) -> None:
    """Append to a file and wait until it is on disk. After an error the file is as long as before."""
    announce("open", path)
    with _File(path, "ab") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            file.write(content)
        except OSError:
            cut(file, size)
            raise
    sync(path)


def cut(file: io.FileIO, size: int) -> None:
    """Remove what follows the first `size` bytes of an open file, for example part of a write that failed."""
    os.ftruncate(file.fileno(), size)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    announce("sync", path)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(path: Path, target: Path) -> None:
    """Rename a file or directory. An existing file, or an existing empty directory, is replaced."""
    announce("rename", target)
    os.replace(path, target)
    announce("renamed", target)


def exchange(path: Path, target: Path) -> bool:
    """Swap the names of two directories in one step; return False if the system or the file system cannot do that."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    announce("rename", target)
    if swap(_CURRENT, os.fsencode(path), _CURRENT, os.fsencode(target), _EXCHANGE):
        number = ctypes.get_errno()
        if number in _CANNOT_EXCHANGE:
            return False
        raise OSError(number, os.strerror(number), str(path), None, str(target))
    announce("renamed", target)
    return True


def make_link(path: Path, target: str) -> None:
    """Create a symbolic link."""
    announce("link", path)
    path.symlink_to(target)


def make_directory(path: Path, *, parents: bool = True, exist_ok: bool = True, mode: int = 0o777) -> None:
    """Create a directory, by default with its parents and unless it exists."""
    if exist_ok and path.is_dir():
        return
    announce("mkdir", path)
    path.mkdir(mode, parents=parents, exist_ok=exist_ok)


def delete(path: Path, *, missing_ok: bool = False) -> None:
    """Delete a file or a link."""
    if missing_ok and not path.is_symlink() and not path.exists():
        return
    announce("delete", path)
    path.unlink(missing_ok=missing_ok)


def delete_tree(path: Path, *, missing_ok: bool = False) -> None:
    """Delete a directory and everything in it."""
    if missing_ok and not path.exists():
        return
    announce("delete", path)
    shutil.rmtree(path)


def copy_tree(source: Path, target: Path) -> None:
    """Copy the content of a directory into an existing directory."""
    announce("write", target)
    shutil.copytree(source, target, dirs_exist_ok=True)
