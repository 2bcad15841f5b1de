"""The table of a comparison in terminals of any width."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from rankfall.reporting.comparison_table import terminal_table
from rankfall.studies.comparison_summary import Outcome, summarise
from rankfall.studies.results import ComparisonResult

STAGES = ("retrieval", "pre_ranking", "ranking")
METRICS = ["joint_recall", *(f"{stage}/{what}" for stage in STAGES for what in ("recall", "ndcg", "lost"))]
METHODS = ["BCE, all samples", "LCRON, DFTopK", "FS-LambdaLoss"]


def comparison(queries: int) -> ComparisonResult:
    generator = torch.Generator().manual_seed(0)
    values = {method: {metric: torch.rand(2, queries, generator=generator) for metric in METRICS} for method in METHODS}
    chance = {metric: torch.full((queries,), 0.5) for metric in METRICS}
    outcome = Outcome(values, chance, {metric: not metric.endswith("/lost") for metric in METRICS}, [queries])
    summary = summarise(outcome)
    return ComparisonResult(
        METRICS, [0, 1], {"all": {}}, methods=summary.methods, tests=summary.tests, incomplete=["ICC"]
    )


def printed(result: ComparisonResult, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(terminal_table(result))
    return text.getvalue()


@pytest.mark.parametrize("queries", [100, 400])  # with intervals and without
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_everything_is_there_and_nothing_is_cut(width: int, queries: int) -> None:
    result = comparison(queries)
    text = printed(result, width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    parts = text.count("method")
    for method in result.methods:
        lines = [line for line in text.splitlines() if line.startswith(method.name)]
        assert len(lines) == parts
        numbers = [float(number) for line in lines for number in re.findall(r"(\.\d{3})±", line)]
        assert numbers == pytest.approx([summary.mean for summary in method.metrics.values()], abs=6e-4)
    assert len(re.findall(r"^ICC +failed", text, re.MULTILINE)) == parts
    assert text.count(".500") >= len(METRICS)  # chance


def test_a_wide_terminal_has_one_part_and_a_narrow_one_keeps_stages_together() -> None:
    result = comparison(400)
    assert printed(result, 200).count("method") == 1
    heads = re.findall(r"^(.*)\nmethod", printed(result, 80), re.MULTILINE)
    assert [re.findall(r"(\w+)/", head) for head in heads] == [[stage] * 3 for stage in STAGES]


def test_a_spread_is_told_of_only_where_there_is_one() -> None:
    result = comparison(400)
    assert "mean±standard deviation over 2 seeds\n" in printed(result, 120)
    assert "standard deviation" not in printed(replace(result, seeds=[0]), 120)
