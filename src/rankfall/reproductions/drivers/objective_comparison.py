"""Objectives of a cascade compared on impressions, beside a published table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rankfall.reproductions.protocols import cascade_deviations, compare_cascades
from rankfall.reproductions.published_table import TableResult, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.paper_schema import ObjectiveComparison
    from rankfall.reproductions.task import Report, Task


def run(reproduction: ObjectiveComparison, task: Task) -> Report:
    """Train and test every objective, each tuned with the same number of trials."""
    protocol, published = reproduction.protocol, reproduction.published
    data = task.log(protocol.platform)
    comparison = compare_cascades(
        task, data, protocol, reproduction.methods, tune=reproduction.tune, lists=reproduction.lists
    )
    notes = [*cascade_deviations(protocol, data), *reproduction.notes]
    if not reproduction.tune:
        notes.append(f"Learning rate: {protocol.lr:g} for all methods, as in the paper, without tuning.")
    result = TableResult(
        title=reproduction.title,
        published=published,
        comparison=comparison,
        data=data,
        methods=reproduction.methods,
    )
    report = table_report(reproduction.id, result, notes)
    return report if reproduction.leader is None else _with_rivals(report, reproduction, result)


def _with_rivals(report: Report, reproduction: ObjectiveComparison, result: TableResult) -> Report:
    """Add the rivals that the leader is ahead of."""
    leader, rivals, metric = reproduction.leader, reproduction.rivals, reproduction.published.metrics[0]
    means = {method.name: method.metrics[metric].mean for method in result.comparison.methods}
    behind = [name for name in rivals if name in means and leader in means and means[name] < means[leader]]
    note = (
        f"In the paper the mean {metric} of {leader} is higher than those of all {len(rivals)} others. Here it is "
        f"higher than those of {len(behind)} of them, which is no test."
    )
    return replace(report, results={**report.results, "behind_lcron": behind}, notes=[*report.notes, note])
