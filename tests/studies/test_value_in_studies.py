"""Value, feedback and names of metrics in comparisons and streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rankfall.studies.compare import compare_methods
from rankfall.studies.comparison_plan import load_comparison, make_plan
from rankfall.studies.evaluate import evaluate_run
from rankfall.studies.results import ComparisonResult, SplitEvaluation, StreamResult
from rankfall.studies.stream.stream_config import StreamConfig, make_runs
from rankfall.training.config.cascade_config import CascadeConfig
from support.cascades import content, sized_log
from support.logs import DAYS
from support.streams import streamed

if TYPE_CHECKING:
    from pathlib import Path

FEEDBACK = {"like": "sum", "click": "rate"}
NAMES = [
    "joint_recall",
    "joint_value",
    "joint/like",
    "joint/click",
    "retrieval/alone/recall",
    "retrieval/alone/ndcg",
    "retrieval/lost",
    "retrieval/like",
    "retrieval/click",
    "ranking/alone/recall",
    "ranking/alone/ndcg",
    "ranking/lost",
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("value") / "log"
    return sized_log(path)


def check_names(methods: list[dict[str, Any]]) -> None:
    """Check that JSON has every figure once."""
    for method in methods:
        assert set(method["metrics"]) == set(NAMES)


def test_a_comparison_measures_value_and_feedback_once(log: Path, tmp_path: Path) -> None:
    settings = content(log, training={"epochs": 1, "batch": 64, "metric": "ranking/alone/recall"})
    methods = {"bce": {"objective": {"name": "bce", "min_depth": 0}}, "lcron": {}}
    settings |= {"methods": methods, "feedback": FEEDBACK}
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    result = compare_methods(load_comparison(tmp_path / "comparison.yaml"), tmp_path / "out")
    assert result.metrics == NAMES
    assert all(list(method.metrics) == NAMES for method in result.methods)
    assert len(result.tests) == 2 * len(NAMES)  # none of a second name
    stored = json.loads((tmp_path / "out" / "comparison.json").read_text())
    check_names(stored["methods"])
    assert ComparisonResult.load(tmp_path / "out" / "comparison.json").to_json() == result.to_json() == stored

    method = result.methods[0]
    assert method.runs is not None
    directory = tmp_path / "out" / method.runs[0].directory
    summary = SplitEvaluation.load(directory / "evaluation.json")
    assert summary.resampled == "users"
    for name in NAMES:
        assert method.metrics[name].mean == pytest.approx(summary.metrics[name], rel=1e-5), name
    assert summary.to_json() == json.loads((directory / "evaluation.json").read_text())
    assert evaluate_run(directory).summary().to_json().items() <= summary.to_json().items()


def test_a_stream_measures_value_and_feedback_every_day(log: Path, tmp_path: Path) -> None:
    settings = content(log, training={"epochs": 1, "batch": 64, "metric": "joint_value"})
    del settings["training"]["epochs"]
    settings["data"] = {"path": str(log), "days": list(DAYS)}
    result = streamed(settings | {"feedback": FEEDBACK}, tmp_path / "stream")
    assert (result.metric, result.metrics) == ("joint_value", NAMES)
    stored = json.loads((tmp_path / "stream" / "stream.json").read_text())
    check_names(stored["methods"])
    for day in stored["days"]:
        check_names(day["methods"])
    again = streamed(settings | {"feedback": FEEDBACK}, tmp_path / "stream", resume=True)
    assert again.days == result.days == StreamResult.load(tmp_path / "stream" / "stream.json").days


def test_methods_of_a_comparison_and_of_a_stream_have_weights(log: Path, tmp_path: Path) -> None:
    settings = content(log, training={"batch": 64})
    settings["training"].pop("epochs", None)
    methods = {"plain": {}, "of likes": {"weight": "like"}, "of all": {"weight": {"of": "click", "scale": 2.0}}}
    daily = settings | {"data": {"path": str(log), "days": list(DAYS)}, "methods": methods}
    weights = [run.config.weight for run in make_runs(StreamConfig.model_validate(daily), tmp_path)]
    assert [weight and (weight.of, weight.scale) for weight in weights] == [None, ("like", 1.0), ("click", 2.0)]

    settings["training"]["epochs"] = 1
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(settings | {"methods": methods, "weight": "relevance"}))
    trials = make_plan(load_comparison(tmp_path / "comparison.yaml"), tmp_path / "out").trials()
    found = {}
    for (method, _), (run,) in trials.items():
        assert isinstance(run.config, CascadeConfig)
        assert run.config.weight is not None
        found[method] = (run.config.weight.of, run.config.weight.scale)
    assert found == {"plain": ("relevance", 1.0), "of likes": ("like", 1.0), "of all": ("click", 2.0)}
    assert len({run.directory for (run,) in trials.values()}) == 3
