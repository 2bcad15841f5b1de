"""Weights of items in the objective: from a configuration and a log to the terms that are trained."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rankfall._config import ConfigError
from rankfall.data import ImpressionLoader
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.config.cascade_config import WeightConfig, validate_cascade
from rankfall.training.item_weights import ItemWeights, item_weights
from rankfall.training.learner import Position
from rankfall.training.methods import train
from rankfall.training.train_cascade import CascadeLearner, build_objective
from support.cascades import content, liked_log
from support.sealing import edit_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions


VALUES = (range(10), range(10, 20))  # items of large and of small value


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return liked_log(tmp_path_factory.mktemp("liked") / "log")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImpressionLog, dict[int, dict[str, float]]]:
    """A log that was prepared from rows, and the raw values of each item: price, logged price, revenue."""
    directory: Path = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    price = rng.uniform(0.5, 40, 30).round(2)
    table: dict[str, list[Any]] = {name: [] for name in ("request_id", "item_id", "time", "bought", "revenue")}
    table |= {"price": [], "cost": [], "brand": [], "look": []}
    for request in range(40):
        for place, item in enumerate(rng.choice(30, 6, replace=False).tolist()):
            bought = float(place == 0)
            values = (request, item, 1_705_075_200_000 + request, bought, bought * price[item])
            more = (price[item], -price[item], f"b{item % 3}", [0.1, float(item)])
            for name, value in zip(table, (*values, *more), strict=True):
                table[name].append(value)
    pq.write_table(pa.table(table), directory / "rows.parquet")
    spec = {
        "time": {"column": "time", "unit": "ms"},
        "relevant": {"column": "bought"},
        "feedback": ["revenue"],
        "features": {
            "item": {
                "price": {"kind": "dense", "log1p": True, "standardise": True},
                "cost": {"kind": "dense", "log1p": True},
                "brand": {"kind": "categorical", "hash_bucket_size": 10},
                "look": {"kind": "dense", "size": 2},
            }
        },
    }
    prepare_rows([directory / "rows.parquet"], directory / "log", validate_spec(spec))
    return ImpressionLog.load(directory / "log"), {item: {"price": float(price[item])} for item in range(30)}


def batch_of(log: ImpressionLog, **options: Any) -> Impressions:
    return next(iter(ImpressionLoader(log, list(log.days)[:1], batch=64, shuffle=False, **options)))


def test_random_items_have_no_weight_that_depends_on_the_request(log: Path, tmp_path: Path) -> None:
    """Models that do not read such a feature may have random items, but not if it is their weight."""
    shutil.copytree(log, tmp_path / "log")
    about = ImpressionLog.load(log).manifest["about"]
    edit_manifest(tmp_path / "log" / "manifest.json", about={**about, "per_request": ["item.price"]})
    opened = ImpressionLog.load(tmp_path / "log")
    config = content(tmp_path / "log", data={"negatives": 3, "length": "all"})
    for stage in config["stages"]:
        stage["model"]["only"] = ["user.id", "item.video"]
    weighted = validate_cascade({**config, "weight": "price"})
    with pytest.raises(ValueError, match=r"^negatives: item\.price depends on the request"):
        make_loader(opened, weighted, "train")
    assert make_loader(opened, weighted, "test").length == "all"  # weights are of training only
    assert make_loader(opened, validate_cascade(config), "train").width > 11


# --- values -------------------------------------------------------------------------------------------------------


def test_weights_are_base_plus_scaled_value_up_to_clip(log: Path) -> None:
    opened = ImpressionLog.load(log)
    batch = batch_of(opened, negatives=2)
    config = WeightConfig(of="like", base=0.5, scale=2.0, clip=4.0)
    found = ItemWeights(config, opened)(batch)
    for weights, likes in zip(found.tolist(), batch.feedback["like"].tolist(), strict=True):
        assert weights == pytest.approx([min(0.5 + 2.0 * like, 4.0) for like in likes])
    assert {0.5, 4.0} == set(found.unique().tolist())  # a like has the value 2.5 here
    plain = ItemWeights(WeightConfig(of="relevance"), opened)(batch)
    assert plain.equal(1 + batch.relevance)


def test_numbers_of_items_are_those_of_the_raw_log(rows: tuple[ImpressionLog, dict[int, dict[str, float]]]) -> None:
    log, raw = rows
    batch = batch_of(log, negatives=3)
    price = ItemWeights(WeightConfig(of="price", base=0.0, clip=30.0), log)(batch)
    for item, weight in zip(batch.item[batch.mask].tolist(), price[batch.mask].tolist(), strict=True):
        assert weight == pytest.approx(min(raw[item]["price"], 30.0), rel=1e-4)
    cost = ItemWeights(WeightConfig(of="cost", base=5.0, clip=30.0), log)(batch)  # cost is minus the price
    for item, weight in zip(batch.item[batch.mask].tolist(), cost[batch.mask].tolist(), strict=True):
        assert weight == pytest.approx(max(5.0 - raw[item]["price"], 0.0), rel=1e-4, abs=1e-4)
    revenue = ItemWeights(WeightConfig(of="revenue", clip=100.0), log)(batch)
    assert revenue.equal(1 + batch.feedback["revenue"])


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("revenu", r"weight: found 'revenu', did you mean 'revenue'; this log allows relevance, feedback \(revenue\) "
                   r"and item features that are single numbers \(price, cost\)$"),
        ("brand", "weight: found 'brand'"),
        ("look", "weight: found 'look'"),
    ],
)  # fmt: skip
def test_values_that_a_log_does_not_have(
    rows: tuple[ImpressionLog, dict[int, dict[str, float]]], of: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ItemWeights(WeightConfig(of=of), rows[0])


def test_a_lost_scaling_is_an_error(log: Path) -> None:
    with pytest.raises(ConfigError, match="does not say how price was standardised"):
        ItemWeights(WeightConfig(of="price"), ImpressionLog.load(log))


# --- configurations -----------------------------------------------------------------------------------------------


def test_a_name_stands_for_the_defaults(log: Path) -> None:
    config = validate_cascade(content(log, weight="like"))
    assert config.weight == WeightConfig(of="like", base=1.0, scale=1.0, clip=100.0)
    assert validate_cascade(json.loads(config.model_dump_json())) == config
    assert validate_cascade(content(log)).weight is None
    assert item_weights(validate_cascade(content(log)), ImpressionLog.load(log)) is None


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ({"of": "like", "scale": 0.0}, "weight: found base 1, scale 0 and clip 100, so that all items have the same"),
        ({"of": "like", "base": 3.0, "clip": 2.0}, "weight: found base 3, scale 1 and clip 2"),
        ({"of": "like", "scael": 2.0}, "weight: unknown key 'scael', did you mean 'scale'"),
        ({"scale": 2.0}, "weight.of is missing"),
        (3, "weight: found 3, expected keys and values"),
        ({"of": "like", "base": -1.0}, "weight.base: found -1.0, expected greater than or equal to 0"),
    ],
)
def test_wrong_weights_are_explained(log: Path, weight: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_cascade(content(log) | {"weight": weight})


def test_clipped_weights_are_said(rows: tuple[ImpressionLog, dict[int, dict[str, float]]]) -> None:
    log, _ = rows
    days = list(log.days)
    revenue = [
        value
        for day in days
        for row in log.days[day].table().to_pylist()
        for value in row["feedback.revenue"]
        if value > 0
    ]
    above = sum(1 + 0.5 * value > 8 for value in revenue) / len(revenue)
    text = ItemWeights(WeightConfig(of="revenue", scale=0.5, clip=8), log).describe(log, days)
    assert str(text).startswith(
        f"weight: {above:.0%} of the items with revenue above 0 would have a weight above clip=8"
    )
    assert ItemWeights(WeightConfig(of="revenue", clip=50), log).describe(log, days) is None
    assert ItemWeights(WeightConfig(of="relevance"), log).describe(log, days) is None


def test_wrong_names_are_refused_before_anything_is_written(log: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weight: found 'likes', did you mean 'like'"):
        train(validate_cascade(content(log, weight="likes")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- training -----------------------------------------------------------------------------------------------------


def test_the_terms_of_training_are_weighted(log: Path, tmp_path: Path) -> None:
    opened = ImpressionLog.load(log)
    config = validate_cascade(content(log, weight={"of": "click", "scale": 4.0}))
    torch.manual_seed(0)
    learner = CascadeLearner(config, tmp_path, opened, CascadeLearner.group, build_objective(opened, config))
    batch = batch_of(opened)
    found, _ = learner.network(batch)
    given = {"relevance": batch.relevance, "depth": batch.depth, "mask": batch.mask}
    weight = 1 + 4 * batch.feedback["click"]
    with torch.no_grad():
        expected = learner.objective.parts(learner.cascade(batch), batch.grade.float(), weight=weight, **given)
    assert {name: term.item() for name, term in found.items()} == {name: term.item() for name, term in expected.items()}


@pytest.mark.parametrize("objective", ["lcron", "bce", "fs_lambda_loss", "arf"])
def test_every_kind_of_objective_trains_with_weights(log: Path, tmp_path: Path, objective: str) -> None:
    weights = {}
    for name, changes in {"plain": {}, "weighted": {"weight": "like"}, "again": {"weight": "like"}}.items():
        settings = content(log, training={"epochs": 1}, **changes) | {"objective": {"name": objective}}
        train(validate_cascade(settings), tmp_path / name)
        weights[name] = (tmp_path / name / "checkpoints" / "last.safetensors").read_bytes()
    assert weights["weighted"] == weights["again"] != weights["plain"]


def test_valuable_items_are_kept_first(tmp_path: Path) -> None:
    """Items 0 to 9 are as often relevant as items 10 to 19, but have ten times the value."""

    def change(days: dict[str, Any]) -> None:
        for day in days.values():
            for i, items in enumerate(day["item"]):
                valuable, ordinary = ([j for j, item in enumerate(items) if item in of] for of in VALUES)
                chosen = valuable[:1] + ordinary[:1]
                day["relevance"][i] = [float(j in chosen) for j in range(len(items))]
                day["feedback.like"][i] = [9.0 * (j in valuable[:1]) for j in range(len(items))]
                day["grade"][i] = day["relevance"][i]

    log = liked_log(tmp_path / "log", change=change)
    opened = ImpressionLog.load(log)
    ahead = {}
    for name, changes in {"plain": {}, "weighted": {"weight": "like"}}.items():
        settings = content(log, training={"epochs": 3}, **changes) | {"objective": {"name": "bce"}}
        torch.manual_seed(0)
        config = validate_cascade(settings)
        learner = CascadeLearner(config, tmp_path, opened, CascadeLearner.group, build_objective(opened, config))
        position = Position()
        for _ in range(3):
            for batch in learner.loader:
                learner.step(batch, position)
        batch = batch_of(opened)
        scores = learner.cascade.eval()(batch)[0]
        of = [torch.isin(batch.item, torch.tensor(list(one), dtype=torch.int32)) & batch.mask for one in VALUES]
        ahead[name] = (scores[of[0]].mean() - scores[of[1]].mean()).item()
    assert ahead["weighted"] > ahead["plain"] + 0.3


# --- inclusion ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    """A log whose rows were drawn with probabilities, and of which a sample is drawn again."""
    directory: Path = tmp_path_factory.mktemp("drawn")
    chance = np.random.default_rng(1)
    rows = [
        {"request": request, "item": int(item), "at": 1_705_075_200_000 + request, "stage": "ab"[place < 3]}
        | {"drawn": [None, 1.0, 0.5, 0.004][int(chance.integers(4))], "click": float(place == 0)}
        for request in range(30)
        for place, item in enumerate(chance.choice(40, 3 + request % 8, replace=False))
    ]
    pq.write_table(pa.Table.from_pylist(rows), directory / "rows.parquet")
    spec = {
        "request": "request",
        "item": "item",
        "time": {"column": "at", "unit": "ms"},
        "stage": "stage",
        "stages": [{"name": "a", "sample": 4}, {"name": "b"}],
        "relevant": {"column": "click"},
        "inclusion": "drawn",
        "features": {"item": {"item": {"kind": "categorical", "num_buckets": 40}}},
    }
    return prepare_rows([directory / "rows.parquet"], directory / "log", validate_spec(spec))


def test_inclusion_is_that_of_the_log_times_that_of_the_sample(drawn: ImpressionLog) -> None:
    rows = pq.read_table(drawn.path.parent / "rows.parquet").to_pylist()
    logged = {(row["request"], row["item"]): row for row in rows}
    of_stage: dict[tuple[int, str], int] = {}
    for row in rows:
        of_stage[row["request"], row["stage"]] = of_stage.get((row["request"], row["stage"]), 0) + 1
    sampled = 0
    for impression in drawn.days["2024-01-12"].table().to_pylist():
        for item, found in zip(impression["item"], impression["inclusion"], strict=True):
            row = logged[impression["request"], item]
            count = of_stage[row["request"], row["stage"]]
            again = min(1, 4 / count) if row["stage"] == "a" else 1
            sampled += again < 1
            assert found == pytest.approx((row["drawn"] or 1.0) * again, rel=1e-6)
    assert sampled


def test_probabilities_outside_of_their_range_are_named(drawn: ImpressionLog, tmp_path: Path) -> None:
    table = pq.read_table(drawn.path.parent / "rows.parquet")
    for wrong in (0.0, 1.5, -0.5):
        place = table.column_names.index("drawn")
        pq.write_table(table.set_column(place, "drawn", pa.array([wrong] * len(table))), tmp_path / "rows.parquet")
        with pytest.raises(ValueError, match=rf"column 'drawn': found {wrong}, expected a number above 0"):
            prepare_rows([tmp_path / "rows.parquet"], tmp_path / "log", drawn.spec)


@pytest.mark.parametrize("options", [{}, {"negatives": 3}])
def test_weights_of_draws_are_inverse_clipped_and_have_mean_one(drawn: ImpressionLog, options: dict[str, int]) -> None:
    batch = batch_of(drawn, **options)
    config = SimpleNamespace(weight=WeightConfig(of="inclusion", clip=50))
    weights = item_weights(config, drawn)  # type: ignore[arg-type]
    assert weights is not None
    found = weights(batch)
    assert batch.inclusion is not None
    for row in range(len(batch)):
        real = [place for place in range(batch.mask.shape[1]) if batch.mask[row, place]]
        inverse = [min(1 / float(batch.inclusion[row, place]), 50.0) for place in real]
        mean = sum(inverse) / len(inverse)
        for place in range(batch.mask.shape[1]):
            expected = inverse[real.index(place)] / mean if place in real else 0.0
            assert float(found[row, place]) == pytest.approx(expected, rel=1e-5)
    text = weights.describe(drawn, list(drawn.days))
    assert str(text).startswith("weight: 2")  # about a quarter of the items have a probability of 0.004
    assert "below 0.02" in str(text)


def test_weights_of_draws_need_probabilities(log: Path, drawn: ImpressionLog) -> None:
    of_draws = validate_cascade(content(log, weight="inclusion"))
    with pytest.raises(ConfigError, match="has no probabilities of draws; prepare it with 'inclusion: COLUMN'"):
        item_weights(of_draws, ImpressionLog.load(log))
    config = SimpleNamespace(weight=WeightConfig(of="inclusion", scale=2.0))
    with pytest.raises(ConfigError, match="found base 1, scale 2 and clip 100 with inclusion"):
        item_weights(config, drawn)  # type: ignore[arg-type]
