"""Training runs that are killed, stopped, or run out of disk space give the result of an undisturbed run."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from rankfall._tensor_file import read_checkpoint
from rankfall.training.checkpoint import Checkpoints
from support import kill_loop
from support.command_line import run as command
from support.forks import DEADLINE
from support.interrupted import cascade_content, outcome, train
from support.logs import random_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.forks import Fork, Forks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forks")]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_log(tmp_path_factory.mktemp("faults") / "log", impressions=50).path


@pytest.mark.trial
def test_killed_at_twenty_moments(forks: Forks, log: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(cascade_content(log, training={"epochs": 2})))
    program = forks.start(tmp_path / "config.yaml", tmp_path, "20", call="support.kill_loop:main")
    out, err = program.communicate()
    assert program.returncode == 0, err
    moments = out.splitlines()
    assert len(moments) == 20
    assert all(moments.count(moment) >= 2 for moment in kill_loop.INSIDE)
    whole, runs = outcome(tmp_path / "whole"), sorted(tmp_path.glob("run*"))
    assert runs
    assert all(outcome(run) == whole for run in runs)


# --- the command ----------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], process: Fork) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def steps(run: Path) -> list[int]:
    """Return the numbers of batches after which there are checkpoints, the newest first."""
    return [int(path.stem.partition("-")[2]) for path in Checkpoints(run / "checkpoints", 9).paths()]


def signalled(process: Fork, run: Path, number: int) -> str:
    """Send a signal once the process has written checkpoints, and return its messages."""
    before = max(steps(run), default=0)
    wait_for(lambda: max(steps(run), default=0) >= before + 3, process)
    process.send_signal(number)
    return process.communicate()[1]


def test_the_command_survives_a_kill_a_full_disk_a_stop_and_a_damaged_checkpoint(
    forks: Forks, log: Path, tmp_path: Path
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"

    def start(*options: str, **settings: Any) -> Fork:
        return forks.start("train", config, "--out", run, *options, **settings)

    content = cascade_content(log, training={"epochs": 6})
    config.write_text(json.dumps(content))

    killed = start()
    signalled(killed, run, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL

    kept = {path: path.read_bytes() for path in Checkpoints(run / "checkpoints", 9).paths()}
    assert len(kept) in (2, 3)  # possibly one more, which was about to be deleted
    limit = min(map(len, kept.values())) // 2
    full = start("--resume", largest_file=limit)
    printed = full.communicate()[1]
    assert full.returncode == 1
    assert f"error: {run} cannot be written to: " in printed
    assert "File too large" in printed
    assert f"{len(kept)} older checkpoints are intact; once the cause is fixed, the same" in printed
    assert "Traceback" not in printed
    assert {path: path.read_bytes() for path in Checkpoints(run / "checkpoints", 9).paths()} == kept

    stopped = start("--resume")
    printed = signalled(stopped, run, signal.SIGTERM)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert f"the same command with --resume continues {run} from there" in printed

    newest, *_ = Checkpoints(run / "checkpoints", 9).paths()
    newest.write_bytes(newest.read_bytes()[:-1])
    ended = start("--resume")
    printed = ended.communicate()[1]
    assert ended.returncode == 0
    assert f"{newest} cannot be read as a checkpoint" in printed

    train(content, tmp_path / "whole")
    assert outcome(run) == outcome(tmp_path / "whole")


def test_the_command_reports_mistakes(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(cascade_content(log, training={"epochs": 1})))

    def messages(code: int, *arguments: str) -> str:
        assert command("train", str(config), *arguments) == code
        message: str = capsys.readouterr().err
        assert "Traceback" not in message
        return message

    nowhere = str(config / "run")  # inside a file, where not even an administrator can write
    assert f"error: {nowhere} cannot be written to: [Errno 20] Not a directory" in messages(1, "--out", nowhere)
    run = str(tmp_path / "run")
    assert "--force: found with --resume" in messages(2, "--out", run, "--force", "--resume")
    messages(0, "--out", run, "--resume")
    assert f"{run} is finished already" in messages(0, "--out", run, "--resume")
    message = f"error: {run} was started with a different configuration: optimizer.lr was 0.05 and is 0.2."
    assert message in messages(1, "optimizer.lr=0.2", "--out", run, "--resume")


def test_a_directory_that_cannot_be_written_any_more(log: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    content = cascade_content(log, training={"epochs": 1})

    def take_away(step: Any) -> None:
        if step.batch == 3:
            (run / "checkpoints").rename(run / "kept")
            (run / "checkpoints").touch()

    with pytest.raises(ValueError, match=r"cannot be written to: .* Training ended after batch 3 of 8 in epoch 1\."):
        train(content, run, progress=take_away)
    for path in Checkpoints(run / "kept", 9).paths():
        read_checkpoint(path)
    (run / "checkpoints").unlink()
    (run / "kept").rename(run / "checkpoints")
    train(content, run, resume=True)
    train(content, tmp_path / "whole")
    assert outcome(run) == outcome(tmp_path / "whole")
