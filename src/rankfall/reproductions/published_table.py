"""Our values beside a published table. What can be compared is the order of methods, not the level of metrics."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Dots
from rankfall.reproductions.paper_schema import mean_of
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.compare import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import PublishedTable
    from rankfall.studies.results import ComparisonResult


@dataclass(frozen=True, slots=True)
class Agreement:
    """Number of pairs that differ in the paper, and of those that are in the same order here."""

    same: int
    pairs: int

    def __str__(self) -> str:
        """As in ``12/15``."""
        return f"{self.same}/{self.pairs}"


def agreement(ours: Mapping[str, float], published: Mapping[str, float]) -> Agreement:
    """Compare the order of the methods that both have.

    >>> str(agreement({"a": 0.3, "b": 0.2, "c": 0.1}, {"a": 0.9, "b": 0.7, "c": 0.8}))
    '2/3'
    """
    names = [name for name in published if name in ours]
    pairs = [(a, b) for a, b in itertools.combinations(names, 2) if published[a] != published[b]]
    same = sum((ours[a] > ours[b]) == (published[a] > published[b]) and ours[a] != ours[b] for a, b in pairs)
    return Agreement(same, len(pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """A comparison beside a published table of the same metrics.

    Attributes:
        title: Name of the published table.
        published: The published table.
        comparison: Result of our comparison.
        data: Our data.
        oracle: Metrics of the order by true utility, if the data are generated.
    """

    title: str
    published: PublishedTable
    comparison: ComparisonResult
    data: ListData | LogData
    oracle: dict[str, float] | None = None

    def agreements(self) -> dict[str, dict[str, Agreement]]:
        """Pairs of methods in the published order, by data set and metric."""
        ours = {
            method.name: {metric: method.metrics[metric].mean for metric in self.published.metrics}
            for method in self.comparison.methods
        }
        return {
            data: {
                metric: agreement(_column(ours, metric), _column(self.published.figures(data), metric))
                for metric in self.published.metrics
            }
            for data in self.published.values
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
                data: {metric: [one.same, one.pairs] for metric, one in by_metric.items()}
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
        sheets=sheets + ([_oracle_sheet(result.oracle)] if result.oracle else []),
        plots={name: Dots(_records(result), title=f"{result.title}, here and as published")},
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
    if any(one.pairs for one in agreements.values()):
        rows += [[], ["pairs in order here", *(str(agreements[metric]) for metric in metrics)]]
    return Sheet(f"published: {title}, {data}", ["method", *metrics], rows)


def _oracle_sheet(oracle: Mapping[str, float]) -> Sheet:
    title = "oracle: the order by true utility, an upper bound up to chance"
    return Sheet(title, ["", *oracle], [["oracle", *(format_value(value) for value in oracle.values())]])


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
