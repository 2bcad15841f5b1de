"""Results: what is written is read again, and wrong files are refused by name."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.studies.results import (
    ComparisonResult,
    EvaluationSummary,
    MetricSummary,
    ResultError,
    SearchResult,
    SplitEvaluation,
    StreamResult,
    TrialResult,
)
from support.results import compared, streamed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall._config import Result

TRIAL = TrialResult(0, "failed", None, {"optimizer.lr": 0.1}, None, None, "diverged", "trials/0000")
RESULTS: list[Callable[[], Result]] = [
    compared,
    lambda: streamed(days=3),
    lambda: SearchResult("ndcg", True, {"optimizer.lr": [0.1, 0.2]}, None, [TRIAL]),
    lambda: SplitEvaluation({"ndcg": 0.5}, {"ndcg": 0.25}, 40, {"ndcg": 2}, {"retrieval": 3}, split="valid"),
]


@pytest.mark.parametrize("make", RESULTS)
def test_a_saved_result_is_loaded_unchanged(make: Callable[[], Result], tmp_path: Path) -> None:
    result = make()
    result.save(tmp_path / "result.json")
    loaded = type(result).load(tmp_path / "result.json")
    assert loaded == result
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "result.json").read_bytes()


def test_nan_is_null_and_an_unset_field_is_left_out() -> None:
    summary = EvaluationSummary({"ndcg": math.nan}, {"ndcg": 0.25}, 0, {"ndcg": 0})
    content = summary.to_json()
    assert content == {
        "metrics": {"ndcg": None},
        "chance": {"ndcg": 0.25},
        "impressions": 0,
        "undefined": {"ndcg": 0},
        "intervals": {},
        "resampled": "requests",
        "warnings": [],
    }
    assert math.isnan(EvaluationSummary.from_json(content).metrics["ndcg"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("metrics"), "metrics is missing"),
        (lambda content: content["methods"][1].pop("name"), "methods.1.name is missing"),
        (
            lambda content: content["methods"][0]["metrics"]["joint_recall"].update(mean="high"),
            "methods.0.metrics.joint_recall.mean: found 'high', expected a valid number",
        ),
        (lambda content: content.update(seeds=3), "seeds: found 3, expected a valid list"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    content = compared().to_json()
    change(content)
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ResultError) as error:
        ComparisonResult.load(file)
    assert f"{file}: {message}" in str(error.value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "stream.json").write_text("{")
    with pytest.raises(ResultError, match=r"stream\.json is damaged"):
        StreamResult.load(tmp_path / "stream.json")


def test_a_number_is_not_a_list_of_values() -> None:
    with pytest.raises(ResultError, match=r"MetricSummary: values: found 0\.5"):
        MetricSummary.from_json({**vars(compared().methods[0].metrics["joint_recall"]), "values": 0.5})
