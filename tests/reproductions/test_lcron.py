"""LCRON's paper: printed numbers, grids, label statistics, the stream of figure 2 and the costs of appendix D."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.reproductions.catalogue import find_reproduction, papers, run
from rankfall.reproductions.comparisons import ahead, curves_of, first_phase
from rankfall.reproductions.costs import cascade_step as training_step
from rankfall.reproductions.data import DataSource
from rankfall.reproductions.paper_schema import (
    LogStatistics,
    Measured,
    Method,
    ObjectiveComparison,
    ObjectiveRuntime,
    ObjectiveStream,
    ObjectiveSweep,
)
from rankfall.reproductions.protocols import CASCADE_RATES, cascade_config, method_sections, stream_config
from rankfall.reproductions.published import pick_points
from rankfall.reproductions.statistics import stage_statistics
from rankfall.reproductions.task import Size, Task
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.studies.comparison_plan import check_comparison
from rankfall.studies.results import DayResult, MethodResult, MetricSummary, StreamResult
from support.command_line import run as cli
from support.reproductions import check_figures, check_report, load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("reproductions")
TINY = Size(tune=False, points=2, days=4, requests=24, cascade_seeds=1)
GRIDS: dict[str, dict[str, list[int | float]]] = {  # appendix C.1
    "ICC": {"objective.temperature": [0.05, 0.1, 0.5, 1.0]},
    "RankFlow": {"objective.alpha": [0.0, 0.25, 0.5, 0.75, 1.0]},
    "FS-LambdaLoss": {"objective.k": [10, 20, 30, 40], "objective.mix": [0.0, 0.25, 0.5, 0.75, 1.0]},
    "ARF": {"objective.tau": [1.0, 20.0, 50.0, 100.0, 200.0, 1000.0]},
    "ARF-v2": {"objective.tau": [1.0, 20.0, 50.0, 100.0, 200.0, 1000.0]},
    "LCRON, NeuralSort": {"objective.topk.tau": [1.0, 20.0, 50.0, 100.0, 200.0, 1000.0]},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    """A small log with lists of 40 items."""
    path = tmp_path_factory.mktemp("lcron") / "log"
    simulate_log(Simulation(preset="tiny", days=4, requests_per_day=24), path)
    return DataSource(path.name, "log", {}, path)


# --- printed numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lcron-table2", "lcron-table3", "lcron-table6", "lcron-table7"])
def test_tables_of_five_runs_have_standard_deviations(name: str) -> None:
    cells = list(load(ObjectiveComparison, name).published.cells())
    assert all(isinstance(cell.printed, Measured) for cell in cells if cell.printed is not None)
    assert all(0 < cell.printed.std < 0.07 for cell in cells if isinstance(cell.printed, Measured))


def test_the_same_rows_of_different_tables_agree() -> None:
    """LCRON's row is in tables 2, 3 and 7, at tau = 50 in table 8, and differs there by at most .0002."""
    rows = [load(ObjectiveComparison, f"lcron-table{n}").published.figures("RecFlow") for n in (2, 3, 7)]
    by_tau = load(ObjectiveSweep, "lcron-table8").published
    rows.append(
        {"LCRON, NeuralSort": {m: by_tau.figures("RecFlow", m)["LCRON, NeuralSort"][50.0] for m in rows[0]["BCE"]}}
    )
    for row in rows[1:]:
        assert row["LCRON, NeuralSort"] == pytest.approx(rows[0]["LCRON, NeuralSort"], abs=2.1e-4)


def test_sweeps_have_every_printed_column() -> None:
    columns = set(load(ObjectiveComparison, "lcron-table2").published.metrics)
    for name in ("lcron-table4", "lcron-table8"):
        published = load(ObjectiveSweep, name).published
        assert set(published.values["RecFlow"]["LCRON, NeuralSort"]) == columns


def test_the_published_rows_run_by_default_and_ours_on_request() -> None:
    table = load(ObjectiveComparison, "lcron-table2")
    default = table.with_variants(improved=False)
    assert [method.name for method in default.methods] == list(table.published.values["RecFlow"])
    ours = [method for method in table.methods if method.variant == "sound"]
    assert {method.row for method in ours} == set(table.published.values["RecFlow"])


def test_statements_name_their_place_and_reproductions_that_exist() -> None:
    (paper,) = (paper for paper in papers() if paper.name == "LCRON")
    equations = {one.place for one in paper.statements if one.kind == "equation"}
    assert {f"eq. {number}" for number in range(1, 16)} <= equations
    own = {one.id for one in paper.reproductions}
    for one in paper.statements:
        assert len(one.what) <= 120
        if one.where.startswith("rankfall reproduce lcron"):
            assert one.where.split()[-1] in own


# --- protocols ------------------------------------------------------------------------------------------------


def test_published_methods_keep_the_rate_and_try_four_points_of_the_printed_grids() -> None:
    table = load(ObjectiveComparison, "lcron-table2")
    assert table.protocol.lr == 0.01
    sections = method_sections(table.methods, CASCADE_RATES, tune=True, keep_rate=table.protocol.keep_rate)
    for method in table.with_variants(improved=False).methods:
        tried = sections[method.name]["tune"]
        printed = GRIDS.get(method.name, {})
        each = 4 if len(printed) == 1 else 2  # of two settings, the ends of both
        assert tried == {key: pick_points(values, each) for key, values in printed.items()}
    for method in table.methods:
        if method.variant == "sound":
            assert "optimizer.lr" in sections[method.name]["tune"]


@pytest.mark.parametrize("name", ["lcron-table2", "lcron-table3", "lcron-table6", "lcron-table7", "lcron-appendixB"])
def test_tuned_comparisons_can_be_planned(name: str, tmp_path: Path, log: DataSource) -> None:
    """Published rows, with and without a grid, and ours in one comparison."""
    table = load(ObjectiveComparison, name)
    data = replace(Task(out=tmp_path, source=log, size=TINY).log("tiny"), items=50)  # plans do not read the lists
    sections = method_sections(table.methods, CASCADE_RATES, tune=True, keep_rate=table.protocol.keep_rate)
    plan = check_comparison(cascade_config(table.protocol, data, sections, seeds=[0, 1, 2]))
    assert {method: len(trials) for method, trials in plan.candidates.items()} == {
        method.name: 1 if method.name in ("BCE", "FS-RankNet") else 4 for method in table.methods
    }


def test_without_a_printed_rate_all_methods_tune_it() -> None:
    method = Method(name="m", variant="published", config={}, tune={"objective.tau": [1, 2]})
    (section,) = method_sections([method], CASCADE_RATES, tune=True).values()
    assert section["tune"] == {"optimizer.lr": CASCADE_RATES.combined, "objective.tau": [1, 2]}
    (section,) = method_sections([method], CASCADE_RATES, tune=True, keep_rate=True).values()
    assert section["tune"] == {"objective.tau": [1, 2]}


def test_published_rows_have_the_labels_of_table_1() -> None:
    table = load(ObjectiveComparison, "lcron-table2")
    assert table.protocol.data == {"labels": "published"}
    full = [method.name for method in table.methods if method.config.get("data") == {"labels": "full"}]
    assert full == ["FS-RankNet, sound", "FS-LambdaLoss, sound", "ARF, sound", "ARF-v2, sound"]


def test_the_industrial_setup_is_that_of_appendix_b() -> None:
    protocol = load(ObjectiveComparison, "lcron-appendixB").protocol
    assert (protocol.optimizer, protocol.lr, protocol.batch) == ({"name": "adagrad"}, 0.01, 4096)
    assert [stage.model["preset"] for stage in protocol.stages] == ["lcron_industrial"] * 2


# --- table 1 --------------------------------------------------------------------------------------------------


def test_statistics_of_a_batch_by_hand() -> None:
    def batch(users: list[int], depth: list[list[int]], grade: list[list[int]]) -> Any:
        depths = torch.tensor(depth)
        return SimpleNamespace(
            user={"id": torch.tensor(users)}, depth=depths, mask=depths >= 0, grade=torch.tensor(grade)
        )

    batches = [
        batch([7, 8], [[0, 1, 1], [0, 0, -1]], [[0, 2, 1], [0, 0, 9]]),
        batch([7], [[1, 1, 1]], [[1, 2, 3]]),
    ]
    found = stage_statistics(batches, ["first", "second", "never"], "id")
    assert list(found) == ["first", "second"]
    first, second = found["first"], found["second"]
    assert (first.users, first.impressions, first.items, first.lowest, first.highest) == (2, 2, 1.5, 0, 0)
    assert (second.users, second.impressions, second.items, second.lowest, second.highest) == (1, 2, 2.5, 1, 3)


def test_labels_of_a_log_follow_table_1(tmp_path: Path, log: DataSource) -> None:
    report = run(load(LogStatistics, "lcron-table1"), Task(out=tmp_path, source=log, size=TINY))
    ours = report.results["stages"]
    ranges = {name: (one["lowest"], one["highest"]) for name, one in ours.items()}
    assert ranges == {"prerank_neg": (0, 0), "coarse_neg": (1, 1), "rank_neg": (2, 2), "rank_pos": (3, 12)}
    assert log.path is not None
    stored = ImpressionLog.load(log.path)
    users = {
        int(user) for batch in ImpressionLoader(stored, list(stored.days), batch=8) for user in batch.user["user_id"]
    }
    for one in ours.values():
        assert (one["users"], one["impressions"], one["items"]) == (len(users), 4 * 24, 10)
    assert [row[0] for row in report.sheets[0].rows] == [row[0] for row in report.sheets[1].rows]
    assert report.sheets[1].rows[0] == ["rank_pos", "38,193", "6,062,348", "10", "1", "20"]


def test_table_5_is_shown_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce", "lcron-table5", "--out", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert "4.1" in text
    assert "A/B test" in text


# --- figure 2 -------------------------------------------------------------------------------------------------


def stream_result(**curves: list[float]) -> StreamResult:
    def measured(value: float) -> dict[str, MetricSummary]:
        return {"joint_recall": MetricSummary(value, 0.0, 0.5, value - 0.01, value + 0.01, 10, [value])}

    days = [
        DayResult(f"day{n}", 10, [MethodResult(name, measured(curve[n])) for name, curve in curves.items()], [])
        for n in range(len(next(iter(curves.values()))))
    ]
    return StreamResult(
        metric="joint_recall",
        metrics=["joint_recall"],
        seeds=[0],
        learned=[day.day for day in days],
        unit="days",
        methods=[MethodResult(name, measured(sum(curve) / len(curve))) for name, curve in curves.items()],
        tests=[],
        days=days,
        runs=[],
        incomplete=[],
        failed=[],
    )


def test_the_lead_is_against_the_best_other_method_of_each_day() -> None:
    curves = curves_of(stream_result(a=[0.5, 0.7, 0.9], b=[0.6, 0.6, 0.7], c=[0.4, 0.65, 0.8]))
    assert curves == {"a": [0.5, 0.7, 0.9], "b": [0.6, 0.6, 0.7], "c": [0.4, 0.65, 0.8]}
    assert ahead(curves, "a") == pytest.approx([-0.1, 0.05, 0.1])
    assert ahead(curves, "unknown") == []
    assert ahead({"a": [0.5]}, "a") == []


@pytest.mark.parametrize(("days", "first"), [(22, 10), (21, 10), (5, 2), (2, 1), (1, 1)])
def test_phases_have_the_published_proportion(days: int, first: int) -> None:
    assert first_phase(days, [10, 12]) == max(first, 1)


def test_a_stream_has_all_days_and_the_protocol(tmp_path: Path, log: DataSource) -> None:
    figure = load(ObjectiveStream, "lcron-figure2")
    data = Task(out=tmp_path, source=log, size=TINY).log(figure.protocol.platform)
    sections = method_sections(figure.methods, CASCADE_RATES, tune=False)
    config = stream_config(figure.protocol, data, sections, seeds=[3])
    assert config.data == {"path": str(log.path), "days": f"{data.train[0]}..{data.test}", "labels": "published"}
    assert (config.seeds, config.optimizer) == ([3], {"lr": 0.01})
    assert len(figure.with_variants(improved=False).methods) == 8


@pytest.mark.slow
def test_the_stream_is_run_and_continued(tmp_path: Path, log: DataSource) -> None:
    figure = load(ObjectiveStream, "lcron-figure2")
    small = figure.model_copy(update={"methods": [figure.methods[0], figure.methods[7]]})
    task = Task(out=tmp_path, source=log, size=TINY, jobs=1)
    report = run(small, task)
    check_report(report, small.id)
    check_figures(report, tmp_path)
    result = report.results["comparison"]
    assert not result["failed"]
    assert len(result["days"]) == 3  # every day but the first
    assert report.results["phases"]["days"] == [1, 2]
    assert len(report.results["ahead"]) == 3
    assert [row[0] for row in report.sheets[1].rows] == [day["day"] for day in result["days"]]
    again = run(small, task)
    assert again.results["comparison"]["days"] == result["days"]  # nothing is trained again
    assert json.dumps(again.results["ahead"]) == json.dumps(report.results["ahead"])


# --- appendix D -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_costs_are_measured_side_by_side(tmp_path: Path, log: DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def peak_bytes(prepare: object, *, small: tuple[str, int], full: tuple[str, int]) -> int:
        asked.append((prepare, small[0] == full[0], small[1], full[1]))
        return 1000 * len(asked)

    driver = "rankfall.reproductions.costs"
    monkeypatch.setattr(f"{driver}.peak_bytes", peak_bytes)  # which starts a process for each method
    monkeypatch.setattr(f"{driver}.QUICK_STEP_SECONDS", 0.001)
    monkeypatch.setattr(f"{driver}.QUICK_BATCH", 8)
    table = load(ObjectiveRuntime, "lcron-appendixD")
    small = table.model_copy(update={"methods": [table.methods[0], table.methods[7]]})
    report = run(small, Task(out=tmp_path, source=log, size=TINY, jobs=1))
    check_report(report, small.id)
    check_figures(report, tmp_path)
    costs = report.results["costs"]
    assert list(costs) == ["BCE", "LCRON, NeuralSort"]
    assert all(one["seconds_per_1000_impressions"] > 0 for one in costs.values())
    assert [one["peak_bytes"] for one in costs.values()] == [1000, 2000]
    assert asked == [(training_step, True, 4, 8)] * 2
    ours, published = report.sheets
    assert ours.rows[0][2] == published.rows[0][2] == "1.00"
    assert published.rows[-1] == ["LCRON, NeuralSort", "5418", "1.01", "38.2", "1.01"]


def test_a_step_trains_the_models(tmp_path: Path, log: DataSource) -> None:
    assert log.path is not None
    content = {
        "data": {"path": str(log.path), "train": ["2024-01-13"], "valid": ["2024-01-14"]},
        "relevant": 10,
        "stages": [{"name": "only", "quota": 20, "model": {"kind": "two_tower", "hidden": [4]}}],
        "objective": {"name": "bce"},
    }
    step = training_step(json.dumps(content), 6)
    first, second = (step() for _ in range(2))
    assert first.count == second.count == 6  # type: ignore[attr-defined]
    assert sum(second.sums.values()) < sum(first.sums.values())  # type: ignore[attr-defined]


def test_costs_need_a_table_of_time_and_memory() -> None:
    table = load(ObjectiveRuntime, "lcron-appendixD")
    content = table.model_dump() | {"baseline": "none"}
    with pytest.raises(ValueError, match="baseline: found 'none', expected BCE"):
        ObjectiveRuntime.model_validate(content)
    published = {"columns": ["seconds"], "values": {"data": {row: [1] for row in table.published.rows()}}}
    with pytest.raises(ValueError, match="two columns, time and memory"):
        ObjectiveRuntime.model_validate(table.model_dump() | {"published": published})


def test_the_leader_of_a_stream_is_one_of_its_methods() -> None:
    content = find_reproduction("lcron-figure2").model_dump() | {"leader": "LCRON"}
    with pytest.raises(ValueError, match="leader: found 'LCRON', expected BCE"):
        ObjectiveStream.model_validate(content)
