"""``--trust`` and ``trust=True`` reach everything that loads a run from another person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import rankfall as rf
from rankfall.registry import user_files
from support.command_line import run as command
from support.interrupted import train
from support.own_parts import PARTS, cascade, write_parts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::rankfall.RankfallWarning")


@pytest.fixture(scope="module")
def foreign(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another user."""
    directory = tmp_path_factory.mktemp("foreign")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        train(cascade(log, write_parts(directory / "code", PARTS)), directory / "run")
    forget(directory / "run")
    return directory / "run"


def forget(run: Path) -> None:
    """Make this process as if it had not imported the code of a run."""
    user_files._HASHES.pop(user_files.module_name(run.parent / "code" / "parts.py"), None)


@pytest.mark.parametrize("verb", ["evaluate", "plan", "report"])
def test_commands_that_load_a_run_have_the_flag(verb: str, foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget(foreign)
    assert command(verb, foreign) == 1
    assert "parts.py" in capsys.readouterr().err
    assert command(verb, foreign, "--trust") == 0


def test_functions_that_load_a_run_have_the_argument(foreign: Path, tmp_path: Path) -> None:
    forget(foreign)
    for refuses in (rf.evaluate, rf.diagnose, rf.plan, rf.report, rf.api.TrainedRun.open):
        with pytest.raises(ValueError, match="trust=True"):
            refuses(foreign)
    with pytest.raises(ValueError, match="trust=True"):
        rf.export(foreign, tmp_path / "bundle")
    run = rf.api.TrainedRun.open(foreign, trust=True)
    assert rf.evaluate(run, trust=True, progress=False).directory == foreign
