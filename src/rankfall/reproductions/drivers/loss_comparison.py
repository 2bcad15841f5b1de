"""Losses compared on ranking lists, beside a published table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.protocols import LIST_RATES, list_config, method_sections, oracle, run_comparison
from rankfall.reproductions.published_table import TableResult, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.paper_schema import LossComparison
    from rankfall.reproductions.task import Report, Task


def run(reproduction: LossComparison, task: Task) -> Report:
    """Train and test every loss, each tuned with the same number of trials."""
    protocol, metrics = reproduction.protocol, reproduction.published.metrics
    data = task.lists(protocol)
    sections = method_sections(reproduction.methods, LIST_RATES, tune=task.size.tune)
    config = list_config(protocol, task, data, sections, metrics=list(metrics))
    result = TableResult(
        title=reproduction.title,
        published=reproduction.published,
        comparison=run_comparison(task, config),
        data=data,
        oracle=oracle(data, metrics),
        methods=reproduction.methods,
    )
    return table_report(reproduction.id, result, reproduction.notes)
