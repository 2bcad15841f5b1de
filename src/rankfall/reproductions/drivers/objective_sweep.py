"""Objectives of a cascade along one setting, beside a published sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.paper_schema import fill, variables_in
from rankfall.reproductions.protocols import cascade_deviations, compare_cascades
from rankfall.reproductions.published_sweep import SweepResult, SweepRun, pick_points, sweep_report

if TYPE_CHECKING:
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import Method, Number, ObjectiveSweep
    from rankfall.reproductions.task import Report, Task
    from rankfall.studies.results import ComparisonResult


def run(reproduction: ObjectiveSweep, task: Task) -> Report:
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
