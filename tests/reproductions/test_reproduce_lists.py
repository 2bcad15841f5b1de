"""Reproductions on ranking lists: data, published tables, and a small run of each.

Those on impressions are in test_reproduce_cascades.py, the files of published numbers in test_papers.py.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rankfall._config import leaves
from rankfall.data import RankingData, Recipe, prepare_letor
from rankfall.data.lists.list_loader import Lists
from rankfall.metrics.named import parse
from rankfall.reporting.charts import MissingExtraError, color, save
from rankfall.reproductions.catalogue import find_reproduction, papers, reproductions, run
from rankfall.reproductions.costs import TEXTBOOK, TREE, sort_times
from rankfall.reproductions.data import LONGEST, SHORTEST, DataSource, generate_lists, utility_of, write_letor
from rankfall.reproductions.data import find_lists as find
from rankfall.reproductions.data import prepare_lists as prepare
from rankfall.reproductions.paper_schema import LossComparison, LossCost, Method
from rankfall.reproductions.protocols import LIST_RATES, MANY_LISTS, list_config, list_rates, method_sections, oracle
from rankfall.reproductions.published import format_value, values_chart
from rankfall.reproductions.task import FULL, QUICK, Report, Size, Task
from rankfall.reproductions.transfers import measure_samples, relaxed_and_hard_ndcg
from rankfall.training.measured_lists import measure_scores as measure
from support.command_line import run as cli
from support.reproductions import check_figures, check_report, load, panels_of

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.reporting.charts import Chart

TINY = Size(test_lists=1, generated_lists=12, epochs=1, patience=1, seeds=1, tune=False, points=2, longest=5**3)
TABLES = ("arf-table2", "lambdaloss-table1", "lambdaloss-table2", "pirank-table1")
GENERATED = DataSource("generated", "generated", {})
# figures 4 to 6 of ARF differ from figure 3 in the loss only; table 1 trains nothing
NOT_RUN = ("arf-table1", "arf-figure4", "arf-figure5", "arf-figure6")
ON_LISTS = [
    name
    for name, one in reproductions().items()
    if (one.data == "lists" or one.paper == "PiRank") and name not in NOT_RUN
]
ARF = load(LossComparison, "arf-table2").protocol
ARF_RECIPE = Recipe(**ARF.recipe)  # type: ignore[arg-type]


def write_lists(path: Path, lists: int, *, first: int = 0, size: int = 3) -> None:
    """Write lists in LETOR format, numbered from `first` on, compressed if the name ends in gz."""
    lines = [f"{i % 2} qid:{q} 1:{i}.5 2:{q}" for q in range(first, first + lists) for i in range(size)]
    text = ("\n".join(lines) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


# --- published figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_published_method_is_run_on_every_published_metric(name: str) -> None:
    table = load(LossComparison, name)
    published = table.published
    methods = [method.row or method.name for method in table.methods if method.variant != "sound"]
    for rows in published.values.values():
        assert list(rows) == methods
        assert all(len(row) == len(published.metrics) for row in rows.values())
    for metric in published.metrics:
        parse(metric)


@pytest.mark.parametrize(
    ("name", "source", "method", "metric", "printed"),
    [
        ("arf-table2", "MSLR-WEB30K", "ARF", "recall@30@15", 0.446),
        ("arf-table2", "Istella", "Softmax (n-class)", "ndcg@15", 0.069),
        ("lambdaloss-table1", "Istella", "LambdaLoss@1", "ndcg@1", 71.72),
        ("lambdaloss-table1", "Yahoo", "Pairwise (RankNet)", "ndcg", 82.66),
        ("lambdaloss-table2", "MSLR-WEB30K", "LambdaLoss@5", "ndcg@5", 47.08),
        ("pirank-table1", "MSLR-WEB30K", "PiRank-NDCG", "ndcg@15", 0.465309),
        ("pirank-table1", "Yahoo C14", "NeuralSort", "arp", 10.320462),
    ],
)
def test_published_figures_are_as_printed(name: str, source: str, method: str, metric: str, printed: float) -> None:
    published = load(LossComparison, name).published
    assert published.values[source][method][published.metrics.index(metric)] == printed
    assert published.figures(source)[method][metric] == pytest.approx(printed / published.unit)


@pytest.mark.parametrize(
    ("name", "source", "winners"),
    [
        ("arf-table2", "MSLR-WEB30K", ["ARF", "ARF", "ARF"]),
        ("lambdaloss-table1", "MSLR-WEB30K", ["LambdaLoss@1"] * 3),
        ("pirank-table1", "MSLR-WEB30K", ["NeuralSort", "NeuralSort", "ApproxNDCG", *["PiRank-NDCG"] * 5]),
    ],
)
def test_published_winners(name: str, source: str, winners: list[str]) -> None:
    published = load(LossComparison, name).published
    values = published.figures(source)
    found = []
    for metric in published.metrics:
        sign = 1 if parse(metric).higher_is_better else -1
        found.append(max(values, key=lambda method: sign * values[method][metric]))
    assert found == winners


def test_figures_are_shown_as_papers_print_them() -> None:
    assert [format_value(value) for value in (0.44, 46.75, 1.0, -0.25)] == [".440", "46.75", "1.00", "-0.250"]
    assert format_value(0.4531, 4) == ".4531"


# --- generated data -------------------------------------------------------------------------------------------


def test_generated_lists_repeat_and_differ_by_seed() -> None:
    one, again, other = generate_lists(5, 1), generate_lists(5, 1), generate_lists(5, 2)
    assert (one.features == again.features).all()
    assert (one.labels == again.labels).all()
    assert one.features.shape != other.features.shape or (one.features != other.features).any()


def test_generated_grades_follow_the_utility() -> None:
    data = generate_lists(200, 0)
    sizes = np.diff(data.offsets)
    assert sizes.min() >= SHORTEST
    assert sizes.max() <= LONGEST
    assert (data.utility == utility_of(data.features)).all()
    means = [data.utility[data.labels == grade].mean() for grade in range(5)]
    assert means == sorted(means)
    assert np.bincount(data.labels) / len(data.labels) == pytest.approx([0.5, 0.3, 0.13, 0.05, 0.02], abs=0.002)


def test_generated_lists_are_unchanged_by_writing_and_preparing(tmp_path: Path) -> None:
    data = prepare(GENERATED, Recipe(), tmp_path, size=TINY, seed=3)
    test = RankingData.load(data.path)["test"]
    assert data.generated is not None
    assert (test.features == data.generated.features).all()
    assert (test.labels == data.generated.labels).all()
    assert (test.offsets == data.generated.offsets).all()


def test_oracle_beats_chance_and_every_single_feature(tmp_path: Path) -> None:
    data = prepare(GENERATED, ARF_RECIPE, tmp_path, size=replace(TINY, generated_lists=100), seed=0)
    lists = Lists([RankingData.load(data.path)["test"]])
    known = oracle(data, ["ndcg@10"])
    assert known is not None
    features = [lists.gather(np.arange(lists.rows))[:, column] for column in range(6)]
    others = [*features, torch.zeros(lists.rows)]
    reached = [float(measure(scores, lists, [parse("ndcg@10")])["ndcg@10"].mean()) for scores in others]
    assert max(reached) + 0.1 < known["ndcg@10"] < 1


# --- finding data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["Fold1/train.txt", "Fold1/vali.txt", "Fold1/test.txt", "Fold2/train.txt"], ["train", "valid", "test"]),
        (["set1.train.txt", "set1.valid.txt", "set1.test.txt", "set2.train.txt"], ["train", "valid", "test"]),
        (["full/train.txt", "full/test.txt"], ["train", "test"]),
        (["sample/train.txt.gz", "sample/vali.txt.gz", "sample/test.txt.gz"], ["train", "valid", "test"]),
        ([f"S{i}.txt" for i in range(1, 6)], ["S1", "S2", "S3", "S4", "S5"]),
        ([f"fold{i}.txt.gz" for i in range(1, 6)], ["S1", "S2", "S3", "S4", "S5"]),
    ],
    ids=["MSLR-WEB", "Yahoo", "Istella", "Istella-S", "LETOR", "folds"],
)
def test_benchmarks_are_found_in_their_published_layout(tmp_path: Path, files: list[str], splits: list[str]) -> None:
    for number, file in enumerate(files):
        write_lists(tmp_path / file, 10, first=100 * number)
    origin = find(str(tmp_path))
    assert (origin.kind, list(origin.files)) == ("text", splits)
    data = prepare(origin, Recipe(), tmp_path / "cache", size=FULL, seed=0)
    assert all(fold["train"] and fold["valid"] and fold["test"] for fold in data.folds.values())


def test_a_benchmark_without_validation_gives_a_fifth_of_its_training(tmp_path: Path) -> None:
    write_lists(tmp_path / "full" / "train.txt", 10)
    write_lists(tmp_path / "full" / "test.txt", 4, first=100)
    data = prepare(find(str(tmp_path)), Recipe(), tmp_path / "cache", size=FULL, seed=0)
    assert list(data.folds.values()) == [
        {"train": [f"train:{i}/5" for i in range(1, 5)], "valid": ["train:5/5"], "test": ["test"]}
    ]
    assert (data.train_lists, data.test_lists) == (8, 4)


def test_five_parts_are_folds_as_in_letor_until_enough_lists_are_tested(tmp_path: Path) -> None:
    for part in range(1, 6):
        write_lists(tmp_path / f"S{part}.txt", 20, first=100 * part)
    folds = prepare(find(str(tmp_path)), Recipe(), tmp_path / "cache", size=Size(test_lists=30), seed=0).folds
    assert folds == {
        "fold1": {"train": ["S1", "S2", "S3"], "valid": ["S4"], "test": ["S5"]},
        "fold2": {"train": ["S2", "S3", "S4"], "valid": ["S5"], "test": ["S1"]},
    }


def test_a_single_file_is_cut_into_parts(tmp_path: Path) -> None:
    write_lists(tmp_path / "all.txt.gz", 25)
    data = prepare(find(str(tmp_path / "all.txt.gz")), Recipe(), tmp_path / "cache", size=FULL, seed=0)
    assert len(data.folds) == 5
    assert data.test_lists == 25


def test_quick_takes_some_lists_of_a_large_split(tmp_path: Path) -> None:
    for number, role in enumerate(("train", "vali", "test")):
        write_lists(tmp_path / f"{role}.txt", 1000, first=5000 * number, size=2)
    data = prepare(find(str(tmp_path)), Recipe(), tmp_path / "cache", size=QUICK, seed=0)
    assert data.folds["given"]["train"] == ["train:1/8"]
    assert data.train_lists == data.test_lists == 125


def test_prepared_data_are_taken_as_they_are(tmp_path: Path) -> None:
    write_lists(tmp_path / "a.txt", 10)
    write_lists(tmp_path / "b.txt", 10, first=50)
    prepare_letor({"train": [tmp_path / "a.txt"], "test": [tmp_path / "b.txt"]}, tmp_path / "prepared", Recipe())
    origin = find(str(tmp_path / "prepared"))
    assert origin.kind == "prepared"
    assert prepare(origin, ARF_RECIPE, tmp_path / "cache", size=FULL, seed=0).path == tmp_path / "prepared"


def test_what_was_prepared_is_not_prepared_again_unless_something_changed(tmp_path: Path) -> None:
    file = tmp_path / "all.txt"
    write_lists(file, 10)

    def prepared_at(recipe: Recipe) -> int:
        data = prepare(find(str(file)), recipe, tmp_path / "cache", size=FULL, seed=0)
        return (data.path / "manifest.json").stat().st_ino

    first = prepared_at(Recipe())
    assert prepared_at(Recipe()) == first
    other = prepared_at(Recipe(log1p=True))
    assert other != first
    write_lists(file, 11)
    assert prepared_at(Recipe(log1p=True)) != other


def test_sets_at_hand_come_before_generated_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKFALL_DATA", raising=False)
    assert find(None).kind == "generated"
    with pytest.raises(ValueError, match="RANKFALL_DATA must name a directory that contains it, and is not set"):
        find("mq2007")
    write_lists(tmp_path / "mslr_sample" / "mslr_sample.txt.gz", 10)
    monkeypatch.setenv("RANKFALL_DATA", str(tmp_path))
    assert find(None).name == "MSLR sample"
    assert find("generated").kind == "generated"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("nowhere/mslr", "nowhere/mslr does not exist"), ("mq2008", "did you mean 'mq2007'"), (".", "published layout")],
)
def test_data_that_cannot_be_found(wanted: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        find(wanted)


# --- set-ups --------------------------------------------------------------------------------------------------


def test_all_methods_of_a_table_get_the_same_number_of_trials() -> None:
    for name in TABLES:
        table = load(LossComparison, name)
        sections = method_sections(table.methods, list_rates(table.protocol), tune=True)
        grids = [section["tune"] for section in sections.values()]
        assert {int(np.prod([len(values) for values in grid.values()])) for grid in grids} == {4}


def test_without_tuning_the_first_temperature_is_taken() -> None:
    loss = {"name": "relax_loss", "m": 2, "k": 1, "tau": 20.0}
    method = Method(name="L_Relax", config={"loss": loss}, tune={"loss.tau": [20.0, 100.0]})
    assert method_sections([method], LIST_RATES, tune=False) == {"L_Relax": {"loss": loss}}


@pytest.mark.parametrize("name", TABLES)
def test_without_tuning_the_first_value_is_used(name: str) -> None:
    for method in load(LossComparison, name).methods:
        for key, values in method.tune.items():
            assert leaves(method.config)[key] == values[0]


def test_large_data_get_the_network_of_the_paper(tmp_path: Path) -> None:
    task = Task(out=tmp_path, source=GENERATED, size=TINY)
    protocol = load(LossComparison, "lambdaloss-table1").protocol
    small = task.lists(protocol)
    large = replace(small, train_lists=MANY_LISTS)
    methods: dict[str, Any] = {"softmax": {"loss": {"name": "softmax_loss"}}}
    assert list_config(protocol, task, small, methods).model == {"hidden": [128, 64]}
    assert list_config(protocol, task, large, methods).model["dropout"] == [0.5, 0.5, 0.8]


# --- every reproduction -----------------------------------------------------------------------------------------


class Reports(dict[str, Report]):
    """Reports by name, each as small as possible and made when it is first used; tests that use them are a group."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def __missing__(self, name: str) -> Report:
        out, reproduction = self._directory / name, find_reproduction(name)
        if isinstance(reproduction, LossCost):  # two processes for each method, which import torch
            reproduction = reproduction.model_copy(update={"methods": reproduction.methods[:2]})
        self[name] = run(reproduction, Task(out=out, source=GENERATED, size=TINY, jobs=1))
        return self[name]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("reproduced"))


@pytest.mark.xdist_group("reproductions of lists")
@pytest.mark.slow
@pytest.mark.parametrize("name", ON_LISTS)
def test_every_reproduction_runs(name: str, reports: Reports) -> None:
    report = reports[name]
    assert not report.results.get("comparison", {}).get("failed")
    check_report(report, name)
    assert all(any(sheet.rows) for sheet in report.sheets)
    assert list(report.plots) == [name]
    assert "published" in report.results


@pytest.mark.slow
@pytest.mark.xdist_group("reproductions of lists")
@pytest.mark.parametrize("name", ["arf-table2", "arf-table7", "arf-figure2", "pirank-figure7"])
def test_plots_are_drawn(name: str, reports: Reports, tmp_path: Path) -> None:
    check_figures(reports[name], tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("reproductions of lists")
@pytest.mark.parametrize("name", ["arf-table2", "lambdaloss-table1", "lambdaloss-table2", "pirank-table1"])
def test_tables_are_shown_beside_the_published_ones(name: str, reports: Reports) -> None:
    report, published = reports[name], load(LossComparison, name).published
    (_, result), *_ = report.comparisons
    titles = [sheet.title for sheet in report.sheets]
    assert [method.name for method in result.methods] == list(next(iter(published.values.values())))
    assert all(any(source in title for title in titles) for source in published.values)
    assert set(report.results["oracle"]) == set(published.metrics)
    sources = ["generated", *(f"published, {source}" for source in published.values)]
    drawn = [panel.removesuffix(" (lower is better)") for panel in panels_of(report, name)]
    assert drawn == [f"{source}: {metric}" for metric in published.metrics for source in sources]


def test_the_tree_saves_what_the_matrix_costs() -> None:
    seconds = sort_times(10**3, 0.2, seed=0)
    # some 80 times on an idle machine: a margin for a busy one
    assert seconds[TEXTBOOK] > 5 * seconds[TREE]


def test_the_relaxed_metric_is_the_hard_one_at_low_temperature(tmp_path: Path) -> None:
    data = prepare(GENERATED, Recipe(), tmp_path, size=TINY, seed=0)
    lists = Lists([RankingData.load(data.path)["test"]])

    class FirstFeature(torch.nn.Module):
        def score(self, features: torch.Tensor) -> torch.Tensor:
            return features[:, 0]

    model: Any = FirstFeature()
    values = [relaxed_and_hard_ndcg(model, lists, k=10, tau=tau) for tau in (1e-4, 1e3)]
    assert values[0]["relaxed"] == pytest.approx(values[0]["hard"], abs=1e-3)
    assert abs(values[1]["relaxed"] - values[1]["hard"]) > 0.02


def test_samples_as_long_as_the_lists_are_the_lists(tmp_path: Path) -> None:
    data = prepare(GENERATED, Recipe(), tmp_path, size=TINY, seed=0)
    lists = Lists([RankingData.load(data.path)["test"]])
    scores = lists.gather(np.arange(lists.rows))[:, 0]
    whole = measure(scores, lists, [parse("ndcg@10")])["ndcg@10"]
    torch.testing.assert_close(measure_samples(scores, lists, LONGEST, ["ndcg@10"], 0)["ndcg@10"], whole)
    short = measure_samples(scores, lists, 10, ["ndcg@10"], 0)["ndcg@10"]
    assert short.nanmean() > whole.nanmean()  # ten documents have their best among the first ten


# --- the command ----------------------------------------------------------------------------------------------


def test_list_shows_the_contents_and_duration_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce", "--list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in reproductions())
    assert cli("reproduce", "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == list(reproductions())
    measured = [one for one in listed if one["data"] != "none"]
    assert all(any(unit in one[key] for unit in (" s", " min")) for one in measured for key in ("quick", "full"))
    assert {one["paper"] for one in listed} == {paper.name for paper in papers()}


def test_unknown_names_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="did you mean arf-table2"):
        find_reproduction("arf-tabel2")
    assert cli("reproduce", "arf-tabel2") == 2
    assert "did you mean" in capsys.readouterr().err
    assert cli("reproduce") == 2
    assert "--list" in capsys.readouterr().err


def test_data_that_do_not_exist_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("reproduce", "arf-table2", "--data", "no/such/place") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not exist" in err
    assert "Traceback" not in err


def test_broken_data_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.txt").write_text("1 qid:1 1:x\n")
    arguments = ("--data", str(tmp_path / "all.txt"), "--out", str(tmp_path / "out"))
    assert cli("reproduce", "lambdaloss-table2", *arguments) == 1
    assert "all.txt:1: the value of '1:x' is not a number" in capsys.readouterr().err


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rankfall.reproductions.task.QUICK", TINY)
    arguments = ("lambdaloss-table2", "--quick", "--data", "generated", "--jobs", "1", "--out", str(tmp_path))
    assert cli("reproduce", *arguments) == 0
    text = capsys.readouterr().out
    assert "LambdaLoss@5 V1" in text
    assert "published: LambdaLoss@K, table 2, Istella" in text
    assert "oracle" in text
    stored = json.loads((tmp_path / "results.json").read_text())
    assert {file.suffix for file in tmp_path.glob("lambdaloss-table2.*")} == {".png", ".svg"}
    assert cli("reproduce", *arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out) == stored  # runs that exist are not repeated


@pytest.mark.slow
@pytest.mark.xdist_group("reproductions of lists")
def test_without_the_libraries_that_draw_tables_still_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reports: Reports
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rankfall\[report\]'"):
        save(reports["arf-table2"].plots, tmp_path)
    monkeypatch.setattr("rankfall.reproductions.task.QUICK", TINY)
    assert cli("reproduce", "pirank-figure7", "--quick", "--out", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert "depth 3" in out
    assert "pip install 'rankfall[report]'" in err
    assert {file.suffix for file in tmp_path.glob("pirank-figure7*")} == {".svg"}


def test_generated_text_is_ranking_text(tmp_path: Path) -> None:
    write_letor(generate_lists(2, 0), tmp_path / "lists.txt")
    first = (tmp_path / "lists.txt").read_text().split("\n")[0].split()
    assert first[1] == "qid:0"
    assert [word.partition(":")[0] for word in first[2:]] == [str(i) for i in range(1, 21)]


def fills(chart: Chart) -> list[dict[str, list[str]]]:
    """The colours of the dots of each row of each panel; the last row is the axis."""
    return [
        {strip.name: re.findall(r'<circle[^>]*fill="([^"]+)"', "".join(strip.parts)) for strip in panel.strips[:-1]}
        for panel in chart.panels
    ]


def test_the_panels_of_a_source_have_the_same_lines() -> None:
    chart = values_chart(
        {
            "here": {"a": {"ndcg": (0.1,)}, "b": {"ndcg": (0.2,)}, "c": {"mrr": (0.3,)}},
            "there": {"c": {"ndcg": (0.4,)}},
        },
        title="",
    )
    assert [panel.name for panel in chart.panels] == ["here: ndcg", "there: ndcg", "here: mrr"]
    assert fills(chart) == [
        {"a": [color(0)], "b": [color(2)], "c": []},
        {"c": [color(0)]},  # a single method is not the best
        {"a": [], "b": [], "c": [color(0)]},
    ]


def test_one_seed_marks_no_best_method_in_figures() -> None:
    rows = {"a": {"ndcg": (0.1,)}, "b": {"ndcg": (0.2,)}}
    figure = values_chart({"here": rows, "published": rows}, title="", few_seeds="here")
    assert fills(figure) == [{"a": [color(0)], "b": [color(0)]}, {"a": [color(0)], "b": [color(2)]}]
    assert "here: too few seeds, no claim" in figure.svg()
    assert "no claim" not in values_chart({"here": rows}, title="").svg()
