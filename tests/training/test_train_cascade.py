"""Training a cascade from a log: what it learns, what it leaves, what it refuses."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import yaml

import rankfall as rf
from rankfall._config import ConfigError
from rankfall.cli import main
from rankfall.data.impressions.log import ImpressionLog
from rankfall.registry import names
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.studies.comparison_plan import ComparisonConfig, make_plan, validated
from rankfall.studies.evaluate import evaluate_run
from rankfall.training.build import make_objective
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.cascade_metrics import ScoredBatch, ground_truth, measure_lists, published_gains
from rankfall.training.config.cascade_config import CascadeConfig, validate_cascade
from rankfall.training.config.component_checks import higher_is_better, measures
from rankfall.training.config.load_config import set_option
from rankfall.training.learner import clip_gradients
from rankfall.training.measured_lists import measure_cascade as measure
from rankfall.training.methods import train
from rankfall.training.run_directory import TrainingError
from rankfall.training.train_cascade import load_run
from support.cascades import content, liked_log
from support.logs import DAYS, item_columns, random_day, write_log
from support.sealing import edit_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log from which a cascade can learn."""
    path: Path = tmp_path_factory.mktemp("cascade") / "log"
    return liked_log(path)


def config_for(log: Path, **changes: Any) -> CascadeConfig:
    return validate_cascade(content(log, **changes))


# --- measuring --------------------------------------------------------------------------------------------------


def test_measures_are_those_of_a_loop(log: Path) -> None:
    loader = rf.data.ImpressionLoader(log, DAYS[1], batch=16, shuffle=False)

    def score(batch: Impressions) -> ScoredBatch:
        return ScoredBatch.of_lists(batch, [torch.sin(batch.item.float() * 3), torch.cos(batch.item.float() * 5)])

    measured = measure_lists(score, loader, names=["a", "b"], quotas=[6, 3], relevant=2)
    values, chance = measured.values, measured.chance
    rows = ImpressionLog.load(log).days[DAYS[1]].table().to_pylist()
    for i, row in enumerate(rows):
        relevant = {item for item, value in zip(row["item"], row["relevance"], strict=True) if value > 0}
        first = sorted(row["item"], key=lambda item: -np.sin(item * 3))[:6]
        second = sorted(first, key=lambda item: -np.cos(item * 5))[:3]
        alone = sorted(row["item"], key=lambda item: -np.cos(item * 5))[:3]
        assert values["joint_recall"][i] == pytest.approx(len(relevant & set(second)) / 2)
        assert values["a/alone/recall"][i] == pytest.approx(len(relevant & set(first)) / 2)
        assert values["b/alone/recall"][i] == pytest.approx(len(relevant & set(alone)) / 2)
        assert values["a/lost"][i] == pytest.approx(1 - len(relevant & set(first)) / 2)
        assert values["b/lost"][i] == pytest.approx(len(relevant & (set(first) - set(second))) / 2)
    assert chance["joint_recall"].tolist() == pytest.approx([3 / 11] * len(rows))
    assert chance["a/alone/recall"].tolist() == pytest.approx([6 / 11] * len(rows))
    assert chance["a/lost"].tolist() == pytest.approx([5 / 11] * len(rows))
    assert chance["b/lost"].tolist() == pytest.approx([3 / 11] * len(rows))


def test_the_ground_truth_is_relevant(log: Path) -> None:
    (batch,) = rf.data.ImpressionLoader(log, DAYS[1], batch=100, shuffle=False)
    assert torch.equal(ground_truth(batch, 2), (batch.relevance > 0).float())
    assert torch.equal(ground_truth(batch, 5), (batch.relevance > 0).float())  # there are no more
    best = ground_truth(batch, 1)
    assert torch.equal(best.argmax(-1), batch.grade.argmax(-1))
    assert (best.sum(-1) == 1).all()


@pytest.mark.witness("brute force", "ndcg")
def test_further_metrics_of_a_stage_are_those_of_a_loop(log: Path) -> None:
    loader = rf.data.ImpressionLoader(log, DAYS[1], batch=16, shuffle=False)
    further = ["ndcg_linear@3", "ndcg@3", "ndcg_published@3", "opa", "arp"]

    def score(batch: Impressions) -> ScoredBatch:
        return ScoredBatch.of_lists(batch, [torch.sin(batch.item.float() * 3)])

    def ndcg(gains: Sequence[float]) -> float:
        discounts = [1 / math.log2(rank + 1) for rank in (1, 2, 3)]
        ideal = sorted(gains, reverse=True)
        return float(np.dot(gains[:3], discounts) / np.dot(ideal[:3], discounts))

    measured = measure_lists(score, loader, names=["a"], quotas=[6], relevant=2, further=further)
    values, chance = measured.values, measured.chance
    assert list(values) == measures(["a"], further)
    for i, row in enumerate(ImpressionLog.load(log).days[DAYS[1]].table().to_pylist()):
        items = [
            dict(zip(("item", "grade", "depth", "relevance"), one, strict=True))
            for one in zip(row["item"], row["grade"], row["depth"], row["relevance"], strict=True)
        ]
        relevant = sorted((one for one in items if one["relevance"] > 0), key=lambda one: one["grade"])
        assert len(relevant) == 2
        ranked = sorted(items, key=lambda one: -np.sin(one["item"] * 3))
        label = {one["item"]: place for place, one in enumerate(relevant, 1)}
        grades = [label.get(one["item"], 0) for one in ranked]
        published = {one["item"]: 27 - place for place, one in enumerate(reversed(relevant))}
        gains = [published.get(one["item"], 5 + one["depth"]) for one in ranked]
        pairs = [(y, z) for y, z in itertools.combinations(grades, 2) if y != z]
        assert values["a/alone/ndcg_linear@3"][i] == pytest.approx(ndcg(grades))
        assert values["a/alone/ndcg@3"][i] == pytest.approx(ndcg([2**y - 1 for y in grades]))
        assert values["a/alone/ndcg_published@3"][i] == pytest.approx(ndcg(gains))
        assert values["a/alone/opa"][i] == pytest.approx(np.mean([y > z for y, z in pairs]))
        assert values["a/alone/arp"][i] == pytest.approx(np.average(range(1, len(grades) + 1), weights=grades))
        assert chance["a/alone/opa"][i] == 0.5


def test_published_gains_of_a_whole_impression_by_hand() -> None:
    """Four logged stages of ten items, ten of them relevant: 28 minus the labels 1 .. 10, 21, 22 and 23 of LCRON."""
    depth = torch.arange(4).repeat_interleave(10)[None]
    batch: Any = SimpleNamespace(
        grade=torch.arange(40)[None],
        depth=depth,
        relevance=(depth == 3).float(),
        mask=torch.ones(1, 40, dtype=torch.bool),
    )
    gains = published_gains(batch, ground_truth(batch, 10))
    assert gains[0].tolist() == [5.0] * 10 + [6.0] * 10 + [7.0] * 10 + list(range(18, 28))
    chance = rf.metrics.ndcg(torch.zeros(1, 40), gains, k=10, gain="linear")
    assert chance.item() == pytest.approx(0.4291, abs=1e-4)


def test_further_metrics_are_evaluated_and_validated(log: Path, tmp_path: Path) -> None:
    config = config_for(
        log, stage_metrics=["ndcg_linear@3"], training={"metric": "ranking/alone/ndcg_linear@3", "epochs": 1}
    )
    train(config, tmp_path / "run")
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {"retrieval/alone/ndcg_linear@3", "ranking/alone/ndcg_linear@3"} < set(json.loads(line)["validation"])
    summary = evaluate_run(tmp_path / "run").summary()
    assert [name for name in summary.metrics if not name.endswith("/survived")] == config.metrics
    assert {name for name in summary.metrics if "/alone/" in name} == {
        f"{stage}/alone/{metric}"
        for stage in ("retrieval", "ranking")
        for metric in ("recall", "ndcg", "ndcg_linear@3")
    }
    assert higher_is_better("a/alone/ndcg_linear@3")
    assert not higher_is_better("a/alone/arp")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage_metrics": ["ndgc@3"]}, "stage_metrics.0: found 'ndgc@3', did you mean 'ndcg'"),
        ({"stage_metrics": ["ndcg_publised@3"]}, "found 'ndcg_publised@3', did you mean 'ndcg_published'; allowed are"),
        (
            {"stage_metrics": ["ndcg_published@0"]},
            "'ndcg_published@0'; expected ndcg_published or ndcg_published@k",
        ),
        ({"stage_metrics": ["ndcg"]}, "stage_metrics.0: found 'ndcg', .* expected ndcg_linear or ndcg@k"),
        (
            {"training": {"metric": "ranking/alone/opa"}},
            r"'ranking/alone/opa', expected .* stage_metrics \(which is empty\)",
        ),
        ({"training": {"metric": "ranking/lost"}}, "found 'ranking/lost', expected joint_recall"),
        (
            {"stage_metrics": ["arp"], "training": {"metric": "ranking/alone/arp"}},
            "found 'ranking/alone/arp', expected joint",
        ),
    ],
)
def test_wrong_stage_metrics_are_explained(log: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_for(log, **changes)


# --- training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("objective"))
def test_every_objective_learns(log: Path, tmp_path: Path, name: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "arf": {"tau": 10.0},
        "arf_v2": {"tau": 10.0},
        "sort_ce": {"tau": 10.0},
        "lcron": {"topk": "dftopk"},
        "per_stage": {"loss": "ranknet_loss"},
    }
    config = config_for(log, objective={"name": name, **options.get(name, {})})
    result = train(config, tmp_path / "run")
    assert result.best_metric > 0.5  # chance is 3 / 11


def test_metrics_file_matches_result(log: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(config_for(log), run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert set(lines[0]["parts"]) == {"e2e", "stage1/single", "stage2/single"}
    assert lines[-1]["loss"] == pytest.approx(sum(lines[-1]["parts"].values()))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert max(line["validation"]["joint_recall"] for line in lines) == result.best_metric
    config, cascade = load_run(run)
    loader = make_loader(ImpressionLog.load(log), config, "valid")
    values = measure(cascade, loader, config).values
    assert float(values["joint_recall"].nanmean()) == pytest.approx(result.best_metric)


def test_the_same_seed_gives_the_same_weights(log: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(config_for(log, training={"seed": seed, "epochs": 1}), tmp_path / name)
    a, b, c = ((tmp_path / name / "checkpoints" / "last.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_stages_classify_grades(log: Path, tmp_path: Path) -> None:
    changes = content(log, objective={"name": "per_stage", "loss": "grade_softmax_loss"})
    changes = set_option(changes, "stages.0.model", {"kind": "mlp", "hidden": [16], "dim": 4, "grades": 10})
    config = validate_cascade(set_option(changes, "stages.1.model.grades", 10))
    assert train(config, tmp_path / "run").best_metric > 0.5  # chance is 3 / 11
    _, cascade = load_run(tmp_path / "run")
    (batch,) = rf.data.ImpressionLoader(log, DAYS[1], batch=100, shuffle=False)
    for model in cascade.models.values():
        assert isinstance(model, rf.models.Scorer)
        assert model.config()["grades"] == 10
        logits = model.outputs(batch)  # type: ignore[operator]
        assert logits.shape == (*batch.mask.shape, 10)
        torch.testing.assert_close(model(batch), rf.losses.expected_grade(logits))
    objective, _ = make_objective(config)
    outputs = [model.outputs(batch) for model in cascade.models.values()]  # type: ignore[operator]
    value = objective(outputs, batch.grade.float(), relevance=batch.relevance, mask=batch.mask)
    expected = torch.zeros(())
    for logits in outputs:
        chosen = torch.log_softmax(logits, -1).gather(-1, batch.grade.long().unsqueeze(-1)).squeeze(-1)
        expected -= ((chosen * batch.mask).sum(-1) / batch.mask.sum(-1)).mean()
    torch.testing.assert_close(value, expected)
    few = validate_cascade(set_option(set_option(changes, "stages.0.model.grades", 3), "stages.1.model.grades", 3))
    with pytest.raises(ValueError, match=r"outside 0\.\.2, the 3 grades"):
        train(few, tmp_path / "few")


def test_adagrad_trains_sparse_tables_as_dense_ones(log: Path, tmp_path: Path) -> None:
    weights = []
    for sparse in (False, True):
        changes = content(log, optimizer={"name": "adagrad", "lr": 0.05}, objective={"name": "bce"})
        for stage in (0, 1):
            changes = set_option(changes, f"stages.{stage}.model.sparse", sparse)
        train(validate_cascade(changes), tmp_path / str(sparse))
        weights.append(load_run(tmp_path / str(sparse))[1].state_dict())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)
    changes = set_option(changes, "optimizer.weight_decay", 0.1)
    with pytest.raises(ConfigError, match="sparse gradients are trained by plain adam or adagrad"):
        train(validate_cascade(changes), tmp_path / "decay")


def test_sparse_and_shared_tables_train(log: Path, tmp_path: Path) -> None:
    changes = content(log, share=["video"])
    for stage in (0, 1):
        changes = set_option(changes, f"stages.{stage}.model.sparse", 40)
    config = validate_cascade(changes)
    assert train(config, tmp_path / "run").best_metric > 0.5
    _, cascade = load_run(tmp_path / "run")
    models = [model for model in cascade.models.values() if isinstance(model, rf.models.Scorer)]
    assert models[0].embedding.tables["video"] is models[1].embedding.tables["video"]
    assert models[0].embedding.tables["video"].sparse


def test_temperatures_of_a_stage_loss_follow_their_schedule(log: Path) -> None:
    loss = {"name": "relax_loss", "m": 3, "k": 2, "tau": {"start": 10, "end": 1}}
    _, (temperature,) = make_objective(config_for(log, objective={"name": "per_stage", "loss": loss}))
    temperature.set(0.5)
    assert temperature.value.item() == pytest.approx(10**0.5)


def test_temperatures_follow_their_schedule(log: Path) -> None:
    for schedule, middle in (("linear", 5.5), ("exponential", 10**0.5)):
        topk = {"name": "dftopk", "tau": {"start": 10, "end": 1, "schedule": schedule}}
        objective, (temperature,) = make_objective(config_for(log, objective={"name": "lcron", "topk": topk}))
        scores = [torch.tensor([0.3, -0.2, 1.0]), torch.tensor([0.1, 0.4, -1.0])]
        grades = torch.tensor([2.0, 1.0, 0.0])
        for share, tau in ((0.0, 10.0), (0.5, middle), (1.0, 1.0)):
            temperature.set(share)
            fixed = rf.objectives.LCRON(relevant=2, topk=rf.ops.topk("dftopk", tau=tau))
            torch.testing.assert_close(objective(scores, grades), fixed(scores, grades))


def test_a_constant_schedule_is_a_number(log: Path) -> None:
    scores, grades = [torch.tensor([0.3, -0.2, 1.0]), torch.tensor([0.1, 0.4, -1.0])], torch.tensor([2.0, 1.0, 0.0])
    for tau in ({"start": 3, "schedule": "constant"}, {"start": 3, "end": 3, "schedule": "constant"}, 3.0):
        topk = {"name": "dftopk", "tau": tau}
        objective, temperatures = make_objective(config_for(log, objective={"name": "lcron", "topk": topk}))
        for temperature in temperatures:
            temperature.set(0.7)
        fixed = rf.objectives.LCRON(relevant=2, topk=rf.ops.topk("dftopk", tau=3.0))
        torch.testing.assert_close(objective(scores, grades), fixed(scores, grades))


def test_depths_are_numbers_or_names_of_logged_stages(log: Path, tmp_path: Path) -> None:
    settings = content(log, objective={"name": "bce"}, training={"epochs": 1})
    settings = set_option(settings, "stages.1.min_depth", "ranked")
    settings = set_option(settings, "stages.0.min_depth", "dropped")
    train(validate_cascade(settings), tmp_path / "names")
    numbers = {"name": "bce", "min_depth": [0, 1]}  # of the logged stages dropped, ranked, shown
    train(config_for(log, objective=numbers, training={"epochs": 1}), tmp_path / "numbers")
    # what the objective says wins over what the stages say
    settings["objective"]["min_depth"] = ["ranked", 0]
    train(validate_cascade(settings), tmp_path / "others")
    weights = {run.name: (run / "checkpoints" / "last.safetensors").read_bytes() for run in tmp_path.iterdir()}
    assert weights["names"] == weights["numbers"] != weights["others"]


# --- commands ---------------------------------------------------------------------------------------------------


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_train_and_evaluate_commands(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(content(log)).replace("'", ""))  # days as people write them
    assert f"valid: {DAYS[1]}" in config.read_text()
    run = str(tmp_path / "run")
    assert run_command("train", str(config), "stages.1.quota=2", "training.epochs=2", "--out", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 2
    assert run_command("evaluate", run, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["impressions"] == 60
    of_stages = ("lost", "survived", "alone/recall", "alone/ndcg")
    names = {"joint_recall", *(f"{s}/{m}" for s in ("retrieval", "ranking") for m in of_stages)}
    assert set(found["metrics"]) == set(found["chance"]) == set(found["intervals"]) == names
    assert found["chance"]["joint_recall"] == pytest.approx(2 / 11)
    lost = [found["metrics"][f"{stage}/lost"] for stage in ("retrieval", "ranking")]
    assert found["metrics"]["joint_recall"] + sum(lost) == pytest.approx(1)
    of_day = evaluate_run(tmp_path / "run", DAYS[1]).summary()
    assert of_day == evaluate_run(tmp_path / "run", "valid").summary()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data.train", "2024-01-12", r"data.train: .* has no day '2024-01-12'"),
        ("data.valid", DAYS[0], f"data: {DAYS[0]} is in train and in valid; a day has one use"),
        ("data.path", "nowhere", "data.path: nowhere is not an impression log"),
        ("data.trian", "x", "data: unknown key 'trian', did you mean 'train'"),
        ("stages.1.quota", 9, "stages: ranking keeps 9 items, but retrieval before it keeps 5"),
        ("stages.1.name", "retrieval", "stages: two stages have the name 'retrieval'"),
        ("stages.0.model.kind", "twotower", "stages.0.model.kind: found 'twotower', did you mean 'two_tower'"),
        ("stages.0.model.hiden", [3], "stages.0.model: two_tower has no option 'hiden', did you mean 'hidden'"),
        ("stages.0.model.only", ["item.vidio"], "the model of retrieval: only: found 'item.vidio', did you mean"),
        ("share", ["vidio"], "share: found 'vidio', did you mean 'video'; the log has"),
        ("objective.name", "lcro", "objective.name: found 'lcro', did you mean 'lcron'"),
        ("objective.tpk", "dftopk", "objective: lcron has no option 'tpk', did you mean 'topk'"),
        ("objective.topk", {"name": "dftop"}, "objective.topk.name: found 'dftop', did you mean 'dftopk'; allowed are"),
        ("objective.topk.tau", -1.0, "objective.topk.tau: found -1.0, expected greater than or equal to 0.0000000001"),
        ("objective.topk.tau", {"start": 1}, r"expected a number or start, end and schedule"),
        ("objective.topk.tau", {"start": 1, "end": 2, "schedule": "cosine"}, "expected constant, linear or"),
        (
            "objective.topk.tau",
            {"start": 1, "end": 2, "schedule": "constant"},
            "topk.tau.end: found 2, but the schedule is",
        ),
        ("objective.quotas", [2, 3], "objective: quotas must not grow from stage to stage"),
        ("objective.quotas", [2, 0], "objective.quotas.1: found 0, expected greater than or equal to 1"),
        ("objective.e2e_weight", "fixt", "objective.e2e_weight: found 'fixt', did you mean 'fixed', expected"),
        (
            "objective",
            {"name": "bce", "min_depth": [0, 1, 2]},
            "objective: min_depth must be one number, or one",
        ),
        ("objective", {"name": "icc", "quotas": [2]}, "objective.quotas: found 1, expected one for each of 2 stages"),
        (
            "objective",
            {"name": "icc", "temperature": 0},
            "objective.temperature: found 0, expected greater than or equal to 0.0000000001",
        ),
        ("objective", {"name": "rankflow", "alpha": 2}, "objective.alpha: found 2, expected less than or equal to 1"),
        ("stages.0.model.hidden", [8, 0], "stages.0.model.hidden.1: found 0, expected greater than or equal to 1"),
        ("stages.0.model.activation", "rleu", "stages.0.model.activation: found 'rleu', did you mean 'relu'"),
        ("stages.1.min_depth", "rankd", "stages.1.min_depth: found 'rankd', did you mean 'ranked'; the log's stages"),
        ("stages.0.quota", 11, "stages: retrieval has the quota 11, but the longest list of .* has 11 items"),
        ("objective", {"name": "bce", "min_depth": [0, "shwn"]}, "objective.min_depth.1: found 'shwn', did you mean"),
        (
            "objective",
            {"name": "bce", "min_depth": [0, 3]},
            "bce ranking would train on items from depth 3 on",
        ),
        ("training.metric", "ranker/alone/recall", "training.metric: found 'ranker/alone/recall', the stages are"),
        (
            "training.metric",
            "ndcg@10",
            "found 'ndcg@10', expected joint_recall, STAGE/alone/recall or STAGE/alone/ndcg",
        ),
        ("objective", {"name": "per_stage"}, "per_stage needs the option 'loss'"),
        (
            "objective",
            {"name": "per_stage", "loss": "ranknet"},
            "objective.loss: found 'ranknet', did you mean 'ranknet_loss'",
        ),
        ("objective", {"name": "per_stage", "loss": {"name": "relax_loss", "m": 3}}, "relax_loss needs the option 'k'"),
        ("objective", {"name": "per_stage", "loss": "grade_softmax_loss"}, "but a stage gives one score"),
        ("stages.0.model.grades", 4, "two_tower has no option 'grades'"),
        ("stages.1.model.grades", 1, "stages.1.model.grades: found 1, expected greater than or equal to 2"),
    ],
)
def test_wrong_configurations_are_explained(log: Path, tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(validate_cascade(set_option(content(log), key, value)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_objective_is_built_once_and_not_by_validation(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, original = [], rf.objectives.LCRON.__init__

    @wraps(original)
    def counted(self: rf.objectives.LCRON, **options: Any) -> None:
        built.append(options)
        original(self, **options)

    monkeypatch.setattr(rf.objectives.LCRON, "__init__", counted)
    config = config_for(log, training={"epochs": 1})
    assert built == []
    train(config, tmp_path / "run")
    assert len(built) == 1


def test_the_learning_rate_of_cascades_stays_where_other_settings_are_given(log: Path) -> None:
    settings = content(log)
    settings["optimizer"] = {"clip": 1.0}
    assert validate_cascade(settings).optimizer.lr == 0.01


def test_what_diverges_is_named(log: Path, tmp_path: Path) -> None:
    message = r"lcron: the scores of \w+ became NaN, infinite or too large in epoch \d, day 2024"
    with pytest.raises(TrainingError, match=message):
        train(config_for(log, optimizer={"lr": 1e30}), tmp_path / "run")


def test_divergence_hint_uses_current_settings(log: Path, tmp_path: Path) -> None:
    tried = config_for(log, optimizer={"lr": 1e30, "clip": 2.0}, objective={"topk": {"tau": {"start": 9, "end": 3}}})
    message = r"a smaller optimizer\.clip than 2, a larger objective\.topk\.tau\.end than 3$"
    with pytest.raises(TrainingError, match=message):
        train(tried, tmp_path / "run")


def test_gradient_norm_includes_sparse_rows() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    # a row that is met twice: 3 + 0 and 0 + 4
    (table(torch.tensor([1, 1, 2])) * torch.tensor([[3.0, 0.0], [0.0, 4.0], [12.0, 0.0]])).sum().backward()
    weight, unused = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([84.0])
    trained = [table.weight, weight, unused]
    assert clip_gradients(trained, None) == 85.0
    assert weight.grad == 84.0
    assert clip_gradients(trained, 8.5) == 85.0
    assert table.weight.grad is not None
    assert table.weight.grad.to_dense().flatten().tolist() == pytest.approx([0, 0, 0.3, 0.4, 1.2, 0, 0, 0])
    assert weight.grad.item() == pytest.approx(8.4)


def test_days_without_relevant_items_cannot_validate(log: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    days = {day: random_day(rng, number, 40) for number, day in enumerate(DAYS)}
    days[DAYS[1]]["relevance"] = [[0.0] * len(one) for one in days[DAYS[1]]["relevance"]]
    write_log(tmp_path / "log", days, items=item_columns())
    with pytest.raises(TrainingError, match=f"data.valid: no impression of {DAYS[1]} has a relevant item"):
        train(config_for(tmp_path / "log"), tmp_path / "run")


# --- labels -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def funnel_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with two stages before the relevant one, which `liked_log` does not have."""
    path: Path = tmp_path_factory.mktemp("funnel") / "log"
    simulate_log(Simulation(preset="tiny", days=3, requests_per_day=60, seed=3), path)
    return path


def funnel_content(log: Path, labels: str | None, **changes: Any) -> dict[str, Any]:
    days = {"train": "2024-01-13", "valid": "2024-01-14", "test": "2024-01-15"}
    return {
        "data": {"path": str(log), **days} | ({"labels": labels} if labels else {}),
        "stages": [
            {"name": "retrieval", "quota": 30, "model": {"kind": "two_tower", "hidden": [8]}},
            {"name": "ranking", "quota": 20, "model": {"kind": "mlp", "hidden": [8]}},
        ],
        "objective": {"name": "fs_ranknet"},
        "training": {"batch": 32},
    } | changes


def test_labels_change_what_is_trained_and_not_what_is_measured(funnel_log: Path, tmp_path: Path) -> None:
    for name, labels in (("none", None), ("full", "full"), ("published", "published")):
        train(validate_cascade(funnel_content(funnel_log, labels)), tmp_path / name)
    weights = {
        name: (tmp_path / name / "checkpoints" / "last.safetensors").read_bytes()
        for name in ("none", "full", "published")
    }
    assert weights["none"] == weights["full"] != weights["published"]
    log, cascade = ImpressionLog.load(funnel_log), load_run(tmp_path / "published")[1]
    full, published = (
        measure(cascade, make_loader(log, config, "test"), config).values
        for config in (validate_cascade(funnel_content(funnel_log, labels)) for labels in ("full", "published"))
    )
    assert all(full[name].equal(published[name]) for name in full)


def test_objectives_that_use_relevance_alone_do_not_depend_on_labels(funnel_log: Path, tmp_path: Path) -> None:
    for labels in ("full", "published"):
        config = validate_cascade(funnel_content(funnel_log, labels, objective={"name": "lcron"}))
        train(config, tmp_path / labels)
    full, published = (
        (tmp_path / labels / "checkpoints" / "last.safetensors").read_bytes() for labels in ("full", "published")
    )
    assert full == published


def test_published_labels_need_a_relevant_stage(funnel_log: Path, tmp_path: Path) -> None:
    shutil.copytree(funnel_log, tmp_path / "log")
    manifest = json.loads((tmp_path / "log" / "manifest.json").read_text())
    manifest["spec"]["relevant"] = {"column": "long_view"}
    edit_manifest(tmp_path / "log" / "manifest.json", **manifest)
    with pytest.raises(ConfigError, match="labels: found 'published', which orders the items of the relevant stage"):
        train(validate_cascade(funnel_content(tmp_path / "log", "published")), tmp_path / "run")


def test_methods_of_a_comparison_have_their_own_labels(funnel_log: Path, tmp_path: Path) -> None:
    settings = funnel_content(funnel_log, None)
    settings["methods"] = {"full": {}, "published": {"data": {"labels": "published"}}}
    plan = make_plan(validated(ComparisonConfig, settings, "comparison"), tmp_path)
    full, published = (runs[0] for runs in plan.trials().values())
    assert [run.config.data.model_dump()["labels"] for run in (full, published)] == ["full", "published"]
    assert full.directory != published.directory


def test_test_lists_are_filled_up_from_the_batch_or_from_all_items(funnel_log: Path) -> None:
    log = ImpressionLog.load(funnel_log)
    for pool in ("items", "batch"):
        settings = funnel_content(funnel_log, None, training={"batch": 5})
        settings["data"] |= {"length": 60, "length_from": pool}
        foreign = 0
        for batch in make_loader(log, validate_cascade(settings), "test"):
            own = set(batch.item[:, :40].flatten().tolist())  # lists of 40 items, followed by those that fill them up
            assert bool(batch.mask.all())
            foreign += sum(item not in own for item in batch.item[:, 40:].flatten().tolist())
        assert (foreign > 0) == (pool == "items")


def test_names_of_runs_do_not_depend_on_the_device(funnel_log: Path, tmp_path: Path) -> None:
    def name(**training: Any) -> str:
        settings = funnel_content(funnel_log, None) | {"methods": {"one": {}}}
        settings["training"] = settings.get("training", {}) | training
        plan = make_plan(validated(ComparisonConfig, settings, "comparison"), tmp_path)
        [[run]] = plan.trials().values()
        return run.directory.name

    assert name(device="cuda:1", compile=True) == name(device="cpu") == name()
    assert name(precision="bfloat16") != name()


# --- comparisons ------------------------------------------------------------------------------------------------


def comparison(log: Path) -> dict[str, Any]:
    base = content(log, training={"epochs": 2})
    del base["objective"]
    return base | {
        "methods": {
            "bce": {"objective": {"name": "bce"}},
            "lcron": {
                "objective": {"name": "lcron", "topk": {"name": "dftopk", "tau": 1.0}},
                "tune": {"objective.topk.tau": [0.5, 2.0]},
            },
            "fs": {"objective": {"name": "fs_ranknet"}, "tune": {"optimizer.lr": [0.01, 0.02]}},
        },
        "seeds": [0, 1],
    }


def test_cascades_are_compared(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = comparison(log)
    settings["methods"]["bce"]["tune"] = {"optimizer.lr": [0.01, 0.02]}
    path = tmp_path / "comparison.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    assert run_command("compare", str(path), "--out", str(tmp_path / "out"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [method["name"] for method in found["methods"]] == ["bce", "lcron", "fs"]
    joint = found["methods"][1]["metrics"]["joint_recall"]
    assert joint["chance"] == pytest.approx(3 / 11)
    assert len(joint["values"]) == 2
    run = found["methods"][1]["runs"][0]
    again = evaluate_run(tmp_path / "out" / run["directory"]).summary()
    assert again.metrics["joint_recall"] == pytest.approx(joint["values"][0])
    assert found["failed"] == []
    assert found["unit"] == "impressions"  # on which methods are compared


def test_comparisons_of_cascades_refuse_other_methods(log: Path, tmp_path: Path) -> None:
    settings = comparison(log)
    settings["methods"] = {"trees": {"kind": "lightgbm"}}
    path = tmp_path / "comparison.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    assert run_command("compare", str(path), "--out", str(tmp_path / "out")) == 1
