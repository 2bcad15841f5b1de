"""The plan of a run as a table of the terminal and as a section of its page."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from rich.console import Console

from rankfall.reporting.blocks import charts_in
from rankfall.reporting.diagnosis import ROWS, conclusions, plan_blocks, shown_front
from rankfall.reporting.html import page
from rankfall.reporting.terminal import show
from rankfall.studies.plan.plan_quotas import Costs, parse_costs, plan_quotas
from support.plan_scores import random_scores

if TYPE_CHECKING:
    from rankfall.studies.plan.plan_result import PlanResult


@pytest.fixture(scope="module")
def result() -> PlanResult:
    scores = random_scores(200, 100, 3)
    costs = Costs(*parse_costs(["stage0=1us,stage1=5us,stage2=0.1ms+20us"], scores.stages), "given")
    return plan_quotas(scores, current=[60, 20, 3], costs=costs, run="first", split="test")


def shown(result: PlanResult) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(show(plan_blocks(result)))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_terminal_shows_costs_front_and_choice(result: PlanResult) -> None:
    text = shown(result)
    rows = shown_front(result, ROWS)
    assert result.chosen.point in rows
    assert result.current.point in rows
    assert len(rows) <= ROWS + 2
    for point in rows:
        assert f"{point.value.value:.4f} [{point.value.low:.4f}, {point.value.high:.4f}]" in text
    assert "requests of test" in text
    assert "20 us" in text


def test_the_section_shows_charts_and_tables(result: PlanResult) -> None:
    html = page("Plan", plan_blocks(result)).removeprefix("<!doctype html>\n")
    ElementTree.fromstring(html)  # every element is closed
    for part in (*result.chosen.train_overrides, *result.chosen.export_options, "fixed cost"):
        assert part in html
    assert html.count("<figure") == 3
    (chart,) = (one.svg() for one in charts_in(plan_blocks(result)))
    assert ElementTree.fromstring(chart).tag.endswith("svg")
    assert "nan" not in chart


def test_what_is_said_about_the_current_quotas(result: PlanResult) -> None:
    current = result.current
    said = " ".join(conclusions(result))
    assert ("are not on the front" in said) == current.dominated
    kept = replace(result, chosen=replace(result.chosen, point=current.point))
    assert "Chosen: the current quotas" in " ".join(conclusions(kept))
    best = replace(result, current=replace(current, dominated=False))
    assert next(iter(conclusions(best))) == "The current quotas are on the front."
