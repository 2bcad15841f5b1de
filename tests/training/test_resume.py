"""A training that is interrupted and continued ends as if it had never been interrupted."""

from __future__ import annotations

import json
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from rankfall import _tensor_file as _checkpoint
from rankfall._tensor_file import read_checkpoint
from rankfall.storage.files import locked
from rankfall.studies import compare
from rankfall.studies.compare import perform
from rankfall.studies.comparison_plan import Run
from rankfall.training import train_ranker as ranker
from rankfall.training.checkpoint import Checkpoints, DamagedError
from rankfall.training.config.load_config import set_option
from rankfall.training.config.ranker_config import validate
from rankfall.training.distributed.group import Group
from rankfall.training.run_directory import Step, Stopped, TrainingError
from support.command_line import run as command
from support.interrupted import outcome, train
from support.resuming import Interrupted, after, alter, contents, interrupt, left, whole_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from rankfall.data.lists.list_loader import ListBatch
    from rankfall.training.learner import Position, StepResult


KINDS = pytest.mark.parametrize("kind", ["cascade", "ranker", "adamw", "sgd"])


# --- the same end -------------------------------------------------------------------------------------------------


@KINDS
def test_checkpoints_change_nothing(kind: str, tmp_path: Path) -> None:
    train(contents()[kind], tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole_runs()[kind])


@pytest.mark.slow
@KINDS
def test_interrupted_after_every_batch(kind: str, tmp_path: Path) -> None:
    content, run = contents()[kind], tmp_path / "run"
    interruptions = 0
    while True:
        try:
            train(content, run, resume=True, progress=after(2))  # of which the first is kept
        except Interrupted:
            interruptions += 1
            continue
        break
    batches = {"cascade": 8, "ranker": 5, "adamw": 5, "sgd": 5}[kind] * len(outcome(run)["metrics"])
    assert interruptions == batches - 1
    assert outcome(run) == outcome(whole_runs()[kind])


def test_an_objective_that_alternates_continues_with_the_right_stage(tmp_path: Path) -> None:
    content = set_option(contents()["cascade"], "objective", {"name": "rankflow", "schedule": "alternate"})
    train(content, tmp_path / "whole")
    interrupt(content, tmp_path / "run", 4)  # of which three are kept: the second stage is next
    train(content, tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["cascade", "ranker"])
def test_each_epoch_writes_a_checkpoint(kind: str, tmp_path: Path) -> None:
    content, run = set_option(contents()[kind], "training.checkpoint_every", 1e9), tmp_path / "run"
    batches = 8 if kind == "cascade" else 5
    interrupt(content, run, 2 * batches + 1)
    assert [path.name for path in left(run)] == [f"step-{epoch * batches:09}.safetensors" for epoch in (2, 1)]
    heard: list[Step] = []
    train(content, run, resume=True, progress=heard.append)
    assert (heard[0].epoch, heard[0].batch) == (3, 1)
    assert outcome(run) == outcome(whole_runs()[kind])


@pytest.mark.parametrize("kind", ["cascade", "ranker"])
def test_stop_takes_effect_after_current_batch(kind: str, tmp_path: Path) -> None:
    content, run = set_option(contents()[kind], "training.checkpoint_every", 1e9), tmp_path / "run"
    heard: list[Step] = []
    message = rf"stopped after batch 3 of \d in epoch 1; the same command with --resume continues {run} from there"
    with pytest.raises(Stopped, match=message):
        train(content, run, progress=heard.append, stop=lambda: len(heard) == 3)
    train(content, run, resume=True, progress=heard.append)
    assert [(step.epoch, step.batch) for step in heard[2:4]] == [(1, 3), (1, 4)]
    assert outcome(run) == outcome(whole_runs()[kind])


def test_time_is_counted_without_the_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, now = tmp_path / "run", 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    monkeypatch.setattr("time.perf_counter", clock)
    interrupt(contents()["ranker"], run, 8)
    now += 10_000
    result = train(contents()["ranker"], run, resume=True)
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 < seconds[0] < seconds[-1] < result.seconds < 10_000
    assert seconds == sorted(seconds)


def test_resume_leaves_finished_run_unchanged() -> None:
    run = whole_runs()["ranker"]
    heard: list[str] = []
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    content = set_option(contents()["ranker"], "metrics", ["mrr"])
    result = train(content, run, resume=True, on_notice=heard.append)
    assert heard == [f"{run} is finished already"]
    assert result.best_metric == outcome(run)["result"]["best_metric"]
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_leftover_checkpoint_of_finished_run_is_deleted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(contents()["ranker"], run)
    before = outcome(run)
    Checkpoints(run / "checkpoints", 2).save(20, {})
    train(contents()["ranker"], run, resume=True, on_notice=lambda text: None)
    assert outcome(run) == before


# --- damage ---------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace(path: Path) -> None:
    """The file of another kind of checkpoint."""
    shutil.copy(path.parent / "last.safetensors", path)


@pytest.mark.parametrize("damage", [truncate, empty, alter, replace])
def test_the_checkpoint_before_a_damaged_one_is_used(damage: Callable[[Path], None], tmp_path: Path) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    steps: list[Step] = []
    newest, older = interrupt(contents()["cascade"], run, 14)
    damage(newest)
    train(contents()["cascade"], run, resume=True, on_notice=heard.append, progress=steps.append)
    assert len(heard) == 1
    assert str(newest) in heard[0]
    assert (older.name, steps[0].epoch, steps[0].batch) == ("step-000000012.safetensors", 2, 5)
    assert outcome(run) == outcome(whole_runs()["cascade"])


def test_restart_requires_force_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    for path in interrupt(contents()["ranker"], run, 8):
        alter(path)
    message = r"all checkpoints are damaged \(step-000000007\S+, step-000000006\S+\); --force"
    with pytest.raises(DamagedError, match=message):
        train(contents()["ranker"], run, resume=True, on_notice=heard.append)
    assert [notice.split()[0] for notice in heard] == [str(path) for path in left(run)]
    train(contents()["ranker"], run, force=True)
    assert outcome(run) == outcome(whole_runs()["ranker"])


def test_a_damaged_checkpoint_is_replaced_by_good_ones(tmp_path: Path) -> None:
    run = tmp_path / "run"
    newest, older = interrupt(contents()["ranker"], run, 8)
    alter(newest)
    alone_good = older.read_bytes()
    again, good = interrupt(contents()["ranker"], run, 2, resume=True, on_notice=lambda text: None)
    assert (again, good, good.read_bytes()) == (newest, older, alone_good)
    read_checkpoint(again)


def test_damaged_best_weights_prevent_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupt(contents()["ranker"], run, 8)
    alter(run / "checkpoints" / "best.safetensors")
    with pytest.raises(DamagedError, match=r"best\.safetensors is damaged: .* training cannot resume; --force starts"):
        train(contents()["ranker"], run, resume=True)


# --- processes that are started again -------------------------------------------------------------------------------


def again() -> Group:
    group = Group()
    group.restarted = True
    return group


def test_restarted_process_waits_for_old_lock(tmp_path: Path) -> None:
    interrupt(contents()["ranker"], tmp_path, 3)
    released = threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            held.set()
            time.sleep(0.5)
            released.set()

    held, dead = threading.Event(), threading.Thread(target=hold)
    dead.start()
    held.wait()
    train(contents()["ranker"], tmp_path, group=again())
    assert released.is_set()
    dead.join()


def test_restarted_process_resumes_despite_force(tmp_path: Path) -> None:
    steps: list[Step] = []
    interrupt(contents()["ranker"], tmp_path / "run", 8)
    train(contents()["ranker"], tmp_path / "run", force=True, group=again(), progress=steps.append)
    assert (steps[0].epoch, steps[0].batch) == (2, 3)
    assert outcome(tmp_path / "run") == outcome(whole_runs()["ranker"])


def test_force_survives_a_restart_before_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, config = tmp_path / "run", tmp_path / "config.yaml"
    config.write_text(json.dumps(contents()["ranker"]))
    train(contents()["ranker"], run)
    before = (run / "result.json").read_text(), json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "0")
    with monkeypatch.context() as patch:

        def die(path: Path) -> None:
            raise Interrupted

        patch.setattr(ranker, "load_data", die)
        assert command("train", str(config), "--out", str(run), "--force") == 1
    assert (run / "result.json").read_text() == before[0]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert command("train", str(config), "--out", str(run), "--force") == 0
    after = (run / "result.json").read_text(), json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert after[0] != before[0]
    assert after[1]["seconds"] != before[1]["seconds"]
    assert after[1]["loss"] == before[1]["loss"]
    # once it has begun, the same start again goes on with it
    assert command("train", str(config), "--out", str(run), "--force") == 0
    assert (run / "result.json").read_text() == after[0]


def test_best_weights_are_rewritten_after_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, content = tmp_path / "run", set_option(contents()["ranker"], "training.checkpoint_every", 1e9)
    content = set_option(content, "training.epochs", 3)
    worth = iter([0.5, 0.9])  # the second epoch is the best, but its checkpoint is not written any more
    monkeypatch.setattr(ranker.RankerLearner, "validate", lambda self: {self.metric: next(worth)})
    save = Checkpoints.save

    def die(self: Checkpoints, step: int, state: Any) -> None:
        if step == 10:
            raise Interrupted
        save(self, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", die)
        with pytest.raises(Interrupted):
            train(content, run)
    worth = iter([0.4, 0.3])  # as it may be with another number of processes, though not by so much
    result = train(content, run, resume=True)
    _, about = read_checkpoint(run / "checkpoints" / "best.safetensors")
    assert (about["epoch"], about["value"]) == (result.best_epoch, result.best_metric) == (2, 0.4)


# --- comparisons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [False, True])
def test_comparison_resumes_interrupted_run(damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    interrupt(contents()["ranker"], run, 8)
    (run / "error.txt").touch()
    for path in left(run) if damaged else ():
        alter(path)
    steps: list[int] = []
    step = ranker.RankerLearner.step

    def count(self: Any, batch: ListBatch, position: Position) -> StepResult:
        steps.append(position.step)
        return step(self, batch, position)

    monkeypatch.setattr(ranker.RankerLearner, "step", count)
    perform(compare.Step(Run("arf", "all", {}, 0, validate(contents()["ranker"]), run), "train"))
    assert steps[0] == (0 if damaged else 7)
    assert outcome(run) == outcome(whole_runs()["ranker"])


# --- full disks -----------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_older_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls, write = tmp_path / "run", 0, _checkpoint._write

    def full(file: BinaryIO, tensors: Mapping[str, torch.Tensor], about: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        write(file, tensors, about)

    with monkeypatch.context() as patch:
        patch.setattr(_checkpoint, "_write", full)
        message = (
            r"cannot be written to: .*No space left.* after batch 1 of 5 in epoch 2. 2 older checkpoints are intact"
        )
        with pytest.raises(TrainingError, match=message):
            train(contents()["ranker"], run)
    assert [path.name for path in left(run)] == [
        "step-000000005.safetensors",
        "step-000000004.safetensors",
    ]
    assert not list(run.rglob("*.tmp"))
    train(contents()["ranker"], run, resume=True)
    assert outcome(run) == outcome(whole_runs()["ranker"])


def test_full_disk_before_first_checkpoint_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: BinaryIO, tensors: Mapping[str, torch.Tensor], about: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_checkpoint, "_write", full)
    with pytest.raises(
        TrainingError, match="There is no checkpoint yet: once the cause is fixed, the same command starts again"
    ):
        train(contents()["ranker"], tmp_path / "run")
