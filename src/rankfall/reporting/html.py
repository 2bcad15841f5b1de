"""HTML pages that need nothing else: tables, and pictures as SVG.

Pictures are as wide as the page and place things by shares of that width, so that words keep their size on a telephone.
What is said of a thing stands above it and not beside it, for the same reason. A table that is wider than the page is
scrolled by itself, and its first column stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.reporting.comparison_table import Cell as Figures

    Row = Sequence[str | "Cell"]

GENERATOR = '<meta name="generator" content="rankfall'  # by which a page of ours is known

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1c2430; --soft: #5b6576; --line: #d9dee7; --page: #ffffff; --band: #f5f7fa; --best: #0b62bb;
  --color0: #2f7fd6; --color1: #e39a3c; --color2: #d9664a; --color3: #9b5de5; --color4: #2a9d8f;
  --color5: #8a8f98; --color6: #c2478d; --color7: #7a9a2f; --color8: #8c5a3c; --color9: #3a4fa3;
  --color10: #c9b400; --color11: #56b4d3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #a3adbb; --line: #344054; --page: #14181f;
  --band: #1d232c; --best: #6cb2ff; --color0: #4b95e6; --color8: #b98562; --color9: #8094e8; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0; }
main { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { max-width: 44rem; } .soft, figcaption { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; overflow-wrap: normal; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: top; }
thead th { white-space: normal; vertical-align: bottom; border-bottom: 2px solid var(--line); }
th.first, tbody th { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--page); }
tbody th { font-weight: 400; } tbody th.long { white-space: normal; min-width: 6rem; overflow-wrap: anywhere; }
th.group { text-align: center; border-bottom: 0; padding-bottom: 0; }
colgroup.group { border-left: 1px solid var(--line); }
th.words, td.words { text-align: left; white-space: normal; min-width: 12rem; overflow-wrap: anywhere; }
td.rest { text-align: left; color: var(--soft); }
td small { display: block; color: var(--soft); font-weight: 400; line-height: 1.2; }
.mark { display: inline-block; width: 0; }
tr.soft td, tr.soft th { color: var(--soft); } td.best { color: var(--best); font-weight: 650; }
figure { margin: 0 0 1.2rem; max-width: 46rem; } figcaption { font-size: .88rem; margin-top: .4rem; }
figure.wide { max-width: none; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--soft); font-size: 12px; paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
.name { font-size: .88rem; line-height: 1.3; padding: .15rem 0; }
.legend { margin: 0 0 .6rem; padding: 0; list-style: none; }
.legend li { display: inline-block; margin-right: 1.1rem; font-size: .9rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
pre { background: var(--band); padding: .8rem 1rem; border-radius: 6px; font-size: .85rem; white-space: pre-wrap; }
summary { cursor: pointer; }
@media (max-width: 30rem) { table { font-size: .85rem; } th, td { padding: .3rem .4rem; } td { white-space: normal; }
  th.words, td.words { min-width: 9rem; } }
"""
_COLORS = 12
_STRIP, _AXIS = 24, 26  # heights: of a row of a picture, of an axis
_LONG = 10  # letters of a name, above which it may go on on the next line; a day has as many
_MANY = 40  # points of a line, above which they are small


def page(title: str, *parts: str) -> str:
    """A whole page; parts are HTML already, and those that are empty are left out."""
    body = "\n".join(part for part in (f"<h1>{escape(title)}</h1>", *parts) if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f'{GENERATOR} {version("rankfall")}"/>\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A part of a page with a heading; nothing if there is nothing in it."""
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>" if body else ""


def paragraph(text: str, *, soft: bool = False) -> str:
    """Words."""
    return _tag("p", "soft" if soft else "", escape(text)) if text else ""


def code(text: str) -> str:
    """What is typed, or a file."""
    return f"<pre>{escape(text)}</pre>"


def folded(summary: str, content: str) -> str:
    """What few want to see at once."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{content}\n</details>"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table that is more than its text."""

    text: str
    kind: str = ""  # best or words
    mark: str = ""  # behind the text; numbers stand below each other with and without one
    below: str = ""  # in small letters


def mean(found: Figures) -> Cell:
    """What was measured, its spread below it: so there is room for many methods or the metrics of many stages."""
    number, sign, spread = found.number.partition("±")
    return Cell(number, "best" if found.best else "", mark=" *" if found.close else "", below=sign + spread)


def table(
    head: Sequence[str], rows: Sequence[Row], *, soft: Sequence[Row] = (), caption: str = "", staged: bool = False
) -> str:
    """A table, without headings if there are none; `soft` rows at its end are for comparison.

    The last cell of a row with too few goes on to the end. If the headings are `staged`, those of a stage
    ("retrieval/recall", "retrieval/lost") stand below its name.
    """
    wide = max(map(len, [head, *rows]))
    words = {place for row in rows for place, cell in enumerate(row) if isinstance(cell, Cell) and cell.kind == "words"}
    kinds = ["first" if place == 0 else "words" if place in words else "" for place in range(len(head))]
    staged = staged and any("/" in name for name in head)
    above = (_staged(head) if staged else _headings(head, kinds)) if head else ""
    body = "".join(_row(row, wide) for row in rows) + "".join(_row(row, wide, "soft") for row in soft)
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="wide"><div class="scroll" tabindex="0"><table>{above}<tbody>{body}</tbody></table></div>'
        f"{below}</figure>"
    )


def _headings(head: Sequence[str], kinds: Sequence[str]) -> str:
    cells = "".join(_tag("th", kind, _breakable(name), scope="col") for name, kind in zip(head, kinds, strict=True))
    return f"<thead><tr>{cells}</tr></thead>"


def _staged(head: Sequence[str]) -> str:
    """Two rows of headings: stages, and what is measured of them."""
    groups, upper, lower = "", "", ""
    for stage, of_stage in groupby(head, key=lambda name: name.rpartition("/")[0]):
        names = [name.rpartition("/")[2] for name in of_stage]
        groups += _tag("colgroup", "group" if stage else "", "", span=len(names))
        if stage:
            upper += _tag("th", "group", _breakable(stage), scope="colgroup", colspan=len(names))
            lower += "".join(_tag("th", "", _breakable(name), scope="col") for name in names)
            continue
        for name in names:
            upper += _tag("th", "first" if name == head[0] else "", _breakable(name), scope="col", rowspan=2)
    return f"{groups}<thead><tr>{upper}</tr><tr>{lower}</tr></thead>"


def _breakable(name: str) -> str:
    """A name that a narrow page may break behind its stage, or between its words."""
    return escape(name).replace("/", "/<wbr/>").replace("_", "_<wbr/>")


def _row(row: Row, wide: int, kind: str = "") -> str:
    first, *others = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
    name = _tag("th", "long" if len(first.text) > _LONG else "", _breakable(first.text), scope="row")
    missing = wide - len(row)
    cells = [_cell(cell) for cell in (others[:-1] if missing else others)]
    rest = _tag("td", "rest", escape(others[-1].text), colspan=1 + missing) if missing else ""
    return _tag("tr", kind, "".join([name, *cells, rest]))


def _cell(cell: Cell) -> str:
    mark = f'<span class="mark">{escape(cell.mark)}</span>' if cell.mark else ""
    below = f"<small>{escape(cell.below)}</small>" if cell.below else ""
    return _tag("td", cell.kind, escape(cell.text) + mark + below)


def _tag(name: str, kind: str, content: str, **attributes: object) -> str:
    told = {"class": kind, **attributes} if kind else attributes
    inside = "".join(f' {key}="{value}"' for key, value in told.items())
    return f"<{name}{inside}>{content}</{name}>"


def figure(value: float | None) -> str:
    """A number as tables have it."""
    return "none" if value is None or math.isnan(value) else f"{value:.4f}"


def flow(content: Any) -> str:
    """A part of a configuration on one line."""
    text: str = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip().removeprefix("{").removesuffix("}")


# --- pictures -----------------------------------------------------------------------------------------------------


def color(number: int) -> str:
    """The colours by number; the first is for what is kept."""
    return f"var(--color{number % _COLORS})"


def dots(rows: Sequence[tuple[str, float, float, float]], *, label: str) -> str:
    """A dot and an interval for each name, low, value and high, on an axis that shows their differences."""
    scale = Scale.around([value for _, *values in rows for value in values])
    y = _STRIP / 2
    strips = [
        (
            f"{name}: {_number(value)}",
            [
                _line(scale(low), y, scale(high), y, color(0), 3),
                f'<circle cx="{scale(value):.2f}%" cy="{y}" r="6" fill="{color(0)}"/>',
            ],
        )
        for name, low, value, high in rows
    ]
    return _strips(strips, scale, label)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of several pieces that follow each other, shares of 1, with marks on it."""

    name: str
    pieces: Sequence[tuple[float, int]]  # share and the number of a colour
    marks: Sequence[float] = ()


def bars(rows: Sequence[Bar], legend: Mapping[str, int | None], *, label: str) -> str:
    """Bars below each other on an axis from 0 to 1; the legend gives colours by number, None for that of marks."""
    scale = Scale(0.0, 1.0)
    strips = []
    for bar in rows:
        parts = []
        left = 0.0
        for share, shade in bar.pieces:
            width = max(0.0, scale(left + share) - scale(left))
            parts.append(
                f'<rect x="{scale(left):.2f}%" y="1" width="{width:.2f}%" height="{_STRIP - 4}" fill="{color(shade)}"/>'
            )
            left += share
        parts += [_line(scale(mark), 2, scale(mark), _STRIP - 1, "var(--ink)", 3) for mark in bar.marks]
        strips.append((bar.name, parts))
    return _legend(legend) + _strips(strips, scale, label)


def _strips(rows: Sequence[tuple[str, Sequence[str]]], scale: Scale, label: str) -> str:
    """Named strips below each other, on one axis.

    The names are no SVG, whose words do not go on on the next line.
    """
    grid = [_line(scale(tick), 0, scale(tick), _STRIP, "var(--line)", 1) for tick in scale.ticks()]
    strips = "".join(
        f'<div class="name">{_breakable(name)}</div>{_svg(_STRIP, [*grid, *parts])}' for name, parts in rows
    )
    axis = _svg(_AXIS, _ticks(scale))
    return f'<figure><div role="img" aria-label="{escape(label)}">{strips}{axis}</div></figure>'


def columns(values: Sequence[tuple[str, float]], *, label: str, caption: str = "") -> str:
    """A column for each name, of the height of its share of the largest."""
    height, top, width = 150, 20, 100 / len(values)
    most = max(value for _, value in values) or 1.0
    parts = []
    for number, (name, value) in enumerate(values):
        tall = height * value / most
        middle = (number + 0.5) * width
        parts += [
            f'<rect x="{number * width + 0.1 * width:.2f}%" y="{top + height - tall:.1f}" width="{0.8 * width:.2f}%" '
            f'height="{tall:.1f}" fill="{color(0)}"/>',
            _text(middle, top + height + 18, name, anchor="middle"),
        ]
        if value:
            percent = f"{100 * value:.0f} %" if value >= 0.005 else "<1 %"
            parts.append(_text(middle, top + height - tall - 5, percent, anchor="middle"))
    return _figure(top + height + _AXIS, parts, label, caption)


def curves(series: Mapping[str, Sequence[tuple[float, float]]], *, label: str, caption: str = "") -> str:
    """Lines through points (x, y) with x in whole numbers, on one axis."""
    height, margin = 180, 12  # percent on the left for the numbers of the axis
    places = [x for points in series.values() for x, _ in points]
    along = Scale.around(places, edge=0.02)
    up = Scale.around([y for points in series.values() for _, y in points])

    def across(value: float) -> float:
        return margin + along(value) * (100 - margin) / 100

    def y(value: float) -> float:
        return height * (1 - up(value) / 100)

    parts = []
    for tick in up.ticks(4):
        parts += [_line(0, y(tick), 100, y(tick), "var(--line)", 1), _text(0, y(tick) - 4, _number(tick))]
    parts += [_text(across(tick), height + 18, str(tick), anchor="middle") for tick in whole_ticks(places)]
    for number, points in enumerate(series.values()):
        size = 3.5 if len(points) <= _MANY else 2
        parts += [
            _line(across(x1), y(y1), across(x2), y(y2), color(number), 2.5) for (x1, y1), (x2, y2) in pairwise(points)
        ]
        parts += [
            f'<circle cx="{across(x):.2f}%" cy="{y(value):.1f}" r="{size}" fill="{color(number)}"/>'
            for x, value in points
        ]
    legend = {name: number for number, name in enumerate(series)}
    return _legend(legend) + _figure(height + _AXIS, parts, label, caption)


class Scale:
    """From values to shares of the width, in percent."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    @classmethod
    def around(cls, values: Sequence[float], *, edge: float = 0.08) -> Scale:
        """With all values on it and some room at both ends."""
        low, high = min(values), max(values)
        room = edge * (high - low) or 0.5 * abs(high) or 0.5
        return cls(low - room, high + room)

    def __call__(self, value: float) -> float:
        return 100 * (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values on the axis."""
        rough = (self.high - self.low) / about
        power = 10 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(number * step, 12) for number in range(first, last + 1)]


def whole_ticks(values: Sequence[float]) -> list[int]:
    """Round whole numbers among days or epochs; an axis has room beside those, but there is no day 0.

    >>> whole_ticks(range(2, 201)), whole_ticks([2, 3])
    ([50, 100, 150, 200], [2, 3])
    """
    low, high = min(values), max(values)
    ticks = [
        int(tick) for tick in Scale.around(values, edge=0.02).ticks(8) if tick == int(tick) and low <= tick <= high
    ]
    return ticks or [int(low)]


def _ticks(scale: Scale) -> list[str]:
    """The round values of an axis."""
    parts = []
    for value in scale.ticks():
        x = scale(value)
        anchor = "start" if x < 2 else "end" if x > 98 else "middle"
        parts.append(_text(x, 16, _number(value), anchor=anchor))
    return parts


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    return (
        f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}" '
        'stroke-linecap="round"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(colors: Mapping[str, int | None]) -> str:
    entries = "".join(
        f'<li><i style="background:{"var(--ink)" if number is None else color(number)}"></i>{escape(name)}</li>'
        for name, number in colors.items()
    )
    return f'<ul class="legend">{entries}</ul>'


def _figure(height: float, parts: Sequence[str], label: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    told = f' role="img" aria-label="{escape(label)}"'
    return f"<figure>{_svg(height, [f'<title>{escape(label)}</title>', *parts], told)}{below}</figure>"


def _svg(height: float, parts: Sequence[str], told: str = "") -> str:
    return f'<svg height="{height:.0f}"{told} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
