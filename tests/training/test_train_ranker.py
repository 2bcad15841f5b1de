"""Batches, the training loop, run directories and checkpoints."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfall import losses, registry
from rankfall._config import ConfigError, dump
from rankfall._tensor_file import read_checkpoint, write_checkpoint
from rankfall.data import RankingData
from rankfall.data.lists import list_loader as batches_module
from rankfall.data.lists.list_loader import Lists
from rankfall.storage.files import write_file
from rankfall.studies.evaluate import evaluate_run
from rankfall.training.build import check_loss, make_loss, make_optimizer
from rankfall.training.checks import Ranker, make_ranker
from rankfall.training.config.ranker_config import LossConfig, validate
from rankfall.training.config.sections import OptimizerConfig
from rankfall.training.measured_lists import score
from rankfall.training.methods import train
from rankfall.training.run_directory import Step, TrainingError, is_finished, read_result
from rankfall.training.train_ranker import Epoch, load_run
from support.command_line import run
from support.components import required_options
from support.planted import config_for, plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def weights(directory: Path, name: str = "best") -> bytes:
    return (directory / "checkpoints" / f"{name}.safetensors").read_bytes()


# --- batches ------------------------------------------------------------------------------------------------------


def test_a_batch_holds_what_the_lists_hold(data: Path) -> None:
    prepared = RankingData.load(data)
    lists = Lists([prepared["S1"], prepared["S2"]])
    numbers = np.array([3, 41, 79, 0])  # of both splits
    batch = lists.batch(numbers)
    assert len(batch.rows) == batch.mask.sum()  # a model, and its batch norm, see no padding
    features = batch.pad(lists.gather(batch.rows))
    for place, number in enumerate(numbers):
        split, inside = (prepared["S1"], number) if number < 40 else (prepared["S2"], number - 40)
        rows = slice(split.offsets[inside], split.offsets[inside + 1])
        length = len(split.labels[rows])
        assert lists.qids[number] == split.qids[int(inside)].as_py()
        assert batch.mask[place].tolist() == [True] * length + [False] * (batch.mask.shape[1] - length)
        assert np.array_equal(batch.labels[place, :length], split.labels[rows])
        assert np.array_equal(features[place, :length], split.features[rows])
    assert not features[~batch.mask].any()


def test_shuffling_visits_every_list_once_and_repeats(data: Path) -> None:
    lists = Lists([RankingData.load(data)[name] for name in ("S1", "S2")])
    first = lists.shuffled(16, np.random.default_rng(0))
    assert sorted(np.concatenate(first)) == list(range(80))
    assert [len(batch) for batch in first] == [16] * 5
    assert all(map(np.array_equal, first, lists.shuffled(16, np.random.default_rng(0))))
    assert not all(map(np.array_equal, first, lists.shuffled(16, np.random.default_rng(1))))
    assert sorted(map(len, lists.shuffled(30, np.random.default_rng(0)))) == [26, 27, 27]  # no small rest


def test_bucketing_keeps_padding_low(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    lists = Lists([RankingData.load(data)[name] for name in ("S1", "S2")])

    def padding() -> float:
        batches = lists.shuffled(8, np.random.default_rng(0))
        return float(np.mean([1 - lists.batch(batch).mask.float().mean() for batch in batches]))

    bucketed = padding()
    monkeypatch.setattr(batches_module, "POOL", 1)
    assert bucketed < 0.1
    assert padding() > 3 * bucketed


def test_measured_batches_cover_all_lists_in_bounded_size(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setattr(batches_module, "MEASURED_ROWS", 60)
    lists = Lists([RankingData.load(data)["S1"]])
    batches = list(lists.by_length())
    assert sorted(np.concatenate([batch.lists for batch in batches])) == list(range(40))
    assert all(batch.mask.numel() <= 60 for batch in batches)


def test_documents_are_shuffled_inside_their_lists(data: Path) -> None:
    lists = Lists([RankingData.load(data)["S1"]])
    numbers = np.array([7, 3])
    plain = lists.batch(numbers)
    shuffled = lists.batch(numbers, rng=np.random.default_rng(0))
    first = int(plain.mask[0].sum())
    for part in (slice(None, first), slice(first, None)):
        assert sorted(shuffled.rows[part]) == plain.rows[part].tolist() != shuffled.rows[part].tolist()
    assert torch.equal(shuffled.labels[shuffled.mask], torch.tensor(lists.labels[shuffled.rows]))


def test_long_lists_are_sampled_evenly(data: Path) -> None:
    lists = Lists([RankingData.load(data)["S1"]])
    numbers, rng = np.arange(40), np.random.default_rng(0)
    counts = np.zeros(lists.rows)
    for _ in range(200):
        batch = lists.batch(numbers, max_list=8, rng=rng)
        counts[batch.rows] += 1
        assert batch.mask.sum(-1).tolist() == np.minimum(lists.lengths, 8).tolist()
    expected = np.repeat(200 * np.minimum(1, 8 / lists.lengths), lists.lengths)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(200 / 4)  # five deviations of the widest binomial
    with pytest.raises(ValueError, match="rng"):
        lists.batch(numbers, max_list=8)


# --- learning -----------------------------------------------------------------------------------------------------

LOSSES: dict[str, dict[str, Any]] = {
    "mse_loss": {},
    "bce_loss": {"threshold": 1.5},
    "grade_softmax_loss": {},
    "softmax_loss": {},
    "listmle_loss": {},
    "ranknet_loss": {},
    "lambdarank_loss": {},
    "lambda_loss": {"k": 5},
    "lambda_recall_loss": {"m": 6, "k": 3},
    "approx_ndcg_loss": {"tau": 0.5, "gumbel_samples": 4},
    "pirank_ndcg_loss": {"k": 5, "sort": "soft_sort"},
    "pirank_arp_loss": {},
    "sort_cross_entropy_loss": {},
    "relax_loss": {"m": 5, "k": 3, "sort": {"name": "soft_sort", "power": 2}},
    "topk_bce_loss": {"k": 4, "topk": {"name": "lapsum_topk", "tau": 0.5}},
    "arf": {"m": 5, "k": 3},
    "arf_v2": {"k": 4, "topk": "dftopk"},
}
LOSSES |= {name: required_options("loss", name) for name in registry.builtins("loss") if name not in LOSSES}


@pytest.mark.parametrize("name", LOSSES)
def test_a_planted_linear_ranking_is_recovered(name: str, data: Path, tmp_path: Path) -> None:
    content = config_for(data, training={"epochs": 20, "patience": None}, loss={"name": name, **LOSSES[name]})
    config = validate({**content, "metrics": ["ndcg"]})
    train(config, tmp_path / "run")
    evaluation = evaluate_run(tmp_path / "run")
    assert evaluation.chance["ndcg"].nanmean() < 0.8
    assert evaluation.values["ndcg"].nanmean() > 0.95


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad", "sgd"])
def test_every_optimizer_lowers_the_loss(optimizer: str, data: Path, tmp_path: Path) -> None:
    content = config_for(data, optimizer={"name": optimizer, "lr": 0.05, "weight_decay": 1e-4, "clip": 10.0})
    train(validate({**content, "model": {"hidden": [8], "residual": True, "dropout": 0.1}}), tmp_path / "run")
    epochs = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert epochs[-1]["loss"] < epochs[0]["loss"]


def test_the_balance_of_arf_is_trained_and_kept(data: Path, tmp_path: Path) -> None:
    config = validate(config_for(data, loss={"name": "arf", "m": 5, "k": 3}))
    result = train(config, tmp_path / "run")
    tensors, _ = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert tensors["loss.alpha"] != 1.0
    assert last["trained"]["alpha"] == pytest.approx(tensors["loss.alpha"].item())
    assert result.parameters == 4 + 1 + 1


def test_the_balance_of_arf_does_not_decay() -> None:
    loss, _ = make_loss(LossConfig.model_validate({"name": "arf", "m": 5, "k": 3}))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer(OptimizerConfig(name="sgd", weight_decay=0.5), [weight], loss.parameters())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


@pytest.mark.parametrize("schedule", ["linear", "exponential"])
@pytest.mark.parametrize("place", ["loss", "operator"])
def test_temperatures_follow_their_schedule(
    place: str, schedule: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tau = {"start": 8.0, "end": 2.0, "schedule": schedule}
    options = {"tau": tau} if place == "loss" else {"sort": {"name": "soft_sort", "tau": tau}}
    config = validate(
        config_for(data, loss={"name": "pirank_ndcg_loss", **options}, training={"epochs": 3, "batch": 30})
    )
    built = make_loss(config.loss)
    monkeypatch.setattr("rankfall.training.build.make_loss", lambda config: built)
    (temperature,) = built[1]
    seen: list[float] = []
    train(config, tmp_path / "run", progress=lambda step: seen.append(temperature.value.item()))
    batches = len(seen)
    assert batches == 3 * math.ceil(80 / 30)
    shares = [number / (batches - 1) for number in range(batches)]
    expected = [8 - 6 * share if schedule == "linear" else 8 * 0.25**share for share in shares]
    assert seen == pytest.approx(expected)
    last = {"tau": 2.0} if place == "loss" else {"sort": {"name": "soft_sort", "tau": 2.0}}
    fixed, _ = make_loss(LossConfig.model_validate({"name": "pirank_ndcg_loss", **last}))
    scores, labels = torch.tensor([[0.3, -0.2, 1.0]]), torch.tensor([[2.0, 1.0, 0.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    torch.testing.assert_close(built[0](scores, labels, mask=mask), fixed(scores, labels, mask=mask))


def test_a_constant_schedule_trains_as_a_number(data: Path, tmp_path: Path) -> None:
    for name, tau in {"number": 4.0, "schedule": {"start": 4.0, "schedule": "constant"}}.items():
        loss = {"name": "pirank_ndcg_loss", "tau": tau}
        train(validate(config_for(data, loss=loss, training={"epochs": 2})), tmp_path / name)
    assert weights(tmp_path / "schedule") == weights(tmp_path / "number")


def test_straight_through_trains_the_same_weights(data: Path, tmp_path: Path) -> None:
    for name, through in {"soft": False, "hard": True}.items():
        loss = {"name": "pirank_ndcg_loss", "k": 5, "tau": 4.0, "straight_through": through}
        train(validate(config_for(data, loss=loss, training={"epochs": 2})), tmp_path / name)
    (soft, _), (hard, _) = (
        read_checkpoint(tmp_path / name / "checkpoints" / "last.safetensors") for name in ("soft", "hard")
    )
    torch.testing.assert_close(hard, soft)
    lines = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0]) for name in ("soft", "hard")]
    assert lines[0]["loss"] != pytest.approx(lines[1]["loss"], rel=1e-3)


SCHEDULE = {"start": 10, "end": 1}


@pytest.mark.parametrize("name", registry.names("loss"))
def test_every_temperature_of_a_loss_can_follow_a_schedule(name: str) -> None:
    options, given = registry.options("loss", name), required_options("loss", name)
    variants: list[dict[str, Any]] = [{"tau": SCHEDULE}] if "tau" in options else []
    for operator, place in ((one, "topk" if "topk" in options else "sort") for one in registry.names("operator")):
        own = [one for one in registry.options("operator", operator) if one in ("tau", "steepness")]
        if place in options and own and (place == "topk" or operator in registry.SORTS):
            variants.append({place: {"name": operator, own[0]: SCHEDULE}})
    assert variants or not {"tau", "sort", "topk"} & set(options)
    for variant in variants:
        config = LossConfig.model_validate({"name": name, **given, **variant})
        module, temperatures = make_loss(config)
        assert len(temperatures) == 1
        check_loss(module, config)


def test_clipping_bounds_the_first_step(data: Path, tmp_path: Path) -> None:
    settings = config_for(data, optimizer={"name": "sgd", "lr": 1.0, "clip": 1e-3}, training={"epochs": 1, "batch": 80})
    first: list[Tensor] = []
    train(validate(settings), tmp_path / "run", on_epoch=lambda _, learner: first.append(_flat(learner.model)))
    torch.manual_seed(0)  # as the training does, to draw the weights it started from
    start = make_ranker(validate(settings).model, load_run(tmp_path / "run")[1].scaling, None)
    assert (first[0] - _flat(start)).norm().item() == pytest.approx(1e-3, rel=1e-3)


def _flat(model: Ranker) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# --- early stopping -----------------------------------------------------------------------------------------------


def test_training_stops_when_validation_does_not_improve(data: Path, tmp_path: Path) -> None:
    seen: list[Epoch] = []
    config = validate(config_for(data, training={"epochs": 100, "patience": 2}))
    result = train(config, tmp_path / "run", on_epoch=lambda epoch, _: seen.append(epoch))
    values = [epoch.metric for epoch in seen]
    assert result.epochs == len(values) == result.best_epoch + 2 < 100
    assert result.best_metric == max(values) == values[result.best_epoch - 1]
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "best.safetensors")[1]["epoch"] == result.best_epoch
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")[1]["epoch"] == result.epochs
    assert read_result(tmp_path / "run") == result


def test_a_metric_that_should_be_low_is_made_low(data: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    config = validate(config_for(data, training={"metric": "arp", "epochs": 6}))
    result = train(config, tmp_path / "run", on_epoch=lambda epoch, _: seen.append(epoch.metric))
    assert result.best_metric == min(seen) < seen[0]


def test_on_epoch_and_progress_hear_everything(data: Path, tmp_path: Path) -> None:
    steps: list[Step] = []
    config = validate(config_for(data))
    train(config, tmp_path / "run", progress=steps.append)
    assert [(step.epoch, step.batch) for step in steps] == [(e, b) for e in (1, 2, 3) for b in range(1, 6)]
    assert steps[0].validation == {}
    assert list(steps[5].validation) == [config.training.metric]
    assert all(math.isfinite(step.parts["loss"]) and step.per_second > 0 for step in steps)


# --- repeatability ------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes(data: Path, tmp_path: Path) -> None:
    # everything that is random: first weights, order, dropout, sampled lists, Gumbel noise
    content = {
        **config_for(data, loss={"name": "approx_ndcg_loss", "gumbel_samples": 2}, training={"max_list": 10}),
        "model": {"hidden": [8, 8], "dropout": 0.3},
    }
    torch.manual_seed(1)
    train(validate(content), tmp_path / "one")
    torch.manual_seed(2)
    train(validate(content), tmp_path / "two")
    content["training"] = {**content["training"], "seed": 1}
    train(validate(content), tmp_path / "three")
    for name in ("best", "last"):
        assert weights(tmp_path / "one", name) == weights(tmp_path / "two", name) != weights(tmp_path / "three", name)


def test_training_leaves_the_global_state_alone(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    train(validate(config_for(data, training={"threads": threads + 1})), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


# --- what features become -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("log1p", [False, True])
def test_scaling_is_fitted_on_the_training_splits_alone(log1p: bool, data: Path, tmp_path: Path) -> None:
    train(validate(config_for(data, data={"log1p": log1p}, training={"epochs": 1})), tmp_path / "run")
    scaling = load_run(tmp_path / "run")[1].scaling
    prepared = RankingData.load(data)
    features = np.concatenate([prepared[name].features for name in ("S1", "S2")]).astype(float)
    features = np.sign(features) * np.log1p(np.abs(features)) if log1p else features
    np.testing.assert_allclose(scaling.mean, features.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scaling.deviation, features.std(0), rtol=1e-6)
    assert scaling.log1p is log1p


def test_features_can_stay_as_they_are(data: Path, tmp_path: Path) -> None:
    content = config_for(data, data={"standardise": False}, training={"epochs": 1}, optimizer={"lr": 1e-6})
    train(validate(content), tmp_path / "run")
    scaling = load_run(tmp_path / "run")[1].scaling
    assert scaling.mean.tolist() == [0.0] * 4
    assert scaling.deviation.tolist() == [1.0] * 4


def test_logarithms_are_not_taken_twice(tmp_path: Path) -> None:
    logged = plant(tmp_path / "logged", log1p=True)
    with pytest.raises(ConfigError, match=r"data.log1p: found true, but .* prepared with log1p; expected false"):
        train(validate(config_for(logged, data={"log1p": True})), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_loaded_run_scores_as_the_trained_model(data: Path, tmp_path: Path) -> None:
    last: list[Tensor] = []
    split = RankingData.load(data)["S4"]
    content = {**config_for(data, loss={"name": "grade_softmax_loss"}), "model": {"hidden": [8], "dropout": 0.5}}
    train(validate(content), tmp_path / "run", on_epoch=lambda _, learner: last.append(score(learner.model, split)))
    config, model = load_run(tmp_path / "run", checkpoint="last")
    assert model.grades == 4
    assert config.loss == validate(content).loss
    torch.testing.assert_close(score(model, split), last[-1], rtol=0, atol=0)
    expected = losses.expected_grade(model(torch.tensor(split.features)))
    torch.testing.assert_close(score(model, split), expected)


def test_a_run_is_not_overwritten_without_force(data: Path, tmp_path: Path) -> None:
    config = validate(config_for(data, training={"epochs": 2}))
    train(config, tmp_path / "run")
    before = weights(tmp_path / "run")
    with pytest.raises(ValueError, match=r"holds a run already; .* --force"):
        train(config, tmp_path / "run")
    assert weights(tmp_path / "run") == before
    evaluate_run(tmp_path / "run")
    train(validate(config_for(data, training={"epochs": 1, "seed": 1})), tmp_path / "run", force=True)
    assert weights(tmp_path / "run") != before
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_a_directory_with_other_files_is_never_used(data: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds other files and no run"):
        train(validate(config_for(data)), tmp_path, force=True)
    with pytest.raises(ValueError, match="is a file"):
        train(validate(config_for(data)), tmp_path / "thesis.tex")
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "nowhere"}, "data.path: nowhere is not prepared ranking data"),
        ({"train": ["S1", "S9"]}, "data.train: .* has no split 'S9'; it has S1, S2, S3, S4"),
        ({"valid": ["vali"]}, "data.valid: .* has no split 'vali'"),
        ({"test": ["S5"]}, "data.test: .* has no split 'S5'"),
        ({"train": ["S1:1/2"], "test": ["S1:2/3"]}, "S1:1/2 and S1:2/3 have lists in common"),
    ],
)
def test_data_that_are_not_there(changes: dict[str, Any], message: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(validate(config_for(data, data=changes)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_keeps_whole_epochs_and_is_not_finished(data: Path, tmp_path: Path) -> None:
    def interrupt(step: Step) -> None:
        if (step.epoch, step.batch) == (3, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(validate(config_for(data)), tmp_path / "run", progress=interrupt)
    assert not is_finished(tmp_path / "run")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert load_run(tmp_path / "run", checkpoint="last")


# --- what is not a number -----------------------------------------------------------------------------------------


def test_a_loss_that_explodes_stops_with_advice(data: Path, tmp_path: Path) -> None:
    content = config_for(
        data,
        loss={"name": "relax_loss", "m": 5, "k": 3, "tau": 0.5},
        optimizer={"name": "sgd", "lr": 1e38},
        data={"standardise": False},
    )
    with pytest.raises(TrainingError) as caught:
        train(validate(content), tmp_path / "run")
    message = str(caught.value)
    assert message.startswith("relax_loss: the ")
    assert "epoch 1, batch " in message
    assert "qid q" in message
    assert "and 11 more" in message
    for advice in ("optimizer.lr than 1e+38", "optimizer.clip=1", "loss.tau than 0.5", "data.standardise=true"):
        assert advice in message
    assert not is_finished(tmp_path / "run")


def replace_loss(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Tensor]) -> None:
    module, _ = make_loss(LossConfig(name="softmax_loss"))
    monkeypatch.setattr(module, "function", function)
    monkeypatch.setattr("rankfall.training.build.make_loss", lambda config: (module, []))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_a_number_is_named(
    value: float, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_loss(monkeypatch, lambda scores, labels, *, mask: scores.abs().sum() * value)
    with pytest.raises(
        TrainingError, match=r"softmax_loss: the loss became NaN, infinite or too large in epoch 1, batch 1 of 5 \(qid"
    ):
        train(validate(config_for(data)), tmp_path / "run")


def test_a_gradient_that_is_not_a_number_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the square root of 0: a finite value with an infinite slope
    replace_loss(monkeypatch, lambda scores, labels, *, mask: (scores * 0).sum().sqrt())
    message = "softmax_loss: the gradient became NaN, infinite or too large in epoch 1, batch 1"
    with pytest.raises(TrainingError, match=message):
        train(validate(config_for(data)), tmp_path / "run")


def test_labels_a_loss_refuses_are_named(data: Path, tmp_path: Path) -> None:
    config = validate(config_for(data, loss={"name": "bce_loss", "threshold": None}))
    with pytest.raises(TrainingError, match=r"bce_loss refuses epoch 1, batch 1 of 5 \(qid .*\): labels must not hold"):
        train(config, tmp_path / "run")


# --- files --------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "file", "old")

    def full_disk(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_file(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_checkpoint_is_read_back_and_checked(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2).T.double()}
    write_checkpoint(tmp_path / "x", tensors, {"epoch": 3})
    found, about = read_checkpoint(tmp_path / "x")
    assert about["epoch"] == 3
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    (tmp_path / "y").write_bytes((tmp_path / "x").read_bytes()[:-4])
    with pytest.raises(ValueError, match="y cannot be read as a checkpoint"):
        read_checkpoint(tmp_path / "y")
    with pytest.raises(ValueError, match="z does not exist"):
        read_checkpoint(tmp_path / "z")


# --- the command --------------------------------------------------------------------------------------------------


def test_train_then_evaluate(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(dump(validate(config_for(data))))
    arguments = (str(tmp_path / "config.yaml"), "training.epochs=2", "--out", str(tmp_path / "run"), "--seed", "3")
    assert run("train", *arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["epochs"] == 2
    assert report["metric"] == "ndcg@10"
    assert load_run(tmp_path / "run")[0].training.seed == 3
    assert run("train", *arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "holds a run already" in err
    assert run("train", *arguments, "--force") == 0
    out, _ = capsys.readouterr()
    assert f"rankfall evaluate {tmp_path / 'run'}"[:40] in out.replace("\n", "")


def test_a_mistake_is_a_message_and_exit_code_1(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(dump(validate(config_for(data))))
    assert run("train", str(tmp_path / "config.yaml"), "data.path=nowhere", "--out", str(tmp_path / "run")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "nowhere is not prepared ranking data" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
