"""Ctrl-C before a command has begun its work."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.forks import DEADLINE, ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupt())
sys.argv = ["rankfall", *{words!r}]
from rankfall.__main__ import main
main()
"""


def interrupted_at(module: str, *words: str, place: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command whose process receives SIGINT when it begins to import a module."""
    program = first + PROGRAM.format(name=module, number=int(signal.SIGINT), words=words)
    return subprocess.run(
        [sys.executable, "-c", program], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE
    )


@pytest.mark.parametrize("module", ["rankfall.cli", "typer", "rankfall.commands.train", "rankfall.simulation.simulate"])
def test_ctrl_c_during_imports_shows_no_traceback(module: str, tmp_path: Path) -> None:
    done = interrupted_at(module, "simulate", "log", "--preset", "tiny", place=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not list(tmp_path.iterdir())


def test_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    first = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = interrupted_at("typer", "--version", place=tmp_path, first=first)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rankfall ")
