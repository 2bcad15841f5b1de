"""Printed numbers: tables and sweeps as they are in a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from rankfall._config import Section
from rankfall.reproductions.paper_schema.variables import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

Number = int | float  # as printed; integers stay integers
Positive = Annotated[int, Field(ge=1)]


class Measured(Section):
    """A printed mean with its standard deviation."""

    value: Number
    std: Number


def _read_deviation(printed: Any) -> Any:
    """Read the text ``0.8539±0.0006`` as a mean with its standard deviation."""
    if not isinstance(printed, str) or "±" not in printed:
        return printed
    value, std = printed.split("±")
    return {"value": float(value), "std": float(std)}


# a text such as 0.8539±0.0006 is a number with its deviation; None: the paper prints no number there, usually a dash
PrintedNumber = Annotated[Number | Measured | None, BeforeValidator(_read_deviation)]


class Cell(NamedTuple):
    """A cell of a published table. `point` is the value of the swept setting, None in a table without a sweep."""

    data: str
    row: str
    column: str
    point: Number | None
    printed: PrintedNumber


class Column(Section):
    """A column of a published table, usually a metric.

    Attributes:
        name: The metric as rankfall spells it, or what the column shows.
        unit: What 1 is printed as, 100 in a column of percent. None: the unit of the table.
        direction: Whether higher or lower is better. None: as for the metric of that name.
    """

    name: str
    unit: Number | None = None
    direction: Literal["higher", "lower"] | None = None


class Marks(Section):
    """Marks of significance in a published table.

    Attributes:
        against: The row with which every other row is compared, or "best" for the best row of each column.
        test: The test, in words.
        values: For each data set and row, a text with one character per column: ``^`` significantly better, ``v``
            significantly worse, ``b`` bold: the best or not significantly worse, ``.`` no mark.
    """

    against: str
    test: str
    values: dict[str, dict[str, Annotated[str, Field(pattern=r"^[\^vb.]+$")]]]


class PublishedTable(Section):
    """A published table of methods (rows) by metrics (columns), for each data set.

    Attributes:
        columns: Metrics, or columns with their unit and direction.
        values: For each data set and row, one number per column as printed; null where the paper prints none.
        unit: What 1 is printed as: 100 in tables of percent.
        digits: Decimal places in which values below 1 are shown.
        marks: Printed marks of significance.
        runs: Training runs behind a printed standard deviation; five in the only paper that prints deviations.
    """

    columns: list[str | Column] = Field(min_length=1)
    values: dict[str, dict[str, list[PrintedNumber]]] = Field(min_length=1)
    unit: Number = 1.0
    digits: Positive = 3
    marks: Marks | None = None
    runs: Positive = 5

    @model_validator(mode="after")
    def _rows_have_all_columns(self) -> Self:
        for data, rows in self.values.items():
            for row, cells in rows.items():
                _check_length(f"values.{data}.{row}", cells, len(self.columns), "columns")
        for data, marked in (self.marks.values if self.marks else {}).items():
            for row, marks in marked.items():
                if row not in self.values.get(data, {}):
                    raise ValueError(f"marks.values.{data}: found the row {row!r}, which values.{data} does not have")
                _check_length(f"marks.values.{data}.{row}", marks, len(self.columns), "columns")
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column if isinstance(column, str) else column.name for column in self.columns)

    def rows(self) -> set[str]:
        """Names of the rows of all data sets."""
        return {row for rows in self.values.values() for row in rows}

    def cells(self) -> Iterator[Cell]:
        """Every cell, also those without a number."""
        for data, rows in self.values.items():
            for row, cells in rows.items():
                for metric, printed in zip(self.metrics, cells, strict=True):
                    yield Cell(data, row, metric, None, printed)

    def for_data(self, data: str, variables: Mapping[str, Any]) -> PublishedTable:
        """The part for one data set, with the variables in the names of its columns replaced."""
        return self.model_copy(
            update={"columns": fill(list(self.metrics), variables), "values": {data: self.values[data]}}
        )

    def figures(self, data: str) -> dict[str, dict[str, float]]:
        """Values by row and metric on the scale of the metric, without cells that have no number."""
        return {
            row: {
                metric: number / self._unit(position)
                for position, (metric, printed) in enumerate(zip(self.metrics, cells, strict=True))
                if (number := mean_of(printed)) is not None
            }
            for row, cells in self.values[data].items()
        }

    def _unit(self, position: int) -> Number:
        column = self.columns[position]
        return self.unit if isinstance(column, str) or column.unit is None else column.unit


class PublishedSweep(Section):
    """A published table or curve of methods along a setting that was varied.

    Attributes:
        along: The setting, as axes and tables name it.
        points: Its values.
        values: For each data set, method and metric, one number per point; null where the paper prints none.
        best: Smallest and largest value among which the paper found the best one.
        logarithmic: Whether the axis of the setting is drawn logarithmically.
        runs: Training runs behind a printed standard deviation; five in the only paper that prints deviations.
    """

    along: str
    points: list[Number] = Field(min_length=1)
    values: dict[str, dict[str, dict[str, list[PrintedNumber]]]] = Field(default_factory=dict)
    best: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    logarithmic: bool = True
    runs: Positive = 5

    @model_validator(mode="after")
    def _curves_have_all_points(self) -> Self:
        for data, rows in self.values.items():
            for row, curves in rows.items():
                for metric, cells in curves.items():
                    _check_length(f"values.{data}.{row}.{metric}", cells, len(self.points), "points")
        return self

    def cells(self) -> Iterator[Cell]:
        """Every cell, also those without a number."""
        for data, rows in self.values.items():
            for row, curves in rows.items():
                for metric, cells in curves.items():
                    for point, printed in zip(self.points, cells, strict=True):
                        yield Cell(data, row, metric, point, printed)

    def figures(self, data: str, metric: str) -> dict[str, dict[Number, float]]:
        """Values by method and point, without cells that have no number."""
        found: dict[str, dict[Number, float]] = {row: {} for row in self.values[data]}
        for cell in self.cells():
            number = mean_of(cell.printed)
            if (cell.data, cell.column) == (data, metric) and cell.point is not None and number is not None:
                found[cell.row][cell.point] = number
        return found


def mean_of(printed: PrintedNumber) -> Number | None:
    """Return the number in a cell, without its standard deviation."""
    return printed.value if isinstance(printed, Measured) else printed


def _check_length(key: str, cells: Sized, expected: int, unit: str) -> None:
    if len(cells) != expected:
        raise ValueError(f"{key}: found {len(cells)} values, expected {expected}, one for each of the {unit}")
