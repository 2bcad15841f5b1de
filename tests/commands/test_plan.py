"""``rankfall plan``: what it prints and writes, agreement with evaluate, and messages about mistakes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rankfall.studies.plan.plan_result import PLAN, PlanResult
from support.bundles import platform_bundle, platform_run
from support.cascades import content, liked_log
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

    from support.logs import Columns

COSTS = ("--cost", "retrieval=1us,ranking=0.1ms+5us")


def train(settings: dict[str, Any], directory: Path) -> Path:
    config, out = directory / "config.yaml", directory / "run"
    config.write_text(yaml.safe_dump(settings))
    assert run("train", str(config), "--out", str(out)) == 0
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plan")
    return train(content(liked_log(directory / "log"), training={"epochs": 1}), directory)


def planned(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    assert run("plan", *words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("length", [[], ["data.length=all"]])
def test_every_point_is_what_evaluate_measures(
    trained: Path, length: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--grid", "retrieval=4,7,9", "--grid", "ranking=2,4"]
    found = planned(capsys, trained, *grid, *length)
    points = {tuple(point["quotas"]): point["value"] for point in found["points"]}
    assert set(points) == {(first, last) for first in (4, 7, 9) for last in (2, 4)} | {(5, 3)}
    for quotas in [(4, 4), (9, 2), (5, 3)]:
        overrides = [f"stages.{place}.quota={quota}" for place, quota in enumerate(quotas)]
        assert run("evaluate", trained, *overrides, *length, "--json") == 0
        measured = json.loads(capsys.readouterr().out)
        assert points[quotas] == pytest.approx(measured["metrics"]["joint_recall"], abs=1e-6)
    interval = found["current"]["point"]["value"]
    assert [interval["low"], interval["high"]] == pytest.approx(measured["intervals"]["joint_recall"], abs=1e-6)
    assert found["resampled"] == measured["resampled"]


def test_tables_and_commands_to_continue_with(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("plan", trained, *COSTS, "--budget", "0.15ms") == 0
    out, err = capsys.readouterr()
    words = " ".join(out.split())
    result = PlanResult.load(trained / PLAN)
    assert result.budget == pytest.approx(1.5e-4)
    assert result.chosen.point.cost <= 1.5e-4
    assert "best joint_recall for at most 150 us" in words
    for part in (*result.chosen.train_overrides, *result.chosen.export_options, "chosen", "current"):
        assert part in words
    assert f"wrote {trained / PLAN}" in err


def test_costs_that_nobody_gave_are_said(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("plan", trained) == 0
    out, err = capsys.readouterr()
    assert "warning: no costs were given: an item costs 1 in a small network (mlp), 4 in a din model" in err
    assert "No costs were given: an item costs 1 in a small network" in " ".join(out.split())
    result = PlanResult.load(trained / PLAN)
    kinds = [stage["model"]["kind"] for stage in yaml.safe_load((trained / "config.yaml").read_text())["stages"]]
    assert [cost.per_item for cost in result.costs] == [0.0, *({"mlp": 1.0, "din": 4.0}[kind] for kind in kinds[1:])]
    # the pass over all items, which is the same for all quotas, would make all of them look alike
    costs = {point.cost for point in result.points}
    assert max(costs) > 2 * min(costs)


def test_costs_are_measured_on_a_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = shutil.copytree(platform_run(), tmp_path / "run")
    found = planned(capsys, copy, "--bundle", platform_bundle())
    assert (found["unit"], found["cost_source"]) == ("s", "measured")
    assert [cost["stage"] for cost in found["costs"]] == ["retrieval", "ranking"]
    assert found["costs"][1]["samples"]
    assert found["chosen"]["point"]["cost"] <= found["current"]["point"]["cost"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--cost", "retrieval=1us"], 1, "cost: found none for ranking, expected one for each of retrieval, ranking"),
        ([*COSTS, "--budget", "3"], 1, "budget: found '3', expected a time such as 5ms"),
        ([*COSTS, "--budget", "1us"], 1, "budget: found 1 us, expected at least the cost of the cheapest quotas"),
        (["--recall", "1"], 1, "recall: found 1, expected at most"),
        (["--recall", "2"], 2, "found 2, expected more than 0 and at most 1"),
        (["--recall", "0.5", "--budget", "3"], 2, "found with --budget, expected one of them"),
        (["--metric", "recall"], 2, "'--metric': 'recall' is not one of 'joint_recall', 'joint_value'"),
        (["--grid", "ranker=3"], 1, "grid: found the stage 'ranker', expected one of retrieval, ranking, did you mean"),
        (["stages.0.model.dim=8"], 1, "override: found stages.0.model.dim=8"),
    ],
)
def test_mistakes_end_in_one_message(
    trained: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run("plan", trained, *words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert message in " ".join(err.replace("│", " ").split())


def test_a_bundle_of_other_weights_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(platform_run(), tmp_path / "run")
    assert run("plan", copy, "--bundle", platform_bundle()) == 0
    assert "other weights" not in capsys.readouterr().err
    monkeypatch.setattr("rankfall.api.training.checksum", lambda path: f"weights of another {path.name}")
    assert run("plan", copy, "--bundle", platform_bundle()) == 0
    assert "was exported from other weights (run " in " ".join(capsys.readouterr().err.split())


def test_a_bundle_must_belong_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = content(liked_log(tmp_path / "log"), training={"epochs": 1})
    for stage, name in zip(settings["stages"], ("first", "second"), strict=True):
        stage["name"] = name
    other = train(settings, tmp_path)
    capsys.readouterr()
    assert run("plan", other, "--bundle", platform_bundle()) == 1
    assert "expected first, second as in the run" in " ".join(capsys.readouterr().err.split())
    assert run("plan", other, "--bundle", tmp_path) == 1
    assert run("plan", other, "--bundle", platform_bundle(), "--cost", "first=1,second=2") == 2
    assert "found with --cost, expected one of them" in " ".join(capsys.readouterr().err.split())


def test_the_joint_value_is_that_of_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sized(days: dict[str, Columns]) -> None:
        for columns in days.values():
            columns["relevance"] = [
                [3.0 * (place == 0) + 1.0 * (place == 1) for place in ranks] for ranks in columns["rank"]
            ]

    valued = train(content(liked_log(tmp_path / "log", change=sized), training={"epochs": 1}), tmp_path)
    found = planned(capsys, valued, "--metric", "joint_value")
    assert run("evaluate", valued, "--json") == 0
    measured = json.loads(capsys.readouterr().out)["metrics"]
    assert found["current"]["point"]["value"]["value"] == pytest.approx(measured["joint_value"], abs=1e-6)
    assert measured["joint_value"] != pytest.approx(measured["joint_recall"], abs=1e-3)
