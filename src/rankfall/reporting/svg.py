"""SVG elements, scales and colours: the parts of all charts, on pages and in files.

Horizontal positions are percentages of the width and vertical ones are pixels, so a chart on a page is as wide as the
page while its text keeps its size. Colours are CSS variables, which pages define for light and dark mode and files
replace by the light values.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float, dash: str = "") -> str:
    """Return a line; x in percent, y in pixels."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}" '
        f'stroke-linecap="round"{dashes}/>'
    )


def circle(x: float, y: float, radius: float, fill: str) -> str:
    """Return a dot."""
    return f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="{radius}" fill="{fill}"/>'


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "") -> str:
    """Return a rectangle; x and width in percent."""
    frame = f' stroke="{stroke}" stroke-width="2"' if stroke else ""
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


def band(points: Sequence[tuple[float, float, float]], height: float, fill: str) -> str:
    """Return a pale area between two heights; points are x in percent, and two y in pixels."""
    outline = [(x, low) for x, low, _ in points] + [(x, high) for x, _, high in reversed(points)]
    corners = " ".join(f"{x:.2f},{y:.1f}" for x, y in outline)
    return (
        f'<svg width="100%" height="{height:.0f}" viewBox="0 0 100 {height:.0f}" preserveAspectRatio="none">'
        f'<polygon points="{corners}" fill="{fill}" fill-opacity="0.15"/></svg>'
    )


def panel(x: float, y: float, width: float, height: float, parts: Sequence[str]) -> str:
    """Return a part of a drawing with its own coordinates; all numbers in pixels."""
    return (
        f'<svg x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" overflow="visible">'
        f"{''.join(parts)}</svg>"
    )


def text_width(content: str, size: float = 12) -> float:
    """Return the approximate width of a text in pixels."""
    return _LETTER * size * len(content)
