"""What a result shows, as a list of blocks, the same in a terminal and on a page.

A result becomes blocks in one function (``comparison_blocks``, ``plan_blocks``, ...).
:mod:`rankfall.reporting.terminal` prints the texts and tables. :mod:`rankfall.reporting.html` writes all blocks as a
page, which also has charts, tiles, commands and folded parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import yaml

from rankfall.reporting.charts import Chart, short
from rankfall.training.config.component_checks import higher_is_better, shown_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rankfall.training.cascade_metrics import Estimate

_Item = TypeVar("_Item")

UP, DOWN = "↑", "↓"  # higher is better, lower is better
ARROWS = f"{UP} higher is better, {DOWN} lower is better."


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; a terminal shows those with a style, a page those with a class.

    Attributes:
        text: The words.
        kind: CSS class on a page, such as "lead", "soft" or "warning".
        style: Style in a terminal.
        only: Where it is shown; everywhere by default.
    """

    text: str
    kind: str = ""
    style: str = ""
    only: Literal["", "page", "terminal"] = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """A numbered list of sentences with what each is worth."""

    steps: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Code:
    """A command or a configuration, below what it is for; folded if it has a name. Terminals leave it out."""

    text: str
    about: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table with more than its text."""

    text: str
    kind: str = ""  # best, chosen, words, soft or failed
    mark: str = ""  # the verdict, after the text
    spread: str = ""  # ± and the standard deviation
    ends: tuple[str, str] | None = None  # of the 95 % interval

    def line(self, between: str = " ") -> str:
        """Return the cell as text, with its interval in brackets, and "<" if it is the best."""
        number = " ".join(filter(None, [f"{self.text}{self.spread}", self.mark, "<" * (self.kind == "best")]))
        return f"{number}{between}[{', '.join(self.ends)}]" if self.ends else number

    @property
    def below(self) -> str:
        """What a page writes below the text: the standard deviation or else the interval, to leave room for columns."""
        return self.spread or (" to ".join(self.ends) if self.ends else "")


Row: TypeAlias = "Sequence[str | Cell]"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        head: Headings; a table without headings has none.
        rows: Cells. If a row has too few, its last cell spans the remaining columns. An empty row separates sections,
            in terminals only.
        soft: Rows at the end, such as chance levels, in a softer colour.
        title: Text above the table.
        caption: Text below the table.
        staged: Write "retrieval/alone/recall" and "retrieval/lost" below a common heading "retrieval".
        better: By heading or name of a row, the direction of better values, see :func:`directions`.
        page_only: Headings of columns that a terminal leaves out.
        numbers_only: Headings of columns whose intervals a terminal leaves out.
        framed: Whether a terminal draws a frame.
        only: Where it is shown; everywhere by default.
    """

    head: Sequence[str]
    rows: Sequence[Row]
    soft: Sequence[Row] = ()
    title: str = ""
    caption: str = ""
    staged: bool = False
    better: Mapping[str, str] = field(default_factory=dict)
    page_only: Sequence[str] = ()
    numbers_only: Sequence[str] = ()
    framed: bool = True
    only: Literal["", "terminal"] = ""

    def cells(self) -> Iterator[tuple[bool, list[Cell]]]:
        """Yield whether each row is soft, and its cells."""
        for soft, rows in ((False, self.rows), (True, self.soft)):
            for row in rows:
                yield soft, [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]

    def stages(self) -> list[str]:
        """Return the stage of each heading, "" for those without one."""
        return [name.partition("/")[0] if self.staged and "/" in name else "" for name in self.head]

    def has_words(self, place: int) -> bool:
        """Whether a column has words instead of numbers."""
        return any(place < len(row) and row[place].kind == "words" for _, row in self.cells())


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures in large letters, each a (name, value, direction of better values, notes). Terminals leave them out."""

    tiles: Sequence[tuple[str, str, str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks below a heading."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Columns:
    """Lists of blocks side by side where there is room."""

    columns: Sequence[Sequence[Block]]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are folded below their summary on a page. Terminals leave them out, or print them unfolded."""

    summary: str
    blocks: Sequence[Block]
    printed: bool = False


Block: TypeAlias = Text | Steps | Code | Table | Tiles | Chart | Section | Columns | Details


def table_of(rows: Iterable[_Item], columns: Mapping[str, Callable[[_Item], str | Cell]], **options: Any) -> Table:
    """Return a table with a row for each item; a column has a heading and a function that returns the cell of an item.

    Args:
        rows: The items.
        columns: The functions by heading.
        **options: Further attributes of the table.
    """
    return Table(list(columns), [[cell(one) for cell in columns.values()] for one in rows], **options)


def charts_in(blocks: Iterable[Block]) -> Iterator[Chart]:
    """Yield the charts in blocks from top to bottom."""
    for one in blocks:
        if isinstance(one, Chart):
            yield one
        elif isinstance(one, Section | Details):
            yield from charts_in(one.blocks)
        elif isinstance(one, Columns):
            for column in one.columns:
                yield from charts_in(column)


def figures_in(blocks: Iterable[Block]) -> dict[str, Chart]:
    """Return the charts in blocks by the names of their files."""
    found: dict[str, Chart] = {}
    for chart in charts_in(blocks):
        name, number = chart.name, 2
        while name in found:
            name, number = f"{chart.name}-{number}", number + 1
        found[name] = chart
    return found


# --- cells and words ----------------------------------------------------------------------------------------------


def directions(metrics: Iterable[str]) -> dict[str, str]:
    """Return "up" for each metric of which higher values are better, "down" for others, by their names in tables."""
    return {shown_name(name): "up" if higher_is_better(name) else "down" for name in metrics}


def arrow(direction: str) -> str:
    """Return the arrow after a heading; "" for a column without a direction."""
    return {"up": f" {UP}", "down": f" {DOWN}"}.get(direction, "")


def estimate_cell(one: Estimate, show: Callable[[float], str] = short, kind: str = "") -> Cell:
    """Return a figure with its 95 % interval, "none" for NaN; `show` returns the text of a number."""
    if math.isnan(one.value):
        return Cell("none", kind)
    return Cell(show(one.value), kind, ends=None if math.isnan(one.low) else (show(one.low), show(one.high)))


def share_cell(one: Estimate) -> Cell:
    """Return a share in percent with its interval."""
    ends = None if math.isnan(one.low) else (f"{100 * one.low:.1f}", f"{100 * one.high:.1f}")
    return Cell(percent(one.value), ends=ends)


def words(text: str) -> Cell:
    """Return a cell of text, which is wrapped."""
    return Cell(text, "words")


def decimal(value: float) -> str:
    """Return a number with four decimals, "none" for NaN."""
    return "none" if math.isnan(value) else f"{value:.4f}"


def percent(share: float) -> str:
    """Return a share in percent with one decimal, "-" for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def with_interval(one: Estimate, shape: str = ".4f") -> str:
    """Return a figure and its interval, which is left out if it is unknown.

    Args:
        one: The figure.
        shape: Format of the numbers, such as ``"+.4f"`` for differences.
    """
    if math.isnan(one.low):
        return f"{one.value:{shape}}"
    return f"{one.value:{shape}} [{one.low:{shape}}, {one.high:{shape}}]"


def warned(texts: Iterable[str], only: Literal["", "page"] = "page") -> list[Text]:
    """Return warnings as sentences, each once.

    >>> [one.text for one in warned(["lists are short", "lists are short", "The log is old."])]
    ['Lists are short.', 'The log is old.']
    """
    once = dict.fromkeys(f"{text[0].upper()}{text[1:].rstrip('.')}." for text in texts)
    return [Text(text, "warning", only=only) for text in once]


def flow(content: Any) -> str:
    """Return a part of a configuration on one line."""
    text: str = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip().removeprefix("{").removesuffix("}")
