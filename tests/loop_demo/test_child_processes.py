"""Commands as processes: their errors are shown, and they end together."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from rankfall.loop_demo.run_loop import ChildError, ChildProcesses

if TYPE_CHECKING:
    from pathlib import Path


def until_it_ends(children: ChildProcesses) -> None:
    while True:
        children.check()
        time.sleep(0.05)


def test_a_failure_shows_the_end_of_the_output(tmp_path: Path) -> None:
    message = r"(?s)rankfall data ended with exit code [12]; .*data\.log:.*nothing-here"
    with ChildProcesses(tmp_path / "logs") as children:
        children.start("data", ["data", str(tmp_path / "nothing-here")])
        with pytest.raises(ChildError, match=message):
            until_it_ends(children)


def test_a_command_runs_to_its_end(tmp_path: Path) -> None:
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1
        time.sleep(0.02)

    with ChildProcesses(tmp_path / "logs") as children:
        children.run("version", ["--version"], pause)
        children.check()  # it has ended as expected
        with pytest.raises(ChildError, match="rankfall data ended with exit code"):
            children.run("data", ["data", str(tmp_path / "nothing-here")], pause)
    assert pauses
    assert (tmp_path / "logs" / "version.log").read_text().strip()


def test_all_processes_end_with_the_context(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path / "logs") as children:
        children.start("demo", ["demo", "--out", str(tmp_path / "out")])
        (process,) = children._processes.values()
        os.kill(process.pid, 0)  # it runs
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
