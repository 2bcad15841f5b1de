"""Methods that are trained and tested on the same data, beside a published table, sweep or stream."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from rankfall.data.impressions.loader.negatives import rank_grades
from rankfall.data.impressions.log import ImpressionLog
from rankfall.metrics.named import parse
from rankfall.reporting.comparison import curves, curves_chart, day_tables
from rankfall.reporting.files import write_stream
from rankfall.reproductions.paper_schema import CascadeProtocol, fill, variables_in
from rankfall.reproductions.protocols import (
    CASCADE_RATES,
    cascade_deviations,
    method_sections,
    oracle,
    stream_config,
    train_methods,
)
from rankfall.reproductions.published import (
    SweepResult,
    SweepRun,
    TableResult,
    format_value,
    join_reports,
    pick_points,
    reference_of,
    sweep_report,
    table_report,
)
from rankfall.reproductions.task import Report, few_seeds_note, sheet
from rankfall.studies.compare import Outcome, summarise
from rankfall.studies.stream.run_stream import STREAM_CONFIG, stream_methods
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.config.component_checks import higher_is_better
from rankfall.training.train_cascade import load_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.data.impressions.loader import Impressions
    from rankfall.reporting.blocks import Table
    from rankfall.reproductions.data import LogData
    from rankfall.reproductions.paper_schema import Comparison, ObjectiveStream, StageLossComparison, Sweep
    from rankfall.reproductions.task import Task
    from rankfall.studies.results import ComparisonResult, StreamResult
    from rankfall.studies.stream.stream_config import StreamConfig

    Curves = Mapping[str, Sequence[float]]  # a value per tested day, by method


# --- a table ------------------------------------------------------------------------------------------------------


def compare(reproduction: Comparison, task: Task) -> Report:
    """Train and test every method, each tuned with the same number of trials."""
    protocol, published, methods = reproduction.protocol, reproduction.published, reproduction.methods
    trained = train_methods(
        protocol,
        task,
        methods,
        tune=reproduction.tune,
        metrics=published.metrics,
        against=reference_of(published, methods),
        lists=reproduction.lists,
    )
    result = TableResult(
        title=reproduction.title,
        published=published,
        comparison=trained.comparison,
        data=trained.data,
        oracle=oracle(trained.data, published.metrics),
        methods=methods,
    )
    notes = [*trained.deviations, *reproduction.notes]
    if not reproduction.tune and isinstance(protocol, CascadeProtocol):
        notes.append(f"Learning rate: {protocol.lr:g} for all methods, as in the paper, without tuning.")
    report = table_report(reproduction.id, result, notes)
    return report if reproduction.leader is None else _with_rivals(report, reproduction, result)


def _with_rivals(report: Report, reproduction: Comparison, result: TableResult) -> Report:
    """Add the rivals that the leader is ahead of."""
    leader, rivals, metric = reproduction.leader, reproduction.rivals, reproduction.published.metrics[0]
    means = {method.name: method.metrics[metric].mean for method in result.comparison.methods}
    behind = [name for name in rivals if name in means and leader in means and means[name] < means[leader]]
    note = (
        f"In the paper the mean {metric} of {leader} is higher than those of all {len(rivals)} others. Here it is "
        f"higher than those of {len(behind)} of them, which is no test."
    )
    return replace(report, results={**report.results, "behind_lcron": behind}, notes=[*report.notes, note])


# --- a sweep ------------------------------------------------------------------------------------------------------


def sweep(reproduction: Sweep, task: Task) -> Report:
    """Train every method at every point, all else equal; lists that depend on the point need a comparison for each."""
    published, variable, methods = reproduction.published, reproduction.variable, reproduction.methods
    counts = [count for count in (task.size.points, reproduction.quick_points) if count is not None]
    points = pick_points(reproduction.points or published.points, min(counts) if task.size.points else None)
    apart = bool(variables_in(reproduction.lists))
    comparisons, runs, notes = {}, [], []
    for group in [[point] for point in points] if apart else [points]:
        variants, places = [], []
        for method, point in itertools.product(methods, group):
            setting = f"{published.along} = {point:g}"
            label = method.name if apart else setting if len(methods) == 1 else f"{method.name}, {setting}"
            variants.append(method.filled({variable: point}, label, **reproduction.config))
            places.append((method.name, point, label))
        trained = train_methods(
            reproduction.protocol,
            task,
            variants,
            tune=False,
            metrics=reproduction.metrics,
            lists=fill(reproduction.lists, {variable: group[0]}),
            seeds=reproduction.seeds,
            directory=f"comparison-{group[0]}" if apart else "comparison",
        )
        title = f"{reproduction.id} on {trained.data.name}"
        title += f", {group[0]} {published.along}" if apart else ""
        comparisons[title], notes = trained.comparison, trained.deviations
        runs += [SweepRun(name, point, title, label) for name, point, label in places]
    result = SweepResult(
        title=reproduction.title,
        published=published,
        metric=reproduction.metrics[0],
        comparisons=comparisons,
        runs=runs,
        data=trained.data,
        oracle=oracle(trained.data, reproduction.metrics),
    )
    return sweep_report(reproduction.id, result, [*notes, *reproduction.notes])


# --- one stage ----------------------------------------------------------------------------------------------------

LINEAR = "ndcg_linear"


def stage_loss_comparison(reproduction: StageLossComparison, task: Task) -> Report:
    """Compare the losses on every published data set, or on the user's log with the cut-offs of the nearest one."""
    reports = {}
    for name, protocol in protocols_for(reproduction, task).items():
        variables = cutoffs(protocol)
        published = reproduction.published.for_data(name, variables)
        directory = f"comparison-{name}"
        methods = [method.filled(variables) for method in reproduction.methods]
        trained = train_methods(protocol, task, methods, tune=True, metrics=(), directory=directory)
        data = trained.data
        linear = [f"{LINEAR}@{variables['k']}", LINEAR]
        comparison = by_grades(trained.comparison, task.out / directory, data.path, [*published.metrics, *linear])
        result = TableResult(
            title=reproduction.title,
            published=published,
            comparison=comparison,
            data=data,
            methods=reproduction.methods,
        )
        notes = [*trained.deviations, *reproduction.notes]
        report = table_report(f"{reproduction.id}-{name}", result, notes)
        reports[data.name] = replace(report, sheets=[*report.sheets, _linear_sheet(comparison, linear, data.name)])
    return join_reports(reports)


def _linear_sheet(comparison: ComparisonResult, metrics: Sequence[str], data: str) -> Table:
    rows = [
        [method.name, *(format_value(method.metrics[metric].mean) for metric in metrics)]
        for method in comparison.methods
    ]
    return sheet(f"here, {data}: NDCG with the label as gain", ["method", *metrics], rows)


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


def by_grades(comparison: ComparisonResult, out: Path, data: Path, metrics: Sequence[str]) -> ComparisonResult:
    """Return a comparison of cascades of one stage with metrics of rankings instead of those of cascades."""
    if not comparison.methods:
        return replace(comparison, metrics=list(metrics))
    log = ImpressionLog.load(data)
    values, chance = {}, {}
    for method in comparison.methods:
        measured = [_measure(log, out / run.directory, metrics) for run in method.runs or []]
        values[method.name] = {metric: torch.stack([found[metric] for found, _ in measured]) for metric in metrics}
        chance = measured[0][1]
    outcome = Outcome(
        values=values,
        chance=dict.fromkeys(values, chance),
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


# --- a stream -----------------------------------------------------------------------------------------------------


def objective_stream(reproduction: ObjectiveStream, task: Task) -> Report:
    """Stream every objective, without tuning, over the days of the log."""
    protocol = reproduction.protocol
    data = task.log(protocol.platform)
    sections = method_sections(reproduction.methods, CASCADE_RATES, tune=False)
    seeds = task.cascade_seeds[: reproduction.seeds]
    config = stream_config(protocol, data, sections, seeds=seeds, lists=reproduction.lists)
    directory = f"stream-{len(data.train) + 2}x{data.train_impressions}-{task.seed}"
    result = _stream(task, config, task.out / directory)
    values = curves_of(result)
    days = next(iter(values.values()), ())
    early = first_phase(len(days), reproduction.phases)
    chart = curves_chart(result)
    return Report(
        sheets=[_phases(reproduction, values, early), *day_tables(result)] if values else [],
        plots={reproduction.id: chart} if chart else {},
        results={
            "comparison": result.to_json(),
            "phases": {"days": [early, len(days) - early], "published_days": reproduction.phases},
            "ahead": ahead(values, reproduction.leader),
            "data": {**data.summary(), "about": _description(data)},
        },
        notes=[*few_seeds_note(seeds), *cascade_deviations(protocol, data), *reproduction.notes],
    )


def _description(data: LogData) -> str:
    days = len(data.train) + 2
    impressions = round(days * data.train_impressions / len(data.train))
    return (
        f"{data.name}: about {impressions:,} impressions of {days} days, lists of {data.items:.4g} items. Every day "
        "but the first is tested with models that were trained on the days before."
    )


def _stream(task: Task, config: StreamConfig, out: Path) -> StreamResult:
    """Train the missing days in a directory."""
    runs, done = len(config.methods) * len(config.seeds), itertools.count(1)
    result = stream_methods(
        config,
        out,
        resume=(out / STREAM_CONFIG).is_file(),
        jobs=task.jobs,
        on_run=lambda run: task.progress(f"{run.method}, seed {run.seed}", next(done), runs),
        on_notice=task.on_notice,
    )
    write_stream(result, out)
    return result


def curves_of(result: StreamResult) -> dict[str, list[float]]:
    """Return the metric of the stream on every tested day, by method."""
    return {name: [value for _, value in points] for name, points in curves(result).items()}


def first_phase(days: int, phases: Sequence[int]) -> int:
    """Return the length of the first phase of a stream, in the published proportion; each phase has a day.

    >>> first_phase(21, (10, 12)), first_phase(4, (10, 12)), first_phase(1, (10, 12))
    (10, 2, 1)
    """
    return max(1, min(days - 1, round(days * phases[0] / sum(phases))))


def ahead(curves: Curves, leader: str) -> list[float]:
    """Return by how much the leader is ahead of the best other method on each day; negative: it is behind."""
    others = [curve for name, curve in curves.items() if name != leader]
    if leader not in curves or not others:
        return []
    return [value - max(others_of_day) for value, *others_of_day in zip(curves[leader], *others, strict=True)]


def _phases(reproduction: ObjectiveStream, curves: Curves, early: int) -> Table:
    """Means of both phases, and the lead of the paper's method in them."""
    days = len(next(iter(curves.values())))

    def row(name: str, values: Sequence[float], form: str) -> list[str]:
        parts = (values[:early], values[early:], values[-1:])
        means = [fmean(part) if part else math.nan for part in parts]
        return [name, *(format_value(mean, 4) if form == "level" else f"{mean:+.4f}" for mean in means)]

    rows = [row(name, curve, "level") for name, curve in curves.items()]
    gap = ahead(curves, reproduction.leader)
    if gap:
        rows += [[], row(f"{reproduction.leader} - best other of the day", gap, "difference")]
    first, later = reproduction.phases
    return sheet(
        f"{reproduction.title}: mean {reproduction.metric} of the first {early} and of the later {days - early} tested "
        f"days (in the paper {first} and {later})",
        ["method", "first days", "later days", "last day"],
        rows,
    )
