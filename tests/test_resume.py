"""A training that is interrupted and continued ends as if it had never been interrupted."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import run as command
from interrupted import cascade_content, outcome, ranker_content, train
from logs import DAYS, random_log
from planted import plant
from rankfall import _checkpoint
from rankfall._checkpoint import read_checkpoint, write_checkpoint
from rankfall._files import locked
from rankfall._settings import ConfigError
from rankfall.data import RankingData
from rankfall.data.batches import Batch, ListLoader, Lists
from rankfall.evaluation import compare
from rankfall.evaluation.compare import perform
from rankfall.evaluation.runs import Run
from rankfall.training import ranker
from rankfall.training.checkpoint import Checkpoints, DamagedError, join, split
from rankfall.training.config import set_option, validate
from rankfall.training.distributed import Group
from rankfall.training.run import Step, Stopped, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rankfall.training.learner import Position, Taken

    Content = dict[str, Any]


class Interrupted(Exception):  # noqa: N818
    """What happens to a training in these tests."""


def after(count: int) -> Callable[[Step], None]:
    """Interrupts a training once it has reported so many batches."""
    seen: list[Step] = []

    def hear(step: Step) -> None:
        seen.append(step)
        if len(seen) == count:
            raise Interrupted

    return hear


def interrupt(content: Content, run: Path, batches: int, **options: Any) -> list[Path]:
    """Train until so many batches are reported; the checkpoints that are left, the newest first."""
    with pytest.raises(Interrupted):
        train(content, run, progress=after(batches), **options)
    return left(run)


def left(run: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return Checkpoints(run / "checkpoints", 9).paths()


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Content]:
    """Configurations of a cascade and of rankers with other optimizers."""
    place = tmp_path_factory.mktemp("data")
    random_log(place / "log", impressions=50)
    data = plant(place / "planted")
    return {
        "cascade": cascade_content(place / "log"),
        "ranker": ranker_content(data),
        "adamw": ranker_content(data, optimizer={"name": "adamw", "weight_decay": 0.01, "clip": 0.5}),
        "sgd": ranker_content(data, optimizer={"name": "sgd"}, loss={"name": "grade_softmax_loss"}),
    }


@pytest.fixture(scope="module")
def whole(contents: dict[str, Content], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Their runs without any interruption, or checkpoint."""
    place = tmp_path_factory.mktemp("whole")
    for name, content in contents.items():
        train(set_option(content, "training.checkpoint_every", 1e9), place / name)
    return {name: place / name for name in contents}


KINDS = pytest.mark.parametrize("kind", ["cascade", "ranker", "adamw", "sgd"])


# --- the same end -------------------------------------------------------------------------------------------------


@KINDS
def test_checkpoints_change_nothing(
    kind: str, contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    train(contents[kind], tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole[kind])


@KINDS
def test_interrupted_after_every_batch(
    kind: str, contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    content, run = contents[kind], tmp_path / "run"
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
    assert outcome(run) == outcome(whole[kind])


@pytest.mark.parametrize("kind", ["cascade", "ranker"])
def test_epochs_are_kept_whatever_the_time_between_checkpoints(
    kind: str, contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    content, run = set_option(contents[kind], "training.checkpoint_every", 1e9), tmp_path / "run"
    batches = 8 if kind == "cascade" else 5
    interrupt(content, run, 2 * batches + 1)
    assert [path.name for path in left(run)] == [f"step-{epoch * batches:09}.safetensors" for epoch in (2, 1)]
    heard: list[Step] = []
    train(content, run, resume=True, progress=heard.append)
    assert (heard[0].epoch, heard[0].batch) == (3, 1)
    assert outcome(run) == outcome(whole[kind])


@pytest.mark.parametrize("kind", ["cascade", "ranker"])
def test_whoever_asks_it_to_stop_waits_for_one_batch(
    kind: str, contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    content, run = set_option(contents[kind], "training.checkpoint_every", 1e9), tmp_path / "run"
    heard: list[Step] = []
    message = rf"stopped after batch 3 of \d in epoch 1; the same command with --resume continues {run} from there"
    with pytest.raises(Stopped, match=message):
        train(content, run, progress=heard.append, stop=lambda: len(heard) == 3)
    train(content, run, resume=True, progress=heard.append)
    assert [(step.epoch, step.batch) for step in heard[2:4]] == [(1, 3), (1, 4)]
    assert outcome(run) == outcome(whole[kind])


def test_time_is_counted_without_the_interruption(
    contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = tmp_path / "run", 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    monkeypatch.setattr("time.perf_counter", clock)
    interrupt(contents["ranker"], run, 8)
    now += 10_000
    result = train(contents["ranker"], run, resume=True)
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 < seconds[0] < seconds[-1] < result.seconds < 10_000
    assert seconds == sorted(seconds)


def test_a_run_that_is_finished_stays_as_it_is(contents: dict[str, Content], whole: dict[str, Path]) -> None:
    run = whole["ranker"]
    heard: list[str] = []
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    content = set_option(contents["ranker"], "metrics", ["mrr"])
    result = train(content, run, resume=True, on_notice=heard.append)
    assert heard == [f"{run} is finished already"]
    assert result.best_metric == outcome(run)["result"]["best_metric"]
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_what_was_left_in_the_last_moment_goes(contents: dict[str, Content], tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(contents["ranker"], run)
    before = outcome(run)
    Checkpoints(run / "checkpoints", 2).save(20, {})
    train(contents["ranker"], run, resume=True, on_notice=lambda text: None)
    assert outcome(run) == before


# --- nothing to continue from ---------------------------------------------------------------------------------------


def test_where_nothing_is_training_begins(contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path) -> None:
    left = tmp_path / "killed before it had begun"
    (left / "checkpoints").mkdir(parents=True)
    (left / ".config.yaml.123.tmp").touch()
    (left / "checkpoints" / ".step-000000001.safetensors.123.tmp").touch()
    (tmp_path / "empty").mkdir()
    for run in (left, tmp_path / "empty", tmp_path / "new"):
        train(contents["ranker"], run, resume=True)
        assert outcome(run) == outcome(whole["ranker"])


def test_before_the_first_checkpoint_training_begins_again(
    contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    interrupt(contents["ranker"], run, 1)
    train(contents["ranker"], run, resume=True, on_notice=heard.append)
    assert heard == [f"{run} has no checkpoint yet: training begins again"]
    assert outcome(run) == outcome(whole["ranker"])


def test_other_files_are_no_run(contents: dict[str, Content], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds other files and no run"):
        train(contents["ranker"], tmp_path, resume=True)


def test_a_run_is_continued_only_if_told(contents: dict[str, Content], tmp_path: Path) -> None:
    interrupt(contents["ranker"], tmp_path / "run", 3)
    with pytest.raises(ValueError, match="holds a run already; name another directory, continue it with --resume, or"):
        train(contents["ranker"], tmp_path / "run")
    with pytest.raises(ValueError, match="force: found with resume; a run is either replaced or continued"):
        train(contents["ranker"], tmp_path / "run", force=True, resume=True)


# --- damage ---------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def replace(path: Path) -> None:
    """The file of another kind of checkpoint."""
    shutil.copy(path.parent / "last.safetensors", path)


@pytest.mark.parametrize("damage", [truncate, empty, alter, replace])
def test_the_checkpoint_before_a_damaged_one_is_used(
    damage: Callable[[Path], None], contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    steps: list[Step] = []
    newest, older = interrupt(contents["cascade"], run, 14)
    damage(newest)
    train(contents["cascade"], run, resume=True, on_notice=heard.append, progress=steps.append)
    assert len(heard) == 1
    assert str(newest) in heard[0]
    assert (older.name, steps[0].epoch, steps[0].batch) == ("step-000000012.safetensors", 2, 5)
    assert outcome(run) == outcome(whole["cascade"])


def test_without_a_whole_checkpoint_it_begins_again_only_if_told(
    contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    for path in interrupt(contents["ranker"], run, 8):
        alter(path)
    message = r"all checkpoints are damaged \(step-000000007\S+, step-000000006\S+\), training cannot go on; --force"
    with pytest.raises(DamagedError, match=message):
        train(contents["ranker"], run, resume=True, on_notice=heard.append)
    assert [notice.split()[0] for notice in heard] == [str(path) for path in left(run)]
    train(contents["ranker"], run, force=True)
    assert outcome(run) == outcome(whole["ranker"])


def test_a_damaged_checkpoint_is_replaced_by_good_ones(contents: dict[str, Content], tmp_path: Path) -> None:
    run = tmp_path / "run"
    newest, older = interrupt(contents["ranker"], run, 8)
    alter(newest)
    alone_good = older.read_bytes()
    again, good = interrupt(contents["ranker"], run, 2, resume=True, on_notice=lambda text: None)
    assert (again, good, good.read_bytes()) == (newest, older, alone_good)
    read_checkpoint(again)


def test_the_best_weights_must_be_whole(contents: dict[str, Content], tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupt(contents["ranker"], run, 8)
    alter(run / "checkpoints" / "best.safetensors")
    with pytest.raises(DamagedError, match=r"best\.safetensors is damaged: .* training cannot go on; --force starts"):
        train(contents["ranker"], run, resume=True)


def test_no_byte_of_a_checkpoint_changes_unnoticed(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(5), "none": torch.empty(0), "bits": torch.tensor([True, False])}
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, tensors, {"epoch": 3, "by number": {2: "b", 10: None}, "nan": float("nan")})
    content, rng = path.read_bytes(), random.Random(0)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read_checkpoint(path)[0].items())
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1 << rng.randrange(8)
        path.write_bytes(altered)
        with pytest.raises(ValueError, match=r"x.safetensors (is damaged|cannot be read|is not a checkpoint)"):
            read_checkpoint(path)


def test_others_can_read_a_checkpoint(tmp_path: Path) -> None:
    tensors = {str(dtype): (torch.randn(3, 5).T * 3).to(dtype) for dtype in _checkpoint._TYPES}
    tensors |= {"number": torch.tensor(2.5), "none": torch.empty(0, 4), "odd": torch.ones(7, dtype=torch.uint8)}
    write_checkpoint(tmp_path / "x", tensors, {})
    found = load_file(tmp_path / "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert oct((tmp_path / "x").stat().st_mode)[-3:] == oct(0o666 & ~_umask())[-3:]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_part_of_a_checkpoint_is_checked_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, {"a": torch.ones(5), "b": torch.ones(5)}, {})
    alter(path)
    assert torch.equal(read_checkpoint(path, lambda name: name == "a")[0]["a"], torch.ones(5))
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(path, lambda name: name == "b")


def test_checkpoints_of_before_there_were_checksums(tmp_path: Path) -> None:
    header = {"rankfall": json.dumps({"format": "rankfall checkpoint", "version": 1, "epoch": 3})}
    save_file({"a": torch.ones(2)}, tmp_path / "x", header)
    tensors, about = read_checkpoint(tmp_path / "x")
    assert torch.equal(tensors["a"], torch.ones(2))
    assert about["epoch"] == 3


# --- what cannot be continued ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        ("cascade", "optimizer.lr", 0.1, r"another configuration: optimizer\.lr was 0\.05 and is 0\.1\. Continue it"),
        ("cascade", "training.threads", 2, r"training\.threads was 1 and is 2"),
        ("cascade", "training.epochs", 4, r"training\.epochs was 3 and is 4"),
        ("cascade", "stages.1.quota", 2, r"stages\.1\.quota was 3 and is 2"),
        ("cascade", "share", [], r"share\.0 was 'video' and is nothing"),
        ("cascade", "objective", {"name": "bce"}, r"objective\.name was 'lcron' and is 'bce'"),
        ("ranker", "loss.k", 4, r"loss\.k was 5 and is 4"),
    ],
)
def test_another_configuration_is_refused(
    kind: str, key: str, value: Any, message: str, contents: dict[str, Content], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    interrupt(contents[kind], run, 3)
    changed = set_option(contents[kind], key, value)
    with pytest.raises(ConfigError, match=message):
        train(changed, run, resume=True)
    (run / "config.yaml").write_text(json.dumps(changed))  # an edited file is no other beginning
    with pytest.raises(ConfigError, match=message):
        train(changed, run, resume=True)


def test_what_changes_nothing_may_change(contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path) -> None:
    content, run = contents["cascade"], tmp_path / "run"
    interrupt(content, run, 3)
    shutil.copytree(content["data"]["path"], tmp_path / "moved")
    for key, value in (("data.path", str(tmp_path / "moved")), ("training.keep", 1), ("training.checkpoint_every", 60)):
        content = set_option(content, key, value)
    train(content, run, resume=True)
    assert str(tmp_path / "moved") in (run / "config.yaml").read_text()
    assert outcome(run) == outcome(whole["cascade"])


def test_other_data_are_refused(contents: dict[str, Content], tmp_path: Path) -> None:
    interrupt(contents["cascade"], tmp_path / "cascade", 3)
    random_log(tmp_path / "log", impressions=50, seed=1)
    with pytest.raises(ConfigError, match=rf"data\.path: .* other data, different are day {DAYS[0]}, day {DAYS[1]}"):
        train(set_option(contents["cascade"], "data.path", str(tmp_path / "log")), tmp_path / "cascade", resume=True)
    interrupt(contents["ranker"], tmp_path / "ranker", 3)
    data = plant(tmp_path / "planted", log1p=True)
    with pytest.raises(ConfigError, match=r"data\.path: .* other data, different are S1"):
        train(set_option(contents["ranker"], "data.path", str(data)), tmp_path / "ranker", resume=True)


def test_a_finished_run_is_of_its_data(contents: dict[str, Content], tmp_path: Path) -> None:
    run, content = tmp_path / "run", contents["ranker"]
    train(content, run)
    data = plant(tmp_path / "planted", log1p=True)
    with pytest.raises(ConfigError, match=r"data\.path: .* other data, different are S1"):
        train(set_option(content, "data.path", str(data)), run, resume=True)


@pytest.mark.parametrize(
    ("part", "message"),
    [("modules", "'modules'"), ("optimizer", "'optimizer'"), ("position", r"unexpected keyword argument 'weather'")],
)
def test_a_checkpoint_of_another_kind_of_training_is_named(
    part: str, message: str, contents: dict[str, Content], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    interrupt(contents["ranker"], run, 3)
    store = Checkpoints(run / "checkpoints", 1)
    state = store.load(pytest.fail)
    assert state is not None
    if part == "position":
        state[part]["weather"] = "fine"
    else:
        del state[part]
    store.save(9, state)
    with pytest.raises(DamagedError, match=rf"of rankfall \S+ does not fit this release, \S+: .*{message}.*--force"):
        train(contents["ranker"], run, resume=True)


def test_another_release_is_worth_a_word(
    contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("rankfall.training.loop.__version__", "0.0.1")
        with pytest.raises(Interrupted):
            train(contents["ranker"], run, progress=after(3))
    train(contents["ranker"], run, resume=True, on_notice=heard.append)
    assert len(heard) == 1
    assert f"{run} was begun with rankfall 0.0.1, now " in heard[0]


def test_one_training_works_in_a_directory(contents: dict[str, Content], tmp_path: Path) -> None:
    interrupt(contents["ranker"], tmp_path, 3)
    with locked(tmp_path), pytest.raises(ValueError, match="another training is working in"):
        train(contents["ranker"], tmp_path, resume=True)
    train(contents["ranker"], tmp_path, resume=True)


# --- processes that are started again -------------------------------------------------------------------------------


def again() -> Group:
    group = Group()
    group.restarted = True
    return group


def test_who_is_started_again_waits_for_the_lock_of_the_dead(contents: dict[str, Content], tmp_path: Path) -> None:
    interrupt(contents["ranker"], tmp_path, 3)
    released = threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            held.set()
            time.sleep(0.5)
            released.set()

    held, dead = threading.Event(), threading.Thread(target=hold)
    dead.start()
    held.wait()
    train(contents["ranker"], tmp_path, group=again())
    assert released.is_set()
    dead.join()


def test_who_is_started_again_goes_on(contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path) -> None:
    steps: list[Step] = []
    interrupt(contents["ranker"], tmp_path / "run", 8)
    train(contents["ranker"], tmp_path / "run", force=True, group=again(), progress=steps.append)
    assert (steps[0].epoch, steps[0].batch) == (2, 3)
    assert outcome(tmp_path / "run") == outcome(whole["ranker"])


def test_a_run_is_replaced_though_the_first_attempt_died(
    contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = tmp_path / "run", tmp_path / "config.yaml"
    config.write_text(json.dumps(contents["ranker"]))
    train(contents["ranker"], run)
    before = (run / "result.json").read_text(), json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "0")
    with monkeypatch.context() as patch:

        def die(path: Path) -> None:
            raise Interrupted

        patch.setattr(ranker, "load_data", die)
        with pytest.raises(Interrupted):
            command("train", str(config), "--out", str(run), "--force")
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


def test_the_best_weights_are_of_the_run_that_went_on(
    contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, content = tmp_path / "run", set_option(contents["ranker"], "training.checkpoint_every", 1e9)
    content = set_option(content, "training.epochs", 3)
    worth = iter([0.5, 0.9])  # the second epoch is the best, but its checkpoint is not written any more
    monkeypatch.setattr(ranker._Learner, "validate", lambda self: {self.metric: next(worth)})
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
def test_comparisons_go_on_inside_a_run(
    damaged: bool, contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    interrupt(contents["ranker"], run, 8)
    (run / "error.txt").touch()
    for path in left(run) if damaged else ():
        alter(path)
    steps: list[int] = []
    step = ranker._Learner.step

    def count(self: Any, batch: Batch, position: Position) -> Taken:
        steps.append(position.step)
        return step(self, batch, position)

    monkeypatch.setattr(ranker._Learner, "step", count)
    perform(compare.Step(Run(validate(contents["ranker"]), run), "train", "arf", "seed 0"))
    assert steps[0] == (0 if damaged else 7)
    assert outcome(run) == outcome(whole["ranker"])


# --- full disks -----------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_older_checkpoints(
    contents: dict[str, Content], whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        message = r"cannot be written to: .*No space left.* after batch 1 of 5 in epoch 2. There are 2 older"
        with pytest.raises(TrainingError, match=message):
            train(contents["ranker"], run)
    assert [path.name for path in left(run)] == [
        "step-000000005.safetensors",
        "step-000000004.safetensors",
    ]
    assert not list(run.rglob("*.tmp"))
    train(contents["ranker"], run, resume=True)
    assert outcome(run) == outcome(whole["ranker"])


def test_where_nothing_was_kept_it_begins_again(
    contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: BinaryIO, tensors: Mapping[str, torch.Tensor], about: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_checkpoint, "_write", full)
    with pytest.raises(
        TrainingError, match="There is no checkpoint yet: when the cause is gone, training begins again"
    ):
        train(contents["ranker"], tmp_path / "run")


# --- parts ----------------------------------------------------------------------------------------------------------


def test_no_more_checkpoints_than_wanted_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    assert store.load(print) is None
    for step in (3, 10, 200):
        store.save(step, {"step": step})
    assert [path.name for path in store.paths()] == ["step-000000200.safetensors", "step-000000010.safetensors"]
    assert store.load(print) == {"step": 200}
    store.clear()
    assert not list(tmp_path.iterdir())


def test_a_state_is_split_and_joined() -> None:
    shared = torch.arange(3.0)
    state = {
        "a": {0: {"x": shared, 1: None}, "y": [shared, 0.1]},
        "big": 1 << 100,
        "z": torch.tensor(2, dtype=torch.int8),
    }
    tensors, plain = split(state)
    assert len(tensors) == 2
    joined = join(json.loads(json.dumps(plain)), tensors)
    assert str(joined) == str(state)
    assert joined["a"][0]["x"].data_ptr() != shared.data_ptr()
    assert joined["z"].dtype == torch.int8


def test_batches_of_lists_go_on_anywhere(contents: dict[str, Content], monkeypatch: pytest.MonkeyPatch) -> None:
    data = RankingData.load(contents["ranker"]["data"]["path"])
    lists = Lists([data["S1"], data["S2"]])

    def loader() -> ListLoader:
        return ListLoader(lists, batch=7, seed=3, max_list=9)

    whole = loader()
    whole.set_epoch(1)
    batches, states = [], [whole.state_dict()]
    for batch in whole:
        batches.append(batch)
        states.append(json.loads(json.dumps(whole.state_dict())))
    assert len(batches) == len(whole) == 12
    made: list[Any] = []
    make = lists.batch

    def count(numbers: Any, **options: Any) -> Batch:
        made.append(numbers)
        return make(numbers, **options)

    monkeypatch.setattr(lists, "batch", count)
    for done, state in enumerate(states):
        again = loader()
        again.load_state_dict(state)
        again.set_epoch(1)
        made.clear()
        left = list(again)
        assert len(made) == len(left) == 12 - done  # and none is made only to be passed over
        assert all(np.array_equal(one.rows, other.rows) for one, other in zip(left, batches[done:], strict=True))
        again.set_epoch(2)
        assert len(list(again)) == 12
    with pytest.raises(ValueError, match="state: was saved with batch = 7, this loader has 8"):
        ListLoader(lists, batch=8, seed=3, max_list=9).load_state_dict(states[2])
