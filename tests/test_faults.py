"""Commands with faults of the disk: errors, kills and full disks, a sample of the table of ``make faults``.

Commands that need about a second of CPU per run or more are left to ``make faults``. They write through the same
functions as the others; ``tests/serving/export/test_full_disk.py`` exports to a full disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from support.fault_commands import COMMANDS
from support.forks import DEADLINE, ENVIRONMENT
from support.trials import trial

SEED = 0
LONG = {"demo", "stream", "simulate shows", "evaluate", "export", "export --force", "reproduce"}
SHORT = ("prepare rows", "prepare rows --append", "train cascade", "join", "compare")  # the others are trials
NAMES = [command.name for command in COMMANDS if command.name not in LONG]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The rows of the commands whose tests are selected."""
    names = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]  # type: ignore[attr-defined]
    file = tmp_path_factory.mktemp("faults") / "table.json"
    program = [sys.executable, "-m", "support.fault_table", "--short", str(SEED), "--json", str(file)]
    done = subprocess.run(
        [*program, "--commands", *names], env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE
    )
    assert file.exists(), done.stderr
    return {row["command"]: row for row in json.loads(file.read_text())}


@pytest.mark.slow
@pytest.mark.xdist_group("faults")  # one process makes the table for all
@pytest.mark.parametrize("name", [*SHORT, *(trial(name) for name in NAMES if name not in SHORT)])
def test_command_survives_faults(name: str, rows: dict[str, Any]) -> None:
    row = rows[name]
    assert row["problems"] == []
    assert row["cases"]["error"] >= 1
    assert row["cases"]["kill"] >= 1
