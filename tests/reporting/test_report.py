"""Reports: one file that needs nothing else and says what the files of a run or a comparison say."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rankfall.reporting import charts as svg
from rankfall.reporting.comparison import comparison_page_blocks
from rankfall.reporting.files import blocks_of
from rankfall.reporting.html import page
from rankfall.studies.results import ComparisonResult, RunFailure, StreamResult, Verdict
from rankfall.training.config.component_checks import shown_name
from support.cascades import content, liked_log
from support.command_line import run
from support.planted import config_for, plant
from support.results import STAGES, compared, streamed
from support.sealing import seal_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("report") / "log"
    return liked_log(path)


@pytest.fixture(scope="module")
def cascade(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated."""
    directory: Path = tmp_path_factory.mktemp("report")
    (directory / "config.yaml").write_text(yaml.safe_dump(content(log, training={"epochs": 3})))
    assert run("train", str(directory / "config.yaml"), "--out", str(directory / "run")) == 0
    assert run("evaluate", str(directory / "run")) == 0
    return directory / "run"


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("report")
    (directory / "config.yaml").write_text(yaml.safe_dump(config_for(plant(directory / "planted"))))
    assert run("train", str(directory / "config.yaml"), "training.metric=arp", "--out", str(directory / "run")) == 0
    return directory / "run"


@pytest.fixture(scope="module")
def comparison(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("report")
    settings = content(log, training={"epochs": 2}) | {
        "methods": {
            "LCRON, <DFTopK>": {"tune": {"objective.topk.tau": [0.5, 2.0]}},
            "BCE & co": {"objective": {"name": "bce"}, "tune": {"optimizer.lr": [0.01, 0.02]}},
        },
        "seeds": [0, 1],
    }
    (directory / "comparison.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    assert run("compare", str(directory / "comparison.yaml"), "--out", str(directory / "out")) == 0
    return directory / "out"


class Page:
    """A report as a reader without eyes has it; refuses one that is not well formed or fetches anything."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", self.text)
        self.tree = ElementTree.fromstring(self.text.removeprefix("<!doctype html>\n"))

    @property
    def headings(self) -> list[str]:
        return ["".join(one.itertext()) for one in self.tree.iter("h2")]

    @property
    def words(self) -> str:
        return " ".join("".join(self.tree.itertext()).split())

    @property
    def pictures(self) -> list[ElementTree.Element]:
        return [one for one in self.tree.iter() if one.get("role") == "img"]

    def table(self, first: str) -> list[list[str]]:
        """The rows of the table whose first heading is this; "retrieval" above "recall" is read retrieval/recall."""
        for one in self.tree.iter("table"):
            rows = [["".join(cell.itertext()) for cell in row] for row in one.iter("tr")]
            if rows[0][0] == first:
                return rows if one.find("colgroup") is None else [staged(one, *rows[:2]), *rows[2:]]
        raise AssertionError(f"no table begins with {first}")


def staged(table: ElementTree.Element, upper: list[str], lower: list[str]) -> list[str]:
    """Two rows of headings as one."""
    below, names = iter(lower), []
    for name, cell in zip(upper, table.findall("thead/tr[1]/th"), strict=True):
        names += [f"{name}/{next(below)}" for _ in range(int(cell.get("colspan", 0)))] or [name]
    return names


def check_pictures(page: Page, count: int) -> None:
    """Pictures say what they show, and everything in them is inside."""
    assert len(page.pictures) == count
    for picture in page.pictures:
        assert len(picture.attrib["aria-label"]) > 20
        if picture.tag.endswith("svg"):
            assert picture[0].text == picture.attrib["aria-label"]  # its title
        for shape in picture.iter():
            for key, value in shape.attrib.items():
                if value.endswith("%") and key != "width":
                    assert 0 <= float(value.removesuffix("%")) <= 100, (shape.tag, shape.attrib)


def widths_of_bars(picture: ElementTree.Element) -> list[list[float]]:
    """What is left, lost and lost before in each bar of a funnel, in percent."""
    found = [float(one.attrib["width"].removesuffix("%")) for one in picture.iter() if one.tag.endswith("rect")]
    return [found[place : place + 3] for place in range(0, len(found), 3)]


def chance_marks(picture: ElementTree.Element) -> list[float]:
    """Where the triangles of a funnel are, in percent."""
    marks = [one for one in picture.iter() if one.tag.endswith("svg") and one.get("x") is not None]
    return [float(one.attrib["x"].removesuffix("%")) for one in marks]


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_cascade_says_where_items_are_lost(cascade: Path) -> None:
    found = Page(cascade / "report.html")
    summary = json.loads((cascade / "evaluation.json").read_text())
    shown = found.table("metric")[1:]
    assert [row[0] for row in shown] == [
        "joint_recall",
        *(f"{stage}/alone/{metric}" for stage in ("retrieval", "ranking") for metric in ("recall", "ndcg")),
    ]
    for name, mean, interval, chance, *_ in shown:
        assert float(mean) == pytest.approx(summary["metrics"][name], abs=5e-5)
        assert float(chance) == pytest.approx(summary["chance"][name], abs=5e-5)
        assert [float(end) for end in interval.split(" to ")] == pytest.approx(summary["intervals"][name], abs=6e-4)
    check_pictures(found, 4)
    after_first = 1 - summary["metrics"]["retrieval/lost"]
    joint = summary["metrics"]["joint_recall"]
    label = found.pictures[0].attrib["aria-label"]
    shares = [float(number) for number in re.findall(r"(\d?\.\d+) left", label)]
    assert shares == pytest.approx([after_first, joint], abs=5e-4)
    # the marks of chance: of 11 items stages keep 5, then 3 of those 5 of what the first one left
    assert chance_marks(found.pictures[0]) == pytest.approx([500 / 11, 60 * after_first], abs=0.01)
    for stage, row in zip(summary["funnel"], found.table("stage")[1:], strict=True):
        assert row[:3] == [stage["stage"], str(stage["quota"]), f"{stage['entered']:,.1f}"]
        assert float(row[3][:4]) == pytest.approx(stage["kept"]["value"], abs=6e-4)


def test_the_spread_and_the_worst_requests_are_those_of_a_loop(cascade: Path) -> None:
    found = Page(cascade / "report.html")
    table = pq.read_table(cascade / "values.parquet")
    values = sorted(value for value in table["joint_recall"].to_pylist())
    label = found.pictures[1].attrib["aria-label"].partition(": ")[2]
    shown = {name: float(share) for name, share in (part.split() for part in label.split(", "))}
    for name, share in shown.items():  # two relevant items: 0, a half or all
        expected = sum(abs(value - float(name)) <= 0.05 for value in values) / len(values)
        assert share == pytest.approx(expected, abs=0.006)
    middle = (values[29] + values[30]) / 2
    assert float(found.table("quantile")[1][3]) == pytest.approx(middle, abs=1e-4)
    worst = [float(row[1]) for row in found.table("request")[1:]]
    assert worst == pytest.approx(values[:10], abs=1e-4)
    by_request = dict(zip(table["qid"].to_pylist(), table["joint_recall"].to_pylist(), strict=True))
    for request, value, *_ in found.table("request")[1:]:
        assert by_request[request] == pytest.approx(float(value), abs=1e-4)


def test_training_is_drawn_epoch_by_epoch(cascade: Path) -> None:
    found = Page(cascade / "report.html")
    lines = [json.loads(line) for line in (cascade / "metrics.jsonl").read_text().splitlines()]
    loss, validation = found.pictures[2:]
    assert all(name in found.words for name in ("retrieval/single", "ranking/single", "retrieval/alone/recall"))
    dots = [one for one in loss.iter() if one.tag.endswith("circle")]
    assert len(dots) == len(lines) * 4  # the loss and its three terms
    first, last = lines[0]["loss"], lines[-1]["loss"]
    assert f"loss from {first:.4f} to {last:.4f}" in loss.attrib["aria-label"]
    assert (float(dots[0].attrib["cy"]) < float(dots[2].attrib["cy"])) == (first > last)  # higher is further up
    recalls = [lines[-1]["validation"][f"{stage}/alone/recall"] for stage in ("retrieval", "ranking")]
    assert all(f"to {recall:.4f}" in validation.attrib["aria-label"] for recall in recalls)


def test_report_shows_configuration(cascade: Path, log: Path) -> None:
    words = Page(cascade / "report.html").words
    assert "name: lcron, topk: {name: dftopk, tau: 1.0}" in words
    assert "ranking keeps 3: attention: 8, dim: 4, hidden: [16], kind: din" in words  # the order of the file
    assert str(log) in words


def test_a_run_that_was_not_evaluated(ranker: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    assert run("report", str(ranker), "--out", str(out)) == 0
    found = Page(out)
    assert "This run has not been evaluated yet." in found.words
    assert "Metrics" not in found.headings
    check_pictures(found, 2)
    assert not (ranker / "report.html").exists()


def test_a_ranker_and_a_metric_that_should_be_low(ranker: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ranker, tmp_path / "run")
    assert run("evaluate", str(copy), "--split", "valid") == 0
    assert Page(copy / "report.html").table("query")[0][1] == "ndcg@1"  # arp was not evaluated: the first that was
    settings = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump(settings | {"metrics": ["ndcg", "arp"]}))
    seal_again(copy)
    assert run("evaluate", str(copy)) == 0
    found = Page(copy / "report.html")
    values = [value for value in pq.read_table(copy / "values.parquet")["arp"].to_pylist() if value == value]
    assert [float(row[1]) for row in found.table("query")[1:]] == pytest.approx(sorted(values)[:-11:-1], abs=1e-3)
    check_pictures(found, 3)


def test_nothing_was_defined(ranker: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ranker, tmp_path / "run")
    assert run("evaluate", str(copy)) == 0
    table = pq.read_table(copy / "values.parquet")
    nothing = [float("nan")] * len(table)
    for place, name in enumerate(table.column_names[1:], 1):
        table = table.set_column(place, name, pa.array(nothing, pa.float32()))
    pq.write_table(table, copy / "values.parquet")
    summary = json.loads((copy / "evaluation.json").read_text())
    summary["metrics"] = dict.fromkeys(summary["metrics"])
    (copy / "evaluation.json").write_text(json.dumps(summary))
    assert run("report", str(copy)) == 0
    assert Page(copy / "report.html").table("metric")[1][1] == "none"


def test_a_single_validation_is_a_sentence(cascade: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cascade, tmp_path / "run")
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for line in lines[:-1]:
        line["validation"] = {}
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal_again(copy)
    assert run("report", str(copy)) == 0
    found = Page(copy / "report.html")
    assert len(found.pictures) == len(Page(cascade / "report.html").pictures) - 1
    recall = f"{lines[-1]['validation']['joint_recall']:.3f}".removeprefix("0")
    assert f"Validation joint_recall {recall} in epoch {len(lines)}." in found.words


def test_one_epoch_is_a_table_and_none_a_sentence(cascade: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cascade, tmp_path / "run")
    first, *_ = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text(first + "\n")
    seal_again(copy)
    assert run("report", str(copy)) == 0
    assert float(Page(copy / "report.html").table("after one epoch")[1][1]) == pytest.approx(
        json.loads(first)["loss"], abs=1e-4
    )
    (copy / "metrics.jsonl").unlink()
    (copy / "result.json").unlink()
    (copy / "manifest.json").unlink()  # which lists them
    assert run("report", str(copy)) == 0
    words = Page(copy / "report.html").words
    assert "No epoch has been finished." in words
    assert "training has not finished" in words


# --- comparisons --------------------------------------------------------------------------------------------------


def test_comparison_page_matches_json(comparison: Path) -> None:
    found = Page(comparison / "report.html")
    result = json.loads((comparison / "comparison.json").read_text())
    check_pictures(found, 2)
    rows = found.table("method")
    assert [row[0] for row in rows] == ["method", "LCRON, <DFTopK>", "BCE & co", "chance"]
    assert rows[0][1:] == [shown_name(name) for name in result["metrics"]]
    for row, method in zip(rows[1:], result["methods"], strict=False):
        for name, shown in zip(rows[0][1:], row[1:], strict=True):
            mean = method["metrics"][name]["mean"]
            assert float(shown.partition("±")[0].rstrip(" *")) == pytest.approx(mean, abs=6e-4)
    chosen = [method["settings"]["all"] for method in result["methods"]]
    for settings in chosen:
        ((key, value),) = settings.items()
        assert f"{key}: {value}" in found.words
    assert f"rankfall compare {comparison}/comparison.yaml --out {comparison}" in found.words


def test_the_bars_of_a_method_sum_to_one(comparison: Path) -> None:
    bars, _ = Page(comparison / "report.html").pictures
    result = json.loads((comparison / "comparison.json").read_text())
    means = [{name: one["mean"] for name, one in method["metrics"].items()} for method in result["methods"]]
    first = [(1 - one["retrieval/lost"], one["retrieval/lost"], 0) for one in means]
    second = [(one["joint_recall"], one["ranking/lost"], one["retrieval/lost"]) for one in means]
    expected = [[100 * share for share in of] for pair in zip(first, second, strict=True) for of in pair]
    assert widths_of_bars(bars) == [pytest.approx(of, abs=0.02) for of in expected]


def test_repeated_comparison_changes_nothing(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (comparison / "comparison.json").read_text()
    runs = {path: path.stat().st_mtime_ns for path in comparison.glob("runs/*/result.json")}
    monkeypatch.chdir(comparison / "runs")
    assert run("compare", str(comparison / "comparison.yaml"), "--out", str(comparison)) == 0
    assert (comparison / "comparison.json").read_text() == before
    assert {path: path.stat().st_mtime_ns for path in comparison.glob("runs/*/result.json")} == runs


def test_what_failed_is_said() -> None:
    failure = RunFailure("ICC", "all seed 0", "the loss became <NaN>")
    result = ComparisonResult(["joint_recall"], [0], {"all": {}}, incomplete=["ICC"], failed=[failure])
    text = page("Nothing", comparison_page_blocks(result))
    assert "No method finished." in text
    assert "all seed 0: the loss became &lt;NaN&gt;" in text
    ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))


def read(result: ComparisonResult | StreamResult, directory: Path) -> Page:
    """The page of a result that was made up."""
    kind = "stream" if isinstance(result, StreamResult) else "comparison"
    result.save(directory / f"{kind}.json")
    (directory / "report.html").write_text(page(*blocks_of(directory)))
    return Page(directory / "report.html")


def widths(page: Page) -> list[list[int]]:
    """How many columns each row of each table with headings has; a heading of two rows counts for both."""
    found = []
    for table in page.tree.iter("table"):
        wide: list[int] = []
        below = 0
        for row in table.iter("tr"):
            wide.append(below + sum(int(cell.get("colspan", 1)) for cell in row))
            below = sum(int(cell.get("rowspan", 1)) == 2 for cell in row)
        found.append(wide)
    return found


@pytest.mark.parametrize("make", [compared, streamed, lambda: compared(stages=[])])
def test_rows_have_no_gaps(make: Callable[[], ComparisonResult | StreamResult], tmp_path: Path) -> None:
    found = read(make(), tmp_path)
    assert all(len(row) for row in found.tree.iter("tr"))
    assert all(len(set(wide)) == 1 for wide in widths(found))
    assert ["wild", "failed"] in found.table("method")
    assert "Failed: wild." in found.words


def test_settings_are_told_if_there_was_a_choice(comparison: Path, tmp_path: Path) -> None:
    heading = "Settings chosen on validation data"
    assert heading in Page(comparison / "report.html").headings
    result = compared()
    assert all(method.settings == {"all": {}} for method in result.methods)
    assert heading not in read(result, tmp_path).headings
    first, *others = result.methods
    tuned = replace(first, settings={"all": {"optimizer.lr": 0.125}})
    found = read(replace(result, methods=[tuned, *others]), tmp_path)
    assert heading in found.headings
    assert "optimizer.lr: 0.125" in found.words


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_spread_is_told_if_there_is_one(seeds: int, tmp_path: Path) -> None:
    found = read(compared(seeds=seeds), tmp_path)
    assert ("standard deviation over 2 seeds." in found.words) == ("±" in found.table("method")[1][1]) == (seeds == 2)
    assert ("standard deviation" in found.words) == (seeds == 2)


def test_days_without_a_method_and_days_of_long_streams(tmp_path: Path) -> None:
    result = streamed(days=200)
    for entry in result.days[-3:]:
        entry.methods.pop(1)
    found = read(result, tmp_path)
    last = result.learned[-14:]
    assert [row[0] for row in found.table("day")[1:]] == last
    name = result.methods[1].name
    column = [row[found.table("day")[0].index(name)] for row in found.table("day")[1:]]
    assert [cell == "none" for cell in column] == [False] * 11 + [True] * 3
    assert all(day in found.words for day in result.learned[1:])  # those before them are folded
    panels = found.pictures[1]
    ticks = [one.text for one in panels.iter() if one.get("text-anchor") == "middle"]
    assert ticks == 4 * ["50", "100", "150", "200"]
    heads = ["".join(one.itertext()) for one in panels.iter("b")]
    ahead = f"joint_recall, ahead of {result.methods[0].name}"
    assert heads == ["joint_recall", ahead, "lost at retrieval", "lost at ranking"]


def test_no_p_value_is_nothing(comparison: Path) -> None:
    result = ComparisonResult.load(comparison / "comparison.json")
    verdicts = [
        replace(verdict, over_queries=replace(verdict.over_queries, adjusted_p_value=0.0))
        for verdict in result.verdicts
    ]
    assert "&lt;1e-99" in page("Clear", comparison_page_blocks(replace(result, verdicts=verdicts)))


def tables(page: Page) -> list[list[list[str]]]:
    return [[["".join(cell.itertext()) for cell in row] for row in one.iter("tr")] for one in page.tree.iter("table")]


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_page_shows_the_tests_and_claims_nothing_with_one_seed(seeds: int, tmp_path: Path) -> None:
    result = compared(seeds=seeds, stages=[])
    found = read(result, tmp_path)
    rows = next(table for table in tables(found) if table[0][1] == "difference")
    others = [one for one in result.verdicts if one.method != one.against]
    assert [row[0] for row in rows[1:]] == [one.method for one in others]
    heads = ["p, seeds and impressions", "p, seeds"] if seeds > 1 else []
    assert rows[0][3:] == [*heads, "p, impressions"]
    for row, verdict in zip(rows[1:], others, strict=True):
        tests = [test for test in (verdict.over_both, verdict.over_seeds, verdict.over_queries) if test is not None]
        assert float(row[1]) == pytest.approx(tests[0].difference, abs=6e-5)
        assert [float(cell) for cell in row[3:]] == pytest.approx([test.adjusted_p_value for test in tests], rel=0.06)
    assert ("NO CLAIM" in found.words) == (seeds == 1)
    assert ("with these weights" in found.words) == (seeds == 1)
    assert ("Bold: best mean" in found.words) == (seeds > 1)
    assert any(" *" in cell for row in found.table("method") for cell in row) == (seeds > 1)


def test_a_page_says_what_the_reference_is_compared_with(tmp_path: Path) -> None:
    result = replace(compared(stages=[]), against="BCE")
    outcomes = ("reference", "better", "worse", "not distinguishable")
    verdicts = [
        Verdict.from_json({**one.to_json(), "against": "BCE", "outcome": outcome})
        for one, outcome in zip(result.verdicts, outcomes, strict=True)
    ]
    words = read(replace(result, verdicts=verdicts), tmp_path).words
    names = [method.name for method in result.methods]
    assert "BCE is the reference, with joint_recall" in words
    assert f"{names[1]} is significantly better (p = " in words
    assert f"{names[2]} is significantly worse (p = " in words
    assert f"{names[3]} is not distinguishable from BCE (p = " in words
    assert "= reference, BCE; + better; - worse" in words


def test_a_page_of_many_methods_names_the_best_few(tmp_path: Path) -> None:
    result = compared(methods=[f"method {number}" for number in range(19)], seeds=3, stages=STAGES[:1])
    assert {one.outcome for one in result.verdicts if one.metric == "joint_recall"} == {
        "reference",
        "not distinguishable",
    }
    found = read(result, tmp_path)
    means = {method.name: method.metrics["joint_recall"].mean for method in result.methods}
    best, *others = sorted(means, key=lambda name: means[name], reverse=True)
    summary = next("".join(one.itertext()) for one in found.tree.iter("p"))
    assert summary.startswith(f"{best} has the best joint_recall")
    named = ", ".join(f"{name} (p = 1)" for name in others[:3])
    assert f"{named} and 15 more are not distinguishable from {best}." in summary
    assert len(summary) < 250
    assert all(name in found.words for name in means)
    names = [one.text for one in found.pictures[1].iter("div") if one.get("class") == "name" and one.text]
    assert names == [best, *others]  # the intervals, the best first


def test_one_seed_is_told_once(tmp_path: Path) -> None:
    for result in (compared(seeds=1), streamed(seeds=1)):
        (tmp_path / result.unit).mkdir()
        assert read(result, tmp_path / result.unit).words.count("NO CLAIM") == 1


def test_a_page_leads_with_the_metric_of_the_training_runs(tmp_path: Path) -> None:
    result = replace(compared(), metric="ranking/alone/recall")
    found = read(result, tmp_path)
    assert found.table("method")[0][1] == "ranking/alone/recall"
    assert "ranking/alone/recall" in found.headings
    assert found.pictures[1].attrib["aria-label"].startswith("ranking/alone/recall of each method")
    means = {method.name: method.metrics["ranking/alone/recall"].mean for method in result.methods}
    assert f"{max(means, key=lambda name: means[name])} has the best ranking/alone/recall" in found.words


def test_warnings_are_below_the_funnels(tmp_path: Path) -> None:
    for result in (compared(), streamed()):
        (tmp_path / result.unit).mkdir()
        found = read(replace(result, warnings=["lists are short"]), tmp_path / result.unit)
        (section,) = [one for one in found.tree.iter("section") if (one.findtext("h2") or "") == "Funnels"]
        assert [one.text for one in section.iter("p") if one.get("class") == "warning"] == ["Lists are short."]


def test_directions_of_better_are_marked(tmp_path: Path) -> None:
    heads = [one for one in read(compared(), tmp_path).tree.iter("th") if one.get("scope") == "col"]
    marks = {"".join(one.itertext()): one.get("class", "").split()[-1:] for one in heads}
    assert marks["joint_recall"] == marks["alone/recall"] == ["up"]
    assert marks["lost"] == ["down"]


def test_a_file_without_verdicts_says_how_to_get_them(tmp_path: Path) -> None:
    content = compared(stages=[]).to_json()
    del content["verdicts"], content["pairs"]
    found = read(ComparisonResult.from_json(content), tmp_path)
    assert "No tests over seeds in this file: run the same command again" in found.words
    assert not any("*" in cell for row in found.table("method") for cell in row)


# --- the command --------------------------------------------------------------------------------------------------


def test_a_report_replaces_a_report_and_nothing_else(
    cascade: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "thesis.html"
    assert run("report", str(cascade), "--out", str(out)) == 0
    assert run("report", str(cascade), "--out", str(out)) == 0
    out.write_text("<html>years of work</html>")
    capsys.readouterr()
    assert run("report", str(cascade), "--out", str(out)) == 1
    assert f"out: {out} exists and is not a report" in capsys.readouterr().err
    assert out.read_text() == "<html>years of work</html>"


def test_a_report_is_written_to_a_pipe(cascade: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit((tmp_path / "pipe").read_text)
        assert run("report", str(cascade), "--out", str(tmp_path / "pipe")) == 0
        assert read.result().rstrip().endswith("</html>")
    assert (tmp_path / "pipe").is_fifo()
    assert capsys.readouterr().out == ""


def test_other_directories_have_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(tmp_path)) == 1
    assert f"{tmp_path} is neither a run nor a comparison" in capsys.readouterr().err
    (tmp_path / "comparison.json").write_text("{")
    assert run("report", str(tmp_path)) == 1
    assert "comparison.json is damaged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.json"]


def test_training_again_takes_the_report_away(log: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content(log, training={"epochs": 1})))
    arguments = ("train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run"))
    assert run(*arguments) == 0
    assert run("report", str(tmp_path / "run")) == 0
    assert run(*arguments, "--force") == 0
    assert not (tmp_path / "run" / "report.html").exists()


# --- figures ------------------------------------------------------------------------------------------------------


def check_figures(directory: Path, page: Page) -> set[str]:
    """Every picture of a page is a file of each kind, and nothing else is."""
    drawn = {file.stem for file in directory.glob("*.svg")}
    assert len(drawn) == len(page.pictures)
    assert {file.name for file in directory.iterdir()} == {f"{name}{end}" for name in drawn for end in (".svg", ".png")}
    for name in drawn:
        text = (directory / f"{name}.svg").read_text()
        assert "var(--" not in text
        ElementTree.fromstring(text)
        assert (directory / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return drawn


def test_figures_of_a_run(cascade: Path, tmp_path: Path) -> None:
    assert run("report", str(cascade), "--out", str(tmp_path / "page.html"), "--figures", str(tmp_path / "all")) == 0
    names = check_figures(tmp_path / "all", Page(tmp_path / "page.html"))
    assert names == {"funnel", "distribution-of-joint-recall", "training-loss-by-epoch", "validation-by-epoch"}
    other = tmp_path / "changed"
    assert run("evaluate", str(cascade), "stages.1.quota=2", "--figures", str(other)) == 0
    assert {file.name for file in other.iterdir()} == {"funnel.svg", "funnel.png"}
    assert "ranking keeps 2 of 5" in (other / "funnel.svg").read_text()


@pytest.mark.parametrize("make", [compared, streamed])  # not their results, which every worker would compute
def test_figures_of_comparisons_and_streams(
    make: Callable[[], ComparisonResult | StreamResult], tmp_path: Path
) -> None:
    page = read(make(), tmp_path)
    assert run("report", str(tmp_path), "--figures", str(tmp_path / "figures")) == 0
    assert "funnels" in check_figures(tmp_path / "figures", page)


def test_without_the_library_for_png_there_is_svg(
    cascade: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert run("report", str(cascade), "--out", str(tmp_path / "page.html"), "--figures", str(tmp_path / "all")) == 0
    assert "pip install 'rankfall[report]'" in capsys.readouterr().err
    assert {file.suffix for file in (tmp_path / "all").iterdir()} == {".svg"}


# --- scales -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[0.1, 0.9], [3.0, 3.0], [0.0, 0.0], [-2.0, 1e4], [0.70001, 0.70002]])
def test_a_scale_has_all_values_and_round_ticks(values: list[float]) -> None:
    scale = svg.Scale.around(values)
    assert all(0 < scale(value) < 100 for value in values)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 10
    assert all(0 <= scale(tick) <= 100 for tick in ticks)
    gaps = {round((b - a) / (ticks[1] - ticks[0]), 6) for a, b in pairwise(ticks)}
    assert gaps == {1.0}


@pytest.mark.parametrize("first", [1, 2])
def test_integer_ticks_stay_in_range(first: int) -> None:
    for last in range(first, 500):
        ticks = svg.whole_ticks(range(first, last + 1))
        assert 1 <= len(ticks) <= 10
        assert first <= ticks[0] <= ticks[-1] <= last
        assert len({b - a for a, b in pairwise(ticks)}) <= 1
