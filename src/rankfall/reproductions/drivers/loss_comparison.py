"""Losses compared on ranking lists, beside a published table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rankfall.reproductions.protocols import (
    deviations,
    is_tuned,
    list_config,
    list_rates,
    method_sections,
    oracle,
    run_comparison,
)
from rankfall.reproductions.published_marks import marks_sheet, reference_of
from rankfall.reproductions.published_table import TableResult, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.paper_schema import LossComparison
    from rankfall.reproductions.task import Report, Task


def run(reproduction: LossComparison, task: Task) -> Report:
    """Train and test every loss, each tuned with the same number of trials."""
    protocol, metrics = reproduction.protocol, reproduction.published.metrics
    data = task.lists(protocol)
    tuned = is_tuned(protocol, task, data)
    sections = method_sections(reproduction.methods, list_rates(protocol), tune=tuned)
    against = reference_of(reproduction.published, reproduction.methods)
    config = list_config(protocol, task, data, sections, metrics=list(metrics), against=against)
    comparison = run_comparison(task, config)
    result = TableResult(
        title=reproduction.title,
        published=reproduction.published,
        comparison=comparison,
        data=data,
        oracle=oracle(data, metrics),
        methods=reproduction.methods,
    )
    notes = [*deviations(protocol, task, data, tuned=tuned), *reproduction.notes]
    report = table_report(reproduction.id, result, notes)
    marks = marks_sheet(reproduction.published, comparison, reproduction.methods)
    return replace(report, sheets=[*report.sheets, *marks])
