"""Rows of tables of the documentation, for pages that show what another page has measured.

A page of a method shows rows of the tables of costs and results. Rows are read from those pages when the site is built,
so that a number exists once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from docs_site.markdown import table

if TYPE_CHECKING:
    from collections.abc import Callable

_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        header: Titles of the columns.
        rows: Cells of the rows.
    """

    header: list[str]
    rows: list[list[str]]

    def selected(self, wanted: Callable[[list[str]], bool]) -> str:
        """Return the rows of which `wanted` is true, as Markdown; empty if there is none."""
        return table(self.header, [row for row in self.rows if wanted(row)])


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it.

    >>> anchor("LCRON's table 2 on two platforms")
    'lcrons-table-2-on-two-platforms'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def section(text: str, name: str) -> str:
    """Return the text of a page below a heading, up to the next heading of its level or a higher one.

    Raises:
        ValueError: If no heading has this anchor.
    """
    without_code = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = list(re.finditer(r"^(#+) (.+)$", without_code, re.MULTILINE))
    for place, heading in enumerate(headings):
        if anchor(heading[2]) == name:
            later = (one.start() for one in headings[place + 1 :] if len(one[1]) <= len(heading[1]))
            return without_code[heading.end() : next(later, len(without_code))]
    raise ValueError(f"no heading has the anchor {name!r}")


def tables(text: str) -> list[Table]:
    """Return all tables of a text."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    split = [[_cells(line) for line in block.splitlines()] for block in blocks]
    return [Table(lines[0], lines[2:]) for lines in split if len(lines) > 2]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in _CELLS.split(line.strip().strip("|"))]


def names_in(cell: str) -> set[str]:
    """Return the names of a cell that holds nothing but names as code.

    >>> sorted(names_in("`lapsum_topk`, `sigmoid_topk`"))
    ['lapsum_topk', 'sigmoid_topk']
    >>> names_in('`neural_sort`, gradient "one_minus"')
    set()
    """
    return set(re.findall(r"`(\w+)`", cell)) if re.fullmatch(r"(`\w+`(, | / | and | )?)+", cell) else set()
