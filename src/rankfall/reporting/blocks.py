"""Tables and tiles, and figures with their 95 % intervals as text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import yaml

from rankfall.training.config.component_checks import higher_is_better, shown_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rankfall.reporting.comparison import MetricCell
    from rankfall.training.cascade_metrics import Estimate

    Row = Sequence[str | "Cell"]

UP, DOWN = "↑", "↓"  # higher is better, lower is better


def with_interval(one: Estimate, shape: str = ".4f") -> str:
    """Return a figure and its interval, which is left out if it is unknown.

    Args:
        one: The figure.
        shape: Format of the numbers, such as ``"+.4f"`` for differences.
    """
    if math.isnan(one.low):
        return f"{one.value:{shape}}"
    return f"{one.value:{shape}} [{one.low:{shape}}, {one.high:{shape}}]"


def percent(share: float) -> str:
    """Return a share in percent with one decimal, "-" for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def percents(one: Estimate) -> str:
    """Return a share and its interval in percent."""
    return percent(one.value) if math.isnan(one.low) else f"{percent(one.value)} [{_ends(one, ', ')}]"


def percent_ends(one: Estimate) -> str:
    """Return the interval of a share in percent, nothing if it is unknown."""
    return "" if math.isnan(one.low) else _ends(one, " to ")


def _ends(one: Estimate, between: str) -> str:
    return f"{100 * one.low:.1f}{between}{100 * one.high:.1f}"


def short(number: float) -> str:
    """Return a number with three decimals and no leading zero, for narrow columns."""
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def estimate(value: float, low: float, high: float) -> str:
    """Return a figure with its interval."""
    return f"{short(value)} [{short(low)}, {short(high)}]"


ARROWS = "↑ higher is better, ↓ lower is better."
_SHORT = 14  # letters of a name that is not wrapped, enough for a date


# --- tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table with more than its text."""

    text: str
    kind: str = ""  # CSS class, such as best or words
    mark: str = ""  # after the text, without changing the alignment of numbers
    below: str = ""  # in small letters
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page.

    Attributes:
        head: headings; a table without headings has none.
        rows: cells. If a row has too few, its last cell spans the remaining columns.
        soft: rows at the end, such as chance levels, in a softer colour.
        caption: text below the table.
        staged: write "retrieval/alone/recall" and "retrieval/lost" below a common heading "retrieval".
        better: by heading or name of a row, the direction of better values, see :func:`directions`.
    """

    head: Sequence[str]
    rows: Sequence[Row]
    soft: Sequence[Row] = ()
    caption: str = ""
    staged: bool = False
    better: Mapping[str, str] = field(default_factory=dict)

    def column_groups(self) -> list[Cell]:
        """Return a group of columns per stage."""
        if not self._has_stages():
            return []
        return [Cell("", "group" if stage else "", attributes={"span": len(names)}) for stage, names in self._stages()]

    def heading_rows(self) -> list[list[Cell]]:
        """Return one row of headings, or two if there are stages."""
        if not self._has_stages():
            return [
                [
                    Cell(name, self._with_better(self._kind(place), name), attributes={"scope": "col"})
                    for place, name in enumerate(self.head)
                ]
            ]
        upper, lower = [], []
        for stage, names in self._stages():
            if stage:
                upper.append(Cell(stage, "group", attributes={"scope": "colgroup", "colspan": len(names)}))
                lower += [
                    Cell(name, self._with_better("", f"{stage}/{name}"), attributes={"scope": "col"}) for name in names
                ]
            else:
                spanning = {"scope": "col", "rowspan": 2}
                upper += [
                    Cell(name, self._with_better("first" * (name == self.head[0]), name), attributes=spanning)
                    for name in names
                ]
        return [upper, lower]

    def body_rows(self) -> Iterator[tuple[str, Cell, list[Cell]]]:
        """Yield the class of each row, its heading and its other cells."""
        width = max(map(len, [self.head, *self.rows]))
        for kind, rows in (("", self.rows), ("soft", self.soft)):
            for row in rows:
                first, *others = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
                look = ("whole" if len(first.text) <= _SHORT else "", self.better.get(first.text, ""))
                name = Cell(first.text, mark=" ".join(filter(None, look)), attributes={"scope": "row"})
                missing = width - len(row)
                if missing:
                    others[-1] = Cell(others[-1].text, "rest", attributes={"colspan": 1 + missing})
                yield kind, name, others

    def _has_stages(self) -> bool:
        return self.staged and any("/" in name for name in self.head)

    def _stages(self) -> Iterator[tuple[str, list[str]]]:
        for stage, names in groupby(self.head, key=lambda name: name.partition("/")[0] if "/" in name else ""):
            yield stage, [name.removeprefix(f"{stage}/") for name in names]

    def _with_better(self, kind: str, name: str) -> str:
        return f"{kind} {self.better.get(name, '')}".strip()

    def _kind(self, place: int) -> str:
        cells = (row[place] for row in self.rows if place < len(row))
        if place == 0:
            return "first"
        return "words" if any(isinstance(cell, Cell) and cell.kind == "words" for cell in cells) else ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large letters, with notes below it."""

    name: str
    value: str
    better: str  # "up" or "down"
    notes: Sequence[str] = ()


def directions(metrics: Iterable[str]) -> dict[str, str]:
    """Return "up" for each metric of which higher values are better, "down" for others, by their names in tables."""
    return {shown_name(name): "up" if higher_is_better(name) else "down" for name in metrics}


def metric_cell(cell: MetricCell) -> Cell:
    """Return a metric with its standard deviation below it, which leaves room for more columns."""
    number, sign, spread = cell.number.partition("±")
    mark = f" {cell.mark}" if cell.mark else ""
    return Cell(number, "best" if cell.best else "", mark=mark, below=sign + spread)


def estimate_cell(one: Estimate, show: Callable[[float], str], kind: str = "") -> Cell:
    """Return a figure with its 95 % interval below it, "none" for NaN.

    Args:
        one: The figure.
        show: Returns the text of a number.
        kind: Class of the cell.
    """
    if math.isnan(one.value):
        return Cell("none", kind)
    return Cell(show(one.value), kind, below="" if math.isnan(one.low) else f"{show(one.low)} to {show(one.high)}")


def words(text: str) -> Cell:
    """Return a cell of text, which is wrapped."""
    return Cell(text, "words")


def decimal(value: float) -> str:
    """Return a number with four decimals, "none" for NaN."""
    return "none" if math.isnan(value) else f"{value:.4f}"


def sentences(texts: Iterable[str]) -> list[str]:
    """Return warnings as sentences, each once.

    >>> sentences(["lists are short", "lists are short", "The log is old."])
    ['Lists are short.', 'The log is old.']
    """
    return list(dict.fromkeys(f"{text[0].upper()}{text[1:].rstrip('.')}." for text in texts))


def flow(content: Any) -> str:
    """Return a part of a configuration on one line."""
    text: str = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip().removeprefix("{").removesuffix("}")
