"""Blocks as an HTML page.

A page is one file: style and charts are part of it, and it loads nothing. Charts are as wide as the page. Labels are
above the things they name, not beside them, so that pages fit a phone. A table wider than the page scrolls by itself,
and its first column stays in place.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from rankfall import __version__
from rankfall.reporting.charts import LIGHT, breakable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jinja2 import Template

    from rankfall.reporting.blocks import Block, Cell, Table

    Attributes = dict[str, object]

GENERATOR = '<meta name="generator" content="rankfall'  # identifies our pages
_SHORT = 14  # letters of a name that is not wrapped, enough for a date


def page(title: str, blocks: Sequence[Block]) -> str:
    """Return a page as HTML."""
    return _template().render(title=title, blocks=blocks, version=__version__)


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("rankfall.reporting", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters["breakable"] = breakable
    environment.globals |= {"light": LIGHT, "headings": _headings, "body": _body, "kind_of": _kind_of}
    return environment.get_template("page.html")


def _kind_of(block: Block) -> str:
    return type(block).__name__


def _headings(table: Table) -> tuple[list[Attributes], list[list[tuple[str, Attributes]]]]:
    """Return the groups of columns, and one row of headings with their attributes, or two if there are stages."""

    def kind(place: int, name: str, first: str = "first") -> str:
        look = first if place == 0 else "words" if table.has_words(place) else ""
        return f"{look} {table.better.get(name, '')}".strip()

    stages = table.stages()
    if not any(stages):
        return [], [[(name, {"class": kind(place, name), "scope": "col"}) for place, name in enumerate(table.head)]]
    groups: list[Attributes] = []
    upper: list[tuple[str, Attributes]] = []
    lower: list[tuple[str, Attributes]] = []
    for stage, members in groupby(enumerate(table.head), key=lambda one: stages[one[0]]):
        names = list(members)
        groups.append({"class": "group" if stage else "", "span": len(names)})
        if stage:
            upper.append((stage, {"class": "group", "scope": "colgroup", "colspan": len(names)}))
            lower += [
                (name.removeprefix(f"{stage}/"), {"class": kind(place, name), "scope": "col"}) for place, name in names
            ]
        else:
            upper += [(name, {"class": kind(place, name), "scope": "col", "rowspan": 2}) for place, name in names]
    return groups, [upper, lower]


def _body(table: Table) -> Iterator[tuple[bool, tuple[str, str], list[tuple[Cell, Attributes]]]]:
    """Yield whether each row is soft, its name with the class of the name, and the other cells with attributes."""
    rows = list(table.cells())
    width = max([len(table.head), *(len(row) for _, row in rows)])
    for soft, (first, *others) in rows:
        look = ("whole" if len(first.text) <= _SHORT else "", table.better.get(first.text, ""))
        cells: list[tuple[Cell, Attributes]] = [(cell, {"class": cell.kind}) for cell in others]
        missing = width - 1 - len(others)
        if missing:
            cells[-1] = (others[-1], {"class": "rest", "colspan": 1 + missing})
        yield soft, (first.text, " ".join(filter(None, look))), cells
