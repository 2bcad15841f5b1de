"""Losses of a single ranking stage compared on impressions, beside published tables.

The metrics are those of rankings, not those of cascades. As in ARF, eq. 3, the label of an item is its place in the
order of the impression, from 1 for the worst, and NDCG has the gain 2^label - 1. NDCG with the label as gain is
measured too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rankfall.data.impressions.loader.negatives import rank_grades
from rankfall.data.impressions.log import ImpressionLog
from rankfall.metrics.named import parse
from rankfall.reproductions.protocols import cascade_deviations, compare_cascades
from rankfall.reproductions.published_table import TableResult, format_value, join_reports, table_report
from rankfall.reproductions.task import Sheet
from rankfall.studies.compare import Outcome, summarise
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.config.component_checks import higher_is_better
from rankfall.training.train_cascade import load_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.data.impressions.loader import Impressions
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import CascadeProtocol, StageLossComparison
    from rankfall.reproductions.task import Report, Task
    from rankfall.studies.results import ComparisonResult

LINEAR = "ndcg_linear"


def run(reproduction: StageLossComparison, task: Task) -> Report:
    """Compare the losses on every published data set, or on the user's log with the cut-offs of the nearest one."""
    reports = {}
    for name, protocol in protocols_for(reproduction, task).items():
        variables = cutoffs(protocol)
        published = reproduction.published.for_data(name, variables)
        data = task.log(protocol.platform)
        directory = f"comparison-{name}"
        trained = compare_cascades(task, data, protocol, reproduction.methods, variables=variables, directory=directory)
        linear = [f"{LINEAR}@{variables['k']}", LINEAR]
        comparison = by_grades(trained, task.out / directory, data, [*published.metrics, *linear])
        result = TableResult(
            title=reproduction.title,
            published=published,
            comparison=comparison,
            data=data,
            methods=reproduction.methods,
        )
        notes = [*cascade_deviations(protocol, data), *reproduction.notes]
        report = table_report(f"{reproduction.id}-{name}", result, notes)
        reports[data.name] = replace(report, sheets=[*report.sheets, _linear_sheet(comparison, linear, data.name)])
    return join_reports(reports)


def _linear_sheet(comparison: ComparisonResult, metrics: Sequence[str], data: str) -> Sheet:
    rows = [
        [method.name, *(format_value(method.metrics[metric].mean) for metric in metrics)]
        for method in comparison.methods
    ]
    return Sheet(f"here, {data}: NDCG with the label as gain", ["method", *metrics], rows)


def cutoffs(protocol: CascadeProtocol) -> dict[str, int]:
    """Return the variables of methods and metrics: the `k` best items should be among the `m` that are kept."""
    return {"m": protocol.stages[0].quota, "k": protocol.relevant}


def protocols_for(reproduction: StageLossComparison, task: Task) -> dict[str, CascadeProtocol]:
    """Return all protocols for simulated data, else the one with lists about as long as those of the log.

    The label scheme is for logs in which one model ranks the items of all stages. Of another log this is not known.
    """
    protocols = reproduction.protocols
    if task.source.kind == "simulated":
        return protocols
    items = task.log(next(iter(protocols.values())).platform).items
    nearest = min(protocols, key=lambda name: abs((protocols[name].items or 0) - items))
    return {nearest: protocols[nearest].model_copy(update={"data": {}})}


# --- metrics ------------------------------------------------------------------------------------------------------


def by_grades(comparison: ComparisonResult, out: Path, data: LogData, metrics: Sequence[str]) -> ComparisonResult:
    """Return a comparison of cascades of one stage with metrics of rankings instead of those of cascades."""
    if not comparison.methods:
        return replace(comparison, metrics=list(metrics))
    log = ImpressionLog.load(data.path)
    values, chance = {}, {}
    for method in comparison.methods:
        measured = [_measure(log, out / run.directory, metrics) for run in method.runs or []]
        values[method.name] = {metric: torch.stack([found[metric] for found, _ in measured]) for metric in metrics}
        chance = measured[0][1]
    outcome = Outcome(
        values=values,
        chance=chance,
        higher_is_better={metric: higher_is_better(metric) for metric in metrics},
        folds=[len(next(iter(chance.values())))],
    )
    summary = summarise(outcome)
    methods = [replace(old, metrics=new.metrics) for old, new in zip(comparison.methods, summary.methods, strict=True)]
    return replace(
        comparison,
        metrics=list(metrics),
        methods=methods,
        tests=summary.tests,
        verdicts=summary.verdicts,
        pairs=summary.pairs,
    )


def _measure(log: ImpressionLog, run: Path, metrics: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Value and chance level of each metric for every test impression."""
    config, cascade = load_run(run)
    values: dict[str, list[Tensor]] = {metric: [] for metric in metrics}
    chance: dict[str, list[Tensor]] = {metric: [] for metric in metrics}
    with torch.no_grad():
        for batch in make_loader(log, config, "test"):
            (scores,) = cascade(batch)
            labels = places(batch, config.data.labels)
            for metric in metrics:
                values[metric].append(parse(metric)(scores, labels, batch.mask))
                chance[metric].append(parse(metric)(torch.zeros_like(scores), labels, batch.mask))
    return _concatenated(values), _concatenated(chance)


def places(batch: Impressions, scheme: str) -> Tensor:
    """Return the place of each item in the order of its impression, from 1 for the worst; 0 for padding."""
    grade = batch.grade
    if scheme == "rank":
        grade = torch.from_numpy(rank_grades(batch.rank.numpy(), batch.mask.numpy()))
    return (grade.float() + 1) * batch.mask


def _concatenated(parts: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    return {metric: torch.cat(part).double() for metric, part in parts.items()}
