"""Losses on ranking lists along one setting, such as the temperature or the learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Lines
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import deviations, list_config, oracle, run_comparison
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet, few_seeds_note
from rankfall.studies.compare import LEAST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.paper_schema import LossSweep, Method, Number, PublishedSweep
    from rankfall.reproductions.task import Task
    from rankfall.studies.results import ComparisonResult, MetricSummary

    Curve = Mapping[Number, MetricSummary]  # mean and interval at each point


def run(reproduction: LossSweep, task: Task) -> Report:
    """Train every loss at every point, all else equal; losses without a published sweep with one seed each."""
    data = task.lists(reproduction.protocol)
    points = pick_points(reproduction.points, task.size.points)
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
        seeds=task.seeds if reproduction.published else task.seeds[:1],
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
    report = _report_beside_published if reproduction.published else _report_of_several
    results = {"oracle": oracle(data, reproduction.metrics), "data": data.summary()}
    made = report(reproduction, data, curves, points, comparison, results)
    return replace(made, notes=[*deviations(reproduction.protocol, task, data), *made.notes])


def _section(reproduction: LossSweep, method: Method, point: Number) -> dict[str, Any]:
    section: dict[str, Any] = fill({**method.config, **reproduction.config}, {reproduction.variable: point})
    return section


def _label(reproduction: LossSweep, method: str, point: Number) -> str:
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
                if (label := _label(reproduction, loss, point)) in measured
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
