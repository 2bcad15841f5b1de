"""Blocks in a terminal: texts, and tables whose columns continue below where the line ends."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rankfall.reporting import blocks as kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from rankfall.reporting.blocks import Block

_STYLES = {"best": "bold", "chosen": "bold", "soft": "dim", "failed": "red"}  # of cells
_HEADING = 12  # letters of a line of a heading in a frame
_ANY_WIDTH = 1 << 16  # wider than any table


def show(blocks: Iterable[Block]) -> RenderableType:
    """Return the texts, lists and tables among blocks; the others are for pages."""
    return Group(*_parts(blocks))


def _parts(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    for one in blocks:
        if isinstance(one, kinds.Text):
            if one.only != "page":
                yield Text(one.text, style=one.style)
        elif isinstance(one, kinds.Steps):
            for number, (text, worth) in enumerate(one.steps, 1):
                yield Text.assemble(f"{number}. {text}", (f" {worth}", "dim"))
        elif isinstance(one, kinds.Section) or (isinstance(one, kinds.Details) and one.printed):
            yield from _parts(one.blocks)
        elif isinstance(one, kinds.Columns):
            for column in one.columns:
                yield from _parts(column)
        elif isinstance(one, kinds.Table):
            if one.title:
                yield Text("\n" * (not one.framed) + one.title, style="italic")
            yield _FoldedTable(one)
            if one.caption:
                yield Text(one.caption.replace("Bold:", "<"), style="dim")


def plain_table(*, gap: int = 1) -> Table:
    """Return a table without frame, with a line below the headings."""
    table = Table(box=box.SIMPLE_HEAD)
    table.show_edge, table.pad_edge, table.padding = False, False, (0, gap, 0, 0)
    return table


class _FoldedTable:
    """A table that is printed in several parts if it is wider than the terminal; the first column is in every part."""

    def __init__(self, table: kinds.Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts. Columns of one stage stay together if they fit."""
        one = self._table

        def fits(columns: list[int]) -> bool:
            wanted = Measurement.get(console, options.update_width(_ANY_WIDTH), _part(one, columns)).maximum
            return wanted <= options.max_width

        stages, parts = one.stages(), list[list[int]]([[]])
        shown = [place for place, name in enumerate(one.head) if place and name not in one.page_only]
        for _, group in groupby(shown, key=lambda place: stages[place] or str(place)):
            block = list(group)
            if fits([*parts[-1], *block]):
                parts[-1] += block
                continue
            if parts[-1]:
                parts.append([])
            for place in block:
                if parts[-1] and not fits([*parts[-1], place]):
                    parts.append([])
                parts[-1].append(place)
        for number, columns in enumerate(parts):
            if number and not one.framed:
                yield Text()
            yield _part(one, columns)


def _part(one: kinds.Table, columns: Sequence[int]) -> Table:
    """Return the first column and some others, with arrows in headings and marks beside the best values.

    The second cell of a row without other cells, such as "failed", is in every part.
    """
    part = Table() if one.framed else plain_table()
    for place in (0, *columns) if one.head else ():
        name = one.head[place].replace("/", "/\n") if one.staged else one.head[place]
        left = place == 0 or not one.framed or one.has_words(place)
        heading = f"{name}{kinds.arrow(one.better.get(one.head[place], ''))}"
        if one.framed:
            heading = textwrap.fill(heading, _HEADING, break_long_words=False, break_on_hyphens=False)
        style = "cyan" if place == 0 else None
        part.add_column(heading, style=style, justify="left" if left else "right", overflow="fold")
    drawn_soft = False
    for soft, cells in one.cells():
        if not cells or (soft and not drawn_soft):
            part.add_section()
        if not cells:
            continue
        drawn_soft = soft
        first, others = cells[0], dict(enumerate(cells))
        texts = [Text(f"{first.text}{kinds.arrow(one.better.get(first.text, ''))}", _STYLES.get(first.kind, ""))]
        single = len(cells) > 1 and cells[1].text and not any(cell.text for cell in cells[2:])
        for place in (1,) if single else columns:
            cell = others.get(place, kinds.Cell(""))
            cell = replace(cell, ends=None) if one.head[place] in one.numbers_only else cell
            texts.append(Text(cell.line("\n" if one.staged else " "), _STYLES.get(cell.kind, "")))
        part.add_row(*texts, style="dim" if soft else None)
    return part
