"""Reproductions on impressions: logs, protocols, published tables and sweeps, and a small run of each."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from rankfall._config import leaves
from rankfall.data import Recipe, prepare_letor
from rankfall.data.impressions.log import ImpressionLog
from rankfall.reporting.charts import save
from rankfall.reproductions.catalogue import find_reproduction, reproductions, run
from rankfall.reproductions.comparisons import by_grades, cutoffs, protocols_for
from rankfall.reproductions.data import DataSource, LogData, find_lists, find_log, prepare_log
from rankfall.reproductions.paper_schema import (
    Method,
    ObjectiveComparison,
    ObjectiveSweep,
    PublishedSweep,
    StageLossComparison,
    mean_of,
)
from rankfall.reproductions.protocols import (
    CASCADE_RATES,
    batch_for,
    cascade_config,
    cascade_deviations,
    method_sections,
    train_methods,
)
from rankfall.reproductions.published import SweepResult, SweepRun, sweep_report, with_metrics
from rankfall.reproductions.task import Report, Size, Task
from rankfall.simulation.simulate import Simulation, simulate_log, simulate_recflow
from rankfall.studies.comparison_plan import load_comparison
from rankfall.studies.results import ComparisonResult, MethodResult, MetricSummary
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.config.load_config import set_option
from rankfall.training.train_cascade import load_run
from support.command_line import run as cli
from support.logs import random_log
from support.paths import ROOT
from support.reproductions import check_report, load, panels_of

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.xdist_group("reproductions")  # which share their logs
COMPARISON_FILES = ROOT / "experiments"
ON_IMPRESSIONS = [name for name, reproduction in reproductions().items() if reproduction.data == "impressions"]
UNTRAINED = ("lcron-table1", "lcron-appendixD", "dftopk-appendixE")
COMPARED = [name for name in ON_IMPRESSIONS if name not in UNTRAINED]
TABLES = ("lcron-table2", "lcron-table3", "lcron-table6", "lcron-table7", "dftopk-table1")
TWO_STAGES = load(ObjectiveComparison, "lcron-table2").protocol
THREE_STAGES = load(ObjectiveComparison, "lcron-table6").protocol
INDUSTRY = load(StageLossComparison, "arf-table3")
RATES = [f"lcron-table{table}" for table in (9, 10, 11, 12)]
TINY = Size(tune=False, points=2, days=3, requests=24, cascade_seeds=1)


def simulated(path: Path, preset: str) -> DataSource:
    assert TINY.days is not None
    assert TINY.requests is not None
    simulate_log(Simulation(preset=preset, days=TINY.days, requests_per_day=TINY.requests), path)
    return DataSource(path.name, "log", {}, path)


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    """A small log with lists of 40 items."""
    return simulated(tmp_path_factory.mktemp("two") / "log", "tiny")


# --- published figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_published_method_is_run(name: str) -> None:
    table = load(ObjectiveComparison, name)
    for rows in table.published.values.values():
        assert set(rows) <= {method.name for method in table.methods}
        assert all(len(row) == len(table.published.metrics) for row in rows.values())


@pytest.mark.parametrize(
    ("name", "source", "method", "metric", "printed"),
    [
        ("lcron-table2", "RecFlow", "BCE", "joint_recall", 0.8539),
        ("lcron-table2", "RecFlow", "ARF", "retrieval/alone/ndcg_published@10", 0.5437),
        ("lcron-table2", "RecFlow", "LCRON, NeuralSort", "ranking/alone/recall", 0.8729),
        ("lcron-table3", "RecFlow", "without L_single", "retrieval/alone/recall", 0.9692),
        ("lcron-table6", "RecFlow", "ICC", "joint_recall", 0.6386),
        ("lcron-table7", "RecFlow", "LCRON, quotas 30 and 20", "joint_recall", 0.8714),
        ("lcron-table7", "RecFlow", "LCRON, quotas 30 and 20", "ranking/alone/recall", None),
        ("lcron-table7", "RecFlow", "SoftSort", "ranking/alone/recall", 0.8138),
        ("dftopk-table1", "RecFlow", "DFTopK", "retrieval/alone/recall", 0.5069),
        ("dftopk-table1", "RecFlow", "Sparse Top-K", "ranking/alone/recall", 0.3593),
    ],
)
def test_published_figures_are_as_printed(
    name: str, source: str, method: str, metric: str, printed: float | None
) -> None:
    published = load(ObjectiveComparison, name).published
    assert mean_of(published.values[source][method][published.metrics.index(metric)]) == printed


@pytest.mark.parametrize(
    ("name", "method", "point", "printed"),
    [
        ("lcron-table4", "LCRON, NeuralSort", 5.0, 0.8733),
        ("lcron-table8", "LCRON, NeuralSort", 50.0, 0.8732),
        ("dftopk-table5", "DFTopK", 1e-4, 0.0959),
        ("dftopk-table6", "DiffSort", 20, 0.1194),
        ("dftopk-table6", "DFTopK", 25, 0.5607),
    ],
)
def test_published_sweeps_are_as_printed(name: str, method: str, point: float, printed: float) -> None:
    assert load(ObjectiveSweep, name).published.figures("RecFlow", "joint_recall")[method][point] == printed


@pytest.mark.parametrize("name", ["lcron-table2", "lcron-table3", "lcron-table6", "lcron-table7"])
def test_lcron_wins_where_it_was_published(name: str) -> None:
    values = load(ObjectiveComparison, name).published.figures("RecFlow")
    assert max(values, key=lambda method: values[method]["joint_recall"]) == "LCRON, NeuralSort"


@pytest.mark.parametrize(("name", "points"), [("lcron-table4", 8), ("lcron-table8", 6), ("dftopk-table5", 9)])
def test_sweeps_have_all_published_points(name: str, points: int) -> None:
    ((_, curve),) = load(ObjectiveSweep, name).published.figures("RecFlow", "joint_recall").items()
    assert len(curve) == points
    assert list(curve) == sorted(curve)


# --- finding logs ---------------------------------------------------------------------------------------------


def test_kinds_of_logs_are_recognised(tmp_path: Path, two_stages: DataSource) -> None:
    assert find_log(None).kind == find_log("simulated").kind == "simulated"
    assert find_log(str(two_stages.path)).kind == "log"
    (tmp_path / "RecFlow" / "all_stage").mkdir(parents=True)
    assert find_log(str(tmp_path / "RecFlow")).kind == "recflow"


def test_data_of_the_wrong_kind_are_wrong_usage(
    tmp_path: Path, two_stages: DataSource, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lists.txt").write_text("1 qid:1 1:1\n0 qid:1 1:2\n")
    prepare_letor({"train": [tmp_path / "lists.txt"]}, tmp_path / "lists", Recipe())
    with pytest.raises(ValueError, match="holds prepared ranking lists, but this reproduction takes impressions"):
        find_log(str(tmp_path / "lists"))
    with pytest.raises(ValueError, match="is an impression log, but this reproduction takes ranking lists"):
        find_lists(str(two_stages.path))
    for name, data in (("lcron-table2", tmp_path / "lists"), ("arf-table2", two_stages.path)):
        assert cli("reproduce", name, "--data", str(data), "--out", str(tmp_path / "out")) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "this reproduction takes" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wanted", "message"), [("nowhere", "nowhere does not exist"), (".", "is not an impression log")]
)
def test_logs_that_cannot_be_found(wanted: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        find_log(wanted)


def test_a_log_is_simulated_once(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[LogData, int]:
        found = prepare_log(find_log(None), "tiny", tmp_path, size=TINY, seed=seed, progress=on_progress)
        return found, (found.path / "manifest.json").stat().st_ino

    steps: list[tuple[str, int, int]] = []

    def on_progress(step: str, done: int, total: int) -> None:
        steps.append((step, done, total))

    data, first = made(0)
    assert (data.name, len(data.train), data.train_impressions, data.test_impressions) == ("tiny", 1, 24, 24)
    assert (data.items, data.depths) == (40, 4)
    assert steps[-1] == ("simulating tiny", 72, 72)
    count = len(steps)
    assert made(0) == (data, first)
    assert len(steps) == count
    assert made(1)[1] != first


def test_recflow_is_prepared_for_the_cascade_of_the_paper(tmp_path: Path) -> None:
    source = tmp_path / "RecFlow"
    simulate_recflow(Simulation(preset="tiny", days=4, requests_per_day=20), source)
    origin = find_log(str(source))

    def prepared(platform: str, size: Size) -> LogData:
        return prepare_log(origin, platform, tmp_path / "cache", size=size, seed=0)

    two, three = prepared("recflow-like", TINY), prepared("recflow-like-3", Size())
    assert (two.name, two.items, len(two.train)) == ("RecFlow", 40, 1)
    assert (len(three.train), three.depths) == (2, 5)
    assert three.items > 40
    made = (two.path / "manifest.json").stat().st_ino
    assert prepared("recflow-like", TINY) == two
    assert (two.path / "manifest.json").stat().st_ino == made
    (tmp_path / "empty" / "all_stage").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"found no file DATE\.feather"):
        prepare_log(find_log(str(tmp_path / "empty")), "recflow-like", tmp_path, size=TINY, seed=0)


def test_days_are_used_in_order(tmp_path: Path) -> None:
    random_log(tmp_path / "log", impressions=10)
    origin = find_log(str(tmp_path / "log"))
    data = prepare_log(origin, "tiny", tmp_path, size=Size(), seed=0)
    assert data.roles == {"train": "2024-01-13..2024-01-13", "valid": "2024-01-14", "test": "2024-01-15"}
    assert data.description == "log: 10 impressions of 1 day to train on, 10 tested, lists of 11 items."
    with pytest.raises(ValueError, match="log has 2 days, expected at least 3"):
        prepare_log(origin, "tiny", tmp_path, size=replace(TINY, days=2), seed=0)


# --- set-ups --------------------------------------------------------------------------------------------------


def settings(objective: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> set[str]:
    """Return every trial of a method: its objective and learning rate at each point of the grid."""
    found = set()
    for point in itertools.product(*grid.values()):
        content: dict[str, Any] = {"objective": dict(objective), "optimizer": {}}
        for key, value in zip(grid, point, strict=True):
            content = set_option(content, key, value)
        found.add(json.dumps(content, sort_keys=True))
    return found


def sized(impressions: int, **changes: Any) -> LogData:
    days = (*(f"2024-01-{day}" for day in range(13, 32)), "2024-02-01")
    data = LogData("log", Path("log"), days, "2024-02-02", "2024-02-03", impressions, 3000, 40, 4, True)
    return replace(data, **changes)


def test_table_2_is_the_comparison_in_experiments() -> None:
    """Both try the same four points of the printed grids."""
    file = load_comparison(COMPARISON_FILES / "lcron_table2.yaml")
    table = load(ObjectiveComparison, "lcron-table2")
    sections = method_sections(table.methods, CASCADE_RATES, tune=True, keep_rate=True)
    ours = [sections[method.name] for method in table.methods if method.variant == "sound"]
    tried = [settings(section["objective"], section["tune"]) for section in ours]
    published = 0
    for name, section in file.methods.items():
        assert section is not None
        if name.endswith(", published"):
            mine = sections[name.removesuffix(", published").replace("LCRON", "LCRON, NeuralSort")]
            assert settings(mine["objective"], mine["tune"]) == settings(mine["objective"], section["tune"]), name
            fixed = {
                key: value for key, value in leaves(mine["objective"]).items() if f"objective.{key}" not in mine["tune"]
            }
            assert leaves(section["objective"]) == fixed, name
            assert section["data"] == table.protocol.data
            published += 1
        else:
            assert settings(section["objective"], section["tune"]) in tried, name
    assert published == len(table.published.rows())
    config = cascade_config(TWO_STAGES, sized(60_000), sections, seeds=[0])
    assert {key: value for key, value in config.data.items() if key not in ("path", "labels")} == {
        key: value for key, value in file.data.items() if key != "path"
    }
    assert (config.stages, config.relevant, config.stage_metrics) == (file.stages, file.relevant, file.stage_metrics)


def test_three_stages_are_those_in_experiments() -> None:
    file = load_comparison(COMPARISON_FILES / "lcron_table6.yaml")
    config = cascade_config(THREE_STAGES, sized(60_000, items=50, depths=5), {"bce": {}}, seeds=[0])
    assert (config.stages, config.relevant, config.stage_metrics) == (file.stages, file.relevant, file.stage_metrics)


# without a setting of their own, by paper: all methods are trained at one learning rate, and the steepness of DiffSort
# in ARF is twice the number of ads
UNTUNED = {
    "LCRON": {"BCE", "FS-RankNet"},
    "ARF": {
        *("Softmax (n-class)", "RankNet", "ApproxNDCG", "LambdaLoss", "LambdaLoss@K", "Lambda-Recall@m@k"),
        *("DiffSort", "L_Relax, DiffSort", "ARF, DiffSort"),
    },
}


def test_all_methods_of_a_table_get_the_same_number_of_trials() -> None:
    tables: list[tuple[str, list[Method], dict[str, int], bool]]
    compared = [load(ObjectiveComparison, name) for name in TABLES]
    tables = [(table.paper, table.methods, {}, table.protocol.keep_rate) for table in compared]
    tables += [
        (table.paper, table.methods, cutoffs(protocol), protocol.keep_rate)
        for table in (INDUSTRY, load(StageLossComparison, "arf-table5"))
        for protocol in table.protocols.values()
    ]
    for paper, methods, variables, keep_rate in tables:
        filled = [method.filled(variables) for method in methods]
        sections = method_sections(filled, CASCADE_RATES, tune=True, keep_rate=keep_rate)
        grids = {name: section["tune"] for name, section in sections.items()}
        trials = {name: int(np.prod([len(values) for values in grid.values()])) for name, grid in grids.items()}
        untuned = UNTUNED.get(paper, set()) & set(trials) if keep_rate else set()
        assert trials == dict.fromkeys(trials, 4) | dict.fromkeys(untuned, 1)


def test_without_tuning_the_first_temperature_is_taken() -> None:
    objective = {"name": "lcron", "topk": {"name": "diff_sort", "steepness": 80.0}, "quotas": [30, 20]}
    method = Method(name="m", config={"objective": objective}, tune={"objective.topk.steepness": [80.0, 10.0]})
    assert method_sections([method], CASCADE_RATES, tune=False) == {"m": {"objective": objective}}


def test_what_is_tuned_is_set_without_tuning_too() -> None:
    for name in (*TABLES, "arf-table3"):
        table = reproductions()[name]
        assert isinstance(table, ObjectiveComparison | StageLossComparison)
        for method in table.methods:
            for key, values in method.tune.items():
                assert leaves(method.config)[key] in values, (name, method.name)


def test_batches_are_as_large_as_the_log_allows() -> None:
    batches = [batch_for(TWO_STAGES, sized(count)) for count in (6_000_000, 60_000, 3_000)]
    assert batches == [1024, 128, 32]


def test_differences_from_the_training_of_the_paper_are_stated() -> None:
    assert cascade_deviations(TWO_STAGES, sized(6_000_000)) == []
    (batches,) = cascade_deviations(TWO_STAGES, sized(3_000))
    assert batches.startswith("Batches: 32 impressions instead of 1024, since there are 3,000 to train on")
    (network,) = cascade_deviations(TWO_STAGES, sized(6_000_000, sequences=False))
    assert network == "Network of ranking: an MLP instead of DIN, since the log has no sequences."


def test_a_log_of_short_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="log has lists of 30 items, of which retrieval would keep 30; expected lists"):
        cascade_config(TWO_STAGES, sized(100, items=30), {"bce": {}}, seeds=[0])
    assert (
        cascade_config(TWO_STAGES, sized(100, items=30), {"bce": {}}, seeds=[0], lists={"length": 200}).data["length"]
        == 200
    )


def test_stages_are_as_the_log_allows() -> None:
    config = cascade_config(TWO_STAGES, sized(100, depths=2), {"bce": {}}, seeds=[0])
    assert [stage.get("min_depth") for stage in config.stages] == [None, 1]
    config = cascade_config(TWO_STAGES, sized(100, sequences=False), {"bce": {}}, seeds=[0])
    assert [stage["model"] for stage in config.stages] == [{"kind": "two_tower"}, {"kind": "mlp"}]


@pytest.mark.parametrize(
    ("table", "rate", "batch", "printed"),
    [(9, 1e-3, 512, 0.8396), (10, 1e-3, 2048, 0.8247), (11, 0.02, 512, 0.8841), (12, 0.02, 2048, 0.8785)],
)
def test_learning_rates_and_batches_are_as_printed(table: int, rate: float, batch: int, printed: float) -> None:
    found = load(ObjectiveComparison, f"lcron-table{table}")
    assert (found.title, found.tune) == (f"LCRON, table {table}", False)
    assert (found.protocol.lr, found.protocol.batch) == (rate, batch)
    joint = {row: cells["joint_recall"] for row, cells in found.published.figures("RecFlow").items()}
    assert joint["LCRON, NeuralSort"] == max(joint.values()) == printed


# --- sweeps beside published ones -----------------------------------------------------------------------------


def comparison(**means: float) -> ComparisonResult:
    def summary(mean: float) -> MetricSummary:
        return MetricSummary(mean, 0.0, 0.5, mean - 0.01, mean + 0.01, 10, [mean])

    methods = [
        MethodResult(name, {"joint_recall": summary(mean), "other": summary(0.0)}) for name, mean in means.items()
    ]
    return ComparisonResult(metrics=["joint_recall", "other"], seeds=[0], folds={"all": {}}, methods=methods)


def swept(figures: dict[str, dict[int | float, int | float | None]]) -> PublishedSweep:
    values: dict[str, dict[str, list[Any]]] = {
        method: {"joint_recall": list(curve.values())} for method, curve in figures.items()
    }
    return PublishedSweep(along="tau", points=list(next(iter(figures.values()))), values={"S": values})


def sweep_result(
    published: PublishedSweep, comparisons: dict[str, ComparisonResult], runs: list[SweepRun]
) -> SweepResult:
    return SweepResult(
        title="T",
        published=published,
        metric="joint_recall",
        comparisons=comparisons,
        runs=runs,
        data=sized(10),
    )


def test_a_sweep_of_one_method_counts_pairs_of_points() -> None:
    published = swept({"m": {1.0: 0.1, 10.0: 0.3, 100.0: 0.2}})
    runs = [SweepRun("m", 1.0, "c", "a"), SweepRun("m", 10.0, "c", "b"), SweepRun("m", 100.0, "c", "failed")]
    report = sweep_report("name", sweep_result(published, {"c": comparison(a=0.5, b=0.6)}, runs))
    assert report.results["pairs_in_the_published_order"] == {"m": [1, 1]}
    (sheet,) = report.sheets
    assert sheet.rows[0] == ["m, here", ".5000", ".6000", ""]  # one seed: the best is not marked
    assert sheet.rows[2] == ["m, published", ".1000", ".3000 <", ".2000"]
    assert report.comparisons[0][1].metrics == ["joint_recall"]
    assert report.results["comparison"]["metrics"] == ["joint_recall", "other"]


def test_a_sweep_of_several_methods_counts_pairs_of_methods() -> None:
    published = swept({"a": {0: 0.1, 5: 0.3}, "b": {0: 0.2, 5: 0.2}})
    comparisons = {"none": comparison(a=0.5, b=0.6, ours=0.9), "five": comparison(a=0.5, b=0.6, ours=0.4)}
    runs = [SweepRun(name, n, title, name) for n, title in ((0, "none"), (5, "five")) for name in ("a", "b", "ours")]
    report = sweep_report("name", sweep_result(published, comparisons, runs))
    assert report.results["pairs_in_the_published_order"] == {"0": [1, 1], "5": [0, 1]}
    assert list(report.results["parts"]) == ["none", "five"]
    (sheet,) = report.sheets
    assert sheet.rows[2] == ["ours, here", ".9000", ".4000"]  # one seed: the best is not marked
    assert sheet.rows[-2:] == [
        ["methods: pairs in published order", "too few seeds: no claim", "too few seeds: no claim"],
        ["methods: not distinguishable in print", "0", "0"],
    ]


def test_with_metrics_keeps_the_rest_of_a_comparison() -> None:
    result = comparison(a=0.5)
    chosen = with_metrics(result, ["joint_recall"])
    assert chosen.methods[0].metrics.keys() == {"joint_recall"}
    assert result.methods[0].metrics.keys() == {"joint_recall", "other"}
    assert chosen.failed == []


# --- every reproduction -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, two_stages: DataSource) -> dict[str, Report]:
    """Reports of every reproduction, as small as possible; in one directory, so that shared runs are trained once."""
    out = tmp_path_factory.mktemp("reproduced")
    three_stages = simulated(tmp_path_factory.mktemp("three") / "log", "recflow-like-3")

    def run_small(name: str, source: DataSource) -> Report:
        reproduction = find_reproduction(name)
        if name in ("lcron-table6", RATES[0], "dftopk-table1", "dftopk-table6"):  # with many methods
            assert isinstance(reproduction, ObjectiveComparison | ObjectiveSweep)
            methods = reproduction.with_variants(improved=False).methods
            methods = [*methods[:2], *methods[-2:]]
            reproduction = reproduction.model_copy(update={"methods": methods})
        return run(reproduction, Task(out=out, source=source, size=TINY, jobs=1))

    found = {
        "lcron-table6": run_small("lcron-table6", three_stages),
        "arf-table5": run_small("arf-table5", find_log(None)),
    }
    easy = find_log(str(out / "data" / f"industry-easy-{TINY.days}x{TINY.requests}-0"))
    found["arf-table3"] = run_small("arf-table3", easy)
    for name in COMPARED:
        if name not in found and name not in RATES[1:]:  # these differ from the first in numbers only
            found[name] = run_small(name, two_stages)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMPARED if name not in RATES[1:]])
def test_every_reproduction_runs(name: str, reports: dict[str, Report]) -> None:
    report = reports[name]
    outcomes = report.results.get("parts", {"all": report.results}).values()
    assert all(not one["comparison"]["failed"] and one["comparison"]["methods"] for one in outcomes)
    assert all("impressions of" in one["data"]["about"] for one in outcomes)
    check_report(report, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lcron-table2", "lcron-table8", "dftopk-table6"])
def test_plots_are_drawn(name: str, reports: dict[str, Report], tmp_path: Path) -> None:
    png, svg = save(reports[name].plots, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "published" in svg.read_text()


@pytest.mark.slow
def test_tables_are_shown_beside_the_published_ones(reports: dict[str, Report]) -> None:
    for name in TABLES:
        (_, result), table = reports[name].comparisons[0], load(ObjectiveComparison, name)
        assert {method.name for method in result.methods} <= {method.name for method in table.methods}
        assert result.metrics == list(table.published.metrics)
        sources = {panel.split(": ")[0] for panel in panels_of(reports[name], name)}
        assert sources == {"log", "published, RecFlow"}


@pytest.mark.slow
def test_more_negatives_in_training_and_long_lists_in_tests(reports: dict[str, Report]) -> None:
    results = reports["dftopk-table6"].results
    assert [one["at"] for one in results["swept"]["DFTopK"]] == [0, 25]
    without, many = (one["mean"] for one in results["swept"]["DFTopK"])
    assert without != many  # the same seed and the same tests, other lists in training
    for part in results["parts"].values():
        for method in part["comparison"]["methods"]:
            assert method["metrics"]["joint_recall"]["chance"] == pytest.approx(20 / 200)


@pytest.mark.slow
def test_sweeps_show_every_printed_column(reports: dict[str, Report]) -> None:
    report = reports["dftopk-table5"]
    metrics = {"joint_recall", "ranking/alone/recall", "retrieval/alone/recall"}
    ((_, comparison),) = report.comparisons
    assert set(comparison.metrics) == metrics
    sheets = {metric: sheet for metric in metrics for sheet in report.sheets if f", {metric} by tau" in sheet.title}
    assert sheets.keys() == metrics
    (published,) = (row for row in sheets["ranking/alone/recall"].rows if row[:1] == ["DFTopK, published"])
    printed = [str(cell).removesuffix(" <") for cell in published[1:]]
    assert (printed[0], printed[-1]) == (".0915", ".3917")  # the first and the last temperature
    trained = next(row for row in sheets["ranking/alone/recall"].rows if row[:1] == ["DFTopK, here"])
    assert [cell != "" for cell in trained[1:]] == [True, *[False] * (len(printed) - 2), True]


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["rank", "full"])
def test_the_industrial_sets_are_measured_as_published(labels: str, tmp_path: Path) -> None:
    """Compare recall with a count of places, or with the joint recall of the funnel, and NDCG with scikit-learn."""
    task = Task(out=tmp_path, source=find_log(None), size=TINY, jobs=1)
    easy = INDUSTRY.protocols["easy"].model_copy(update={"data": {"labels": labels}})
    data = task.log(easy.platform)
    methods = [method.filled(cutoffs(easy)) for method in INDUSTRY.methods if method.name in ("RankNet", "ARF")]
    trained = train_methods(easy, task, methods, tune=True, metrics=()).comparison
    metrics = INDUSTRY.published.for_data("easy", cutoffs(easy)).metrics
    assert metrics == ("recall@6@2", "ndcg@2", "ndcg")
    result = by_grades(trained, tmp_path / "comparison", data.path, [*metrics, "ndcg_linear"])
    log = ImpressionLog.load(data.path)
    for before, method in zip(trained.methods, result.methods, strict=True):
        assert method.runs
        config, cascade = load_run(tmp_path / "comparison" / method.runs[0].directory)
        (batch,) = make_loader(log, config, "test")
        with torch.no_grad():
            scores = cascade(batch)[0].numpy()
        # places from 1 for the worst ad: by the score of the ranking model alone, or by queue first
        order = -batch.rank.numpy() - (0 if labels == "rank" else 1000) * (3 - batch.depth.numpy())
        place = order.argsort(axis=1).argsort(axis=1) + 1
        for metric, k, gain in (
            ("ndcg", None, 2.0**place - 1),
            ("ndcg@2", 2, 2.0**place - 1),
            ("ndcg_linear", None, place),
        ):
            values = [ndcg_score(gain[i : i + 1], scores[i : i + 1], k=k) for i in range(len(place))]
            assert method.metrics[metric].mean == pytest.approx(np.mean(values), abs=1e-6)
        kept = (-scores).argsort(axis=1)[:, :6]
        found = (np.take_along_axis(place, kept, axis=1) > 8).sum(axis=1) / 2
        assert method.metrics["recall@6@2"].mean == pytest.approx(found.mean())
        if labels == "full":  # every impression has k relevant ads
            assert method.metrics["recall@6@2"].mean == pytest.approx(before.metrics["joint_recall"].mean)
        assert method.metrics["recall@6@2"].chance == pytest.approx(0.6)


def test_another_log_is_measured_with_the_cutoffs_of_the_nearest_set(tmp_path: Path, two_stages: DataSource) -> None:
    task = Task(out=tmp_path, source=two_stages, size=TINY, jobs=1)
    assert list(protocols_for(INDUSTRY, task)) == ["hard"]
    assert list(protocols_for(INDUSTRY, replace(task, source=find_log(None)))) == ["easy", "hard"]
    assert protocols_for(INDUSTRY, task)["hard"].data == {}  # whether one model ranks all of its items is not known


def test_a_trained_loss_is_one_of_a_stage() -> None:
    variables = cutoffs(INDUSTRY.protocols["easy"])
    section = method_sections([one.filled(variables) for one in INDUSTRY.methods], CASCADE_RATES, tune=True)["L_Relax"]
    assert section["objective"] == {
        "name": "per_stage",
        "loss": {"name": "relax_loss", "m": 6, "k": 2, "tau": 1.0, "variant": "published", "positive_only": False},
    }
    assert section["tune"]["objective.loss.tau"] == [1.0, 0.1, 3.0, 10.0]


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], two_stages: DataSource
) -> None:
    monkeypatch.setattr("rankfall.reproductions.task.QUICK", TINY)
    arguments = ("lcron-table8", "--quick", "--data", str(two_stages.path), "--jobs", "1", "--out", str(tmp_path))
    assert cli("reproduce", *arguments) == 0
    text = capsys.readouterr().out
    assert "tau = 1000" in text
    assert "LCRON, NeuralSort, published" in text
    assert "log: 24 impressions of 1 day to train on" in text
    stored = json.loads((tmp_path / "results.json").read_text())
    assert {file.suffix for file in tmp_path.glob("lcron-table8.*")} == {".png", ".svg"}
    assert cli("reproduce", *arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out) == stored  # runs that exist are not repeated


def test_lists_too_short_for_the_cascade_are_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], two_stages: DataSource
) -> None:
    arguments = ("--data", str(two_stages.path), "--out", str(tmp_path))
    assert cli("reproduce", "lcron-table6", "--quick", *arguments) == 1
    assert "has lists of 40 items, of which retrieval would keep 40" in capsys.readouterr().err


def test_the_list_shows_the_kind_of_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce", "--list", "--json") == 0
    listed = {one["name"]: one["data"] for one in json.loads(capsys.readouterr().out)}
    assert listed["arf-table2"] == "lists"
    assert listed["arf-table3"] == listed["lcron-table12"] == listed["dftopk-table1"] == "impressions"


def test_the_list_shows_which_reproductions_have_improved_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce", "--list", "--json") == 0
    improved = {one["name"]: one["improved"] for one in json.loads(capsys.readouterr().out)}
    assert improved["lcron-table2"]
    assert not improved["lcron-table5"]  # published numbers only


def test_improved_without_improved_methods_is_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, mentioned in (([], False), (["--improved"], True)):
        assert cli("reproduce", "lcron-table5", "--out", str(tmp_path), *options) == 0
        assert ("--improved changes nothing: lcron-table5" in " ".join(capsys.readouterr().err.split())) is mentioned
