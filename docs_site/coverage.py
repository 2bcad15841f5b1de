"""The page that lists every table, figure, equation and protocol of the papers, and where we have it.

``python -m docs_site.coverage FILE`` writes it; ``make docs-tables`` calls this.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.reproductions.catalogue import papers
from rankfall.reproductions.paper_schema import PublishedOnly, PublishedSweep, PublishedTable, mean_of
from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from rankfall.reproductions.catalogue import Paper
    from rankfall.reproductions.paper_schema import Reproduction, Statement

STATES = ("runs", "done", "tested", "differs", "unavailable")
HEAD = """# Coverage of the papers

This page lists every table, figure, equation and protocol of the five papers. `make docs-tables` generates it from
the files in `src/rankfall/reproductions/papers`, which also hold the printed numbers; [reproductions](reproductions.md)
describes how tables are run.

| state | meaning |
|---|---|
| *runs* | a command measures it and prints it beside the published numbers |
| *done* | the library has it as the paper states it |
| *tested* | a command or a test checks the claim; the outcome is stated where it is clear |
| *differs* | the library has it, or the claim holds, with the stated difference |
| *unavailable* | it needs data or traffic that is not public; printed numbers are shown |
"""


def page() -> str:
    """Return the page in Markdown."""
    return "\n".join([HEAD, _summary(), *(_section(paper) for paper in papers())])


def _summary() -> str:
    rows = [
        [
            f"[{paper.name}](#{_anchor(paper.name)})",
            f"{len(paper.reproductions)}",
            f"{sum(_numbers(one) for one in paper.reproductions):,}",
            *(f"{_states(paper).count(state)}" for state in STATES),
        ]
        for paper in papers()
    ]
    columns = ["paper", "tables and figures", "printed numbers", *STATES]
    return _table(columns, rows, "|---|" + "---:|" * (len(columns) - 1))


def _section(paper: Paper) -> str:
    reproduced = [_reproduction_row(one) for one in paper.reproductions]
    parts = [
        f"## {paper.name}\n",
        f"{paper.reference}.\n",
        _table(
            ["table or figure", "shows", "printed numbers", "state", "command"], reproduced, "|---|---|---:|---|---|"
        ),
    ]
    for kind, title in (("equation", "Equations"), ("protocol", "Protocols"), ("claim", "Claims")):
        if rows := [_statement_row(one) for one in paper.statements if one.kind == kind]:
            parts += [
                f"### {paper.name}: {title.lower()}\n",
                _table(["place", "states", "state", "where", "note"], rows),
            ]
    return "\n".join(parts)


def _reproduction_row(one: Reproduction) -> list[str]:
    if isinstance(one, PublishedOnly):
        return [
            one.place,
            one.shows,
            f"{_numbers(one) or ''}",
            "unavailable",
            f"`rankfall reproduce {one.id}` shows it",
        ]
    return [one.place, one.shows, f"{_numbers(one) or ''}", "runs", f"`rankfall reproduce {one.id}`"]


def _statement_row(one: Statement) -> list[str]:
    return [one.place, one.what, _state(one), f"`{one.where}`" if one.where else "", one.note]


def _state(one: Statement) -> str:
    return "tested" if one.kind == "claim" and one.state == "done" else one.state


def _numbers(one: Reproduction) -> int:
    """The number of printed numbers that the file holds."""
    published = getattr(one, "published", None)
    if not isinstance(published, PublishedTable | PublishedSweep):
        return 0
    return sum(mean_of(cell.printed) is not None for cell in published.cells())


def _states(paper: Paper) -> list[str]:
    reproduced = ["unavailable" if isinstance(one, PublishedOnly) else "runs" for one in paper.reproductions]
    return reproduced + [_state(one) for one in paper.statements]


def _anchor(title: str) -> str:
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _table(columns: list[str], rows: list[list[str]], rule: str = "") -> str:
    lines = ["| " + " | ".join(columns) + " |", rule or "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_file(Path(sys.argv[1]), page())
