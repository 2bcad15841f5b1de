"""The journal in which Optuna records the trials of a search; safe for several processes that may be killed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from rankfall._disk import open_new
from rankfall._files import locked

if TYPE_CHECKING:
    from pathlib import Path

    from optuna.storages import BaseStorage

INSTALL = "pip install 'rankfall[tune]'"
LINE = 1 << 20  # bytes, longer than any line of a journal


def load_optuna() -> Any:
    """Return the package optuna, or raise an error that explains how to install it."""
    try:
        import optuna
    except ImportError:
        raise ValueError(f"rankfall tune needs optuna, which is not installed: {INSTALL}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_journal(path: Path) -> BaseStorage:
    """Open the journal in a file, and create it if it is missing."""
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=cast("Any", _Lock(path))))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged, {error}; start the search again in another directory") from None


class _Lock:
    """Exclusive lock on the journal, released when its process ends; Optuna's own locks survive it for 30 seconds.

    An incomplete last line, left by a process that was killed or by a full disk, is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = ExitStack()

    def acquire(self) -> bool:
        with (
            ExitStack() as stack
        ):  # after an error Optuna does not release the lock, and the next attempt would wait for it
            stack.enter_context(locked(self._path, wait=True))
            self._remove_incomplete_line()
            self._held = stack.pop_all()
        return True

    def release(self) -> None:
        self._held.close()

    def _remove_incomplete_line(self) -> None:
        with open_new(self._path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LINE))
            end = file.read()
            if end and not end.endswith(b"\n"):
                file.truncate(size - len(end) + end.rfind(b"\n") + 1)
