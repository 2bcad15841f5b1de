"""Figures of results in notebooks; :mod:`rankfall._config` shows them below the table of a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rankfall._tables import Tables, draws
from rankfall.reporting.comparison_page import intervals_chart
from rankfall.reporting.funnel_chart import funnel_of_summary
from rankfall.reporting.plan_section import front_chart
from rankfall.reporting.search_table import search_figure
from rankfall.reporting.stream_page import stream_figure
from rankfall.reporting.verdicts import main_metric
from rankfall.studies.plan.plan_result import PlanResult
from rankfall.studies.results import ComparisonResult, EvaluationSummary, SearchResult, StreamResult

if TYPE_CHECKING:
    from pathlib import Path

AnyTables = TypeVar("AnyTables", bound=Tables)


def shown_in(result: AnyTables, directory: Path | None) -> AnyTables:
    """Return a result that knows the directory of its files, and that notebooks show with its figure."""
    return result.stored_in(directory)


@draws(EvaluationSummary)
def _funnel(result: EvaluationSummary) -> str | None:
    return funnel_of_summary(result).svg() if result.funnel else None


@draws(ComparisonResult)
def _intervals(result: ComparisonResult) -> str | None:
    chart = intervals_chart(result, main_metric(result))
    return chart.svg() if chart else None


@draws(StreamResult)
def _curves(result: StreamResult) -> str | None:
    return stream_figure(result).svg() if any(day.methods for day in result.days) else None


@draws(SearchResult)
def _history(result: SearchResult) -> str | None:
    figure = search_figure(result, result.directory.name if result.directory else result.metric)
    return figure.svg() if figure else None


@draws(PlanResult)
def _front(result: PlanResult) -> str | None:
    return front_chart(result).svg() if result.front else None
