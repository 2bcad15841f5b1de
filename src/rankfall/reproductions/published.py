"""Our values beside published tables and sweeps. What can be compared is the order of methods, not the level."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall.metrics.significance import student_quantile
from rankfall.reporting.charts import curves, dots
from rankfall.reproductions.paper_schema import Measured, mean_of
from rankfall.reproductions.task import Report, few_seeds_note, sheet
from rankfall.studies.compare import LEAST_SEEDS, LEVEL
from rankfall.training.config.component_checks import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rankfall.reporting.blocks import Table
    from rankfall.reporting.charts import Chart
    from rankfall.reproductions.data import ListData, LogData
    from rankfall.reproductions.paper_schema import Marks, Method, Number, PrintedNumber, PublishedSweep, PublishedTable
    from rankfall.studies.results import ComparisonResult, MetricSummary

    Apart = Callable[[str, str], bool]  # whether two methods are distinguishable
    Curves = Mapping[str, Mapping[Number, float]]  # a value for each method and point
    Rows = Mapping[str, Mapping[str, tuple[float, ...]]]  # values by method and metric

NO_CLAIM = "too few seeds: no claim"
ROWS = ("pairs in published order", "not distinguishable here", "not distinguishable in print")  # of sheets


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs of methods that a paper and we have both measured.

    Attributes:
        same: Pairs that are distinguishable here and in print, in the same order.
        opposite: Those in the opposite order.
        open_here: Pairs that are distinguishable in print, but not here.
        open_in_print: Pairs that are not distinguishable in print.
        same_means: Pairs whose means have the published order, whether distinguishable or not.
        printed_pairs: Pairs with different printed means.
        claims: Whether we have three seeds or more. Fewer say nothing about the order of methods.
    """

    same: int
    opposite: int
    open_here: int
    open_in_print: int
    same_means: int
    printed_pairs: int
    claims: bool = True

    def __str__(self) -> str:
        """As in ``12 of 14 in order, 7 not distinguishable here, 3 not distinguishable in print``."""
        if not self.claims:
            return NO_CLAIM
        counts = f"{self.same} of {self.same + self.opposite} in order"
        return f"{counts}, {self.open_here} not distinguishable here, {self.open_in_print} not distinguishable in print"

    def cells(self) -> list[str]:
        """The cells of a column below the headings `ROWS`."""
        if not self.claims:
            return [NO_CLAIM, "", str(self.open_in_print)]
        return [f"{self.same} of {self.same + self.opposite}", str(self.open_here), str(self.open_in_print)]

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``; without a claim, only what is in print."""
        counts = {"same": self.same, "opposite": self.opposite, "not_distinguishable_here": self.open_here}
        return {
            "claim": self.claims,
            **(counts if self.claims else {}),
            "not_distinguishable_in_print": self.open_in_print,
            "text": str(self),
        }


def agreement(
    ours: Mapping[str, float], printed: Mapping[str, PrintedNumber], apart: Apart | None, *, runs: int = 5
) -> Agreement:
    """Compare the order of the methods that both have.

    Args:
        ours: Our means by name.
        printed: Printed numbers by name.
        apart: Whether two methods are distinguishable here. None: too few seeds, so nothing is claimed.
        runs: Training runs behind a printed standard deviation.

    Returns:
        The counts.

    Examples:
        >>> printed = {"a": 0.9, "b": 0.7, "c": 0.8, "d": 0.7}
        >>> str(agreement({"a": 0.4, "b": 0.2, "c": 0.1, "d": 0.3}, printed, lambda *pair: pair != ("a", "d")))
        '2 of 4 in order, 1 not distinguishable here, 1 not distinguishable in print'
    """
    names = [name for name in printed if name in ours and mean_of(printed[name]) is not None]
    same = opposite = open_here = open_in_print = same_means = printed_pairs = 0
    for first, second in itertools.combinations(names, 2):
        there = _difference(printed[first], printed[second])
        here = ours[first] - ours[second]
        printed_pairs += there != 0
        same_means += here * there > 0
        if not apart_in_print(printed[first], printed[second], runs=runs):
            open_in_print += 1
        elif apart is None or not apart(first, second):
            open_here += 1
        elif here * there > 0:
            same += 1
        else:
            opposite += 1
    return Agreement(same, opposite, open_here, open_in_print, same_means, printed_pairs, claims=apart is not None)


def apart_in_print(first: PrintedNumber, second: PrintedNumber, *, runs: int) -> bool:
    """Whether two printed numbers differ by more than their 95 % interval.

    The interval is Welch's if both have a standard deviation. Else only the rounding is known, and any two different
    numbers differ by more than that.

    >>> apart_in_print(Measured(value=0.8732, std=0.0005), Measured(value=0.8678, std=0.0009), runs=5)
    True
    >>> apart_in_print(Measured(value=0.8678, std=0.0009), Measured(value=0.8666, std=0.0016), runs=5)
    False
    """
    difference = abs(_difference(first, second))
    if not isinstance(first, Measured) or not isinstance(second, Measured) or runs < 2:
        return difference > 0
    variances = [first.std**2 / runs, second.std**2 / runs]
    if sum(variances) == 0:
        return difference > 0
    freedom = sum(variances) ** 2 / sum(variance**2 / (runs - 1) for variance in variances)
    return difference > student_quantile(0.025, freedom) * math.sqrt(sum(variances))


def apart_here(comparison: ComparisonResult, metric: str, labels: Mapping[str, str]) -> Apart | None:
    """Return whether two methods differ at 5 % over seeds and queries, or None if there are too few seeds.

    Args:
        comparison: Our comparison.
        metric: The metric.
        labels: Names in the comparison, by the names that are asked for.
    """
    if len(comparison.seeds) < LEAST_SEEDS:
        return None
    differing = {
        frozenset((pair.first, pair.second))
        for pair in comparison.pairs
        if pair.metric == metric and pair.p_value < LEVEL
    }
    return lambda first, second: frozenset((labels[first], labels[second])) in differing


def agreement_rows(columns: Iterable[Agreement | None]) -> list[list[str]]:
    """Return the rows of a sheet that show agreement; columns without one are empty, and empty rows are left out."""
    cells = [["", "", ""] if one is None else one.cells() for one in columns]
    return [[heading, *of] for heading, *of in zip(ROWS, *cells, strict=True) if any(of)]


def printed_column(
    published: PublishedTable | PublishedSweep, data: str, metric: str, point: Number | None = None
) -> dict[str, PrintedNumber]:
    """Return the printed numbers of a metric by row, with deviations; those at `point`, in a sweep."""
    place = (data, metric, point)
    return {one.row: one.printed for one in published.cells() if (one.data, one.column, one.point) == place}


def _difference(first: PrintedNumber, second: PrintedNumber) -> float:
    """Return the difference of two numbers that are printed."""
    return float(mean_of(first) or 0) - float(mean_of(second) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """A comparison beside a published table of the same metrics.

    Attributes:
        title: Name of the published table.
        published: The published table.
        comparison: Result of our comparison.
        data: Our data.
        oracle: Metrics of the order by true utility, if the data are generated.
        methods: The methods of the comparison with their variants and printed rows. Default: all are as published, in
            rows of their names.
    """

    title: str
    published: PublishedTable
    comparison: ComparisonResult
    data: ListData | LogData
    oracle: dict[str, float] | None = None
    methods: Sequence[Method] = ()

    def published_methods(self) -> dict[str, str]:
        """Names of the methods as published that have results, by printed row."""
        return {row: names[0] for row, names in self._by_row(improved=False).items()}

    def improved_methods(self) -> dict[str, list[str]]:
        """Names of our better versions that have results, by printed row."""
        return self._by_row(improved=True)

    def _by_row(self, *, improved: bool) -> dict[str, list[str]]:
        known = {method.name: method for method in self.methods}
        found: dict[str, list[str]] = {}
        for name in (method.name for method in self.comparison.methods):
            method = known.get(name)
            if (method is not None and method.variant == "sound") == improved:
                found.setdefault((method and method.row) or name, []).append(name)
        return found

    def means(self, metric: str) -> dict[str, float]:
        """Our mean of each method."""
        return {method.name: method.metrics[metric].mean for method in self.comparison.methods}

    def agreements(self) -> dict[str, dict[str, Agreement]]:
        """Pairs of methods in the published order, by data set and metric."""
        labels, published = self.published_methods(), self.published
        return {
            data: {
                metric: agreement(
                    {row: self.means(metric)[name] for row, name in labels.items()},
                    printed_column(published, data, metric),
                    apart_here(self.comparison, metric, labels),
                    runs=published.runs,
                )
                for metric in published.metrics
            }
            for data in published.values
        }

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``, with published numbers as printed."""
        agreements = self.agreements()
        return {
            "comparison": self.comparison.to_json(),
            "published": {
                "title": self.title,
                "unit": self.published.unit,
                "figures": self.published.printed(),
            },
            "pairs_in_the_published_order": {
                data: {metric: [one.same_means, one.printed_pairs] for metric, one in by_metric.items()}
                for data, by_metric in agreements.items()
            },
            "agreement": {
                data: {metric: one.to_json() for metric, one in by_metric.items()}
                for data, by_metric in agreements.items()
            },
            "oracle": self.oracle,
            "data": self.data.summary(),
        }


def table_report(name: str, result: TableResult, notes: Sequence[str] = ()) -> Report:
    """Report a comparison beside a published table; `name` is that of the figure."""
    published, agreements = result.published, result.agreements()
    sheets = [_sheet(result.title, data, published, agreements[data]) for data in published.values]
    oracle, bound = result.oracle, "oracle: the order by true utility, an upper bound up to chance"
    return Report(
        comparisons=[(f"{name} on {result.data.name}", with_metrics(result.comparison, published.metrics))],
        sheets=[
            *sheets,
            *(_variants_sheet(result, metric) for metric in published.metrics if result.improved_methods()),
            *([sheet(bound, ["", *oracle], [["oracle", *map(format_value, oracle.values())]])] if oracle else []),
            *marks_sheet(published, result.comparison, result.methods),
        ],
        plots={name: _figure(result)},
        results=result.to_json(),
        notes=notes,
    )


def with_metrics(comparison: ComparisonResult, metrics: Sequence[str]) -> ComparisonResult:
    """Return a comparison with some of its metrics only."""
    methods = [
        replace(method, metrics={metric: method.metrics[metric] for metric in metrics}) for method in comparison.methods
    ]
    return replace(comparison, metrics=list(metrics), methods=methods)


def join_reports(parts: Mapping[str, Report]) -> Report:
    """Return one report of several comparisons; their results become its ``parts``."""
    reports = list(parts.values())
    return Report(
        comparisons=[one for report in reports for one in report.comparisons],
        sheets=[one for report in reports for one in report.sheets],
        plots={name: plot for report in reports for name, plot in report.plots.items()},
        results={"parts": {name: report.results for name, report in parts.items()}},
        notes=list(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def format_value(value: float, digits: int = 3) -> str:
    """Format a value as papers print it: ``.413``, ``46.75``."""
    text = f"{value:.{digits}f}" if abs(value) < 1 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def _sheet(title: str, data: str, published: PublishedTable, agreements: Mapping[str, Agreement]) -> Table:
    values, best = published.figures(data), {}
    for metric in published.metrics:
        if column := [row[metric] for row in values.values() if metric in row]:
            best[metric] = (max if higher_is_better(metric) else min)(column)

    def cell(row: Mapping[str, float], metric: str) -> str:
        if metric not in row:
            return ""
        return f"{format_value(row[metric], published.digits)}{' <' * (row[metric] == best[metric])}"

    rows = [[name, *(cell(row, metric) for metric in best)] for name, row in values.items()]
    if any(one.printed_pairs for one in agreements.values()):
        rows += [[], *agreement_rows(agreements[metric] for metric in best)]
    return sheet(f"published: {title}, {data}", ["method", *best], rows)


def _variants_sheet(result: TableResult, metric: str) -> Table:
    """The method as published, our better versions of it, and the printed figures, side by side."""
    digits, means = result.published.digits, result.means(metric)
    published, improved = result.published_methods(), result.improved_methods()
    rows = []
    for row, names in improved.items():
        printed = [
            "" if number is None else format_value(number, digits)
            for number in (result.published.figures(data).get(row, {}).get(metric) for data in result.published.values)
        ]
        for name in names:
            before = published.get(row)
            value = format_value(means[name], digits)
            rows.append(
                [
                    row,
                    "" if before is None else format_value(means[before], digits),
                    f"{value}, {name}" if len(names) > 1 else value,
                    "" if before is None else _gain(result, metric, name, before),
                    *printed,
                ]
            )
    columns = ["method", "published variant", "improved variant", "improved - published"]
    return sheet(
        f"{result.title}, {metric} on {result.data.name}: variants, and printed figures",
        [*columns, *(f"printed, {data}" for data in result.published.values)],
        rows,
    )


def _gain(result: TableResult, metric: str, name: str, before: str) -> str:
    """The difference of two methods with its interval over seeds and queries; fewer than three seeds have none."""
    for pair in result.comparison.pairs:
        if pair.metric == metric and {pair.first, pair.second} == {name, before}:
            low, high = (pair.low, pair.high) if pair.first == name else (-pair.high, -pair.low)
            difference = pair.difference if pair.first == name else -pair.difference
            return f"{difference:+z.4f} [{low:+z.4f}, {high:+z.4f}]"
    means = result.means(metric)
    return f"{means[name] - means[before]:+z.4f}, too few seeds"


def _figure(result: TableResult) -> Chart:
    here, published = result.data.name, result.published
    ours: dict[str, dict[str, tuple[float, ...]]] = {}
    for method in result.comparison.methods:
        found = {metric: method.metrics[metric] for metric in published.metrics}
        ours[method.name] = {metric: (one.mean, one.low, one.high) for metric, one in found.items()}
    sources: dict[str, Rows] = {here: ours}
    for data in published.values:
        rows = published.figures(data).items()
        sources[f"published, {data}"] = {
            name: {metric: (value,) for metric, value in row.items()} for name, row in rows
        }
    few_seeds = here if len(result.comparison.seeds) < LEAST_SEEDS else ""
    return values_chart(sources, title=f"{result.title}, here and as published", few_seeds=few_seeds)


def values_chart(sources: Mapping[str, Rows], *, title: str, costs: bool = False, few_seeds: str = "") -> Chart:
    """Return a panel for each metric and source with the value of every method, in the order of the paper.

    Args:
        sources: Values, with intervals if they are known, by source, method and metric.
        title: Title of the figure.
        costs: Whether lower values of all metrics are better.
        few_seeds: A source with too few seeds, which makes no claim, so that its best values have no mark.
    """
    metrics = dict.fromkeys(metric for methods in sources.values() for row in methods.values() for metric in row)
    panels, best = {}, {}
    for metric, (source, methods) in itertools.product(metrics, sources.items()):
        values = {name: row.get(metric, ()) for name, row in methods.items()}
        known = {name: of[0] for name, of in values.items() if of}
        if known:
            higher = not costs and higher_is_better(metric)
            name = f"{source}: {metric}{'' if higher else ' (lower is better)'}"
            panels[name] = values
            if len(known) > 1 and source != few_seeds:
                top = (max if higher else min)(known.values())
                best[name] = [method for method, value in known.items() if value == top]
    marks = "red: best of a panel"
    if any(len(values) > 1 for rows in panels.values() for values in rows.values()):
        marks += "; lines: 95 % confidence intervals"
    marks += f"; {few_seeds}: too few seeds, no claim which is best" if few_seeds else ""
    return dots(panels, title=title, caption=marks, best=best, least=720 // len(sources) - 8)


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
        oracle: Metrics of the order by true utility, if the data are generated.
    """

    title: str
    published: PublishedSweep
    metric: str
    comparisons: Mapping[str, ComparisonResult]
    runs: Sequence[SweepRun]
    data: ListData | LogData
    oracle: dict[str, float] | None = None

    @property
    def points(self) -> list[Number]:
        """Points at which methods were trained."""
        return list(dict.fromkeys(run.point for run in self.runs))

    @property
    def single(self) -> bool:
        """Whether a single method was published, whose points are compared instead of methods."""
        return all(len(methods) == 1 for methods in self.published.values.values())

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
        if self.single:
            (method,) = self.published.values[source]
            return {method: self._agreement_of_points(source, metric, method)}
        return {f"{point:g}": self._agreement_at(source, metric, point) for point in self.points}

    def _agreement_at(self, source: str, metric: str, point: Number) -> Agreement:
        """Pairs of methods at a point, which were trained in one comparison."""
        runs = {run.method: run for run in self.runs if run.point == point}
        labels = {method: run.label for method, run in runs.items()}
        comparison = self.comparisons[next(iter(runs.values())).comparison]
        printed = printed_column(self.published, source, metric, point)
        apart = apart_here(comparison, metric, labels)
        return agreement(_at_point(self.curves(metric), point), printed, apart, runs=self.published.runs)

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
        cells = self.published.cells()
        printed = {f"{one.point:g}": one.printed for one in cells if (one.data, one.column) == (source, metric)}
        ours = {f"{point:g}": value for point, value in self.curves(metric).get(method, {}).items()}
        return agreement(ours, printed, apart if claims else None, runs=self.published.runs)

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``, with published numbers as printed."""
        parts = {
            title: {"comparison": comparison.to_json(), "data": self.data.summary()}
            for title, comparison in self.comparisons.items()
        }
        published = self.published
        first = next(iter(published.values), None)
        agreements = {
            source: {metric: self.agreements(source, metric) for metric in self.metrics} for source in published.values
        }
        return {
            **(next(iter(parts.values())) if len(parts) == 1 else {"parts": parts}),
            "swept": {
                method: [{"at": point, **values.to_json()} for point, values in by_point.items()]
                for method, by_point in self.measured().items()
            },
            "published": {
                "title": self.title,
                "along": published.along,
                "sources": {
                    source: {
                        metric: {
                            method: [{"at": point, "value": value} for point, value in curve.items()]
                            for method, curve in published.figures(source, metric).items()
                        }
                        for metric in self.metrics
                    }
                    for source in published.values
                },
            },
            "pairs_in_the_published_order": {
                key: [one.same_means, one.printed_pairs]
                for key, one in (agreements[first][self.metric] if first else {}).items()
            },
            "agreement": {
                source: {metric: {key: one.to_json() for key, one in of.items()} for metric, of in by_metric.items()}
                for source, by_metric in agreements.items()
            },
            "oracle": self.oracle,
        }


def sweep_report(name: str, result: SweepResult, notes: Sequence[str] = ()) -> Report:
    """Report a sweep beside a published one; `name` is that of the figure."""
    seeds = next(iter(result.comparisons.values())).seeds
    return Report(
        comparisons=[
            (title, with_metrics(comparison, result.metrics)) for title, comparison in result.comparisons.items()
        ],
        sheets=[_sweep_sheet(result, metric) for metric in result.metrics],
        plots={name: _sweep_figure(result)},
        results=result.to_json(),
        notes=[*(() if result.published.values else few_seeds_note(seeds)), *_best_points(result), *notes],
    )


def _best_points(result: SweepResult) -> list[str]:
    """Return the best point of a method here and in print, if the paper says what it found; few seeds say nothing."""
    curve = next(iter(result.curves().values()))
    if not (result.published.best and result.claims and curve):
        return []
    printed = []
    for source in result.published.values:
        (values,) = result.published.figures(source, result.metric).values()
        best = [f"{point:g}" for point, value in values.items() if value == max(values.values())]
        printed.append(f"{', '.join(best)} on {source}")
    here = max(curve, key=lambda point: curve[point])
    return [f"Best {result.published.along} by {result.metric}: {here:g} here; in the paper {' and '.join(printed)}."]


def _at_point(curves: Curves, point: Number) -> dict[str, float]:
    return {method: curve[point] for method, curve in curves.items() if point in curve}


def _sweep_sheet(result: SweepResult, metric: str) -> Table:
    points = sorted({*result.points, *result.published.points})
    sources, along = list(result.published.values), result.published.along
    single = result.single

    def rows_of(source: str, curves: Curves, *, marked: bool = True) -> list[list[str]]:
        """A row per method; the best value is marked among methods at a point, or among the points of a single one."""
        rows = []
        for method, curve in curves.items():
            row = [f"{method}, {source}"]
            for point in points:
                rivals: Mapping[Any, float] = curve if single else _at_point(curves, point)
                best = marked and point in curve and curve[point] == max(rivals.values())
                row.append(f"{format_value(curve[point], 4)}{' <' * best}" if point in curve else "")
            rows.append(row)
        return rows

    body = rows_of("here", result.curves(metric), marked=result.claims and bool(sources))
    for source in sources:
        label = "published" if len(sources) == 1 else f"published, {source}"
        body += [[], *rows_of(label, result.published.figures(source, metric))]
    for source in sources:
        agreements = result.agreements(source, metric)
        compared = "points" if single else "methods"
        keys = [*agreements, *points[1:]] if single else [f"{point:g}" for point in points]
        rows = agreement_rows(agreements.get(str(key)) for key in keys)
        suffix = "" if len(sources) == 1 else f", {source}"
        body += [[], *([f"{compared}: {heading}{suffix}", *cells] for heading, *cells in rows)]
    title = f"{result.title}, {metric} by {along}: here ({result.data.name})"
    columns = [along, *(f"{point:g}" for point in points)]
    if not sources:  # how much methods depend on the setting
        curves = [list(curve.values()) or [math.nan] for curve in result.curves(metric).values()]
        body = [[*row, format_value(max(curve) - min(curve))] for row, curve in zip(body, curves, strict=True)]
        return sheet(title, [*columns, "best - worst"], body)
    return sheet(f"{title}, and as published ({', '.join(sources)})", columns, body)


def _sweep_figure(result: SweepResult) -> Chart:
    published = result.published
    panels = {
        result.data.name: {
            method: [(point, one.mean, one.low, one.high) for point, one in by_point.items()]
            for method, by_point in result.measured().items()
        }
    } | {
        f"published, {source}": {
            method: curve.items() for method, curve in published.figures(source, result.metric).items()
        }
        for source in published.values
    }
    unit = next(iter(result.comparisons.values())).unit
    best = published.best
    shaded = f"; shaded: best {published.along} in the paper" if best and best[0] < best[1] else ""
    return curves(
        panels,
        title=f"{result.title}, here and as published" if published.values else f"{result.title}, here",
        caption=f"{result.metric}; band: 95 % confidence interval over {unit}, with these weights{shaded}",
        x=published.along,
        log_x=published.logarithmic,
        ticks=sorted({*result.points, *published.points}),
        span=(best[0], best[1]) if shaded and best else None,
    )


BETTER, WORSE, BOLD, NONE, UNKNOWN = "^", "v", "b", ".", "?"


def reference_of(published: PublishedTable, methods: Sequence[Method]) -> str | None:
    """Return the method that the paper tests all others against, None if that is the best one of each column."""
    if published.marks is None:
        return None
    return next((one.name for one in methods if (one.row or one.name) == published.marks.against), None)


def marks_sheet(published: PublishedTable, comparison: ComparisonResult, methods: Sequence[Method]) -> list[Table]:
    """Return the marks of each method here beside the printed ones, or nothing if the paper prints none."""
    marks = published.marks
    if marks is None:
        return []
    rows = {method.name: method.row or method.name for method in methods}
    trained = [method.name for method in comparison.methods]
    found = [
        [
            name,
            *(
                " ".join(mark(comparison, marks, name, metric, over_seeds=over_seeds) for metric in published.metrics)
                for over_seeds in (False, True)
            ),
            *(" ".join(printed.get(rows.get(name, name), "")) for printed in marks.values.values()),
        ]
        for name in trained
    ]
    meaning = "b: best or not worse" if marks.against == "best" else f"^ better, v worse than {marks.against}"
    meaning += "; ? too few seeds, no claim" if len(comparison.seeds) < LEAST_SEEDS else ""
    return [
        sheet(
            f"marks of significance, for {', '.join(published.metrics)} ({meaning}); the paper: {marks.test}",
            ["method", "over queries", "over seeds and queries", *(f"printed, {data}" for data in marks.values)],
            found,
        )
    ]


def mark(comparison: ComparisonResult, marks: Marks, method: str, metric: str, *, over_seeds: bool) -> str:
    """Return the mark of a method on a metric.

    Args:
        comparison: Our comparison.
        marks: The printed marks, which say what is tested.
        method: Name of the method.
        metric: Name of the metric.
        over_seeds: False for the paper's test over queries, at 5 % without correction; True for our verdict, over seeds
            and queries with Holm's correction.
    """
    verdict = next((one for one in comparison.verdicts if (one.method, one.metric) == (method, metric)), None)
    if verdict is None:
        return UNKNOWN
    test, outcome = verdict.over_queries, "not distinguishable"
    if over_seeds:
        outcome = verdict.outcome
    elif marks.against == "best":  # one-sided, as in PiRank
        of_method = [one.p_value for one in comparison.tests if (one.method, one.metric) == (method, metric)]
        outcome = "worse" if any(p_value < LEVEL for p_value in of_method) else outcome
    elif method != verdict.against and test.p_value < LEVEL:
        outcome = "better" if (test.difference > 0) == higher_is_better(metric) else "worse"
    if outcome == "no claim":
        return UNKNOWN
    if marks.against == "best":
        return NONE if outcome == "worse" else BOLD
    return {"better": BETTER, "worse": WORSE}.get(outcome, NONE)
