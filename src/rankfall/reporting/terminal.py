"""Blocks in a terminal: texts, and tables whose columns continue below where the line ends."""

from __future__ import annotations

import textwrap
from copy import copy
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
    from rich.table import Column

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
            yield _table(one)
            if one.caption:
                yield Text(one.caption.replace("Bold:", "<"), style="dim")


def _table(one: kinds.Table) -> FoldedTable:
    """Return a table with arrows in its headings, and marks beside the best values for those who see no bold text."""
    table = Table() if one.framed else Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown = [place for place, name in enumerate(one.head) if name not in one.page_only]
    for place in shown:
        name = one.head[place].replace("/", "/\n") if one.staged else one.head[place]
        left = place == 0 or not one.framed or one.has_words(place)
        style = "cyan" if place == 0 else None
        heading = f"{name}{kinds.arrow(one.better.get(one.head[place], ''))}"
        if one.framed:
            heading = textwrap.fill(heading, _HEADING, break_long_words=False, break_on_hyphens=False)
        table.add_column(heading, style=style, justify="left" if left else "right")
    drawn_soft = False
    for soft, cells in one.cells():
        if not cells or (soft and not drawn_soft):
            table.add_section()
        if not cells:
            continue
        drawn_soft = soft
        texts = [
            Text(f"{cells[0].text}{kinds.arrow(one.better.get(cells[0].text, ''))}", _STYLES.get(cells[0].kind, ""))
        ]
        for place in shown[1:]:
            if place < len(cells):
                cell = replace(cells[place], ends=None) if one.head[place] in one.numbers_only else cells[place]
                texts.append(Text(cell.line("\n" if one.staged else " "), _STYLES.get(cell.kind, "")))
        table.add_row(*texts, style="dim" if soft else None)
    stages = [one.stages()[place] or str(place) for place in shown[1:]]
    return FoldedTable(table, groups=stages, repeat_single=True)


class FoldedTable:
    """A table that is printed in several parts if it is wider than the terminal; the first column is in every part.

    The title is above the first part and the caption below the last.

    Args:
        table: the whole table.
        groups: a name for each column after the first; neighbours of one name stay together if they fit.
        repeat_single: print the second cell of a row without other cells, such as "failed", in every part.
    """

    def __init__(self, table: Table, groups: Sequence[str] = (), *, repeat_single: bool = False) -> None:
        self.table, self._repeat_single = table, repeat_single
        others = range(1, len(table.columns))
        names = groups or [str(number) for number in others]
        pairs = zip(names, others, strict=True)
        self._blocks = [[number for _, number in block] for _, block in groupby(pairs, key=lambda pair: pair[0])]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts."""
        parts = self._parts(console, options)
        for number, columns in enumerate(parts):
            part = self._part(columns)
            part.title = self.table.title if number == 0 else None
            part.caption = self.table.caption if number == len(parts) - 1 else None
            if number and not part.show_edge:
                yield Text()
            yield part

    def _parts(self, console: Console, options: ConsoleOptions) -> list[list[int]]:
        """Return the numbers of the columns of each part."""

        def fits(columns: list[int]) -> bool:
            wanted = Measurement.get(console, options.update_width(_ANY_WIDTH), self._part(columns)).maximum
            return wanted <= options.max_width

        parts: list[list[int]] = [[]]
        for block in self._blocks:
            if fits([*parts[-1], *block]):
                parts[-1] += block
                continue
            if parts[-1]:
                parts.append([])
            for number in block:
                if parts[-1] and not fits([*parts[-1], number]):
                    parts.append([])
                parts[-1].append(number)
        return parts

    def _part(self, numbers: Sequence[int]) -> Table:
        part = copy(self.table)
        part.columns, part.rows = [], []
        columns: list[Column] = [self.table.columns[number] for number in (0, *numbers)]
        for column in columns:
            part.add_column(column.header, justify=column.justify, style=column.style, overflow="fold")
        cells = list(zip(*(list(column.cells) for column in self.table.columns), strict=True))
        for row, (first, *others) in zip(self.table.rows, cells, strict=True):
            single = self._repeat_single and str(others[0]) and not any(map(str, others[1:]))
            chosen = others[:1] if single else [others[number - 1] for number in numbers]
            part.add_row(first, *chosen, style=row.style, end_section=row.end_section)
        return part
