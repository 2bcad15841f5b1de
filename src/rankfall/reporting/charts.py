"""Charts: the parts that pages and other figures share, the charts of pages, and figures as files.

SVG files need nothing else, PNG files need vl-convert (``rankfall[report]``).
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    Points = Iterable[tuple[float, ...]]  # (x, y) or (x, y, low, high)
    Curves = Mapping[str, Points]  # by the name of the series


COLORS = (
    *("#2f7fd6", "#e39a3c", "#d9664a", "#9b5de5", "#2a9d8f", "#8a8f98"),
    *("#c2478d", "#7a9a2f", "#8c5a3c", "#3a4fa3", "#c9b400", "#56b4d3"),
)
LIGHT = {
    "ink": "#1c2430",
    "soft": "#5b6576",
    "line": "#d9dee7",
    "page": "#ffffff",
    "band": "#f5f7fa",
    "best": "#0b62bb",
    "kept": "#1f6fc2",
    "onkept": "#ffffff",
    "lost": "#f3b78c",
    "gone": "#e9edf3",
    "warn": "#fff4d6",
    **{f"color{number}": color for number, color in enumerate(COLORS)},
}
INK, SOFT, GRID = "var(--ink)", "var(--soft)", "var(--line)"
KEPT, ON_KEPT, LOST, GONE = "var(--kept)", "var(--onkept)", "var(--lost)", "var(--gone)"  # of funnels
_LETTER = 0.56  # mean width of a letter, in multiples of the font size


def color(number: int) -> str:
    """Return a colour by its number; the first is for items that are kept."""
    return f"var(--color{number % len(COLORS)})"


def with_light_colors(svg: str) -> str:
    """Replace the CSS variables by the colours of light mode."""
    return re.sub(r"var\(--(\w+)\)", lambda match: LIGHT[match[1]], svg)


def short(number: float) -> str:
    """Return a number with three decimals and no leading zero, for narrow columns."""
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def interval(low: float, high: float) -> str:
    """Return an interval in brackets; "" if it is not known, that is NaN."""
    return "" if math.isnan(low) else f"[{short(low)}, {short(high)}]"


def estimate(value: float, low: float, high: float) -> str:
    """Return a figure with its interval, if that is known."""
    return f"{short(value)} {interval(low, high)}".strip()


# --- scales -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Maps values between `low` and `high` to percentages of the width or height."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], *, edge: float = 0.08, log: bool = False) -> Scale:
        """Return a scale over all values with a margin at both ends."""
        ends = [math.log10(value) if log else value for value in (min(values), max(values))]
        margin = edge * (ends[1] - ends[0]) or 0.5 * abs(ends[1]) or 0.5
        low, high = ends[0] - margin, ends[1] + margin
        return cls(10**low, 10**high, log) if log else cls(low, high)

    def __call__(self, value: float) -> float:
        """Return the position of a value in percent."""
        low, high, at = (math.log10(one) if self.log else one for one in (self.low, self.high, value))
        return 100 * (at - low) / (high - low)

    def ticks(self, about: int = 5) -> list[float]:
        """Return about this many round values."""
        if self.log:
            return round_powers([self.low, self.high])
        rough = (self.high - self.low) / about
        power = 10 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(number * step, 12) for number in range(first, last + 1)]


def whole_ticks(values: Sequence[float]) -> list[int]:
    """Return round whole numbers between the smallest and the largest value, for days and epochs.

    >>> whole_ticks(range(2, 201)), whole_ticks([2, 3])
    ([50, 100, 150, 200], [2, 3])
    """
    low, high = min(values), max(values)
    ticks = Scale.around(values, edge=0.02).ticks(8)
    return [int(tick) for tick in ticks if tick == int(tick) and low <= tick <= high] or [int(low)]


def round_powers(values: Sequence[float]) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten, or also 2 and 5 times those if there are few.

    >>> round_powers([0.0002, 0.08]), round_powers([0.14, 6.7])
    ([0.001, 0.01], [0.2, 0.5, 1.0, 2.0, 5.0])
    """
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) > 1:
            return inside
    return sorted(set(values))


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return ticks as text, all with as many decimals as tell them apart.

    >>> tick_labels([0.5, 0.75, 1.0]), tick_labels([50, 100]), tick_labels([0.0001, 0.001])
    (['0.50', '0.75', '1.00'], ['50', '100'], ['0.0001', '0.001'])
    """
    spread = max(ticks) - min(ticks) if ticks else 0.0
    if any(0 < abs(tick) < 1e-3 or abs(tick) >= 1e6 for tick in ticks):
        return [f"{tick:.3g}" for tick in ticks]
    for decimals in range(6):
        if all(abs(round(tick, decimals) - tick) <= 1e-6 * spread for tick in ticks):
            break
    return [f"{tick:.{decimals}f}" for tick in ticks]


# --- elements -----------------------------------------------------------------------------------------------------


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    """Return a line; x in percent, y in pixels."""
    return (
        f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}" '
        'stroke-linecap="round"/>'
    )


def circle(x: float, y: float, radius: float, fill: str) -> str:
    """Return a dot."""
    return f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="{radius}" fill="{fill}"/>'


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "", opacity: float = 1.0) -> str:
    """Return a rectangle; x and width in percent."""
    frame = f' stroke="{stroke}" stroke-width="2"' if stroke else ""
    frame += f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
    return f'<rect x="{x:.2f}%" y="{y:.1f}" width="{width:.2f}%" height="{height:.1f}" fill="{fill}"{frame}/>'


def pointer(x: float, y: float, fill: str) -> str:
    """Return a triangle below a place, which points to it."""
    return f'<svg x="{x:.2f}%" y="{y:.1f}" overflow="visible"><path d="M0 0l5 8h-10z" fill="{fill}"/></svg>'


def text(
    x: float, y: float, content: str, *, anchor: str = "start", fill: str = "", size: int = 0, kind: str = ""
) -> str:
    """Return a line of text; `kind` is a class of the style sheet of pages, which decides there."""
    look = (f' class="{kind}"' if kind else "") + (f' fill="{fill}"' if fill else "")
    look += f' font-size="{size}"' if size else ""
    return f'<text x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}"{look}>{escape(content)}</text>'


def panel(x: float, y: float, width: float, height: float, parts: Sequence[str]) -> str:
    """Return a part of a drawing with its own coordinates; all numbers in pixels."""
    return (
        f'<svg x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" overflow="visible">'
        f"{''.join(parts)}</svg>"
    )


def text_width(content: str, size: float = 12) -> float:
    """Return the approximate width of a text in pixels."""
    return _LETTER * size * len(content)


_PAD, _LINE = 18, 18  # pixels: margin, height of a line of text


def document(title: str, subtitle: str, width: float, height: float, parts: Iterable[str]) -> str:
    """Return an SVG document with a title above the parts, which are drawn in an area of this size."""
    notes = subtitle.split("\n") if subtitle else []
    width = max([width, text_width(title, 15), *map(text_width, notes)]) + 2 * _PAD
    top = _PAD + (_LINE + 4) * bool(title) + _LINE * len(notes) + 8
    heading = [text_at(_PAD, _PAD + 12, title, size=15, fill=INK)] if title else []
    heading += [text_at(_PAD, _PAD + 12 + (number + 1) * _LINE, note) for number, note in enumerate(notes)]
    total = top + height + _PAD
    content = "".join([*heading, panel(_PAD, top, width - 2 * _PAD, height, list(parts))])
    return with_light_colors(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{total:.0f}" '
        f'viewBox="0 0 {width:.0f} {total:.0f}" font-family="Helvetica, Arial, Liberation Sans, sans-serif" '
        f'font-size="12" fill="{SOFT}"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{content}</svg>\n'
    )


def text_at(x: float, y: float, content: str, *, anchor: str = "start", fill: str = SOFT, size: int = 12) -> str:
    """Return a line of text at a position in pixels."""
    look = f'text-anchor="{anchor}" fill="{fill}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(content)}</text>'


_WIDTH, _GAP, _CHART_LINE = (
    760,
    28,
    17,
)  # of a file, in pixels: all panels of a row, the gap between them, a line of text
_SMALL = 200  # least width of a panel, up to which a telephone shows two side by side
_LETTERS = 120  # letters of a line of a caption
_KEYS = {"area": "M0 1h14v11h-14z", "line": "M0 5h14v3h-14z", "mark": "M7 1l6 10h-12z"}  # paths in a legend


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    name: str
    color: str
    kind: Literal["area", "line", "mark"] = "area"  # a mark is a triangle


@dataclass(frozen=True)
class Strip:
    """A row of a chart: horizontal positions are percentages, vertical ones are pixels.

    Attributes:
        parts: SVG elements.
        height: height in pixels.
        name: what the row shows.
        notes: figures of the row, one line each.
    """

    parts: Sequence[str]
    height: float
    name: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Panel:
    """Rows that belong together, with a name if a chart has several panels.

    In files the names of rows are above them, or on their left (`beside`) if there is room.
    """

    strips: Sequence[Strip]
    name: str = ""
    note: str = ""
    beside: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart, as HTML in a page (templates write ``{{ chart }}``) and as an SVG document.

    Attributes:
        title: title of the file, and its name.
        label: everything that the chart shows in words, for readers who cannot see it.
        panels: the panels; several are drawn side by side as far as the page is wide enough.
        legend: entries of the legend.
        caption: text below.
        least: least width of a panel in pixels.
    """

    title: str
    label: str
    panels: Sequence[Panel]
    legend: Sequence[Key] = ()
    caption: str = ""
    least: int = 160

    @property
    def name(self) -> str:
        """Name of the file without its ending."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "chart"

    # --- pages --------------------------------------------------------------------------------------------------------

    def __html__(self) -> Markup:
        """Return the chart as part of a page. The names are HTML, because SVG text does not wrap."""
        panels = "".join(map(self._panel_html, self.panels))
        kind = "panels small" if self.least <= _SMALL else "panels"
        below = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        return Markup(
            f'<figure class="chart">{self._legend_html()}'
            f'<div class="{kind}" style="--least:{self.least}px" role="img" aria-label="{escape(self.label)}">'
            f"{panels}</div>{below}</figure>"
        )

    def _panel_html(self, one: Panel) -> str:
        note = f'<span class="note">{escape(one.note)}</span>' if one.note else ""
        head = f'<div class="head"><b>{breakable(one.name)}</b>{note}</div>' if one.name else ""
        named = any(strip.name for strip in one.strips)
        strips = "".join(_strip_html(strip, named) for strip in one.strips)
        return f'<div class="panel">{head}<div class="{"rows" if named else ""}">{strips}</div></div>'

    def _legend_html(self) -> str:
        entries = "".join(
            f'<li><i class="{key.kind}" style="background:{key.color}"></i>{escape(key.name)}</li>'
            for key in self.legend
        )
        return f'<ul class="legend">{entries}</ul>' if entries else ""

    # --- files --------------------------------------------------------------------------------------------------------

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        columns = max(1, min(len(self.panels), _WIDTH // max(self.least, 170)))
        width = (_WIDTH - (columns - 1) * _GAP) / columns
        parts, top = self._legend_svg()
        for begin in range(0, len(self.panels), columns):
            row = [list(_lines_of(one, width)) for one in self.panels[begin : begin + columns]]
            for number, drawn in enumerate(row):
                y = top
                for height, content in drawn:
                    parts.append(panel(number * (width + _GAP), y, width, height, [content]))
                    y += height
            top += max(sum(height for height, _ in drawn) for drawn in row) + _GAP
        caption = "" if self.caption.rstrip(".") == self.title else self.caption
        return document(self.title, _wrapped(caption), _WIDTH, top - _GAP, parts)

    def _legend_svg(self) -> tuple[list[str], float]:
        """Return the legend and its height."""
        parts: list[str] = []
        x, y = 0.0, 0.0
        for key in self.legend:
            wide = 24 + text_width(key.name) + 18
            if x and x + wide > _WIDTH:
                x, y = 0.0, y + _CHART_LINE
            parts.append(f'<path transform="translate({x:.0f} {y:.0f})" d="{_KEYS[key.kind]}" fill="{key.color}"/>')
            parts.append(text_at(x + 20, y + 11, key.name))
            x += wide
        return parts, y + _CHART_LINE + 8 if self.legend else 0.0


def breakable(name: str) -> Markup:
    """Return a name that may be broken after its stage, or between its words."""
    return Markup(escape(name).replace("/", "/<wbr/>").replace("_", "_<wbr/>").replace(" %", "\N{NO-BREAK SPACE}%"))


def _strip_html(strip: Strip, named: bool) -> str:
    drawn = f'<svg height="{strip.height:.0f}" xmlns="http://www.w3.org/2000/svg">{"".join(strip.parts)}</svg>'
    if not named:
        return drawn
    notes = "<br/>".join(map(escape, strip.notes))
    return f'<div class="name">{breakable(strip.name)}</div><div class="note">{notes}</div>{drawn}'


def _lines_of(one: Panel, width: float) -> Iterator[tuple[float, str]]:
    """Yield heights and content of a panel from top to bottom; names and notes are above what they describe."""
    yield from _texts(one.name, [one.note] if one.note else [], width)
    left = max(text_width(strip.name) for strip in one.strips) + 10
    for strip in one.strips:
        if one.beside and left < 0.75 * width:
            name = text_at(left - 10, strip.height / 2 + 4, strip.name, anchor="end")
            yield strip.height + 4, name + panel(left, 0, width - left, strip.height, strip.parts)
            continue
        yield from _texts(strip.name, strip.notes, width)
        yield strip.height + 4, "".join(strip.parts)


def _texts(name: str, notes: Sequence[str], width: float) -> Iterator[tuple[float, str]]:
    """Yield a name and notes on one line if they fit, or else below each other."""
    note = "; ".join(notes)
    if name and note and text_width(f"{name}  {note}") <= width:
        yield _CHART_LINE, text_at(0, 12, name, fill=INK) + text_at(width, 12, note, anchor="end")
        return
    for words, fill in ((name, INK), (note, SOFT)):
        for line in _wrapped(words, int(width / text_width("x"))).split("\n") if words else ():
            yield _CHART_LINE, text_at(0, 12, line, fill=fill)


def _wrapped(words: str, letters: int = _LETTERS) -> str:
    return "\n".join(textwrap.wrap(words, letters))


_STRIP, _AXIS = 24, 26  # heights of a row and of an axis
_SHADE = "#f3e3b3"  # of a range of an axis
_HEIGHT, _MARGIN = 180, 12  # of a panel of curves: pixels, and percent on the left for the labels of the vertical axis
_NARROWEST = 340  # pixels of such a panel at least, so that labels of the horizontal axis do not overlap
_MANY = 40  # points of a line, above which they are small


# --- axes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axes:
    """Scales of a panel with two axes, and the ticks of the horizontal one."""

    along: Scale
    up: Scale
    ticks: Sequence[float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return a position, in percent and in pixels."""
        return _MARGIN + self.along(x) * (100 - _MARGIN) / 100, _HEIGHT * (1 - self.up(y) / 100)

    def grid(self) -> list[str]:
        """Return the grid lines and labels of both axes."""
        heights, parts = self.up.ticks(4), []
        names = [f"{float(f'{tick:.3g}'):g}" for tick in heights] if self.up.log else tick_labels(heights)
        for tick, label in zip(heights, names, strict=True):
            _, y = self.place(self.along.low, tick)
            parts += [line(0, y, 100, y, GRID, 1), text(0, y - 4 if y > 12 else y + 13, label)]
        labels = [f"{tick:g}" for tick in self.ticks] if self.along.log else tick_labels(self.ticks)
        free = 0.0  # percent from where the next label may begin
        for tick, label in zip(self.ticks, labels, strict=True):
            x, _ = self.place(tick, self.up.low)
            half = 100 * text_width(label) / 2 / _NARROWEST
            if x - half >= free:
                parts.append(text(x, _HEIGHT + 18, label, anchor="middle"))
                free = x + 1.4 * half
        return parts

    def band(self, points: Sequence[tuple[float, ...]], fill: str) -> str:
        """Return a pale area between the ends of the intervals of points (x, y, low, high)."""
        outline = [self.place(x, low) for x, _, low, _ in points]
        outline += [self.place(x, high) for x, _, _, high in reversed(points)]
        corners = " ".join(f"{x:.2f},{y:.1f}" for x, y in outline)
        return (
            f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 100 {_HEIGHT}" preserveAspectRatio="none">'
            f'<polygon points="{corners}" fill="{fill}" fill-opacity="0.15"/></svg>'
        )


# --- charts -------------------------------------------------------------------------------------------------------


def curves(
    panels: Mapping[str, Curves],
    *,
    title: str,
    label: str = "",
    caption: str = "",
    x: str = "",
    ticks: Sequence[float] | None = None,
    log_x: bool | Collection[str] = False,
    log_y: bool = False,
    span: tuple[float, float] | None = None,
    fills: Mapping[str, str] | None = None,
    dots: Collection[str] = (),
) -> Chart:
    """Return a panel of curves per name, each on its own vertical axis; series of one name have one colour.

    Args:
        panels: Points of each series, by the name of the panel. Points (x, y, low, high) are drawn with a band.
        title: Title of the file.
        label: Everything that the chart shows in words. Default: the title.
        caption: Text below.
        x: What the horizontal axis shows.
        ticks: Labels of the horizontal axis. Default: round numbers, or whole numbers if all x are.
        log_x: Whether the horizontal axis is logarithmic, if all x are above 0; or the panels in which it is.
        log_y: Whether the vertical axis is logarithmic. Values that are not above 0 are left out.
        span: A range of x to shade.
        fills: Colours by series, instead of those of their order.
        dots: Series that are drawn as dots without a line, those with an interval with a bar.
    """
    found = {
        name: {one: [point for point in sorted(points) if not log_y or point[1] > 0] for one, points in series.items()}
        for name, series in panels.items()
    }
    names = list(dict.fromkeys(name for series in found.values() for name in series))
    colors = {name: color(number) for number, name in enumerate(names)} | dict(fills or {})

    def strip(panel: str, series: Mapping[str, list[tuple[float, ...]]]) -> Strip:
        points = [point for of in series.values() for point in of]
        places = [*(point[0] for point in points), *(span or ())]
        log = panel in log_x if isinstance(log_x, Collection) else log_x
        along = Scale.around(places, edge=0.02, log=log and min(places) > 0)
        default = (
            whole_ticks(places) if not along.log and all(place == int(place) for place in places) else along.ticks(6)
        )
        axes = _Axes(
            along=along,
            up=Scale.around([one for _, *heights in points for one in heights], log=log_y),
            ticks=default if ticks is None else [tick for tick in ticks if 0 <= along(tick) <= 100],
        )
        left, right = (axes.place(end, axes.up.low)[0] for end in span) if span else (0.0, 0.0)
        parts = [rect(left, 0, right - left, _HEIGHT, _SHADE)] if span else []
        parts += [text(55, _HEIGHT + 36, x, anchor="middle", fill=INK)] if x else []
        parts += axes.grid()
        for name, of in series.items():
            known = [point for point in of if len(point) == 4]
            if name in dots:
                ends = [(*axes.place(at, low), axes.place(at, high)[1]) for at, _, low, high in known]
                parts += [line(at, low, at, high, colors[name], 2) for at, low, high in ends]
            elif known:
                parts.append(axes.band(known, colors[name]))
        for name, of in series.items():
            spots = [axes.place(point[0], point[1]) for point in of]
            if name not in dots:
                parts += [line(*start, *end, colors[name], 2.5) for start, end in pairwise(spots)]
            parts += [circle(*spot, 3.5 if len(spots) <= _MANY else 2, colors[name]) for spot in spots]
        return Strip(parts, _HEIGHT + _AXIS + 18 * bool(x))

    return Chart(
        title=title,
        label=label or title,
        panels=[Panel([strip(name, series)], name=name) for name, series in found.items()],
        legend=[Key(name, colors[name]) for name in names],
        caption=caption,
        least=320,
    )


def heat_maps(
    panels: Mapping[str, Mapping[tuple[str, str], float]],
    *,
    title: str,
    label: str = "",
    caption: str = "",
    higher_is_better: bool = True,
    by_column: bool = False,
) -> Chart:
    """Return a map per name, with the values by (row, column) as numbers and colours; the darkest is the best.

    Args:
        panels: Values by (row, column), by the name of the map.
        title: Title of the file.
        label: Everything that the chart shows in words. Default: the title.
        caption: Text below.
        higher_is_better: Whether higher values are better.
        by_column: Compare the values of a column of a map only with each other, and frame the best one.
    """
    rows, columns = (list(dict.fromkeys(key[place] for cells in panels.values() for key in cells)) for place in (0, 1))
    groups: dict[object, list[float]] = {}
    for name, cells in panels.items():
        for (_, column), value in cells.items():
            groups.setdefault((name, column) if by_column else "all", []).append(value)
    best = {group: (max if higher_is_better else min)(values) for group, values in groups.items()}
    farthest = max(abs(best[group] - value) for group, values in groups.items() for value in values) or 1.0
    tall, left = 32, min(40.0, 4 + 3 * max(map(len, rows)))
    wide = (100 - left) / len(columns)
    drawn = []
    for name, cells in panels.items():
        parts = [text(left + (at + 0.5) * wide, 14, column, anchor="middle") for at, column in enumerate(columns)]
        parts += [text(0, 22 + (at + 0.5) * tall + 4, row) for at, row in enumerate(rows)]
        for (row, column), value in cells.items():
            behind = abs(best[(name, column) if by_column else "all"] - value)
            share = 1 - behind / farthest
            x, y = left + columns.index(column) * wide, 22.0 + rows.index(row) * tall
            parts.append(rect(x, y, wide, tall, KEPT, opacity=0.1 + 0.9 * share))
            if by_column and not behind:
                parts.append(rect(x + 0.04 * wide, y + 1.5, 0.92 * wide, tall - 3, "none", color(1)))
            ink, kind = (ON_KEPT, "on") if share > 0.5 else (INK, "in")
            parts.append(text(x + wide / 2, y + tall / 2 + 4, short(value), anchor="middle", fill=ink, kind=kind))
        drawn.append(Panel([Strip(parts, 22 + tall * len(rows))], name))
    least = max(240, 58 * (len(columns) + 1))
    return Chart(title=title, label=label or title, panels=drawn, caption=caption, least=least)


def dots(
    panels: Mapping[str, Mapping[str, tuple[float, ...]]],
    *,
    title: str,
    label: str = "",
    caption: str = "",
    numbers: bool = False,
    best: Mapping[str, Collection[str]] | None = None,
    least: int = 160,
) -> Chart:
    """Return rows with a dot for a value and a line for its interval; each panel has an axis that does not start at 0.

    Args:
        panels: (value, low, high), (value,) or () for nothing by the name of the row, by the name of the panel.
        title: Title of the file.
        label: Everything that the chart shows in words. Default: the title.
        caption: Text below.
        numbers: Whether rows have their numbers beside them. All need an interval then.
        best: Rows of each panel that are marked as the best.
        least: Least width of a panel in pixels.
    """
    height, radius, drawn = (_STRIP, 6.0, []) if numbers else (18, 4.5, [])
    for panel_name, rows in panels.items():
        scale = Scale.around([value for values in rows.values() for value in values])
        strips = []
        for name, values in rows.items():
            fill = color(2) if best and name in best.get(panel_name, ()) else color(0)
            parts = [line(scale(values[1]), height / 2, scale(values[2]), height / 2, fill, 3)] if values[1:] else []
            parts += [circle(scale(values[0]), height / 2, radius, fill)] if values else []
            strips.append(Strip(parts, height, name, [estimate(*values)] if numbers else ()))
        drawn.append(Panel(on_axis(strips, scale, 5 if numbers else 3), panel_name, beside=not numbers))
    return Chart(title=title, label=label or title, panels=drawn, caption=caption, least=least)


def columns(values: Sequence[tuple[str, float]], *, title: str, label: str, caption: str = "") -> Chart:
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
        title=title,
        label=label,
        panels=[Panel([Strip(parts, top + height + _AXIS)])],
        caption=caption,
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


# --- files ----------------------------------------------------------------------------------------------------------

INSTALL = "pip install 'rankfall[report]'"
PNG, SVG = ".png", ".svg"


class MissingExtraError(ImportError):
    """The library that writes PNG files is not installed."""


def save(plots: Mapping[str, Chart], out: Path, *, formats: Sequence[str] = (PNG, SVG)) -> list[Path]:
    """Write each figure to ``NAME.png`` and ``NAME.svg``, and return the files.

    Raises:
        MissingExtraError: PNG is among the formats, and vl-convert is not installed. No file is written.
    """
    convert: Any = None
    if PNG in formats:
        try:
            import vl_convert as convert
        except ImportError:
            raise MissingExtraError(f"no PNG: vl-convert-python is not installed: {INSTALL}") from None
    files = []
    for name, plot in plots.items():
        svg = plot.svg()
        for ending in formats:
            file = out / f"{name}{ending}"
            content = svg.encode() if ending == SVG else convert.svg_to_png(svg, ppi=144)
            write_file(file, content)
            files.append(file)
    return files
