"""Reproductions on impressions: the logs they find, set-ups, figures beside figures, and that all of them run."""

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

from rankfall.data import Recipe, prepare_letor
from rankfall.data.impressions.log import ImpressionLog
from rankfall.reporting.figures import save
from rankfall.reproductions import industry, logs
from rankfall.reproductions.cascade_setup import THREE_STAGES, TWO_STAGES, CascadeMethod, compare, lcron
from rankfall.reproductions.datasets import Origin
from rankfall.reproductions.datasets import find as find_lists
from rankfall.reproductions.logs import LogSet
from rankfall.reproductions.published import of_metrics
from rankfall.reproductions.registry import EXPERIMENTS
from rankfall.reproductions.sweep import PublishedSweep, Swept, sweep_report
from rankfall.reproductions.task import Report, Size, Task
from rankfall.simulation.simulate import Simulation, simulate_log, simulate_recflow
from rankfall.studies.comparison_plan import load_comparison
from rankfall.training.config.ranker_config import set_option
from rankfall.training.train_cascade import load_run, make_loader
from support.command_line import run as cli
from support.logs import random_log
from support.paths import ROOT
from support.reproductions import check_report, module

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.xdist_group("reproductions")  # whose logs are made once
EXPERIMENT_FILES = ROOT / "experiments"
ON_IMPRESSIONS = [name for name, experiment in EXPERIMENTS.items() if experiment.data == "impressions"]
TABLES = ("lcron_table2", "lcron_table3", "lcron_table6", "lcron_table7", "dftopk_table1")
SWEEPS = ("lcron_table4", "lcron_table8", "dftopk_table5", "dftopk_table6")
RATES = [f"lcron-table{table}" for table in (9, 10, 11, 12)]
TINY = Size(tune=False, points=2, days=3, requests=24, cascade_seeds=1)


def simulated(path: Path, preset: str) -> Origin:
    assert TINY.days is not None
    assert TINY.requests is not None
    simulate_log(Simulation(preset=preset, days=TINY.days, requests_per_day=TINY.requests), path)
    return Origin(path.name, "log", {}, path)


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """A small log of lists of 40."""
    return simulated(tmp_path_factory.mktemp("two") / "log", "tiny")


# --- published figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_published_method_is_run(name: str) -> None:
    published, methods = module(name).PUBLISHED, module(name).METHODS
    for figures in published.figures.values():
        assert set(figures) <= set(methods)
        assert all(len(row) == len(published.metrics) for row in figures.values())


@pytest.mark.parametrize(
    ("name", "source", "method", "metric", "printed"),
    [
        ("lcron_table2", "RecFlow", "BCE", "joint_recall", 0.8539),
        ("lcron_table2", "RecFlow", "ARF", "retrieval/ndcg", 0.5437),
        ("lcron_table2", "RecFlow", "LCRON, NeuralSort", "ranking/recall", 0.8729),
        ("lcron_table3", "RecFlow", "without L_single", "retrieval/recall", 0.9692),
        ("lcron_table6", "RecFlow", "ICC", "joint_recall", 0.6386),
        ("lcron_table7", "RecFlow", "LCRON, quotas 30 and 20", "joint_recall", 0.8714),
        ("lcron_table7", "RecFlow", "SoftSort", "ranking/recall", None),
        ("dftopk_table1", "RecFlow", "DFTopK", "retrieval/recall", 0.5069),
    ],
)
def test_published_figures_are_as_printed(
    name: str, source: str, method: str, metric: str, printed: float | None
) -> None:
    assert module(name).PUBLISHED.as_data()["figures"][source][method][metric] == printed


@pytest.mark.parametrize(
    ("name", "method", "point", "printed"),
    [
        ("lcron_table4", "LCRON, NeuralSort", 5.0, 0.8733),
        ("lcron_table8", "LCRON, NeuralSort", 50.0, 0.8732),
        ("dftopk_table5", "DFTopK", 1e-4, 0.0959),
        ("dftopk_table6", "DiffSort", 20, 0.1194),
        ("dftopk_table6", "DFTopK", 25, 0.5607),
    ],
)
def test_published_sweeps_are_as_printed(name: str, method: str, point: float, printed: float) -> None:
    assert module(name).PUBLISHED.figures[method][point] == printed


@pytest.mark.parametrize("name", ["lcron_table2", "lcron_table3", "lcron_table6", "lcron_table7"])
def test_lcron_wins_where_it_was_published(name: str) -> None:
    values = module(name).PUBLISHED.values("RecFlow")
    assert max(values, key=lambda method: values[method]["joint_recall"]) == "LCRON, NeuralSort"


@pytest.mark.parametrize(("name", "points"), [("lcron_table4", 8), ("lcron_table8", 6), ("dftopk_table5", 9)])
def test_sweeps_have_all_published_points(name: str, points: int) -> None:
    ((_, figures),) = module(name).PUBLISHED.figures.items()
    assert len(figures) == points
    assert list(figures) == sorted(figures)


# --- finding logs ---------------------------------------------------------------------------------------------


def test_logs_are_told_apart(tmp_path: Path, two_stages: Origin) -> None:
    assert logs.find(None).kind == logs.find("simulated").kind == "simulated"
    assert logs.find(str(two_stages.path)).kind == "log"
    (tmp_path / "RecFlow" / "all_stage").mkdir(parents=True)
    assert logs.find(str(tmp_path / "RecFlow")).kind == "recflow"


def test_data_of_the_wrong_kind_are_wrong_usage(
    tmp_path: Path, two_stages: Origin, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lists.txt").write_text("1 qid:1 1:1\n0 qid:1 1:2\n")
    prepare_letor({"train": [tmp_path / "lists.txt"]}, tmp_path / "lists", Recipe())
    with pytest.raises(ValueError, match="holds prepared ranking lists, but this experiment takes impressions"):
        logs.find(str(tmp_path / "lists"))
    with pytest.raises(ValueError, match="is an impression log, but this experiment takes ranking lists"):
        find_lists(str(two_stages.path))
    for experiment, data in (("lcron-table2", tmp_path / "lists"), ("arf-table2", two_stages.path)):
        assert cli("reproduce", experiment, "--data", str(data), "--out", str(tmp_path / "out")) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "this experiment takes" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("wanted", "message"), [("nowhere", "nowhere is not there"), (".", "is no impression log")])
def test_logs_that_cannot_be_found(wanted: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        logs.find(wanted)


def test_a_simulated_log_is_made_once(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[LogSet, int]:
        found = logs.prepare(logs.find(None), "tiny", tmp_path, size=TINY, seed=seed, progress=heard)
        return found, (found.path / "manifest.json").stat().st_ino

    steps: list[tuple[str, int, int]] = []

    def heard(what: str, done: int, total: int) -> None:
        steps.append((what, done, total))

    data, first = made(0)
    assert (data.name, len(data.train), data.train_impressions, data.test_impressions) == ("tiny", 1, 24, 24)
    assert (data.items, data.depths) == (40, 4)
    assert steps[-1] == ("simulating tiny", 72, 72)
    count = len(steps)
    assert made(0) == (data, first)
    assert len(steps) == count
    assert made(1)[1] != first


def test_recflow_is_prepared_for_the_cascade_in_question(tmp_path: Path) -> None:
    source = tmp_path / "RecFlow"
    simulate_recflow(Simulation(preset="tiny", days=4, requests_per_day=20), source)
    origin = logs.find(str(source))

    def prepared(platform: str, size: Size) -> LogSet:
        return logs.prepare(origin, platform, tmp_path / "cache", size=size, seed=0)

    two, three = prepared("recflow-like", TINY), prepared("recflow-like-3", Size())
    assert (two.name, two.items, len(two.train)) == ("RecFlow", 40, 1)
    assert (len(three.train), three.depths) == (2, 5)
    assert three.items > 40
    made = (two.path / "manifest.json").stat().st_ino
    assert prepared("recflow-like", TINY) == two
    assert (two.path / "manifest.json").stat().st_ino == made
    (tmp_path / "empty" / "all_stage").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"found no DATE\.feather"):
        logs.prepare(logs.find(str(tmp_path / "empty")), "recflow-like", tmp_path, size=TINY, seed=0)


def test_days_are_laid_out_in_their_order(tmp_path: Path) -> None:
    random_log(tmp_path / "log", impressions=10)
    origin = logs.find(str(tmp_path / "log"))
    data = logs.prepare(origin, "tiny", tmp_path, size=Size(), seed=0)
    assert data.roles == {"train": "2024-01-13..2024-01-13", "valid": "2024-01-14", "test": "2024-01-15"}
    assert data.about == "log: 10 impressions of 1 day to train on, 10 tested, lists of 11 items."
    with pytest.raises(ValueError, match="log has 2 days, expected at least 3"):
        logs.prepare(origin, "tiny", tmp_path, size=replace(TINY, days=2), seed=0)


# --- set-ups --------------------------------------------------------------------------------------------------


def settings(objective: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> set[str]:
    """Every trial of a method: its objective with the values of a point, and the learning rate."""
    found = set()
    for point in itertools.product(*grid.values()):
        content: dict[str, Any] = {"objective": dict(objective), "optimizer": {}}
        for key, value in zip(grid, point, strict=True):
            content = set_option(content, key, value)
        found.add(json.dumps(content, sort_keys=True))
    return found


def sized(impressions: int, **changes: Any) -> LogSet:
    days = (*(f"2024-01-{day}" for day in range(13, 32)), "2024-02-01")
    data = LogSet("log", Path("log"), days, "2024-02-02", "2024-02-03", impressions, 3000, 40, 4, True)
    return replace(data, **changes)


def test_table_2_is_the_comparison_in_experiments() -> None:
    file = load_comparison(EXPERIMENT_FILES / "recflow_like.yaml")
    methods = {name: method.section(tune=True) for name, method in module("lcron_table2").METHODS.items()}
    assert list(methods) == list(file.methods)
    for name, section in file.methods.items():
        assert section is not None
        ours = methods[name]
        assert settings(ours["objective"], ours["tune"]) == settings(section["objective"], section["tune"])
    config = TWO_STAGES.config(sized(60_000), methods, seeds=[0])
    assert {key: value for key, value in config.data.items() if key != "path"} == {
        key: value for key, value in file.data.items() if key != "path"
    }
    assert (config.stages, config.relevant, config.training) == (file.stages, file.relevant, file.training)


def test_three_stages_are_those_in_experiments() -> None:
    file = load_comparison(EXPERIMENT_FILES / "recflow_like_3.yaml")
    config = THREE_STAGES.config(sized(60_000, items=50, depths=5), {"bce": {}}, seeds=[0])
    assert (config.stages, config.relevant, config.training) == (file.stages, file.relevant, file.training)


def test_all_methods_of_a_table_get_the_same_number_of_trials() -> None:
    tables = [module(name).METHODS for name in TABLES]
    tables += [module(name).methods(one) for name in ("arf_table3", "arf_table5") for one in industry.SETS]
    for methods in tables:
        grids = [method.section(tune=True)["tune"] for method in methods.values()]
        assert {int(np.prod([len(values) for values in grid.values()])) for grid in grids} == {4}


def test_without_tuning_the_first_temperature_is_taken() -> None:
    section = lcron("diff_sort", 80.0, 10.0, temperature="steepness", quotas=[30, 20]).section(tune=False)
    topk = {"name": "diff_sort", "steepness": 80.0}
    assert section == {"objective": {"name": "lcron", "topk": topk, "quotas": [30, 20]}}


def test_batches_are_as_large_as_the_log_allows() -> None:
    batches = [TWO_STAGES.batch_for(sized(count)) for count in (6_000_000, 60_000, 3_000)]
    assert batches == [1024, 128, 32]


def test_a_log_of_short_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="log has lists of 30 items, of which retrieval would keep 30; expected lists"):
        TWO_STAGES.config(sized(100, items=30), {"bce": {}}, seeds=[0])
    assert TWO_STAGES.config(sized(100, items=30), {"bce": {}}, seeds=[0], lists={"length": 200}).data["length"] == 200


def test_stages_are_as_the_log_allows() -> None:
    config = TWO_STAGES.config(sized(100, depths=2), {"bce": {}}, seeds=[0])
    assert [stage.get("min_depth") for stage in config.stages] == [None, 1]
    config = TWO_STAGES.config(sized(100, sequences=False), {"bce": {}}, seeds=[0])
    assert [stage["model"] for stage in config.stages] == [{"kind": "two_tower"}, {"kind": "mlp"}]


@pytest.mark.parametrize(
    ("table", "rate", "batch", "printed"),
    [(9, 1e-3, 512, 0.8396), (10, 1e-3, 2048, 0.8247), (11, 0.02, 512, 0.8841), (12, 0.02, 2048, 0.8785)],
)
def test_learning_rates_and_batches_are_as_printed(
    table: int, rate: float, batch: int, printed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_table = module(f"lcron-table{table}")
    monkeypatch.setattr(of_table, "compare_at", lambda task, number, **options: (number, options))
    assert of_table.run(None) == (table, {"rate": rate, "batch": batch, "published": printed})


# --- sweeps beside published ones -----------------------------------------------------------------------------


def comparison(**means: float) -> dict[str, Any]:
    figures = {name: {"mean": mean, "low": mean - 0.01, "high": mean + 0.01} for name, mean in means.items()}
    methods = [{"name": name, "metrics": {"joint_recall": of, "other": {}}} for name, of in figures.items()]
    return {"metrics": ["joint_recall", "other"], "methods": methods, "tests": [], "failed": []}


def test_a_sweep_of_one_method_counts_pairs_of_points() -> None:
    published = PublishedSweep(title="T", source="S", along="tau", figures={"m": {1.0: 0.1, 10.0: 0.3, 100.0: 0.2}})
    swept = [Swept("m", 1.0, "c", "a"), Swept("m", 10.0, "c", "b"), Swept("m", 100.0, "c", "failed")]
    report = sweep_report("name", published, {"c": comparison(a=0.5, b=0.6)}, swept, sized(10))
    assert report.results["pairs_in_the_published_order"] == {"m": [1, 1]}
    (sheet,) = report.sheets
    assert sheet.rows[0] == ["m, here", ".5000", ".6000 <", ""]
    assert sheet.rows[2] == ["m, published", ".1000", ".3000 <", ".2000"]
    assert report.comparisons[0][1]["metrics"] == ["joint_recall"]
    assert report.results["comparison"]["metrics"] == ["joint_recall", "other"]


def test_a_sweep_of_several_methods_counts_pairs_of_methods() -> None:
    figures: dict[str, dict[float, float]] = {"a": {0: 0.1, 5: 0.3}, "b": {0: 0.2, 5: 0.2}}
    published = PublishedSweep(title="T", source="S", along="n", figures=figures)
    comparisons = {"none": comparison(a=0.5, b=0.6, ours=0.9), "five": comparison(a=0.5, b=0.6, ours=0.4)}
    swept = [Swept(name, n, title, name) for n, title in ((0, "none"), (5, "five")) for name in ("a", "b", "ours")]
    report = sweep_report("name", published, comparisons, swept, sized(10))
    assert report.results["pairs_in_the_published_order"] == {"0": [1, 1], "5": [0, 1]}
    assert list(report.results["parts"]) == ["none", "five"]
    (sheet,) = report.sheets
    assert sheet.rows[2] == ["ours, here", ".9000 <", ".4000"]
    assert sheet.rows[-1] == ["pairs of methods in order here", "1/1", "0/1"]


def test_of_metrics_leaves_the_rest_of_a_comparison() -> None:
    result = comparison(a=0.5)
    chosen = of_metrics(result, ["joint_recall"])
    assert chosen["methods"][0]["metrics"].keys() == {"joint_recall"}
    assert result["methods"][0]["metrics"].keys() == {"joint_recall", "other"}
    assert chosen["failed"] == []


# --- every experiment -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, two_stages: Origin) -> dict[str, Report]:
    """Every experiment, as small as it gets; in one directory, so that what two of them train is trained once."""
    out = tmp_path_factory.mktemp("reproduced")
    three_stages = simulated(tmp_path_factory.mktemp("three") / "log", "recflow-like-3")

    def run(name: str, origin: Origin) -> Report:
        return EXPERIMENTS[name].load()(Task(out=out, origin=origin, size=TINY, jobs=1))

    with pytest.MonkeyPatch.context() as patch:
        for long in ("lcron_table6", "lcron_rates", "dftopk_table1", "dftopk_table6"):
            some = list(module(long).METHODS.items())
            patch.setattr(module(long), "METHODS", dict([*some[:2], *some[-2:]]))
        found = {"lcron-table6": run("lcron-table6", three_stages), "arf-table5": run("arf-table5", logs.find(None))}
        easy = logs.find(str(out / "data" / f"industry-easy-{TINY.days}x{TINY.requests}-0"))
        found["arf-table3"] = run("arf-table3", easy)
        for name in ON_IMPRESSIONS:
            if name not in found and name not in RATES[1:]:  # which are as the first, with other numbers
                found[name] = run(name, two_stages)
    return found


@pytest.mark.parametrize("name", [name for name in ON_IMPRESSIONS if name not in RATES[1:]])
def test_every_experiment_runs(name: str, reports: dict[str, Report]) -> None:
    report = reports[name]
    outcomes = report.results.get("parts", {"all": report.results}).values()
    assert all(not one["comparison"]["failed"] and one["comparison"]["methods"] for one in outcomes)
    assert all("impressions of" in one["data"]["about"] for one in outcomes)
    check_report(report, name)


@pytest.mark.parametrize("name", ["lcron-table2", "lcron-table8", "dftopk-table6"])
def test_plots_are_drawn(name: str, reports: dict[str, Report], tmp_path: Path) -> None:
    png, svg = save(reports[name].plots, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "published" in svg.read_text()


def test_tables_stand_beside_the_published_ones(reports: dict[str, Report]) -> None:
    for name in TABLES:
        title = name.replace("_", "-")
        (_, result), published = reports[title].comparisons[0], module(name).PUBLISHED
        assert {method["name"] for method in result["methods"]} <= set(module(name).METHODS)
        assert result["metrics"] == list(published.metrics)
        assert {row["source"] for row in reports[title].plots[title].rows} == {"log", "published, RecFlow"}


def test_more_negatives_in_training_and_long_lists_in_tests(reports: dict[str, Report]) -> None:
    results = reports["dftopk-table6"].results
    assert [one["at"] for one in results["swept"]["DFTopK"]] == [0, 25]
    without, many = (one["mean"] for one in results["swept"]["DFTopK"])
    assert without != many  # the same seed and the same tests, other lists in training
    for part in results["parts"].values():
        for method in part["comparison"]["methods"]:
            assert method["metrics"]["joint_recall"]["chance"] == pytest.approx(20 / 200)


def test_the_industrial_sets_are_measured_as_published(tmp_path: Path) -> None:
    """Recall by the funnel's own measure, NDCG by scikit-learn."""
    task = Task(out=tmp_path, origin=logs.find(None), size=TINY, jobs=1)
    easy, _ = industry.SETS
    data = task.log(easy.platform)
    methods = {"RankNet": industry.loss("ranknet_loss"), "ARF": industry.loss("arf", 5.0, m=6, k=2)}
    trained = compare(task, data, easy.setup(data), methods)
    result = industry.by_grades(trained, tmp_path / "comparison", data, easy.metrics)
    log = ImpressionLog.load(data.path)
    for before, method in zip(trained["methods"], result["methods"], strict=True):
        config, cascade = load_run(tmp_path / "comparison" / method["runs"][0]["directory"])
        (batch,) = make_loader(log, config, "test")
        with torch.no_grad():
            (scores,) = cascade(batch)
        grades = batch.grade.numpy()
        for metric, k in (("ndcg", None), ("ndcg@2", 2)):
            values = [ndcg_score(grades[i : i + 1], scores[i : i + 1].numpy(), k=k) for i in range(len(grades))]
            assert method["metrics"][metric]["mean"] == pytest.approx(np.mean(values), abs=1e-6)
        # every impression has as many relevant ads as are looked for
        assert method["metrics"]["recall@6@2"]["mean"] == pytest.approx(before["metrics"]["joint_recall"]["mean"])
        assert method["metrics"]["recall@6@2"]["chance"] == pytest.approx(0.6)


def test_a_log_of_ones_own_is_measured_by_the_cuts_of_the_nearest_set(tmp_path: Path, two_stages: Origin) -> None:
    task = Task(out=tmp_path, origin=two_stages, size=TINY, jobs=1)
    assert [one.name for one in industry._sets(task)] == ["hard"]
    assert list(industry._sets(replace(task, origin=logs.find(None)))) == list(industry.SETS)


def test_a_trained_loss_is_one_of_a_stage() -> None:
    method = industry.loss("relax_loss", 5.0, 1.0, m=6, k=2)
    assert method == CascadeMethod(
        {"name": "per_stage", "loss": {"name": "relax_loss", "m": 6, "k": 2, "tau": 5.0}},
        {"objective.loss.tau": (5.0, 1.0)},
    )


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], two_stages: Origin
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], two_stages: Origin
) -> None:
    arguments = ("--data", str(two_stages.path), "--out", str(tmp_path))
    assert cli("reproduce", "lcron-table6", "--quick", *arguments) == 1
    assert "has lists of 40 items, of which retrieval would keep 40" in capsys.readouterr().err


def test_the_list_says_what_each_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce", "--list", "--json") == 0
    listed = {one["name"]: one["data"] for one in json.loads(capsys.readouterr().out)}
    assert listed["arf-table2"] == "lists"
    assert listed["arf-table3"] == listed["lcron-table12"] == listed["dftopk-table1"] == "impressions"
