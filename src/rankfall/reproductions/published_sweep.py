"""Our values at each point of a sweep beside the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall.reporting.figures import Lines
from rankfall.reproductions.published_table import agreement, format_value, with_metrics
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import Number, PublishedSweep
    from rankfall.reproductions.published_table import Agreement
    from rankfall.studies.results import ComparisonResult, MetricSummary

    Curves = Mapping[str, Mapping[Number, float]]  # a value for each method and point

Point = TypeVar("Point")


def pick_points(points: Sequence[Point], count: int | None) -> list[Point]:
    """Return `count` evenly spread points with the first and the last one, or all points if `count` is None.

    >>> pick_points([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 4, 7]
    """
    if count is None or count >= len(points):
        return list(points)
    if count == 1:
        return [points[0]]
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A method that was trained at one point.

    Attributes:
        method: A method of the published sweep, or one that the paper does not have.
        point: Value of the setting.
        comparison: Title of the comparison in which it was trained.
        label: Its name in that comparison.
    """

    method: str
    point: Number
    comparison: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Comparisons at the points of a sweep beside a published one.

    Attributes:
        title: Name of the published table or figure.
        published: The published sweep, of one data set.
        metric: The metric that is compared.
        comparisons: Results of our comparisons by title.
        runs: Methods and points in those comparisons.
        data: Our data.
    """

    title: str
    published: PublishedSweep
    metric: str
    comparisons: Mapping[str, ComparisonResult]
    runs: Sequence[SweepRun]
    data: LogData

    @property
    def source(self) -> str:
        """The published data set."""
        (source,) = self.published.values
        return source

    @property
    def points(self) -> list[Number]:
        """Points at which methods were trained."""
        return list(dict.fromkeys(run.point for run in self.runs))

    def published_curves(self) -> Curves:
        """Published values by method and point."""
        return self.published.figures(self.source, self.metric)

    def measured(self) -> dict[str, dict[Number, MetricSummary]]:
        """Our mean and interval by method and point, without runs that failed."""
        trained = {
            (title, method.name): method.metrics[self.metric]
            for title, comparison in self.comparisons.items()
            for method in comparison.methods
        }
        found: dict[str, dict[Number, MetricSummary]] = {run.method: {} for run in self.runs}
        for run in self.runs:
            if (run.comparison, run.label) in trained:
                found[run.method][run.point] = trained[run.comparison, run.label]
        return found

    def curves(self) -> Curves:
        """Our means by method and point."""
        return {
            method: {point: values.mean for point, values in by_point.items()}
            for method, by_point in self.measured().items()
        }

    def agreements(self) -> dict[str, Agreement]:
        """Pairs of methods in the published order at each point; for a single method, pairs of points."""
        ours, published = self.curves(), self.published_curves()
        if len(published) == 1:
            ((method, curve),) = published.items()
            return {method: agreement(_labelled(ours.get(method, {})), _labelled(curve))}
        return {f"{point:g}": agreement(_column(ours, point), _column(published, point)) for point in self.points}

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``, with published numbers as printed."""
        parts = {
            title: {"comparison": comparison.to_json(), "data": self.data.summary()}
            for title, comparison in self.comparisons.items()
        }
        return {
            **(next(iter(parts.values())) if len(parts) == 1 else {"parts": parts}),
            "swept": {
                method: [{"at": point, **values.to_json()} for point, values in by_point.items()]
                for method, by_point in self.measured().items()
            },
            "published": {
                "title": self.title,
                "source": self.source,
                "along": self.published.along,
                "figures": {
                    method: [{"at": point, self.metric: value} for point, value in curve.items()]
                    for method, curve in self.published_curves().items()
                },
            },
            "pairs_in_the_published_order": {key: [one.same, one.pairs] for key, one in self.agreements().items()},
        }


def sweep_report(name: str, result: SweepResult, notes: Sequence[str] = ()) -> Report:
    """Report a sweep beside a published one; `name` is that of the figure."""
    return Report(
        comparisons=[
            (title, with_metrics(comparison, [result.metric])) for title, comparison in result.comparisons.items()
        ],
        sheets=[_sheet(result)],
        plots={name: _figure(result)},
        results=result.to_json(),
        notes=notes,
    )


def _labelled(curve: Mapping[Number, float]) -> dict[str, float]:
    return {f"{point:g}": value for point, value in curve.items()}


def _column(curves: Curves, point: Number) -> dict[str, float]:
    return {method: curve[point] for method, curve in curves.items() if point in curve}


def _sheet(result: SweepResult) -> Sheet:
    points, published, agreements = result.points, result.published_curves(), result.agreements()
    single = len(published) == 1

    def rows(source: str, curves: Curves) -> list[list[str]]:
        return [
            [
                f"{method}, {source}",
                *(_cell(curve, point, curve if single else _column(curves, point)) for point in points),
            ]
            for method, curve in curves.items()
        ]

    compared = "points" if single else "methods"
    pairs = [str(one) for one in agreements.values()]
    along = result.published.along
    return Sheet(
        f"{result.title}, {result.metric} by {along}: here ({result.data.name}), and as published ({result.source})",
        [along, *(f"{point:g}" for point in points)],
        [
            *rows("here", result.curves()),
            [],
            *rows("published", published),
            [],
            [f"pairs of {compared} in order here", *pairs, *[""] * (len(points) - len(pairs))],
        ],
    )


def _cell(curve: Mapping[Number, float], point: Number, rivals: Mapping[Any, float]) -> str:
    """The value, marked if it is the best of those it is compared with."""
    if point not in curve:
        return ""
    return f"{format_value(curve[point], 4)}{' <' * (curve[point] == max(rivals.values()))}"


def _figure(result: SweepResult) -> Lines:
    ours = [
        {
            "panel": result.data.name,
            "series": method,
            "x": point,
            "y": values.mean,
            "low": values.low,
            "high": values.high,
        }
        for method, by_point in result.measured().items()
        for point, values in by_point.items()
    ]
    published_curves = result.published_curves()
    published = [
        {"panel": f"published, {result.source}", "series": method, "x": point, "y": value}
        for method, curve in published_curves.items()
        for point, value in curve.items()
    ]
    return Lines(
        ours + published,
        title=f"{result.title}, here and as published",
        subtitle="band: 95 % confidence interval over impressions",
        x=result.published.along,
        y=result.metric,
        series="",
        log_x=result.published.logarithmic,
        ticks=sorted({*result.points, *(point for curve in published_curves.values() for point in curve)}),
    )
