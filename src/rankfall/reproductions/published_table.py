"""Our values beside a published table. What can be compared is the order of methods, not the level of metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Dots
from rankfall.reproductions.agreement import agreement, agreement_rows, apart_here
from rankfall.reproductions.paper_schema import mean_of
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.compare import LEAST_SEEDS
from rankfall.training.config.component_checks import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.agreement import Agreement
    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import Method, PrintedNumber, PublishedTable
    from rankfall.studies.results import ComparisonResult


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
        improved = {method.name for method in self.methods if method.variant == "sound"}
        rows = {method.name: method.row or method.name for method in self.methods}
        found: dict[str, str] = {}
        for method in self.comparison.methods:
            if method.name not in improved:
                found.setdefault(rows.get(method.name, method.name), method.name)
        return found

    def improved_methods(self) -> dict[str, list[str]]:
        """Names of our better versions that have results, by printed row."""
        trained = {method.name for method in self.comparison.methods}
        found: dict[str, list[str]] = {}
        for method in self.methods:
            if method.variant == "sound" and method.name in trained:
                found.setdefault(method.row or method.name, []).append(method.name)
        return found

    def means(self, metric: str) -> dict[str, float]:
        """Our mean of each method."""
        return {method.name: method.metrics[metric].mean for method in self.comparison.methods}

    def agreements(self) -> dict[str, dict[str, Agreement]]:
        """Pairs of methods in the published order, by data set and metric."""
        return {
            data: {metric: self._agreement(data, metric) for metric in self.published.metrics}
            for data in self.published.values
        }

    def _agreement(self, data: str, metric: str) -> Agreement:
        labels, means = self.published_methods(), self.means(metric)
        return agreement(
            {row: means[name] for row, name in labels.items()},
            self.printed(data, metric),
            apart_here(self.comparison, metric, labels),
            runs=self.published.runs,
        )

    def printed(self, data: str, metric: str) -> dict[str, PrintedNumber]:
        """The printed column of a metric by row, with deviations."""
        return {
            cell.row: cell.printed
            for cell in self.published.cells()
            if (cell.data, cell.column) == (data, metric) and cell.printed is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``, with published numbers as printed."""
        metrics = self.published.metrics
        return {
            "comparison": self.comparison.to_json(),
            "published": {
                "title": self.title,
                "unit": self.published.unit,
                "figures": {
                    data: {row: dict(zip(metrics, map(mean_of, cells), strict=True)) for row, cells in rows.items()}
                    for data, rows in self.published.values.items()
                },
            },
            "pairs_in_the_published_order": {
                data: {metric: [one.same_means, one.printed_pairs] for metric, one in by_metric.items()}
                for data, by_metric in self.agreements().items()
            },
            "agreement": {
                data: {metric: one.to_json() for metric, one in by_metric.items()}
                for data, by_metric in self.agreements().items()
            },
            "oracle": self.oracle,
            "data": self.data.summary(),
        }


def table_report(name: str, result: TableResult, notes: Sequence[str] = ()) -> Report:
    """Report a comparison beside a published table; `name` is that of the figure."""
    published, agreements = result.published, result.agreements()
    sheets = [_sheet(result.title, data, published, agreements[data]) for data in published.values]
    return Report(
        comparisons=[(f"{name} on {result.data.name}", with_metrics(result.comparison, published.metrics))],
        sheets=[
            *sheets,
            *(_variants_sheet(result, metric) for metric in published.metrics if result.improved_methods()),
            *([_oracle_sheet(result.oracle)] if result.oracle else []),
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
        sheets=[sheet for report in reports for sheet in report.sheets],
        plots={name: plot for report in reports for name, plot in report.plots.items()},
        results={"parts": {name: report.results for name, report in parts.items()}},
        notes=list(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def format_value(value: float, digits: int = 3) -> str:
    """Format a value as papers print it: ``.413``, ``46.75``."""
    text = f"{value:.{digits}f}" if abs(value) < 1 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def _column(values: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, float]:
    return {name: by_metric[metric] for name, by_metric in values.items() if metric in by_metric}


def _sheet(title: str, data: str, published: PublishedTable, agreements: Mapping[str, Agreement]) -> Sheet:
    values = published.figures(data)
    metrics = [metric for metric in published.metrics if _column(values, metric)]
    best = {metric: (max if higher_is_better(metric) else min)(_column(values, metric).values()) for metric in metrics}

    def cell(row: Mapping[str, float], metric: str) -> str:
        if metric not in row:
            return ""
        return f"{format_value(row[metric], published.digits)}{' <' * (row[metric] == best[metric])}"

    rows = [[name, *(cell(row, metric) for metric in metrics)] for name, row in values.items()]
    if any(one.printed_pairs for one in agreements.values()):
        rows += [[], *agreement_rows(agreements[metric] for metric in metrics)]
    return Sheet(f"published: {title}, {data}", ["method", *metrics], rows)


def _variants_sheet(result: TableResult, metric: str) -> Sheet:
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
    return Sheet(
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


def _oracle_sheet(oracle: Mapping[str, float]) -> Sheet:
    title = "oracle: the order by true utility, an upper bound up to chance"
    return Sheet(title, ["", *oracle], [["oracle", *(format_value(value) for value in oracle.values())]])


def _figure(result: TableResult) -> Dots:
    return Dots(
        _records(result),
        title=f"{result.title}, here and as published",
        few_seeds=result.data.name if len(result.comparison.seeds) < LEAST_SEEDS else None,
    )


def _records(result: TableResult) -> list[dict[str, Any]]:
    records = []
    for method in result.comparison.methods:
        for metric in result.published.metrics:
            measured = method.metrics[metric]
            record = {"method": method.name, "source": result.data.name, "metric": metric}
            records.append(record | {"value": measured.mean, "low": measured.low, "high": measured.high})
    for data in result.published.values:
        for name, row in result.published.figures(data).items():
            records += [
                {"method": name, "source": f"published, {data}", "metric": metric, "value": value}
                for metric, value in row.items()
            ]
    return records
