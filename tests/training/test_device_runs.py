"""Whole training runs and evaluations on the stand-in device, which computes the bits of a CPU."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall._config import ConfigError
from rankfall.data.impressions.log import ImpressionLog
from rankfall.models import MLP
from rankfall.registry import names
from rankfall.studies.evaluate import evaluate_run, scores_of_run
from rankfall.studies.stream.day_learner import train_days
from rankfall.training import loop as loop_module
from rankfall.training.build import with_depths
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.load_config import merge
from rankfall.training.device import CPU
from rankfall.training.distributed.group import ALONE, Group
from rankfall.training.learner import Learner, Position
from rankfall.training.run_directory import Stopped, TrainingError
from rankfall.training.train_cascade import CascadeLearner
from support.cascades import content, liked_log
from support.interrupted import cascade_content, outcome, train
from support.logs import DAYS
from support.planted import config_for
from support.resuming import contents
from support.standin_device import DEVICE, MixedDevicesError, SynchronisationError
from support.standin_training import on_standin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.training.learner import StepResult

KINDS = pytest.mark.parametrize("kind", ["cascade", "ranker", "adamw", "sgd"])

ONE_EPOCH = {"training": {"epochs": 1, "checkpoint_every": 1e9}}
# the kernel of neural_sort for CPUs adds in another order
SAME_BITS = {"name": "dftopk", "tau": {"start": 10, "end": 1}}


@pytest.fixture(scope="module")
def liked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("liked") / "log"
    return liked_log(path)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed the CPU in every batch too, as other devices are."""
    seed_noise = Group.seed_noise
    monkeypatch.setattr(Group, "seed_noise", lambda self, *place, always=True: seed_noise(self, *place, always=True))


def after(batches: int) -> Callable[[], bool]:
    """Return a function that stops a run after a number of batches."""
    calls: list[None] = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == batches

    return stop


# --- the same as on the CPU ---------------------------------------------------------------------------------------


@KINDS
@pytest.mark.usefixtures("same_noise")
def test_an_interrupted_run_on_a_device_ends_as_one_on_the_cpu(kind: str, tmp_path: Path) -> None:
    # noise, dropout, sparse and shared tables, learned weights, schedules, every optimizer
    wanted = merge(contents()[kind], ONE_EPOCH)
    if kind == "cascade":
        wanted["objective"]["topk"] = SAME_BITS
        wanted["data"]["train"] = DAYS[0]
    train(wanted, tmp_path / "cpu")
    notices: list[str] = []
    with on_standin(synchronises=kind == "cascade"):
        with pytest.raises(Stopped):
            train(wanted, tmp_path / "device", stop=after(3))
        train(wanted, tmp_path / "device", resume=True, on_notice=notices.append)
    on_cpu, on_device = outcome(tmp_path / "cpu"), outcome(tmp_path / "device")
    assert (on_cpu["result"].pop("device"), on_device["result"].pop("device")) == ("cpu", str(DEVICE))
    assert on_device == on_cpu
    assert not [text for text in notices if "started with" in text]


@pytest.mark.parametrize("name", names("objective"))
def test_one_step_of_every_objective_and_model(name: str, liked: Path, tmp_path: Path) -> None:
    models: list[dict[str, Any]] = [
        {"kind": "mlp", "batch_norm": True},
        {"kind": "two_tower"},
        {"kind": "din", "attention": 4},
    ]
    stages = [
        {"name": f"stage{place}", "quota": 6 - 2 * place, "model": {"hidden": [8], "dim": 4, **model}}
        for place, model in enumerate(models)
    ]
    options: dict[str, Any] = {"loss": "softmax_loss"} if name == "per_stage" else {}
    settings = content(liked, stages=stages, training={"batch": 16}, optimizer={"clip": 0.1}, weight="relevance")
    log = ImpressionLog.load(liked)
    config = with_depths(validate_cascade(settings | {"objective": {"name": name, **options}}), log.spec.stage_names)

    def trained() -> tuple[dict[str, Tensor], list[Any]]:
        torch.manual_seed(0)
        learner = CascadeLearner(config, tmp_path, log, ALONE)
        batches = [batch for batch, _ in zip(learner.loader, range(2), strict=False)]
        results = []
        for batch in batches:  # objectives that alternate between stages train another one in the second batch
            torch.manual_seed(1)
            results.append(learner.step(batch, Position()))
        return {key: value.cpu() for key, value in learner.network.state_dict().items()}, results

    weights, results = trained()
    with on_standin():
        on_device = trained()
    assert on_device[1] == results
    assert [key for key, value in weights.items() if not torch.equal(value, on_device[0][key])] == []


class TwoAlike(Group):
    """Two processes with equal shares, of which one is simulated."""

    world = 2

    def totals(self, numbers: Sequence[float]) -> list[float]:
        return [2 * number for number in numbers]


def test_results_are_totals_over_all_processes(liked: Path, tmp_path: Path) -> None:
    log = ImpressionLog.load(liked)
    config = with_depths(validate_cascade(content(liked)), log.spec.stage_names)

    def results(group: Group) -> list[StepResult]:
        torch.manual_seed(0)
        learner, position = CascadeLearner(config, tmp_path, log, group), Position()
        batches = [batch for batch, _ in zip(learner.loader, range(2), strict=False)]
        if learner.placement.is_cpu:
            return [learner.step(batch, position) for batch in batches]
        return learner.read([learner.launch(batch, position) for batch in batches], position)

    wanted = results(TwoAlike())
    with on_standin():
        assert results(TwoAlike()) == wanted
    assert [result.count for result in wanted] == [32, 32]  # shares of 16


@pytest.mark.usefixtures("same_noise")
def test_a_stream_on_a_device(tmp_path: Path, log: Path) -> None:
    opened = ImpressionLog.load(log)
    days = {name: opened.days[name].manifest["sha256"] for name in DAYS[:2]}
    wanted = cascade_content(log)
    wanted["objective"]["topk"] = SAME_BITS
    config = validate_cascade(wanted)
    train_days(config, tmp_path / "cpu", opened, days)
    with on_standin(synchronises=True):
        train_days(config, tmp_path / "device", opened, days)
    on_cpu, on_device = (
        (tmp_path / where / "checkpoints" / "last.safetensors").read_bytes() for where in ("cpu", "device")
    )
    assert on_device == on_cpu


def test_devices_without_double_precision(liked: Path, data: Path, tmp_path: Path) -> None:
    for name, wanted in (("cascade", content(liked, training={"epochs": 1})), ("ranker", config_for(data))):
        on_cpu = train(wanted, tmp_path / "cpu" / name)
        with on_standin(like="mps"):
            on_device = train(wanted, tmp_path / "device" / name)
            evaluate_run(tmp_path / "device" / name, out=tmp_path / "evaluation" / name)
        assert on_device.best_metric == pytest.approx(on_cpu.best_metric, abs=0.01)


def test_evaluation_follows_the_device(liked: Path, tmp_path: Path, data: Path) -> None:
    train(content(liked, training={"epochs": 1}), tmp_path / "cascade")
    train(config_for(data), tmp_path / "ranker")
    for run, overrides in (("cascade", []), ("cascade", ["data.length=all"]), ("ranker", [])):
        summary = evaluate_run(tmp_path / run, overrides=overrides, out=tmp_path / "cpu").summary()
        with on_standin() as device:
            found = evaluate_run(tmp_path / run, overrides=overrides, out=tmp_path / "device").summary()
        assert found == summary
        assert device.synchronisations  # it was used
    scores = scores_of_run(tmp_path / "cascade")[1].scores
    with on_standin():
        for stage, wanted in zip(scores_of_run(tmp_path / "cascade")[1].scores, scores, strict=True):
            assert torch.equal(stage, wanted)


def test_noise_is_the_same_after_an_interruption(tmp_path: Path) -> None:
    wanted = merge(contents()["cascade"], {**ONE_EPOCH, "data": {"train": DAYS[0]}})
    with on_standin(synchronises=True):
        train(wanted, tmp_path / "whole")
        with pytest.raises(Stopped):
            train(wanted, tmp_path / "interrupted", stop=after(3))
        train(wanted, tmp_path / "interrupted", resume=True)
    assert outcome(tmp_path / "interrupted") == outcome(tmp_path / "whole")


# --- what a run does on a device ----------------------------------------------------------------------------------


def test_results_are_read_together(liked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "UNREAD_STEPS", 4)
    monkeypatch.setattr(loop_module, "UNREAD_SECONDS", 1e9)
    read: list[int] = []
    original = Learner.read

    def counted(self: Learner[Any], unread: list[Any], position: Position) -> list[Any]:
        read.append(len(unread))
        return original(self, unread, position)

    monkeypatch.setattr(Learner, "read", counted)
    steps: list[Any] = []
    with on_standin() as device:
        train(content(liked, training={"epochs": 1}), tmp_path / "run", progress=steps.append)
    assert read == [4, 4, 2]  # of 10 batches
    assert [step.batch for step in steps] == [4, 8, 10]
    waits = [place for place in device.synchronisations if "learner.py" in place]
    assert len(waits) == 3
    assert all("copies to the host" in place for place in waits)


def test_files_hold_cpu_tensors_and_resume_on_another_device(tmp_path: Path) -> None:
    wanted = merge(contents()["adamw"], {"training": {"epochs": 2}})
    with on_standin(), pytest.raises(Stopped):
        train(wanted, tmp_path / "run", stop=after(3))
    notices: list[str] = []
    train(wanted, tmp_path / "run", resume=True, on_notice=notices.append)
    assert any(text.endswith("was started with device lazy, now cpu: last digits may differ") for text in notices)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["device"] == "cpu"


@pytest.mark.parametrize("settings", [{"lr": 1e30}, {"lr": 1e30, "clip": 2.0}])
def test_divergence_has_the_message_of_the_cpu(settings: dict[str, Any], liked: Path, tmp_path: Path) -> None:
    wanted = content(liked, optimizer=settings)
    with pytest.raises(TrainingError) as on_cpu:
        train(wanted, tmp_path / "run")
    with on_standin(), pytest.raises(TrainingError) as on_device:
        train(wanted, tmp_path / "run", force=True)
    assert str(on_device.value) == str(on_cpu.value)
    assert "the scores of" in str(on_cpu.value)


@pytest.mark.parametrize("slope", [math.nan, math.inf])
def test_a_gradient_that_is_not_a_number_is_named(
    slope: float, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a hook that spoils the gradient of the third batch
    calls: list[None] = []

    def spoil(gradient: Tensor) -> Tensor:
        calls.append(None)
        return gradient * (slope if len(calls) == 3 else 1.0)

    forward = MLP.forward

    def spoiled(self: MLP, *args: Any) -> Tensor:
        outputs = forward(self, *args)
        if outputs.requires_grad:
            outputs.register_hook(spoil)
        return outputs

    monkeypatch.setattr(MLP, "forward", spoiled)
    wanted = config_for(data, model={"kind": "mlp", "hidden": [8]})
    message = "the gradient became NaN, infinite or too large in epoch 1, batch 3 of"
    with on_standin(), pytest.raises(TrainingError, match=message):
        train(wanted, tmp_path / "run")


def test_what_is_not_trained_is_named(liked: Path, tmp_path: Path) -> None:
    wanted = content(liked) | {
        "objective": {"name": "per_stage", "loss": {"name": "lambda_recall_loss", "m": 50, "k": 2}}
    }
    with on_standin(), pytest.raises(TrainingError, match="of all weights of retrieval and of ranking was exactly 0"):
        train(wanted, tmp_path / "run")


def test_labels_a_loss_refuses_are_named(data: Path, tmp_path: Path) -> None:
    wanted = config_for(data, loss={"name": "bce_loss", "threshold": None})
    with (
        on_standin(),
        pytest.raises(ConfigError, match=r"bce_loss refuses labels of data\.train, which are from 0 to 3: lab"),
    ):
        train(wanted, tmp_path / "run")


# --- wrong placement cannot be missed -----------------------------------------------------------------------------


def planted_mistakes() -> dict[str, tuple[type[Exception], Callable[[Tensor], Tensor]]]:
    """Return mistakes in a model that a CPU does not notice."""
    return {
        "a constant on the CPU": (MixedDevicesError, lambda scores: scores + torch.ones(len(scores))),
        "a value that is read": (SynchronisationError, lambda scores: scores * float(scores.detach().max() > -1)),
    }


@pytest.mark.parametrize("mistake", planted_mistakes())
def test_a_mistake_in_a_model_is_found(
    mistake: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, spoil = planted_mistakes()[mistake]
    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, *args: spoil(forward(self, *args)))
    wanted = config_for(data, model={"kind": "mlp", "hidden": [8]}, training={"epochs": 1})
    train(wanted, tmp_path / "cpu")
    with on_standin(), pytest.raises(error):
        train(wanted, tmp_path / "device")


def test_learners_without_a_placement_are_on_the_cpu() -> None:
    assert Learner.placement == CPU
