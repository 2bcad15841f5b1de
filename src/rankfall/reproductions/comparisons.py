"""Methods that are trained and tested on the same data, beside a published table, sweep or stream."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from rankfall.data.impressions.loader.negatives import rank_grades
from rankfall.data.impressions.log import ImpressionLog
from rankfall.metrics.named import parse
from rankfall.reporting.figures import Lines
from rankfall.reporting.files import write_stream
from rankfall.reproductions.paper_schema import fill, variables_in
from rankfall.reproductions.protocols import (
    CASCADE_RATES,
    cascade_deviations,
    compare_cascades,
    deviations,
    is_tuned,
    list_config,
    list_rates,
    method_sections,
    oracle,
    run_comparison,
    stream_config,
)
from rankfall.reproductions.published import (
    SweepResult,
    SweepRun,
    TableResult,
    format_value,
    join_reports,
    marks_sheet,
    pick_points,
    reference_of,
    sweep_report,
    table_report,
)
from rankfall.reproductions.task import Report, Sheet, few_seeds_note
from rankfall.studies.compare import LEAST_SEEDS, Outcome, summarise
from rankfall.studies.stream.run_stream import STREAM_CONFIG, stream_methods
from rankfall.training.cascade_loaders import make_loader
from rankfall.training.config.component_checks import higher_is_better
from rankfall.training.train_cascade import load_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.data.impressions.loader import Impressions
    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import (
        CascadeProtocol,
        LossComparison,
        LossSweep,
        Method,
        Number,
        ObjectiveComparison,
        ObjectiveStream,
        ObjectiveSweep,
        PublishedSweep,
        StageLossComparison,
    )
    from rankfall.reproductions.task import Task
    from rankfall.studies.results import ComparisonResult, MetricSummary, StreamResult
    from rankfall.studies.stream.stream_config import StreamConfig

    Curves = Mapping[str, Sequence[float]]  # a value per tested day, by method
    Curve = Mapping[Number, MetricSummary]  # mean and interval at each point


def loss_comparison(reproduction: LossComparison, task: Task) -> Report:
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


def objective_comparison(reproduction: ObjectiveComparison, task: Task) -> Report:
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


LINEAR = "ndcg_linear"


def stage_loss_comparison(reproduction: StageLossComparison, task: Task) -> Report:
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


def objective_sweep(reproduction: ObjectiveSweep, task: Task) -> Report:
    """Train every objective at every published point, without tuning."""
    data = task.log(reproduction.protocol.platform)
    sweep = _sweep_lists if variables_in(reproduction.lists) else _sweep_methods
    notes = [*cascade_deviations(reproduction.protocol, data), *reproduction.notes]
    return sweep_report(reproduction.id, sweep(reproduction, task, data), notes)


def _sweep_methods(reproduction: ObjectiveSweep, task: Task, data: LogData) -> SweepResult:
    """Train a method per objective and point in one comparison."""
    title = f"{reproduction.id} on {data.name}"
    methods, runs = [], []
    for method in reproduction.methods:
        for point in _points(reproduction, task):
            label = _label(reproduction, method, point)
            config = fill(method.config, {reproduction.variable: point})
            methods.append(method.model_copy(update={"name": label, "config": config}))
            runs.append(SweepRun(method.name, point, title, label))
    comparison = compare_cascades(
        task, data, reproduction.protocol, methods, tune=False, seeds=reproduction.seeds, lists=reproduction.lists
    )
    return _result(reproduction, {title: comparison}, runs, data)


def _sweep_lists(reproduction: ObjectiveSweep, task: Task, data: LogData) -> SweepResult:
    """Train all objectives in one comparison per point."""
    comparisons, runs = {}, []
    for point in _points(reproduction, task):
        title = f"{reproduction.id} on {data.name}, {point} {reproduction.published.along}"
        comparisons[title] = compare_cascades(
            task,
            data,
            reproduction.protocol,
            reproduction.methods,
            tune=False,
            seeds=reproduction.seeds,
            lists=fill(reproduction.lists, {reproduction.variable: point}),
            directory=f"comparison-{point}",
        )
        runs += [SweepRun(method.name, point, title, method.name) for method in reproduction.methods]
    return _result(reproduction, comparisons, runs, data)


def _points(reproduction: ObjectiveSweep, task: Task) -> list[Number]:
    count = task.size.points
    if count is not None and reproduction.quick_points is not None:
        count = min(count, reproduction.quick_points)
    return pick_points(reproduction.published.points, count)


def _label(reproduction: ObjectiveSweep, method: Method, point: Number) -> str:
    setting = f"{reproduction.published.along} = {point:g}"
    return setting if len(reproduction.methods) == 1 else f"{method.name}, {setting}"


def _result(
    reproduction: ObjectiveSweep, comparisons: dict[str, ComparisonResult], runs: list[SweepRun], data: LogData
) -> SweepResult:
    return SweepResult(
        title=reproduction.title,
        published=reproduction.published,
        metric=reproduction.metric,
        comparisons=comparisons,
        runs=runs,
        data=data,
    )


def objective_stream(reproduction: ObjectiveStream, task: Task) -> Report:
    """Stream every objective, without tuning, over the days of the log."""
    protocol = reproduction.protocol
    data = task.log(protocol.platform)
    sections = method_sections(reproduction.methods, CASCADE_RATES, tune=False)
    seeds = task.cascade_seeds[: reproduction.seeds]
    config = stream_config(protocol, data, sections, seeds=seeds, lists=reproduction.lists)
    directory = f"stream-{len(data.train) + 2}x{data.train_impressions}-{task.seed}"
    result = _stream(task, config, task.out / directory)
    curves = curves_of(result)
    days = next(iter(curves.values()), ())
    early = first_phase(len(days), reproduction.phases)
    return Report(
        sheets=[_phases(reproduction, curves, early), _days(reproduction, result, curves)] if curves else [],
        plots={reproduction.id: _figure(reproduction, data, result)} if curves else {},
        results={
            "comparison": result.to_json(),
            "phases": {"days": [early, len(days) - early], "published_days": reproduction.phases},
            "ahead": ahead(curves, reproduction.leader),
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
    runs, done = len(config.methods) * len(config.seeds), 0

    def on_run(run: Any) -> None:
        nonlocal done
        done += 1
        task.progress(f"{run.method}, seed {run.seed}", done, runs)

    begun = (out / STREAM_CONFIG).is_file()
    result = stream_methods(config, out, resume=begun, jobs=task.jobs, on_run=on_run, on_notice=task.on_notice)
    write_stream(result, out)
    return result


# --- curves -------------------------------------------------------------------------------------------------------


def curves_of(result: StreamResult) -> dict[str, list[float]]:
    """Return the metric of the stream on every tested day, for the methods that were tested on all of them."""
    names = [method.name for method in result.methods]
    by_day = [{method.name: method.metrics[result.metric].mean for method in day.methods} for day in result.days]
    return {name: [means[name] for means in by_day if means] for name in names}


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


# --- the report ---------------------------------------------------------------------------------------------------


def _phases(reproduction: ObjectiveStream, curves: Curves, early: int) -> Sheet:
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
    return Sheet(
        f"{reproduction.title}: mean {reproduction.metric} of the first {early} and of the later {days - early} tested "
        f"days (in the paper {first} and {later})",
        ["method", "first days", "later days", "last day"],
        rows,
    )


def _days(reproduction: ObjectiveStream, result: StreamResult, curves: Curves) -> Sheet:
    days = [day.day for day in result.days if day.methods]
    rows = [[day, *(format_value(curve[number], 4) for curve in curves.values())] for number, day in enumerate(days)]
    return Sheet(f"{reproduction.title}: {result.metric} by day", ["day", *curves], rows)


def _figure(reproduction: ObjectiveStream, data: LogData, result: StreamResult) -> Lines:
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    rows = [
        {
            "series": method.name,
            "x": numbers[day.day],
            "y": method.metrics[result.metric].mean,
            "low": method.metrics[result.metric].low,
            "high": method.metrics[result.metric].high,
        }
        for day in result.days
        for method in day.methods
    ]
    return Lines(
        rows,
        title=f"{reproduction.title}: {result.metric} of every day, trained on the days before",
        subtitle=f"{data.name}; band: 95 % confidence interval over impressions",
        x="day",
        y=result.metric,
        series="",
    )


def loss_sweep(reproduction: LossSweep, task: Task) -> Report:
    """Train every loss at every point, all else equal; losses without a published sweep with one seed each."""
    data = task.lists(reproduction.protocol)
    points = pick_points(reproduction.points, task.size.points)
    sections = {
        _loss_label(reproduction, method.name, point): _section(reproduction, method, point)
        for method in reproduction.methods
        for point in points
    }
    config = list_config(
        reproduction.protocol,
        task,
        data,
        sections,
        metrics=reproduction.metrics,
        seeds=task.seeds if reproduction.published else task.seeds[:1],
    )
    comparison = run_comparison(task, config)
    metric = reproduction.metrics[0]
    trained = {method.name: method.metrics[metric] for method in comparison.methods}
    curves = {
        method.name: {
            point: trained[label]
            for point in points
            if (label := _loss_label(reproduction, method.name, point)) in trained
        }
        for method in reproduction.methods
    }
    report = _report_beside_published if reproduction.published else _report_of_several
    results = {"oracle": oracle(data, reproduction.metrics), "data": data.summary()}
    made = report(reproduction, data, curves, points, comparison, results)
    return replace(made, notes=[*deviations(reproduction.protocol, task, data), *made.notes])


def _section(reproduction: LossSweep, method: Method, point: Number) -> dict[str, Any]:
    section: dict[str, Any] = fill({**method.config, **reproduction.config}, {reproduction.variable: point})
    return section


def _loss_label(reproduction: LossSweep, method: str, point: Number) -> str:
    variable = reproduction.variable
    return f"{variable} = {point:g}" if len(reproduction.methods) == 1 else f"{method} {variable}={point:g}"


# --- one published loss, and those of the user --------------------------------------------------------------------


def _report_beside_published(
    reproduction: LossSweep,
    data: ListData,
    curves: Mapping[str, Curve],
    points: list[Number],
    comparison: ComparisonResult,
    results: dict[str, Any],
) -> Report:
    """Report the loss of the paper at each point beside the published values, and losses of the user beside it."""
    method = reproduction.methods[0].name
    metric, published, variable = reproduction.metrics[0], reproduction.published, reproduction.variable
    curve = curves[method]
    best = max(curve, key=lambda point: curve[point].mean, default=None)
    claims = len(comparison.seeds) >= LEAST_SEEDS
    measured = {one.name: one.metrics for one in comparison.methods}
    here = {
        name: {
            loss if len(curves) > 1 else data.name: {
                point: measured[label][name].mean
                for point in points
                if (label := _loss_label(reproduction, loss, point)) in measured
            }
            for loss in curves
        }
        for name in reproduction.metrics
    }
    return Report(
        comparisons=[(f"{method}, {reproduction.id} on {data.name}", comparison)],
        sheets=[
            _beside_published(f"{method}, {name}", variable, here[name], _published(published, name), claims=claims)
            for name in reproduction.metrics
        ],
        plots={reproduction.id: _figure_beside_published(reproduction, data, curves)},
        results={
            "comparison": comparison.to_json(),
            f"best_{variable}": best,
            "published": _published_json(reproduction),
            **results,
        },
        notes=[*_best_points(variable, metric, best if claims else None, published), *reproduction.notes],
    )


def _figure_beside_published(reproduction: LossSweep, data: ListData, curves: Mapping[str, Curve]) -> Lines:
    metric, published = reproduction.metrics[0], reproduction.published
    ours = [
        {"panel": data.name, "series": loss, "x": point, "y": values.mean, "low": values.low, "high": values.high}
        for loss, curve in curves.items()
        for point, values in curve.items()
    ]
    theirs = [
        {"panel": f"published, {source}", "series": reproduction.methods[0].name, "x": point, "y": value}
        for source, values in _published(published, metric).items()
        for point, value in values.items()
    ]
    best = f"shaded: best {reproduction.variable} in the paper"
    return Lines(
        ours + theirs,
        title=reproduction.heading,
        subtitle=f"{metric}; {best}; band: 95 % confidence interval over queries",
        x=reproduction.along,
        y=metric,
        series="data",
        log_x=True,
        ticks=sorted(
            {point for curve in curves.values() for point in curve} | {*(published.points if published else ())}
        ),
        span=(published.best[0], published.best[1]) if published and published.best else None,
    )


def _published(published: PublishedSweep | None, metric: str) -> dict[str, dict[Number, float]]:
    """Published values of the only method of the paper, by data set and point."""
    if published is None:
        return {}
    found = {}
    for source in published.values:
        ((_, found[source]),) = published.figures(source, metric).items()
    return found


def _beside_published(
    title: str,
    variable: str,
    here: Mapping[str, Mapping[Number, float]],
    published: dict[str, dict[Number, float]],
    *,
    claims: bool,
) -> Sheet:
    """A row for each point, with the best of each column marked; of our columns only if they make claims."""
    columns = {f"here, {name}": values for name, values in here.items()}
    columns |= {f"published, {source}": values for source, values in published.items()}
    points = sorted({point for values in columns.values() for point in values})

    def cell(column: str, point: Number) -> str:
        values = columns[column]
        if point not in values:
            return "-"
        marked = (claims or column.startswith("published")) and values[point] == max(values.values())
        return f"{format_value(values[point])}{' <' * marked}"

    rows = [[f"{point:g}", *(cell(column, point) for column in columns)] for point in points]
    return Sheet(f"{title}: here, and as published", [variable, *columns], rows)


def _best_points(variable: str, metric: str, best: Number | None, published: PublishedSweep | None) -> list[str]:
    if best is None or not published:
        return []
    theirs = [
        f"{', '.join(f'{point:g}' for point, value in curve.items() if value == max(curve.values()))} on {source}"
        for source, curve in _published(published, metric).items()
    ]
    return [f"Best {variable} by {metric}: {best:g} here; in the paper {' and '.join(theirs)}."] if theirs else []


def _published_json(reproduction: LossSweep) -> dict[str, Any] | None:
    published = reproduction.published
    if published is None:
        return None
    figures = {
        source: {
            metric: [
                {"at": point, "value": value} for point, value in _published(published, metric).get(source, {}).items()
            ]
            for metric in reproduction.metrics
        }
        for source in published.values
    }
    return {f"{reproduction.variable}s": published.points, "best": published.best, "figures": figures}


# --- several losses -----------------------------------------------------------------------------------------------


def _report_of_several(
    reproduction: LossSweep,
    data: ListData,
    curves: Mapping[str, Curve],
    points: list[Number],
    comparison: ComparisonResult,
    results: dict[str, Any],
) -> Report:
    """Report losses by how much they depend on the setting."""
    metric, variable = reproduction.metrics[0], reproduction.variable
    means = {name: {point: values.mean for point, values in curve.items()} for name, curve in curves.items()}
    rows = [
        [name, *(format_value(curve[point]) if point in curve else "failed" for point in points), _spread(curve)]
        for name, curve in means.items()
    ]
    figure = Lines(
        [{"series": name, "x": point, "y": value} for name, curve in means.items() for point, value in curve.items()],
        title=reproduction.heading,
        subtitle=f"{data.name}, test lists",
        x=reproduction.along,
        y=metric,
        series="loss",
        log_x=True,
        ticks=points,
    )
    return Report(
        sheets=[
            Sheet(
                f"{metric} on {data.name} by {reproduction.along}",
                ["loss", *(f"{point:g}" for point in points), "best - worst"],
                rows,
            )
        ],
        plots={reproduction.id: figure},
        results={
            "comparison": comparison.to_json(),
            "values": {
                name: [{variable: point, metric: value} for point, value in curve.items()]
                for name, curve in means.items()
            },
            "published": None,
            **results,
        },
        notes=[*few_seeds_note(comparison.seeds), *reproduction.notes],
    )


def _spread(curve: Mapping[Number, float]) -> str:
    return format_value(max(curve.values()) - min(curve.values()) if curve else float("nan"))
