"""The journal in which Optuna keeps the trials of a search, for any number of processes, of which any may be killed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from rankfall._files import locked

if TYPE_CHECKING:
    from pathlib import Path

    from optuna.storages import BaseStorage

INSTALL = "pip install 'rankfall[tune]'"
LINE = 1 << 20  # bytes, more than a line of a journal has


def load_optuna() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise ValueError(f"rankfall tune needs optuna, which is not installed; {INSTALL} brings it") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_journal(path: Path) -> BaseStorage:
    """The journal in a file, made if it is missing."""
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=cast("Any", _Lock(path))))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged, {error}; begin the search again in another directory") from None


class _Lock:
    """Whoever writes to the journal is alone, until its process ends; Optuna's locks outlive it for half a minute.

    What a process wrote half before it ended, or the disk was full, is taken away before others write behind it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(locked(self._path, wait=True))
        with self._path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LINE))
            end = file.read()
            if end and not end.endswith(b"\n"):
                file.truncate(size - len(end) + end.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._held.close()
