"""Figures as SVG documents of their own, with the colours of light mode."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rankfall.reporting.svg import INK, SOFT, panel, text_width, with_light_colors

if TYPE_CHECKING:
    from collections.abc import Iterable

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
