"""Inverse propensity weights: their values, their description, and training with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from rankfall._config import ConfigError
from rankfall.data import ImpressionLoader
from rankfall.examination import ExaminationCurve, ExaminationPoint
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.studies.stream.day_learner import train_days
from rankfall.training.config.cascade_config import WeightConfig, validate_cascade
from rankfall.training.item_weights import PropensityWeights
from rankfall.training.methods import train
from rankfall.training.run_directory import TrainingError
from support.logs import random_log
from support.standin_device import DEVICE, standin_device

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog

VIEW = "effective_view"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    """A log whose relevant items are the clicked ones."""
    plan = Simulation(preset="tiny", days=3, requests_per_day=60, seed=5)
    return simulate_log(plan, tmp_path_factory.mktemp("clicks") / "log", relevant=VIEW)


def write_curve(path: Path, *values: float) -> str:
    points = [
        ExaminationPoint(place, 100, 10, value, value, value, value, value, value) for place, value in enumerate(values)
    ]
    ExaminationCurve("log", VIEW, "pairs", ["rank"], [], 100, "users", 2, points).save(path)
    return str(path)


def weights_of(log: ImpressionLog, curve: str, **changes: Any) -> PropensityWeights:
    return PropensityWeights(WeightConfig(examination=curve, of=VIEW, **changes), log)


def test_clicks_have_the_inverse_of_the_examination_of_their_position(log: ImpressionLog, tmp_path: Path) -> None:
    weights = weights_of(log, write_curve(tmp_path / "curve.json", 1.0, 0.5, 0.05), clip=10)
    position = torch.tensor([[0, 1, 2, 7, -1, 1, -1]], dtype=torch.int32)
    clicked = torch.tensor([[1.0, 3.0, 1.0, 1.0, 1.0, 0.0, 0.0]])
    # clipped at 10; positions below the curve have its last value; clicks without a position and other items have 1
    torch.testing.assert_close(weights.weigh(position, clicked), torch.tensor([[1.0, 2.0, 10.0, 10.0, 1.0, 1.0, 1.0]]))


def test_weights_on_a_device(log: ImpressionLog, tmp_path: Path) -> None:
    weights = weights_of(log, write_curve(tmp_path / "curve.json", 1.0, 0.5, 0.25))
    position, clicked = torch.tensor([[0, 1, 2, -1]], dtype=torch.int32), torch.tensor([[1.0, 1.0, torch.nan, 1.0]])
    with standin_device() as device:
        on_device = position.to(DEVICE), clicked.to(DEVICE)
        with device.without_synchronisation():
            found = weights.weigh(*on_device)
        assert found.tolist() == [[1.0, 2.0, 1.0, 1.0]]


def test_weights_of_a_batch_with_added_items(log: ImpressionLog, tmp_path: Path) -> None:
    weights = weights_of(log, write_curve(tmp_path / "curve.json", 1.0, 0.5, 0.25))
    day = next(iter(log.days))
    (batch,) = ImpressionLoader(log, day, batch=60, shuffle=False, negatives=5)
    expected = [
        [
            1.0 if click <= 0 or position < 0 else {0: 1.0, 1: 2.0}.get(position, 4.0)
            for position, click in zip(row["position"], row[f"feedback.{VIEW}"], strict=True)
        ]
        for row in log.days[day].table().to_pylist()
    ]
    found = weights(batch)
    for row, values in zip(found, expected, strict=True):
        assert row[: len(values)].tolist() == values
        assert (row[len(values) :] == 1).all()
    assert (found > 1).any()


def test_the_description_states_what_weights_cost(log: ImpressionLog, tmp_path: Path) -> None:
    weights = weights_of(log, write_curve(tmp_path / "curve.json", 1.0, 0.5, 0.25), clip=3)
    day = next(iter(log.days))
    clicked = [
        position
        for row in log.days[day].table().to_pylist()
        for position, click in zip(row["position"], row[f"feedback.{VIEW}"], strict=True)
        if click > 0
    ]
    values = [{0: 1.0, 1: 2.0}.get(position, 3.0) for position in clicked]
    effective = sum(values) ** 2 / sum(value**2 for value in values)
    text = weights.describe(log, [day])
    assert text.startswith(f"the curve of {VIEW} in log gives ")
    assert f"of {len(values):,} clicks ({VIEW}): mean {sum(values) / len(values):.2f}, largest 3.00" in text
    assert f"{sum(value == 3 for value in values) / len(values):.1%} clipped at 3" in text
    assert text.endswith(f"effective sample size {effective:,.0f} ({effective / len(values):.0%})")


# --- training -------------------------------------------------------------------------------------------------------


def config_of(log: ImpressionLog, **changes: Any) -> dict[str, Any]:
    days = list(log.days)
    return {
        "data": {"path": str(log.path), "train": days[0], "valid": days[1], "test": days[2]},
        "relevant": 10,
        "stages": [{"name": "ranking", "quota": 10, "model": {"kind": "two_tower", "dim": 4, "hidden": [8]}}],
        "objective": {"name": "per_stage", "loss": "softmax_loss", "labels": "relevance"},
        "training": {"batch": 30},
        **changes,
    }


def loss_of(run: Path) -> float:
    loss: float = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    return loss


def test_training_weights_clicks(log: ImpressionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notices: list[str] = []
    curves = {name: write_curve(tmp_path / f"{name}.json", *values) for name, values in CURVES.items()}
    for name, curve in {"plain": None, **curves}.items():
        weight = {} if curve is None else {"weight": {"examination": f"{name}.json", "of": VIEW}}
        train(validate_cascade(config_of(log, **weight)), tmp_path / f"run-{name}", on_notice=notices.append)
    assert loss_of(tmp_path / "run-ones") == loss_of(tmp_path / "run-plain")
    assert loss_of(tmp_path / "run-falling") > loss_of(tmp_path / "run-plain")
    assert sum("inverse propensity weights" in notice for notice in notices) == 2
    stored = yaml.safe_load((tmp_path / "run-falling" / "config.yaml").read_text())
    assert stored["weight"]["examination"] == str(tmp_path / "falling.json")  # also found from another directory
    write_curve(tmp_path / "falling.json", 1.0, 0.9)
    with pytest.raises((ConfigError, TrainingError), match="examination"):
        train(
            validate_cascade(config_of(log, weight={"examination": "falling.json", "of": VIEW})),
            tmp_path / "run-falling",
            resume=True,
        )


def test_a_stream_prints_what_weights_cost(log: ImpressionLog, tmp_path: Path) -> None:
    weight = {"examination": write_curve(tmp_path / "curve.json", *CURVES["falling"]), "of": VIEW}
    config = config_of(log, weight=weight)
    notices: list[str] = []
    days = {name: day.manifest["sha256"] for name, day in log.days.items()}
    train_days(validate_cascade(config), tmp_path / "run", log, days, on_notice=notices.append)
    assert sum("inverse propensity weights" in notice for notice in notices) == 1


CURVES = {"ones": (1.0, 1.0), "falling": (1.0, 0.5, 0.25)}


def test_wrong_curves_and_logs(log: ImpressionLog, tmp_path: Path) -> None:
    curve = write_curve(tmp_path / "curve.json", 1.0, 0.5)
    with pytest.raises(ConfigError, match=r"weight.of: found 'efective_view', did you mean 'effective_view'"):
        PropensityWeights(WeightConfig(examination=curve, of="efective_view"), log)
    with pytest.raises(ConfigError, match=r"weight.examination: found no file .*missing.json; 'rankfall examination"):
        weights_of(log, str(tmp_path / "missing.json"))
    with pytest.raises(ConfigError, match=r"no examination above 0 at the positions 1"):
        weights_of(log, write_curve(tmp_path / "zero.json", 1.0, 0.0))
    with pytest.raises(ConfigError, match="has no positions"):
        PropensityWeights(WeightConfig(examination=curve, of="click"), random_log(tmp_path / "log"))


def test_propensities_have_a_smaller_default_clip() -> None:
    assert WeightConfig.model_validate({"of": "click", "examination": "curve.json"}).clip == 10
    assert WeightConfig.model_validate({"of": "click"}).clip == 100


@pytest.mark.parametrize("wrong", [{"clip": 1.0}, {"base": 2.0}, {"scale": 0.0}])
def test_weights_of_a_curve_have_no_base_and_no_scale(log: ImpressionLog, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"with examination, expected no base, no scale and a clip above 1"):
        validate_cascade(config_of(log, weight={"examination": "curve.json", "of": VIEW, **wrong}))
