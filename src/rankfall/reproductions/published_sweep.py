"""Our values at each point of a sweep beside the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall.reporting.figures import Lines
from rankfall.reproductions.agreement import agreement, agreement_rows, apart_here
from rankfall.reproductions.published_table import format_value, with_metrics
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.compare import LEAST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.agreement import Agreement
    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import Number, PrintedNumber, PublishedSweep
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
        published: The published sweep, of one or several data sets.
        metric: The metric that is drawn. Tables show all published metrics that we measured.
        comparisons: Results of our comparisons by title.
        runs: Methods and points in those comparisons.
        data: Our data.
    """

    title: str
    published: PublishedSweep
    metric: str
    comparisons: Mapping[str, ComparisonResult]
    runs: Sequence[SweepRun]
    data: ListData | LogData

    @property
    def sources(self) -> list[str]:
        """The published data sets."""
        return list(self.published.values)

    @property
    def points(self) -> list[Number]:
        """Points at which methods were trained."""
        return list(dict.fromkeys(run.point for run in self.runs))

    @property
    def metrics(self) -> list[str]:
        """Published metrics that we measured, the drawn one first."""
        printed = {cell.column for cell in self.published.cells()}
        measured = [metric for comparison in self.comparisons.values() for metric in comparison.metrics]
        return list(dict.fromkeys([self.metric, *(metric for metric in measured if metric in printed)]))

    @property
    def claims(self) -> bool:
        """Whether we have three seeds or more. Fewer say nothing about which value is the best."""
        return all(len(comparison.seeds) >= LEAST_SEEDS for comparison in self.comparisons.values())

    def published_curves(self, source: str, metric: str | None = None) -> Curves:
        """Published values of a data set by method and point."""
        return self.published.figures(source, metric or self.metric)

    def measured(self, metric: str | None = None) -> dict[str, dict[Number, MetricSummary]]:
        """Our mean and interval by method and point, without runs that failed."""
        trained = {
            (title, method.name): method.metrics[metric or self.metric]
            for title, comparison in self.comparisons.items()
            for method in comparison.methods
        }
        found: dict[str, dict[Number, MetricSummary]] = {run.method: {} for run in self.runs}
        for run in self.runs:
            if (run.comparison, run.label) in trained:
                found[run.method][run.point] = trained[run.comparison, run.label]
        return found

    def curves(self, metric: str | None = None) -> Curves:
        """Our means by method and point."""
        return {
            method: {point: values.mean for point, values in by_point.items()}
            for method, by_point in self.measured(metric).items()
        }

    def agreements(self, source: str, metric: str | None = None) -> dict[str, Agreement]:
        """Pairs of methods in the published order at each point; for a single method, pairs of points."""
        metric = metric or self.metric
        if all(len(methods) == 1 for methods in self.published.values.values()):
            (method,) = self.published.values[source]
            return {method: self._agreement_of_points(source, metric, method)}
        return {f"{point:g}": self._agreement_at(source, metric, point) for point in self.points}

    def _agreement_at(self, source: str, metric: str, point: Number) -> Agreement:
        """Pairs of methods at a point, which were trained in one comparison."""
        runs = {run.method: run for run in self.runs if run.point == point}
        labels = {method: run.label for method, run in runs.items()}
        comparison = self.comparisons[next(iter(runs.values())).comparison]
        printed = {row: number for (row, at), number in self._printed(source, metric).items() if at == point}
        apart = apart_here(comparison, metric, labels)
        return agreement(_column(self.curves(metric), point), printed, apart, runs=self.published.runs)

    def _agreement_of_points(self, source: str, metric: str, method: str) -> Agreement:
        """Pairs of points of a method. Points of different comparisons have no common test, and count as open."""
        runs = {f"{run.point:g}": run for run in self.runs if run.method == method}
        labels = {point: run.label for point, run in runs.items()}
        tests = {title: apart_here(one, metric, labels) for title, one in self.comparisons.items()}

        def apart(first: str, second: str) -> bool:
            title = runs[first].comparison
            test = tests[title]
            return test is not None and title == runs[second].comparison and test(first, second)

        claims = all(test is not None for test in tests.values())
        printed = {f"{at:g}": number for (_, at), number in self._printed(source, metric).items()}
        ours = _labelled(self.curves(metric).get(method, {}))
        return agreement(ours, printed, apart if claims else None, runs=self.published.runs)

    def _printed(self, source: str, metric: str) -> dict[tuple[str, Number], PrintedNumber]:
        """Printed numbers with deviations, by method and point."""
        return {
            (cell.row, cell.point): cell.printed
            for cell in self.published.cells()
            if (cell.data, cell.column) == (source, metric) and cell.point is not None and cell.printed is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``, with published numbers as printed.

        With several published data sets, those of the first are also where a single one is.
        """
        parts = {
            title: {"comparison": comparison.to_json(), "data": self.data.summary()}
            for title, comparison in self.comparisons.items()
        }
        first = self.sources[0]
        return {
            **(next(iter(parts.values())) if len(parts) == 1 else {"parts": parts}),
            "swept": {
                method: [{"at": point, **values.to_json()} for point, values in by_point.items()]
                for method, by_point in self.measured().items()
            },
            "published": {
                "title": self.title,
                "source": first,
                "along": self.published.along,
                "figures": {
                    method: [{"at": point, self.metric: value} for point, value in curve.items()]
                    for method, curve in self.published_curves(first).items()
                },
                "sources": {
                    source: {metric: _json_curves(self.published_curves(source, metric)) for metric in self.metrics}
                    for source in self.sources
                },
            },
            "pairs_in_the_published_order": {
                key: [one.same_means, one.printed_pairs] for key, one in self.agreements(first).items()
            },
            "agreement": {
                source: {
                    metric: {key: one.to_json() for key, one in self.agreements(source, metric).items()}
                    for metric in self.metrics
                }
                for source in self.sources
            },
        }


def sweep_report(name: str, result: SweepResult, notes: Sequence[str] = ()) -> Report:
    """Report a sweep beside a published one; `name` is that of the figure."""
    return Report(
        comparisons=[
            (title, with_metrics(comparison, result.metrics)) for title, comparison in result.comparisons.items()
        ],
        sheets=[_sheet(result, metric) for metric in result.metrics],
        plots={name: _figure(result)},
        results=result.to_json(),
        notes=notes,
    )


def _json_curves(curves: Curves) -> dict[str, list[dict[str, float]]]:
    return {
        method: [{"at": point, "value": value} for point, value in curve.items()] for method, curve in curves.items()
    }


def _labelled(curve: Mapping[Number, float]) -> dict[str, float]:
    return {f"{point:g}": value for point, value in curve.items()}


def _column(curves: Curves, point: Number) -> dict[str, float]:
    return {method: curve[point] for method, curve in curves.items() if point in curve}


def _sheet(result: SweepResult, metric: str) -> Sheet:
    points, sources, along = result.points, result.sources, result.published.along
    single = all(len(methods) == 1 for methods in result.published.values.values())
    body = _rows("here", result.curves(metric), points, single=single, marked=result.claims)
    for source in sources:
        label = "published" if len(sources) == 1 else f"published, {source}"
        body += [[], *_rows(label, result.published_curves(source, metric), points, single=single)]
    for source in sources:
        agreements = list(result.agreements(source, metric).values())
        compared = "points" if single else "methods"
        rows = agreement_rows([*agreements, *[None] * (len(points) - len(agreements))])
        suffix = "" if len(sources) == 1 else f", {source}"
        body += [[], *([f"{compared}: {heading}{suffix}", *cells] for heading, *cells in rows)]
    return Sheet(
        f"{result.title}, {metric} by {along}: here ({result.data.name}), and as published ({', '.join(sources)})",
        [along, *(f"{point:g}" for point in points)],
        body,
    )


def _rows(
    source: str, curves: Curves, points: Sequence[Number], *, single: bool, marked: bool = True
) -> list[list[str]]:
    """A row per method; the best value is marked among methods at a point, or among the points of a single method."""

    def rivals(curve: Mapping[Number, float], point: Number) -> Mapping[Any, float]:
        if not marked:
            return {}
        return curve if single else _column(curves, point)

    return [
        [f"{method}, {source}", *(_cell(curve, point, rivals(curve, point)) for point in points)]
        for method, curve in curves.items()
    ]


def _cell(curve: Mapping[Number, float], point: Number, rivals: Mapping[Any, float]) -> str:
    """The value, marked if it is the best of those it is compared with."""
    if point not in curve:
        return ""
    best = max(rivals.values(), default=None)
    return f"{format_value(curve[point], 4)}{' <' * (curve[point] == best)}"


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
    published = [
        {"panel": f"published, {source}", "series": method, "x": point, "y": value}
        for source in result.sources
        for method, curve in result.published_curves(source).items()
        for point, value in curve.items()
    ]
    return Lines(
        ours + published,
        title=f"{result.title}, here and as published",
        subtitle=f"band: 95 % confidence interval over {_unit(result)}, with these weights",
        x=result.published.along,
        y=result.metric,
        series="",
        log_x=result.published.logarithmic,
        ticks=sorted({*result.points, *result.published.points}),
    )


def _unit(result: SweepResult) -> str:
    return next(iter(result.comparisons.values())).unit
