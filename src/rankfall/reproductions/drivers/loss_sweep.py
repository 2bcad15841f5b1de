"""Losses on ranking lists along one setting, such as the temperature or the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Lines
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import list_config, oracle, run_comparison
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.paper_schema import LossSweep, Method, Number, PublishedSweep
    from rankfall.reproductions.task import Task
    from rankfall.studies.results import ComparisonResult, MetricSummary

    Curve = Mapping[Number, MetricSummary]  # mean and interval at each point


def run(reproduction: LossSweep, task: Task) -> Report:
    """Train every loss at every point, all else equal; several losses with one seed each."""
    data = task.lists(reproduction.protocol)
    points = pick_points(reproduction.points, task.size.points)
    single = len(reproduction.methods) == 1
    sections = {
        _label(reproduction, method.name, point): _section(reproduction, method, point)
        for method in reproduction.methods
        for point in points
    }
    config = list_config(
        reproduction.protocol,
        task,
        data,
        sections,
        metrics=reproduction.metrics,
        seeds=task.seeds if single else task.seeds[:1],
    )
    comparison = run_comparison(task, config)
    metric = reproduction.metrics[0]
    trained = {method.name: method.metrics[metric] for method in comparison.methods}
    curves = {
        method.name: {
            point: trained[label] for point in points if (label := _label(reproduction, method.name, point)) in trained
        }
        for method in reproduction.methods
    }
    report = _report_of_one if single else _report_of_several
    results = {"oracle": oracle(data, reproduction.metrics), "data": data.summary()}
    return report(reproduction, data, curves, points, comparison, results)


def _section(reproduction: LossSweep, method: Method, point: Number) -> dict[str, Any]:
    section: dict[str, Any] = fill({**method.config, **reproduction.config}, {reproduction.variable: point})
    return section


def _label(reproduction: LossSweep, method: str, point: Number) -> str:
    variable = reproduction.variable
    return f"{variable} = {point:g}" if len(reproduction.methods) == 1 else f"{method} {variable}={point:g}"


# --- one loss -----------------------------------------------------------------------------------------------------


def _report_of_one(
    reproduction: LossSweep,
    data: ListData,
    curves: Mapping[str, Curve],
    points: list[Number],
    comparison: ComparisonResult,
    results: dict[str, Any],
) -> Report:
    """Report a loss by its best point, with confidence intervals."""
    ((method, curve),) = curves.items()
    metric, published, variable = reproduction.metrics[0], reproduction.published, reproduction.variable
    best = max(curve, key=lambda point: curve[point].mean, default=None)
    rows = [
        [
            f"{point:g}",
            f"{format_value(values.mean)}{' <' * (point == best)}",
            _published_at(published, point),
        ]
        for point, values in curve.items()
    ]
    figure = Lines(
        [
            {"series": data.name, "x": point, "y": values.mean, "low": values.low, "high": values.high}
            for point, values in curve.items()
        ],
        title=reproduction.heading,
        subtitle=f"shaded: best {variable} in the paper; band: 95 % confidence interval over queries",
        x=reproduction.along,
        y=metric,
        series="data",
        log_x=True,
        ticks=list(curve),
        span=(published.best[0], published.best[1]) if published and published.best else None,
    )
    return Report(
        comparisons=[(f"{method}, {reproduction.id} on {data.name}", comparison)],
        sheets=[Sheet(f"{method}: here, and in the paper", [variable, metric, "published"], rows)],
        plots={reproduction.id: figure},
        results={
            "comparison": comparison.to_json(),
            f"best_{variable}": best,
            "published": {f"{variable}s": published.points, "best": published.best} if published else None,
            **results,
        },
        notes=reproduction.notes,
    )


def _published_at(published: PublishedSweep | None, point: Number) -> str:
    if published is None:
        return ""
    if published.best and published.best[0] <= point <= published.best[1]:
        return "in the range of the best"
    return "" if point in published.points else "not swept"


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
        notes=reproduction.notes,
    )


def _spread(curve: Mapping[Number, float]) -> str:
    return format_value(max(curve.values()) - min(curve.values()) if curve else float("nan"))
