"""The order of methods here and in a paper: which pairs count, and how it is shown."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scipy import stats

from rankfall.reproductions.data import LogData
from rankfall.reproductions.paper_schema import Measured, Method, PublishedSweep, PublishedTable
from rankfall.reproductions.published import (
    SweepResult,
    SweepRun,
    TableResult,
    agreement,
    apart_here,
    apart_in_print,
    sweep_report,
    table_report,
)
from rankfall.studies.compare import Outcome, summarise
from rankfall.studies.results import ComparisonResult
from support.reproductions import panels_of, points_of

if TYPE_CHECKING:
    from collections.abc import Mapping

METRIC = "joint_recall"
DATA = LogData("simulated", Path("log"), ("2024-01-13",), "2024-01-14", "2024-01-15", 10, 50, 20.0, 3, sequences=True)


def compared(means: Mapping[str, float], *, seeds: int = 5, spread: float = 0.001) -> ComparisonResult:
    """A comparison on 50 impressions, whose seeds differ by `spread`."""
    generator = torch.Generator().manual_seed(0)
    common = torch.rand(50, generator=generator, dtype=torch.double)
    common -= common.mean()
    values = {}
    for name, mean in means.items():
        noise = torch.randn(seeds, 51, generator=generator, dtype=torch.double)
        runs = spread * (noise[:, :1] - noise[:, :1].mean())
        rest = 0.001 * (noise[:, 1:] - noise[:, 1:].mean())
        values[name] = {METRIC: mean + common + runs + rest, "other": -common - runs + rest}
    chance = {METRIC: torch.zeros(50), "other": torch.zeros(50)}
    summary = summarise(Outcome(values, dict.fromkeys(values, chance), {METRIC: True, "other": True}, [50]))
    return ComparisonResult(
        metrics=[METRIC, "other"],
        seeds=list(range(seeds)),
        folds={"all": {}},
        unit="impressions",
        methods=summary.methods,
        tests=summary.tests,
        verdicts=summary.verdicts,
        pairs=summary.pairs,
    )


# --- pairs --------------------------------------------------------------------------------------------------------


def test_pairs_are_counted_by_hand() -> None:
    printed = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0, "no number": None, "not here": 9.0}
    ours = {"a": 0.1, "b": 0.3, "c": 0.05, "d": 0.01, "no number": 0.2, "not there": 0.4}
    # a > b in print, opposite here; a > c and b > d and c > d alike; b = c in print; a, d not distinguishable here
    found = agreement(ours, printed, lambda first, second: (first, second) != ("a", "d"))
    assert (found.same, found.opposite, found.open_here, found.open_in_print) == (3, 1, 1, 1)
    assert (found.same_means, found.printed_pairs) == (4, 5)
    assert str(found) == "3 of 4 in order, 1 not distinguishable here, 1 not distinguishable in print"
    assert found.cells() == ["3 of 4", "1", "1"]
    assert found.to_json()["opposite"] == 1


def test_one_seed_claims_nothing() -> None:
    found = agreement({"a": 0.2, "b": 0.1}, {"a": 2.0, "b": 1.0}, None)
    assert (str(found), found.cells()) == ("too few seeds: no claim", ["too few seeds: no claim", "", "0"])
    assert found.to_json() == {"claim": False, "not_distinguishable_in_print": 0, "text": "too few seeds: no claim"}
    assert apart_here(compared({"a": 0.5, "b": 0.6}, seeds=1), METRIC, {"a": "a", "b": "b"}) is None


@pytest.mark.parametrize("runs", [2, 5, 20])
@pytest.mark.parametrize("deviations", [(0.0005, 0.0009), (0.001, 0.001), (0.0, 0.002)])
def test_printed_deviations_give_the_interval_of_welch(deviations: tuple[float, float], runs: int) -> None:
    for difference in (0.0004, 0.0009, 0.0013, 0.002, 0.01):
        first, second = (
            Measured(value=value, std=std) for value, std in zip((0.5 + difference, 0.5), deviations, strict=True)
        )
        (mean_a, std_a), (mean_b, std_b) = (first.value, first.std), (second.value, second.std)
        p_value = stats.ttest_ind_from_stats(mean_a, std_a, runs, mean_b, std_b, runs, equal_var=False).pvalue
        assert apart_in_print(first, second, runs=runs) == (p_value < 0.05)
        assert apart_in_print(second, first, runs=runs) == (p_value < 0.05)


def test_without_deviations_only_equal_numbers_are_not_apart() -> None:
    assert apart_in_print(0.413, 0.412, runs=5)
    assert not apart_in_print(0.413, 0.413, runs=5)
    assert apart_in_print(Measured(value=0.5, std=0.1), 0.501, runs=5)  # no deviation of the second
    assert not apart_in_print(Measured(value=0.5, std=0), Measured(value=0.5, std=0), runs=5)


def test_methods_here_are_apart_if_their_interval_excludes_zero() -> None:
    means = {"a": 0.5, "b": 0.5005, "c": 0.6}
    comparison = compared(means)
    apart = apart_here(comparison, METRIC, {name.upper(): name for name in means})
    assert apart is not None
    found = {pair: apart(*pair) for pair in itertools.combinations("ABC", 2)}
    assert found == {("A", "B"): False, ("A", "C"): True, ("B", "C"): True}
    assert apart("C", "A")
    scattered = apart_here(compared(means, spread=0.3), METRIC, {name: name for name in means})
    assert scattered is not None
    assert not any(scattered(*pair) for pair in itertools.combinations("abc", 2))


# --- tables -------------------------------------------------------------------------------------------------------


def table(values: dict[str, dict[str, list[Any]]], columns: list[str] | None = None) -> PublishedTable:
    return PublishedTable.model_validate({"columns": columns or [METRIC], "values": values, "digits": 4})


def result_of(comparison: ComparisonResult, published: PublishedTable, *methods: Method) -> TableResult:
    return TableResult(title="T", published=published, comparison=comparison, data=DATA, methods=methods)


def test_a_table_says_what_is_not_distinguishable() -> None:
    published = table({"S": {"a": ["0.90±0.01"], "b": ["0.89±0.01"], "c": ["0.80±0.01"], "d": ["0.70±0.01"]}})
    comparison = compared({"a": 0.5, "b": 0.4, "c": 0.45, "d": 0.4501})
    report = table_report("name", result_of(comparison, published))
    # in print only a and b are not apart; here c and d are not; b is below c and d here
    (sheet,) = report.sheets
    assert sheet.rows[-3:] == [
        ["pairs in published order", "2 of 4"],
        ["not distinguishable here", "1"],
        ["not distinguishable in print", "1"],
    ]
    assert report.results["agreement"]["S"][METRIC]["text"].startswith("2 of 4 in order, 1 not distinguishable here")
    assert report.results["pairs_in_the_published_order"] == {"S": {METRIC: [3, 6]}}


def test_a_table_of_one_seed_makes_no_claim() -> None:
    published = table({"S": {"a": [0.9], "b": [0.8]}})
    report = table_report("name", result_of(compared({"a": 0.5, "b": 0.4}, seeds=1), published))
    assert report.sheets[0].rows[-2:] == [
        ["pairs in published order", "too few seeds: no claim"],
        ["not distinguishable in print", "0"],
    ]
    assert report.results["agreement"]["S"][METRIC]["claim"] is False


@pytest.mark.parametrize("seeds", [1, 5])
def test_variants_are_side_by_side_with_the_printed_figure(seeds: int) -> None:
    methods = [
        Method(name="LCRON", config={}, variant="published"),
        Method(name="LCRON, sound", config={}, variant="sound", row="LCRON"),
        Method(name="BCE", config={}),
        Method(name="ARF, published", config={}, variant="published", row="ARF"),
        Method(name="ARF, one", config={}, variant="sound", row="ARF"),
        Method(name="ARF, two", config={}, variant="sound", row="ARF"),
    ]
    means = {method.name: 0.5 + 0.01 * number for number, method in enumerate(methods)}
    values: dict[str, dict[str, list[Any]]] = {
        "S": {"LCRON": [0.9], "BCE": [0.8], "ARF": [0.85]},
        "U": {"LCRON": [0.7], "BCE": [0.6], "ARF": [None]},
    }
    result = result_of(compared(means, seeds=seeds), table(values), *methods)
    assert result.published_methods() == {"LCRON": "LCRON", "BCE": "BCE", "ARF": "ARF, published"}
    *_, sheet = table_report("name", result).sheets
    assert sheet.head[1:] == [
        "published variant",
        "improved variant",
        "improved - published",
        "printed, S",
        "printed, U",
    ]
    assert [[*row[:3], *row[4:]] for row in sheet.rows] == [
        ["LCRON", ".5000", ".5100", ".9000", ".7000"],
        ["ARF", ".5300", ".5400, ARF, one", ".8500", ""],
        ["ARF", ".5300", ".5500, ARF, two", ".8500", ""],
    ]
    pairs = {(pair.first, pair.second): pair for pair in result.comparison.pairs if pair.metric == METRIC}
    if seeds == 1:
        assert sheet.rows[0][3] == "+0.0100, too few seeds"
    else:
        pair = pairs["LCRON", "LCRON, sound"]
        assert sheet.rows[0][3] == f"+0.0100 [{-pair.high:+.4f}, {-pair.low:+.4f}]"
    # the published variants count: BCE is ahead of LCRON here, ARF of both
    assert str(result.agreements()["S"][METRIC]).startswith("too few seeds" if seeds == 1 else "1 of 3 in order")


def test_without_improved_variants_there_is_no_such_sheet() -> None:
    published = table({"S": {"a": [0.9], "b": [0.8]}})
    methods = [Method(name=name, config={}, variant="published") for name in "ab"]
    assert len(table_report("name", result_of(compared({"a": 0.5, "b": 0.4}), published, *methods)).sheets) == 1


# --- sweeps -------------------------------------------------------------------------------------------------------


def sweep(values: dict[str, Any], points: list[float]) -> PublishedSweep:
    return PublishedSweep.model_validate({"along": "tau", "points": points, "values": values})


def swept(published: PublishedSweep, comparisons: dict[str, ComparisonResult], runs: list[SweepRun]) -> SweepResult:
    return SweepResult(title="T", published=published, metric=METRIC, comparisons=comparisons, runs=runs, data=DATA)


def test_a_sweep_of_several_data_sets_and_metrics() -> None:
    """Points of one method, as in a table of temperatures on two benchmarks."""
    points = [0.2, 0.4, 8.0]
    published = sweep(
        {
            "A": {"m": {METRIC: [0.1, 0.3, 0.2], "other": [0.5, 0.5, 0.4]}},
            "B": {"m": {METRIC: [0.3, 0.2, 0.1], "other": [0.1, 0.2, None]}},
        },
        points,
    )
    comparison = compared({"x": 0.5, "y": 0.6, "z": 0.6001})
    runs = [SweepRun("m", point, "c", label) for point, label in zip(points, "xyz", strict=True)]
    report = sweep_report("name", swept(published, {"c": comparison}, runs))
    first, second = report.sheets
    assert first.rows[0] == ["m, here", ".5000", ".6000", ".6001 <"]
    assert ["m, published, A", ".1000", ".3000 <", ".2000"] in first.rows
    assert ["points: pairs in published order, A", "2 of 2", "", ""] in first.rows
    assert ["points: pairs in published order, B", "0 of 2", "", ""] in first.rows
    assert ["points: not distinguishable here, B", "1", "", ""] in first.rows
    assert "other by tau" in second.title
    assert ["m, published, B", ".1000", ".2000 <", ""] in second.rows
    assert ["points: not distinguishable in print, A", "1", "", ""] in second.rows
    assert report.results["agreement"]["A"][METRIC]["m"]["same"] == 2
    assert report.results["published"]["sources"]["B"]["other"]["m"] == [
        {"at": 0.2, "value": 0.1},
        {"at": 0.4, "value": 0.2},
    ]
    assert panels_of(report, "name") == ["simulated", "published, A", "published, B"]
    assert points_of(report, "name", "m") == 3 * len(points)
    assert report.comparisons[0][1].metrics == [METRIC, "other"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_one_seed_marks_no_best_value(seeds: int) -> None:
    published = sweep({"S": {"m": {METRIC: [0.1, 0.3]}}}, [1.0, 2.0])
    comparison = compared({"x": 0.5, "y": 0.6}, seeds=seeds)
    runs = [SweepRun("m", 1.0, "c", "x"), SweepRun("m", 2.0, "c", "y")]
    (sheet, *_) = sweep_report("name", swept(published, {"c": comparison}, runs)).sheets
    assert sheet.rows[0] == ["m, here", ".5000", ".6000" if seeds == 1 else ".6000 <"]
    assert ["m, published", ".1000", ".3000 <"] in sheet.rows

    table_plot = table_report("name", result_of(comparison, table({"S": {"x": [0.9], "y": [0.8]}}))).plots["name"]
    assert ("no claim" in table_plot.svg()) == (seeds == 1)


def test_a_sweep_of_methods_counts_pairs_at_each_point() -> None:
    published = sweep({"S": {"a": {METRIC: [0.1, 0.3]}, "b": {METRIC: [0.2, 0.2]}}}, [0, 5])
    comparisons = {"none": compared({"a": 0.5, "b": 0.6}), "five": compared({"a": 0.5, "b": 0.5001})}
    runs = [SweepRun(name, at, title, name) for at, title in ((0, "none"), (5, "five")) for name in "ab"]
    report = sweep_report("name", swept(published, comparisons, runs))
    assert report.sheets[0].rows[-3:] == [
        ["methods: pairs in published order", "1 of 1", "0 of 0"],
        ["methods: not distinguishable here", "0", "1"],
        ["methods: not distinguishable in print", "0", "0"],
    ]


def test_points_of_different_comparisons_are_open() -> None:
    published = sweep({"S": {"m": {METRIC: [0.1, 0.3]}}}, [0, 5])
    comparisons = {"none": compared({"m": 0.5}), "five": compared({"m": 0.6})}
    runs = [SweepRun("m", 0, "none", "m"), SweepRun("m", 5, "five", "m")]
    found = swept(published, comparisons, runs).agreements("S")["m"]
    assert (found.open_here, found.same, found.same_means, found.claims) == (1, 0, 1, True)
    one_seed = {title: replace(comparison, seeds=[0]) for title, comparison in comparisons.items()}
    assert not swept(published, one_seed, runs).agreements("S")["m"].claims
