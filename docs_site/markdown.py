"""Pieces of Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Blocks and spans of code.
CODE = re.compile(r"^ *```.*?^ *```$|(?<!`)(`+)(?!`)[^\n]+?(?<!`)\1(?!`)", re.DOTALL | re.MULTILINE)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, or an empty text if it has no rows.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    <BLANKLINE>
    """
    body = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *body, ""]) if body else ""


def cell(text: str) -> str:
    """Return a text as the content of a cell: on one line, with bars escaped."""
    return " ".join(text.split()).replace(r"\|", "|").replace("|", r"\|")


def code(text: str) -> str:
    """Return a text as code, or an empty text as it is."""
    return f"`{text}`" if text else ""


def page(*parts: str) -> str:
    """Return the parts of a page, separated by blank lines and without empty ones."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def outside(kept: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Return a text in which everything but the matches of a pattern is changed.

    >>> outside(CODE, "a `a` a", str.upper)
    'A `a` A'
    """
    result, end = [], 0
    for found in kept.finditer(text):
        result += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*result, change(text[end:])])
