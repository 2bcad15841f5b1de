"""A chart that is part of a page and also a file: panels of named rows with a legend and a caption."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from rankfall.reporting.documents import document, text_at
from rankfall.reporting.svg import INK, SOFT, panel, text_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WIDTH, _GAP, _LINE = 760, 28, 17  # of a file, in pixels: all panels of a row, the gap between them, a line of text
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
    """Rows that belong together, with a name if a chart has several panels."""

    strips: Sequence[Strip]
    name: str = ""
    note: str = ""


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
        rows: the numbers of the chart.
    """

    title: str
    label: str
    panels: Sequence[Panel]
    legend: Sequence[Key] = ()
    caption: str = ""
    least: int = 160
    rows: Sequence[dict[str, Any]] = ()

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
                x, y = 0.0, y + _LINE
            parts.append(f'<path transform="translate({x:.0f} {y:.0f})" d="{_KEYS[key.kind]}" fill="{key.color}"/>')
            parts.append(text_at(x + 20, y + 11, key.name))
            x += wide
        return parts, y + _LINE + 8 if self.legend else 0.0


def figures_in(content: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts in the content of a page, by the names of their files."""
    found: dict[str, Chart] = {}
    for chart in _charts(content):
        name, number = chart.name, 2
        while name in found:
            name, number = f"{chart.name}-{number}", number + 1
        found[name] = chart
    return found


def _charts(content: Any) -> Iterator[Chart]:
    if isinstance(content, Chart):
        yield content
    elif is_dataclass(content):
        yield from _charts([getattr(content, field.name) for field in fields(content)])
    elif isinstance(content, dict | list | tuple):
        for value in content.values() if isinstance(content, dict) else content:
            yield from _charts(value)


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
    for strip in one.strips:
        yield from _texts(strip.name, strip.notes, width)
        yield strip.height + 4, "".join(strip.parts)


def _texts(name: str, notes: Sequence[str], width: float) -> Iterator[tuple[float, str]]:
    """Yield a name and notes on one line if they fit, or else below each other."""
    note = "; ".join(notes)
    if name and note and text_width(f"{name}  {note}") <= width:
        yield _LINE, text_at(0, 12, name, fill=INK) + text_at(width, 12, note, anchor="end")
        return
    for words, fill in ((name, INK), (note, SOFT)):
        for line in _wrapped(words, int(width / text_width("x"))).split("\n") if words else ():
            yield _LINE, text_at(0, 12, line, fill=fill)


def _wrapped(words: str, letters: int = _LETTERS) -> str:
    return "\n".join(textwrap.wrap(words, letters))
