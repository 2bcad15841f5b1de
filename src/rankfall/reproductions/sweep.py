"""Sweeps: choosing some of their points, and what came out at each beside what was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall.reporting.figures import Lines
from rankfall.reproductions.published import agreement, of_metrics, shown
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reproductions.logs import LogSet
    from rankfall.reproductions.published import Agreement

Point = TypeVar("Point")


def pick(points: Sequence[Point], count: int | None) -> list[Point]:
    """So many of the points, the first and the last among them, evenly spread; all without a count.

    >>> pick([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 4, 7]
    """
    if count is None or count >= len(points):
        return list(points)
    if count == 1:
        return [points[0]]
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSweep:
    """One metric along what was changed, of each method; figures as they were printed."""

    title: str
    source: str  # the data
    along: str  # what was changed
    figures: Mapping[str, Mapping[float, float]]  # of each method, the metric at each point
    metric: str = "joint_recall"
    logarithmic: bool = True


@dataclass(frozen=True, slots=True)
class Swept:
    """A method at one point."""

    method: str  # a key of the published figures, or a method that the paper does not have
    point: float
    comparison: str  # in which it was trained, by title
    label: str  # what it is called there


def sweep_report(
    name: str,
    published: PublishedSweep,
    comparisons: Mapping[str, dict[str, Any]],
    swept: Sequence[Swept],
    data: LogSet,
    notes: Sequence[str] = (),
) -> Report:
    """What came out at each point beside the published figures; `comparisons` by their titles."""
    ours = _found(comparisons, swept, published.metric)
    means = {method: {point: of["mean"] for point, of in at.items()} for method, at in ours.items()}
    points = list(dict.fromkeys(one.point for one in swept))
    agreements = _agreements(means, published.figures, points)
    parts = {title: {"comparison": result, "data": data.summary()} for title, result in comparisons.items()}
    return Report(
        comparisons=[(title, of_metrics(result, [published.metric])) for title, result in comparisons.items()],
        sheets=[_sheet(published, means, points, agreements, data)],
        plots={name: _picture(published, ours, points, data)},
        results={
            **(next(iter(parts.values())) if len(parts) == 1 else {"parts": parts}),
            "swept": {method: [{"at": point, **of} for point, of in at.items()] for method, at in ours.items()},
            "published": {
                "title": published.title,
                "source": published.source,
                "along": published.along,
                "figures": {
                    method: [{"at": point, published.metric: figure} for point, figure in at.items()]
                    for method, at in published.figures.items()
                },
            },
            "pairs_in_the_published_order": {key: [one.same, one.pairs] for key, one in agreements.items()},
        },
        notes=notes,
    )


def _found(
    comparisons: Mapping[str, dict[str, Any]], swept: Sequence[Swept], metric: str
) -> dict[str, dict[float, dict[str, Any]]]:
    """Mean and interval of each method at each point, but of those that failed."""
    figures = {
        (title, method["name"]): method["metrics"][metric]
        for title, result in comparisons.items()
        for method in result["methods"]
    }
    found: dict[str, dict[float, dict[str, Any]]] = {one.method: {} for one in swept}
    for one in swept:
        if (one.comparison, one.label) in figures:
            found[one.method][one.point] = figures[one.comparison, one.label]
    return found


def _agreements(
    ours: Mapping[str, Mapping[float, float]],
    theirs: Mapping[str, Mapping[float, float]],
    points: Sequence[float],
) -> dict[str, Agreement]:
    """Pairs of methods at each point; of a single method, pairs of points."""
    if len(theirs) == 1:
        ((method, figures),) = theirs.items()
        return {method: agreement(_spelled(ours.get(method, {})), _spelled(figures))}
    return {f"{point:g}": agreement(_column(ours, point), _column(theirs, point)) for point in points}


def _spelled(at: Mapping[float, float]) -> dict[str, float]:
    return {f"{point:g}": value for point, value in at.items()}


def _column(of: Mapping[str, Mapping[float, float]], point: float) -> dict[str, float]:
    return {method: at[point] for method, at in of.items() if point in at}


def _sheet(
    published: PublishedSweep,
    ours: Mapping[str, Mapping[float, float]],
    points: Sequence[float],
    agreements: Mapping[str, Agreement],
    data: LogSet,
) -> Sheet:
    single = len(published.figures) == 1

    def rows(source: str, of: Mapping[str, Mapping[float, float]]) -> list[list[str]]:
        return [
            [f"{method}, {source}", *(_cell(at, point, at if single else _column(of, point)) for point in points)]
            for method, at in of.items()
        ]

    what = "points" if single else "methods"
    pairs = [str(one) for one in agreements.values()]
    return Sheet(
        f"{published.title}, {published.metric} by {published.along}: here ({data.name}), and as published "
        f"({published.source})",
        [published.along, *(f"{point:g}" for point in points)],
        [
            *rows("here", ours),
            [],
            *rows("published", published.figures),
            [],
            [f"pairs of {what} in order here", *pairs, *[""] * (len(points) - len(pairs))],
        ],
    )


def _cell(at: Mapping[float, float], point: float, rivals: Mapping[Any, float]) -> str:
    """The figure, with a mark if it is the best of those it is compared with."""
    return f"{shown(at[point], 4)}{' <' * (at[point] == max(rivals.values()))}" if point in at else ""


def _picture(
    published: PublishedSweep,
    ours: Mapping[str, Mapping[float, dict[str, Any]]],
    points: Sequence[float],
    data: LogSet,
) -> Lines:
    here = [
        {"panel": data.name, "series": method, "x": point, "y": of["mean"], "low": of["low"], "high": of["high"]}
        for method, at in ours.items()
        for point, of in at.items()
    ]
    there = [
        {"panel": f"published, {published.source}", "series": method, "x": point, "y": figure}
        for method, at in published.figures.items()
        for point, figure in at.items()
    ]
    return Lines(
        here + there,
        title=f"{published.title}, here and as published",
        subtitle="band: 95 % confidence interval over impressions",
        x=published.along,
        y=published.metric,
        series="",
        log_x=published.logarithmic,
        ticks=sorted({*points, *(point for at in published.figures.values() for point in at)}),
    )
