"""Charts: the parts that pages and files share, and the charts of pages as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from rankfall.reporting.svg import (
    GRID,
    INK,
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


# --- charts of pages ----------------------------------------------------------------------------------------------


def curves(series: Mapping[str, Sequence[tuple[float, float]]], *, label: str, caption: str = "") -> Markup:
    """Return lines through points (x, y), where x are whole numbers, with a legend."""
    places = [x for points in series.values() for x, _ in points]
    axes = Axes(
        along=Scale.around(places, edge=0.02),
        up=Scale.around([y for points in series.values() for _, y in points]),
        ticks=whole_ticks(places),
    )
    drawn = [Series(points, color(number)) for number, points in enumerate(series.values())]
    legend = {name: number for number, name in enumerate(series)}
    return _legend(legend) + _figure(axes.height + _AXIS, [*grid(axes), *lines(drawn, axes)], label, caption)


def intervals(rows: Sequence[tuple[str, float, float, float]], *, label: str) -> Markup:
    """Return a dot and an interval for each (name, low, value, high) on one axis that does not start at 0."""
    scale = Scale.around([value for _, *values in rows for value in values])
    return _strips(
        [
            (f"{name}: {value:.3f}", interval(scale, _STRIP / 2, low, value, high, color(0)))
            for name, low, value, high in rows
        ],
        scale,
        label,
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of consecutive pieces, which are shares of 1, with marks on it."""

    name: str
    pieces: Sequence[tuple[float, int]]  # share and number of a colour
    marks: Sequence[float] = ()


def bars(rows: Sequence[Bar], legend: Mapping[str, int | None], *, label: str) -> Markup:
    """Return bars on an axis from 0 to 1; the legend has the numbers of colours, None for the colour of marks."""
    scale = Scale(0.0, 1.0)
    strips = []
    for bar in rows:
        parts = []
        left = 0.0
        for share, number in bar.pieces:
            width = max(0.0, scale(left + share) - scale(left))
            parts.append(rect(scale(left), 1, width, _STRIP - 4, color(number)))
            left += share
        parts += [line(scale(mark), 2, scale(mark), _STRIP - 1, INK, 3) for mark in bar.marks]
        strips.append((bar.name, parts))
    return _legend(legend) + _strips(strips, scale, label)


def columns(values: Sequence[tuple[str, float]], *, label: str, caption: str = "") -> Markup:
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
    return _figure(top + height + _AXIS, parts, label, caption)


def breakable(name: str) -> Markup:
    """Return a name that may be broken after its stage, or between its words."""
    return Markup(escape(name).replace("/", "/<wbr/>").replace("_", "_<wbr/>"))


def _strips(rows: Sequence[tuple[str, Sequence[str]]], scale: Scale, label: str) -> Markup:
    """Return named rows on one axis. The names are HTML, because SVG text does not wrap."""
    ticks = scale.ticks()
    vertical = [line(scale(tick), 0, scale(tick), _STRIP, GRID, 1) for tick in ticks]
    strips = "".join(
        f'<div class="name">{breakable(name)}</div>{_svg(_STRIP, [*vertical, *parts])}' for name, parts in rows
    )
    axis = []
    for tick, words in zip(ticks, tick_labels(ticks), strict=True):
        x = scale(tick)
        axis.append(text(x, 16, words, anchor="start" if x < 2 else "end" if x > 98 else "middle"))
    return Markup(f'<figure><div role="img" aria-label="{escape(label)}">{strips}{_svg(_AXIS, axis)}</div></figure>')


def _legend(colors: Mapping[str, int | None]) -> Markup:
    entries = "".join(
        f'<li><i style="background:{INK if number is None else color(number)}"></i>{escape(name)}</li>'
        for name, number in colors.items()
    )
    return Markup(f'<ul class="legend">{entries}</ul>')


def _figure(height: float, parts: Sequence[str], label: str, caption: str = "") -> Markup:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    attributes = f' role="img" aria-label="{escape(label)}"'
    return Markup(f"<figure>{_svg(height, [f'<title>{escape(label)}</title>', *parts], attributes)}{below}</figure>")


def _svg(height: float, parts: Sequence[str], attributes: str = "") -> str:
    return f'<svg height="{height:.0f}"{attributes} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
