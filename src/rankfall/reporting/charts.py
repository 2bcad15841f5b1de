"""Charts: the parts that pages and other figures share, and the charts of pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from rankfall.reporting.chart import Chart, Key, Panel, Strip
from rankfall.reporting.comparison_table import estimate
from rankfall.reporting.svg import (
    GRID,
    Scale,
    band,
    circle,
    color,
    line,
    rect,
    text,
    text_width,
    tick_labels,
    whole_ticks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STRIP, _AXIS = 24, 26  # heights of a row and of an axis
_MANY = 40  # points of a line, above which they are small


# --- parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A line through points (x, y), with a band from low to high if `bands` has (x, low, high)."""

    points: Sequence[tuple[float, float]]
    color: str
    bands: Sequence[tuple[float, float, float]] = ()
    dash: str = ""


@dataclass(frozen=True)
class Axes:
    """Scales and ticks of a chart with two axes."""

    along: Scale
    up: Scale
    ticks: Sequence[float]
    height: float = 180
    width: float = 340  # pixels at least, so that labels of the horizontal axis do not overlap
    margin: float = 12  # percent on the left for the labels of the vertical axis

    def x(self, value: float) -> float:
        """Return the horizontal position in percent."""
        return self.margin + self.along(value) * (100 - self.margin) / 100

    def y(self, value: float) -> float:
        """Return the vertical position in pixels."""
        return self.height * (1 - self.up(value) / 100)


def grid(axes: Axes) -> list[str]:
    """Return the grid lines and labels of both axes."""
    heights = axes.up.ticks(4)
    parts = []
    for tick, label in zip(heights, tick_labels(heights), strict=True):
        parts += [line(0, axes.y(tick), 100, axes.y(tick), GRID, 1), text(0, axes.y(tick) - 4, label)]
    labels = [f"{tick:g}" for tick in axes.ticks] if axes.along.log else tick_labels(axes.ticks)
    free = 0.0  # percent from where the next label may begin
    for tick, label in zip(axes.ticks, labels, strict=True):
        half = 100 * text_width(label) / 2 / axes.width
        if axes.x(tick) - half >= free:
            parts.append(text(axes.x(tick), axes.height + 18, label, anchor="middle"))
            free = axes.x(tick) + 1.4 * half
    return parts


def lines(series: Sequence[Series], axes: Axes) -> list[str]:
    """Return bands, lines and dots of all series."""
    parts = []
    for one in series:
        if one.bands:
            corners = [(axes.x(x), axes.y(low), axes.y(high)) for x, low, high in one.bands]
            parts.append(band(corners, axes.height, one.color))
    for one in series:
        places = [(axes.x(x), axes.y(y)) for x, y in one.points]
        parts += [line(x1, y1, x2, y2, one.color, 2.5, one.dash) for (x1, y1), (x2, y2) in pairwise(places)]
        parts += [circle(x, y, 3.5 if len(places) <= _MANY else 2, one.color) for x, y in places]
    return parts


def interval(scale: Scale, y: float, low: float, value: float, high: float, fill: str) -> list[str]:
    """Return a dot with its confidence interval."""
    return [line(scale(low), y, scale(high), y, fill, 3), circle(scale(value), y, 6, fill)]


# --- charts -------------------------------------------------------------------------------------------------------


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], *, label: str, caption: str = "", title: str = ""
) -> Chart:
    """Return lines through points (x, y), where x are whole numbers, with a legend."""
    return curve_panels({"": series}, label=label, caption=caption, title=title)


def curve_panels(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], *, label: str, caption: str = "", title: str = ""
) -> Chart:
    """Return a panel of curves per name, each on its own vertical axis; series of one name have one colour."""
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    return Chart(
        title=title or _title_of(label),
        label=label,
        panels=[Panel([_curve_strip(series, names)], name=name) for name, series in panels.items()],
        legend=[Key(name, color(number)) for number, name in enumerate(names)],
        caption=caption,
        least=320,
        rows=[
            {"panel": panel, "series": name, "x": x, "y": y}
            for panel, series in panels.items()
            for name, points in series.items()
            for x, y in points
        ],
    )


def _curve_strip(series: Mapping[str, Sequence[tuple[float, float]]], names: Sequence[str]) -> Strip:
    places = [x for points in series.values() for x, _ in points]
    axes = Axes(
        along=Scale.around(places, edge=0.02),
        up=Scale.around([y for points in series.values() for _, y in points]),
        ticks=whole_ticks(places),
    )
    drawn = [Series(points, color(names.index(name))) for name, points in series.items()]
    return Strip([*grid(axes), *lines(drawn, axes)], axes.height + _AXIS)


def intervals(
    rows: Sequence[tuple[str, float, float, float]], *, label: str, caption: str = "", title: str = ""
) -> Chart:
    """Return a dot and an interval for each (name, low, value, high) on one axis that does not start at 0."""
    scale = Scale.around([value for _, *values in rows for value in values])
    strips = [
        Strip(interval(scale, _STRIP / 2, low, value, high, color(0)), _STRIP, name, [estimate(value, low, high)])
        for name, low, value, high in rows
    ]
    return Chart(
        title=title or _title_of(label),
        label=label,
        panels=[Panel(on_axis(strips, scale))],
        caption=caption,
        rows=[dict(zip(("name", "low", "value", "high"), row, strict=True)) for row in rows],
    )


def columns(values: Sequence[tuple[str, float]], *, label: str, caption: str = "", title: str = "") -> Chart:
    """Return a column for each (name, share), scaled to the largest share."""
    height, top, width = 150, 20, 100 / len(values)
    most = max(value for _, value in values) or 1.0
    parts = []
    for number, (name, value) in enumerate(values):
        tall = height * value / most
        middle = (number + 0.5) * width
        parts.append(rect((number + 0.1) * width, top + height - tall, 0.8 * width, tall, color(0)))
        parts.append(text(middle, top + height + 18, name, anchor="middle"))
        if value:
            percent = f"{100 * value:.0f} %" if value >= 0.005 else "<1 %"
            parts.append(text(middle, top + height - tall - 5, percent, anchor="middle"))
    return Chart(
        title=title or _title_of(label),
        label=label,
        panels=[Panel([Strip(parts, top + height + _AXIS)])],
        caption=caption,
        rows=[{"name": name, "share": share} for name, share in values],
    )


def on_axis(strips: Sequence[Strip], scale: Scale, about: int = 5) -> list[Strip]:
    """Return rows with the grid lines of one axis behind them, and the axis below."""
    ticks = scale.ticks(about)
    lined = [
        replace(one, parts=[*(line(scale(tick), 0, scale(tick), one.height, GRID, 1) for tick in ticks), *one.parts])
        for one in strips
    ]
    axis = []
    for tick, words in zip(ticks, tick_labels(ticks), strict=True):
        x = scale(tick)
        axis.append(text(x, 16, words, anchor="start" if x < 2 else "end" if x > 98 else "middle"))
    return [*lined, Strip(axis, _AXIS)]


def _title_of(label: str) -> str:
    return label.partition(":")[0]
