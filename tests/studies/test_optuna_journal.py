"""The lock of a journal of trials."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.studies import tune as optuna_journal

if TYPE_CHECKING:
    from pathlib import Path


def test_an_error_of_the_disk_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that was kept would let the next attempt of the same process wait forever."""
    path = tmp_path / "study.journal"
    path.write_bytes(b'{"a": 1}\n{"b')

    def fail(*arguments: Any) -> None:
        raise OSError(5, "Input/output error")

    lock = optuna_journal._Lock(path)
    with monkeypatch.context() as patch:
        patch.setattr(optuna_journal, "open_new", fail)
        with pytest.raises(OSError, match="Input/output error"):
            lock.acquire()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert lock.acquire()
    assert path.read_bytes() == b'{"a": 1}\n'
    lock.release()
