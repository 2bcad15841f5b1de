"""Published figures, and ours beside them. What can be compared is the order of methods and the gaps between them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Dots
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.compare import higher_is_better

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.datasets import DataSet
    from rankfall.reproductions.logs import LogSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A table as it was printed: of each data set and method, one figure for each metric, None where it has none."""

    title: str
    metrics: tuple[str, ...]
    figures: Mapping[str, Mapping[str, tuple[float | None, ...]]]
    unit: float = 1.0  # what 1 was printed as: 100 in tables of percent
    digits: int = 3  # of a figure

    def values(self, source: str) -> dict[str, dict[str, float]]:
        """Of each method and metric, on the metric's own scale."""
        of = self.figures[source]
        return {
            name: {
                metric: figure / self._unit(metric)
                for metric, figure in zip(self.metrics, row, strict=True)
                if figure is not None
            }
            for name, row in of.items()
        }

    def _unit(self, metric: str) -> float:
        return 1.0 if metric == "arp" else self.unit

    def as_data(self) -> dict[str, Any]:
        """For results.json, as printed."""
        return {
            "title": self.title,
            "unit": self.unit,
            "figures": {
                source: {name: dict(zip(self.metrics, row, strict=True)) for name, row in of.items()}
                for source, of in self.figures.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of the pairs of methods that are apart in the paper, how many stand in the same order here."""

    same: int
    pairs: int

    def __str__(self) -> str:
        """As in ``12/15``."""
        return f"{self.same}/{self.pairs}"


def agreement(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Agreement:
    """Compare the order of the methods that both have.

    >>> str(agreement({"a": 0.3, "b": 0.2, "c": 0.1}, {"a": 0.9, "b": 0.7, "c": 0.8}))
    '2/3'
    """
    names = [name for name in theirs if name in ours]
    pairs = [(a, b) for a, b in itertools.combinations(names, 2) if theirs[a] != theirs[b]]
    same = sum((ours[a] > ours[b]) == (theirs[a] > theirs[b]) and ours[a] != ours[b] for a, b in pairs)
    return Agreement(same, len(pairs))


def table_report(
    name: str,
    result: dict[str, Any],
    published: Published,
    data: DataSet | LogSet,
    oracle: dict[str, float] | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """A comparison beside a published table of the same methods and metrics."""
    ours = _means(result, published.metrics)
    agreements = {
        source: {
            metric: agreement(_column(ours, metric), _column(published.values(source), metric))
            for metric in published.metrics
        }
        for source in published.figures
    }
    return Report(
        comparisons=[(f"{name} on {data.name}", of_metrics(result, published.metrics))],
        sheets=[_sheet(source, published, agreements[source]) for source in published.figures]
        + ([_oracle_sheet(oracle)] if oracle else []),
        plots={name: Dots(_records(result, published, data), title=f"{published.title}, here and as published")},
        results={
            "comparison": result,
            "published": published.as_data(),
            "pairs_in_the_published_order": {
                source: {metric: [one.same, one.pairs] for metric, one in of.items()}
                for source, of in agreements.items()
            },
            "oracle": oracle,
            "data": data.summary(),
        },
        notes=notes,
    )


def of_metrics(result: dict[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    """A comparison by some of its metrics."""
    methods = [
        {**method, "metrics": {metric: method["metrics"][metric] for metric in metrics}} for method in result["methods"]
    ]
    return {**result, "metrics": list(metrics), "methods": methods}


def joined(parts: Mapping[str, Report]) -> Report:
    """Several comparisons in one report."""
    reports = list(parts.values())
    return Report(
        comparisons=[one for report in reports for one in report.comparisons],
        sheets=[sheet for report in reports for sheet in report.sheets],
        plots={name: plot for report in reports for name, plot in report.plots.items()},
        results={"parts": {name: report.results for name, report in parts.items()}},
        notes=list(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def _means(result: dict[str, Any], metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    return {
        method["name"]: {metric: method["metrics"][metric]["mean"] for metric in metrics}
        for method in result["methods"]
    }


def _column(values: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, float]:
    return {name: of[metric] for name, of in values.items() if metric in of}


def _sheet(source: str, published: Published, agreements: Mapping[str, Agreement]) -> Sheet:
    values = published.values(source)
    metrics = [metric for metric in published.metrics if _column(values, metric)]
    best = {metric: _best(metric, _column(values, metric)) for metric in metrics}

    def cell(of: Mapping[str, float], metric: str) -> str:
        return f"{shown(of[metric], published.digits)}{' <' * (of[metric] == best[metric])}" if metric in of else ""

    rows = [[name, *(cell(of, metric) for metric in metrics)] for name, of in values.items()]
    if any(one.pairs for one in agreements.values()):
        rows += [[], ["pairs in order here", *(str(agreements[metric]) for metric in metrics)]]
    return Sheet(f"published: {published.title}, {source}", ["method", *metrics], rows)


def _oracle_sheet(oracle: Mapping[str, float]) -> Sheet:
    title = "oracle: the order by the planted utility, which nothing beats but by luck"
    return Sheet(title, ["", *oracle], [["oracle", *(shown(value) for value in oracle.values())]])


def _best(metric: str, values: Mapping[str, float]) -> float:
    return (max if higher_is_better(metric) else min)(values.values())


def shown(value: float, digits: int = 3) -> str:
    """As tables print a figure: ``.413``, ``46.75``."""
    text = f"{value:.{digits}f}" if abs(value) < 1 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def _records(result: dict[str, Any], published: Published, data: DataSet | LogSet) -> list[dict[str, Any]]:
    records = []
    for method in result["methods"]:
        for metric in published.metrics:
            of = method["metrics"][metric]
            record = {"method": method["name"], "source": data.name, "metric": metric, "value": of["mean"]}
            records.append(record | {"low": of["low"], "high": of["high"]})
    for source in published.figures:
        for name, of in published.values(source).items():
            records += [
                {"method": name, "source": f"published, {source}", "metric": metric, "value": value}
                for metric, value in of.items()
            ]
    return records
