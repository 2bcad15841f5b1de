"""The table of a comparison in terminals of any width."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rich.console import Console

from rankfall.reporting.comparison import comparison_blocks, csv_table, markdown_table
from rankfall.reporting.terminal import show
from rankfall.studies.compare import Outcome, summarise
from rankfall.studies.results import ComparisonResult, TestFigures, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

STAGES = ("retrieval", "pre_ranking", "ranking")
METRICS = ["joint_recall", *(f"{stage}/{what}" for stage in STAGES for what in ("alone/recall", "alone/ndcg", "lost"))]
METHODS = ["BCE, all samples", "LCRON, DFTopK", "FS-LambdaLoss"]


def comparison(queries: int, seeds: int = 3) -> ComparisonResult:
    generator = torch.Generator().manual_seed(0)
    values = {
        method: {metric: torch.rand(seeds, queries, generator=generator) for metric in METRICS} for method in METHODS
    }
    chance = {metric: torch.full((queries,), 0.5) for metric in METRICS}
    outcome = Outcome(
        values, dict.fromkeys(METHODS, chance), {metric: not metric.endswith("/lost") for metric in METRICS}, [queries]
    )
    summary = summarise(outcome)
    return ComparisonResult(
        METRICS,
        list(range(seeds)),
        {"all": {}},
        methods=summary.methods,
        tests=summary.tests,
        incomplete=["ICC"],
        verdicts=summary.verdicts,
    )


def printed(result: ComparisonResult, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(show(comparison_blocks(result)))
    return text.getvalue()


@pytest.mark.parametrize("queries", [100, 400])  # with intervals and without
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_everything_is_there_and_nothing_is_cut(width: int, queries: int) -> None:
    result = comparison(queries)
    text = printed(result, width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    text, _, tests = text.partition("joint_recall, difference to")
    assert sum(f"{test.over_both.difference:+.4f}" in tests for test in result.verdicts if test.over_both) >= 2
    parts = text.count("method")
    for method in result.methods:
        lines = [line for line in text.splitlines() if line.startswith(method.name)]
        assert len(lines) == parts
        numbers = [float(number) for line in lines for number in re.findall(r"(\.\d{3})±", line)]
        assert numbers == pytest.approx([summary.mean for summary in method.metrics.values()], abs=6e-4)
    assert len(re.findall(r"^ICC +failed", text, re.MULTILINE)) == parts
    chance = [line for line in text.splitlines() if line.startswith("chance")]
    assert sum(line.count(".500") for line in chance) == len(METRICS) - len(STAGES)  # what a stage loses has none


def test_a_wide_terminal_has_one_part_and_a_narrow_one_keeps_stages_together() -> None:
    result = comparison(400)
    assert printed(result, 200).count("method") == 2  # the table, and that of the tests
    text, _, _ = printed(result, 80).partition("joint_recall, difference to")
    heads = re.findall(r"^(.*)\n(.*)\nmethod(.*)", text, re.MULTILINE)
    assert [sorted(re.findall(r"(\w+)/", " ".join(head))) for head in heads] == [
        sorted([stage] * 3 + ["alone"] * 2) for stage in STAGES
    ]
    assert [head[-1].split()[-6:] for head in heads] == [["recall", "↑", "ndcg", "↑", "lost", "↓"]] * 3


def test_a_spread_is_told_of_only_where_there_is_one() -> None:
    result = comparison(400)
    assert "Mean over queries ± standard deviation over 3 seeds." in printed(result, 120)
    assert "standard deviation" not in printed(replace(result, seeds=[0]), 120)


def test_the_tests_of_the_main_metric_are_below_the_table() -> None:
    result = comparison(400)
    lines = printed(result, 200).splitlines()
    (verdict, _) = [one for one in result.verdicts if one.metric == "joint_recall" and one.method != one.against]
    start = next(number for number, line in enumerate(lines) if line.startswith("joint_recall, difference to"))
    heads = re.split(r"  +", lines[start + 1].strip())
    assert heads == ["method", "difference", "95 % interval", "p, seeds and queries", "p, seeds", "p, queries"]
    row = next(line for line in lines[start:] if line.startswith(verdict.method))
    assert verdict.over_both is not None
    assert verdict.over_seeds is not None
    tests = (verdict.over_both, verdict.over_seeds, verdict.over_queries)
    assert row.split()[-3:] == [f"{test.adjusted_p_value:.2g}" for test in tests]
    assert f"[{verdict.over_both.low:+.4f}, {verdict.over_both.high:+.4f}]" in row


def apart(low: float, high: float, p_value: float, *, seeds: int, outcome: Any) -> ComparisonResult:
    """A comparison of two methods whose tests have the given figures."""
    test = TestFigures((low + high) / 2, low, high, p_value, p_value)
    over_both = {"over_both": test, "over_seeds": test} if seeds > 2 else {}
    verdict = Verdict("joint_recall", METHODS[0], METHODS[1], outcome, test, **over_both)
    return replace(comparison(400, seeds), verdicts=[verdict])


@pytest.mark.parametrize("table", [lambda result: " ".join(printed(result, 200).split()), markdown_table])
def test_the_verdict_in_words_follows_from_the_printed_test(table: Callable[[ComparisonResult], str]) -> None:
    first, second = METHODS[:2]
    worse = apart(-0.0712, -0.0428, 0.00087, seeds=3, outcome="worse")
    assert f"{first} is significantly worse (p = .00087)." in table(worse)
    close = apart(-0.05, 0.01, 0.2, seeds=3, outcome="not distinguishable")
    assert f"{first} is not distinguishable from {second} (p = .2)." in table(close)
    text = table(apart(-0.127, -0.046, 4e-31, seeds=2, outcome="no claim"))
    assert "NO CLAIM about which is better: two seeds are too few for a statement over seeds." in text
    assert f"With these weights, {first} is significantly worse (p = 4e-31)." in text


def test_rounding_moves_no_figure_across_its_limit() -> None:
    """An interval that ends just below 0 and a p-value just below 5 % are not printed as 0 and 5 %."""
    text = printed(apart(-0.04, -0.00001, 0.0499, seeds=3, outcome="worse"), 200)
    assert "[-0.0400, -1e-05]" in text
    assert "(p = .0499)" in text


def test_one_seed_makes_no_claim() -> None:
    result = comparison(400, seeds=1)
    text = printed(result, 120)
    assert "NO CLAIM about which is better: one seed is too few" in text
    assert ".." not in text
    assert "with these weights only" in text
    assert "p, queries" in text
    assert "p, seeds" not in text
    table, _, _ = text.partition("NO CLAIM")
    assert "<" not in table
    assert "*" not in table
    assert "**" not in markdown_table(result)
    assert "\\*" not in markdown_table(result)


def test_marks_against_a_named_method() -> None:
    values = torch.rand(3, 400, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    noise = 0.01 * torch.randn(3, 3, 400, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    methods = {
        "good": values + noise[0] + 0.1,
        "old": values,
        "same": values + noise[1],
        "bad": values + noise[2] - 0.1,
    }
    chance = {name: {"ndcg": values[0]} for name in methods}
    outcome = Outcome({name: {"ndcg": of} for name, of in methods.items()}, chance, {"ndcg": True}, [400])
    summary = summarise(outcome, against="old")
    result = ComparisonResult(
        ["ndcg"],
        [0, 1, 2],
        {"all": {}},
        methods=summary.methods,
        tests=summary.tests,
        against="old",
        verdicts=summary.verdicts,
    )
    marks = {line.split()[0]: line.split()[-1] for line in printed(result, 100).splitlines()[2:6]}
    assert {name: mark for name, mark in marks.items() if mark in "+-=*<"} == {"good": "+", "old": "=", "bad": "-"}
    text = markdown_table(result)
    assert "= reference, old; + better; - worse; no mark: not distinguishable" in text
    assert "ndcg, difference to old" in text
    (line,) = [row for row in csv.DictReader(csv_table(result).splitlines()) if row["method"] == "bad"]
    assert (line["against"], line["outcome"]) == ("old", "worse")
    assert float(line["over_both_difference"]) == pytest.approx(-0.1, abs=0.01)
    assert float(line["over_both_p_value"]) < 0.01


def test_names_are_no_formulas_and_break_no_table() -> None:
    result = comparison(queries=50)
    formula, bars = '=HYPERLINK("http://x";"y")', "a\\|b\nc"
    names = dict(zip([method.name for method in result.methods], [formula, bars], strict=False))

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {names.get(key, key): renamed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [renamed(one) for one in value]
        return names.get(value, value) if isinstance(value, str) else value

    result = ComparisonResult.from_json(renamed(result.to_json()))
    cells = [cell for row in csv.reader(io.StringIO(csv_table(result))) for cell in row]
    assert f"'{formula}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    numbers = [cell for cell in cells if cell.startswith("-")]
    assert all(float(cell) <= 0 for cell in numbers)
    table = [line for line in markdown_table(result).splitlines() if line.startswith("|")]
    assert any(line.startswith(r"| a\\\|b c |") for line in table)
    columns = [re.sub(r"\\.", "", line).count("|") for line in table]  # without escaped characters
    assert columns[: 2 + len(result.methods)] == [columns[0]] * (2 + len(result.methods))
