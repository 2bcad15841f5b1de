"""HTML pages that need nothing else: tables, and pictures as SVG.

Pictures are as wide as the page and place things by shares of that width, so that words keep their size on a telephone.
What is said of a thing stands above it and not beside it, for the same reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Sequence[str | "Cell"]

GENERATOR = '<meta name="generator" content="rankfall'  # by which a page of ours is known

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6576; --line: #d9dee7; --page: #ffffff; --band: #f5f7fa; --best: #0b62bb;
  --color0: #2f7fd6; --color1: #f2b36b; --color2: #e07a5f; --color3: #9b5de5; --color4: #2a9d8f;
  --color5: #8a8f98; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #a3adbb; --line: #344054; --page: #14181f;
  --band: #1d232c; --best: #6cb2ff; --color0: #4b95e6; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0; }
main { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { max-width: 44rem; } .soft, figcaption { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: top; }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: 400; } th.words, td.words { text-align: left; white-space: normal; min-width: 12rem; }
tr.soft td, tr.soft th { color: var(--soft); } td.best { color: var(--best); font-weight: 650; }
figure { margin: 0 0 1.2rem; max-width: 46rem; } figcaption { font-size: .88rem; margin-top: .4rem; }
figure.wide { max-width: none; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--ink); font-size: 14px; paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
svg text.soft { fill: var(--soft); font-size: 12px; }
.legend { margin: 0 0 .6rem; padding: 0; list-style: none; }
.legend li { display: inline-block; margin-right: 1.1rem; font-size: .9rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
pre { background: var(--band); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; font-size: .85rem; }
summary { cursor: pointer; }
@media (max-width: 30rem) { table { font-size: .85rem; } th, td { padding: .3rem .3rem; }
  tbody th { white-space: normal; min-width: 6rem; } th.words, td.words { min-width: 9rem; } }
"""
_ROW, _NAME, _AXIS = 46, 20, 26  # heights: of a row with its name, of the name alone, of an axis


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


def table(head: Sequence[str], rows: Sequence[Row], *, soft: Sequence[Row] = (), caption: str = "") -> str:
    """A table, without headings if there are none; `soft` rows at its end are for comparison."""
    words = [place for row in rows for place, cell in enumerate(row) if isinstance(cell, Cell) and cell.kind == "words"]
    columns = "".join(_heading(name, "words" if place in words else "") for place, name in enumerate(head))
    body = "".join(map(_row, rows)) + "".join(_row(row, "soft") for row in soft)
    above = f"<thead><tr>{columns}</tr></thead>" if head else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="wide"><div class="scroll" tabindex="0"><table>{above}<tbody>{body}</tbody></table></div>'
        f"{below}</figure>"
    )


def _heading(name: str, kind: str) -> str:
    text = escape(name).replace("/", "/<wbr/>")  # a narrow page may break the name of a metric behind its stage
    return f'<th scope="col"{f" class={kind!r}" if kind else ""}>{text}</th>'


def _row(row: Row, kind: str = "") -> str:
    first, *others = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
    cells = "".join(_tag("td", one.kind, escape(one.text)) for one in others)
    return _tag("tr", kind, f'<th scope="row">{escape(first.text)}</th>{cells}')


def _tag(name: str, kind: str, content: str) -> str:
    return f'<{name} class="{kind}">{content}</{name}>' if kind else f"<{name}>{content}</{name}>"


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
    return f"var(--color{number % 6})"


def dots(rows: Sequence[tuple[str, float, float, float]], *, label: str) -> str:
    """A dot and an interval for each name, low, value and high, on an axis that shows their differences."""
    scale = Scale.around([value for _, *values in rows for value in values])
    parts = _ticks(scale, 0, _ROW * len(rows))
    for number, (name, low, value, high) in enumerate(rows):
        top = _ROW * number
        y = top + _NAME + 12
        parts += [
            _text(0, top + 15, f"{name}: {_number(value)}"),
            _line(scale(low), y, scale(high), y, color(0), 3),
            f'<circle cx="{scale(value):.2f}%" cy="{y}" r="6" fill="{color(0)}"/>',
        ]
    return _figure(_ROW * len(rows) + _AXIS, parts, label)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of several pieces that follow each other, shares of 1, with marks on it."""

    name: str
    pieces: Sequence[tuple[float, int]]  # share and the number of a colour
    marks: Sequence[float] = ()


def bars(rows: Sequence[Bar], legend: Mapping[str, int | None], *, label: str) -> str:
    """Bars below each other on an axis from 0 to 1; the legend gives colours by number, None for that of marks."""
    scale = Scale(0.0, 1.0)
    parts = _ticks(scale, 0, _ROW * len(rows))
    for number, bar in enumerate(rows):
        top = _ROW * number
        parts.append(_text(0, top + 15, bar.name))
        left = 0.0
        for share, shade in bar.pieces:
            width = max(0.0, scale(left + share) - scale(left))
            parts.append(
                f'<rect x="{scale(left):.2f}%" y="{top + _NAME}" width="{width:.2f}%" height="{_ROW - _NAME - 6}" '
                f'fill="{color(shade)}"/>'
            )
            left += share
        parts += [
            _line(scale(mark), top + _NAME + 1, scale(mark), top + _ROW - 3, "var(--ink)", 3) for mark in bar.marks
        ]
    return _legend(legend) + _figure(_ROW * len(rows) + _AXIS, parts, label)


def columns(values: Sequence[tuple[str, float]], *, label: str, caption: str = "") -> str:
    """A column for each name, of the height of its share of the largest."""
    height, width = 150, 100 / len(values)
    most = max(value for _, value in values) or 1.0
    parts = []
    for number, (name, value) in enumerate(values):
        tall = height * value / most
        middle = (number + 0.5) * width
        parts += [
            f'<rect x="{number * width + 0.1 * width:.2f}%" y="{_NAME + height - tall:.1f}" width="{0.8 * width:.2f}%" '
            f'height="{tall:.1f}" fill="{color(0)}"/>',
            _text(middle, _NAME + height + 18, name, soft=True, anchor="middle"),
        ]
        if value:
            percent = f"{100 * value:.0f} %" if value >= 0.005 else "<1 %"
            parts.append(_text(middle, _NAME + height - tall - 5, percent, soft=True, anchor="middle"))
    return _figure(_NAME + height + _AXIS, parts, label, caption)


def curves(series: Mapping[str, Sequence[tuple[float, float]]], *, label: str, caption: str = "") -> str:
    """Lines through points (x, y) with x in whole numbers, on one axis."""
    height, margin = 180, 12  # percent on the left for the numbers of the axis
    epochs = Scale.around([x for points in series.values() for x, _ in points], edge=0.02)
    up = Scale.around([y for points in series.values() for _, y in points])

    def across(value: float) -> float:
        return margin + epochs(value) * (100 - margin) / 100

    def y(value: float) -> float:
        return height * (1 - up(value) / 100)

    parts = []
    for tick in up.ticks(4):
        parts += [_line(0, y(tick), 100, y(tick), "var(--line)", 1), _text(0, y(tick) - 4, _number(tick), soft=True)]
    for tick in epochs.ticks(8):
        if tick == int(tick):
            parts.append(_text(across(tick), height + 18, f"{tick:.0f}", soft=True, anchor="middle"))
    for number, points in enumerate(series.values()):
        parts += [
            _line(across(x1), y(y1), across(x2), y(y2), color(number), 2.5) for (x1, y1), (x2, y2) in pairwise(points)
        ]
        parts += [
            f'<circle cx="{across(x):.2f}%" cy="{y(value):.1f}" r="3.5" fill="{color(number)}"/>' for x, value in points
        ]
    legend = {name: number for number, name in enumerate(series)}
    return (_legend(legend) if len(series) > 1 else "") + _figure(height + _AXIS, parts, label, caption)


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


def _ticks(scale: Scale, top: float, bottom: float) -> list[str]:
    """Lines down from round values, which stand below them."""
    parts = []
    for value in scale.ticks():
        x = scale(value)
        anchor = "start" if x < 2 else "end" if x > 98 else "middle"
        parts += [
            _line(x, top, x, bottom, "var(--line)", 1),
            _text(x, bottom + 16, _number(value), soft=True, anchor=anchor),
        ]
    return parts


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    return (
        f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}" '
        'stroke-linecap="round"/>'
    )


def _text(x: float, y: float, text: str, *, soft: bool = False, anchor: str = "start") -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _legend(colors: Mapping[str, int | None]) -> str:
    entries = "".join(
        f'<li><i style="background:{"var(--ink)" if number is None else color(number)}"></i>{escape(name)}</li>'
        for name, number in colors.items()
    )
    return f'<ul class="legend">{entries}</ul>'


def _figure(height: float, parts: Sequence[str], label: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><svg height="{height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(label)}</title>{"".join(parts)}</svg>{below}</figure>'
    )
