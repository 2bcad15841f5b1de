"""Joining that is killed at its renames, as a program: forks need a process that has not used polars yet.

Each process is killed at another rename of the log of one undisturbed process, and the next one continues. The program
prints the number of kills, and the renames after which the log has other bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.online.join_log import Joiner, JoinSettings
from rankfall.storage.disk import intercepted
from support.served_records import served_spec

if TYPE_CHECKING:
    from rankfall.online.join_results import JoinResult

RENAMES = ("rename", "renamed")


def joined(directory: Path, log: Path, older: Path, **settings: Any) -> JoinResult:
    """Join records without checks of bundles, which do not exist."""
    chosen = JoinSettings(items=older / "items.parquet", parity=0, **settings)
    joiner = Joiner(directory, log, served_spec(), chosen)
    with joiner.locked():
        return joiner.close_days()


def copy_of(older: Path, place: Path) -> Path:
    """A copy of the log of earlier days."""
    shutil.copytree(older / "log", place)
    return place


def tree(log: Path) -> dict[str, str]:
    """The files of a log by the hashes of their content."""
    files = sorted(path for path in log.rglob("*") if path.is_file())
    return {str(path.relative_to(log)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main(records: Path, older: Path, place: Path, step: int) -> dict[str, Any]:
    """Kill at every `step`-th rename and join again."""
    whole = copy_of(older, place / "whole")
    renames = in_fork(records, whole, older, None)
    wrong, kills = [], 0
    for number in range(1, renames + 1, step):
        log = copy_of(older, place / "log")
        kills += in_fork(records, log, older, number) == -signal.SIGKILL
        in_fork(records, log, older, None)
        if tree(log) != tree(whole):
            wrong.append(number)
        shutil.rmtree(log)
        shutil.rmtree(place / "log.join")
    return {"kills": kills, "renames": renames, "wrong": wrong}


def in_fork(records: Path, log: Path, older: Path, number: int | None) -> int:
    """Join in a fork, which is killed at its n-th rename; return the number of renames, or that of the signal."""
    child = os.fork()
    if not child:
        seen = 0

        def hook(operation: str, path: Path) -> None:
            nonlocal seen
            seen += operation in RENAMES
            if seen == number and operation in RENAMES:
                os.kill(os.getpid(), signal.SIGKILL)

        with intercepted(hook):
            joined(records, log, older)
        os._exit(min(seen, 255))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:4]]
    sys.stdout.write(json.dumps(main(given[0], given[1], given[2], int(sys.argv[4]))))
