"""The page of what the papers contain: it is up to date, complete, and every name and command on it exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from docs_site.coverage import page
from rankfall.reproductions.catalogue import papers, reproductions

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "coverage.md"
STATEMENTS = [(paper.name, statement) for paper in papers() for statement in paper.statements]

# tables and figures with content that can be measured or shown, counted in the papers
EXPECTED: dict[str, dict[str, Sequence[int]]] = {
    "arf": {"table": range(1, 10), "figure": range(2, 7)},
    "lambdaloss": {"table": range(1, 3), "figure": range(1, 2)},
    "pirank": {"table": range(1, 2), "figure": [1, *range(4, 8)]},
    "lcron": {"table": range(1, 13), "figure": range(2, 3)},
    "dftopk": {"table": range(1, 7), "figure": range(2, 6)},
}
DRAWINGS = {"ARF": [1], "PiRank": [2, 3], "LCRON": [1], "DFTopK": [1]}  # figures without anything to measure


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make docs-tables`"


def test_every_table_and_figure_has_an_entry() -> None:
    expected = {
        f"{paper}-{kind}{number}"
        for paper, kinds in EXPECTED.items()
        for kind, numbers in kinds.items()
        for number in numbers
    }
    assert expected <= reproductions().keys()


def test_drawings_are_mentioned() -> None:
    places = {(paper, statement.place) for paper, statement in STATEMENTS}
    assert {(paper, f"figure {number}") for paper, numbers in DRAWINGS.items() for number in numbers} <= places


def test_names_and_commands_exist() -> None:
    for paper, statement in STATEMENTS:
        text = f"{getattr(statement, 'where', '')} {getattr(statement, 'note', '')}"
        for name in re.findall(r"rankfall reproduce ([a-z]+-\S+)", text):
            assert name.rstrip(".,;`") in reproductions(), (paper, statement)
        for name in re.findall(r"\brankfall(?:\.\w+)+", text):
            assert _exists(name), (paper, statement)


def _exists(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute, None)
        return found is not None
    return False
