"""Schema of the files in ``papers/``: what was published, and how each table or figure is reproduced.

A file describes one paper. Its `reproductions` are checked by the model of their driver, see `DRIVERS`; `protocols` and
`methods` are definitions that several reproductions share and refer to by name. Text of the form ``$tau`` in a method,
a metric or the options of lists is a variable, replaced by each value of a sweep or by the cut-offs of a protocol.

Nothing here imports torch, so that ``rankfall reproduce --list`` answers at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from rankfall._yaml_config import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Number = int | float  # as printed; integers stay integers
Positive = Annotated[int, Field(ge=1)]
Options = dict[str, Any]  # part of a training configuration, which checks it
Kind = Literal["lists", "impressions"]


# --- printed numbers ----------------------------------------------------------------------------------------------


class Measured(Section):
    """A printed mean with its standard deviation."""

    value: Number
    std: Number


PrintedNumber = Number | Measured | None  # None: printed, but not transcribed


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


class PublishedTable(Section):
    """A published table of methods (rows) by metrics (columns), for each data set.

    Attributes:
        columns: Metrics, or columns with their unit and direction.
        values: For each data set and row, one number per column as printed; null where it is not transcribed.
        unit: What 1 is printed as: 100 in tables of percent.
        digits: Decimal places in which values below 1 are shown.
    """

    columns: list[str | Column] = Field(min_length=1)
    values: dict[str, dict[str, list[PrintedNumber]]] = Field(min_length=1)
    unit: Number = 1.0
    digits: Positive = 3

    @model_validator(mode="after")
    def _rows_have_all_columns(self) -> Self:
        for data, rows in self.values.items():
            for row, cells in rows.items():
                _check_length(f"values.{data}.{row}", cells, len(self.columns), "columns")
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column if isinstance(column, str) else column.name for column in self.columns)

    def rows(self) -> set[str]:
        """Names of the rows of all data sets."""
        return {row for rows in self.values.values() for row in rows}

    def cells(self) -> Iterator[Cell]:
        """Every cell, with those that are not transcribed."""
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
        """Values by row and metric on the scale of the metric, without those that are not transcribed."""
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
        values: For each data set, method and metric, one number per point; null where it is not transcribed.
        best: Smallest and largest value among which the paper found the best one.
        logarithmic: Whether the axis of the setting is drawn logarithmically.
    """

    along: str
    points: list[Number] = Field(min_length=1)
    values: dict[str, dict[str, dict[str, list[PrintedNumber]]]] = Field(default_factory=dict)
    best: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    logarithmic: bool = True

    @model_validator(mode="after")
    def _curves_have_all_points(self) -> Self:
        for data, rows in self.values.items():
            for row, curves in rows.items():
                for metric, cells in curves.items():
                    _check_length(f"values.{data}.{row}.{metric}", cells, len(self.points), "points")
        return self

    def cells(self) -> Iterator[Cell]:
        """Every cell, with those that are not transcribed."""
        for data, rows in self.values.items():
            for row, curves in rows.items():
                for metric, cells in curves.items():
                    for point, printed in zip(self.points, cells, strict=True):
                        yield Cell(data, row, metric, point, printed)

    def figures(self, data: str, metric: str) -> dict[str, dict[Number, float]]:
        """Values by method and point, without those that are not transcribed."""
        found: dict[str, dict[Number, float]] = {row: {} for row in self.values[data]}
        for cell in self.cells():
            number = mean_of(cell.printed)
            if (cell.data, cell.column) == (data, metric) and cell.point is not None and number is not None:
                found[cell.row][cell.point] = number
        return found


def mean_of(printed: PrintedNumber) -> Number | None:
    """Return the number in a cell, without its standard deviation."""
    return printed.value if isinstance(printed, Measured) else printed


def _check_length(key: str, cells: list[PrintedNumber], expected: int, unit: str) -> None:
    if len(cells) != expected:
        raise ValueError(f"{key}: found {len(cells)} values, expected {expected}, one for each of the {unit}")


# --- variables ----------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\$([a-z_]+)")


def fill(content: Any, variables: Mapping[str, Any]) -> Any:
    """Return a copy with every variable replaced by its value; a text that is one variable gets the value's type.

    >>> fill({"tau": "$tau", "metrics": ["recall@$m@$k"]}, {"tau": 0.5, "m": 20, "k": 10})
    {'tau': 0.5, 'metrics': ['recall@20@10']}
    """
    if isinstance(content, dict):
        return {key: fill(value, variables) for key, value in content.items()}
    if isinstance(content, list):
        return [fill(value, variables) for value in content]
    if not isinstance(content, str):
        return content
    if whole := _VARIABLE.fullmatch(content):
        return variables[whole[1]]
    return _VARIABLE.sub(lambda found: f"{variables[found[1]]}", content)


def variables_in(content: Any) -> set[str]:
    """Return the names of the variables in a text, or anywhere in mappings and lists."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        return {name for value in content for name in variables_in(value)}
    return set(_VARIABLE.findall(content)) if isinstance(content, str) else set()


# --- methods and protocols ----------------------------------------------------------------------------------------


class Method(Section):
    """A method of a table: what it changes in the training configuration.

    Attributes:
        name: The name in our tables.
        config: Sections of the configuration, such as ``loss`` or ``objective``. Without tuning they are used as is.
        tune: Values tried on validation data beside learning rates, by dotted key of the configuration.
        variant: "published" if it follows the published code where that deviates from the stated method, "sound" if it
            computes what the paper states. None where both agree.
        row: The printed row it belongs to, if that is not called `name`.
    """

    name: str
    config: Options
    tune: dict[str, Annotated[list[Number], Field(min_length=2)]] = Field(default_factory=dict)
    variant: Literal["published", "sound"] | None = None
    row: str | None = None


class ListProtocol(Section):
    """How a paper prepared ranking lists and trained on them.

    Attributes:
        recipe: Options of `rankfall.data.Recipe`.
        network: The ``model`` section. Small data sets get a smaller network.
        metric: The validation metric.
        epochs: Largest number of epochs on data as large as the paper's.
    """

    recipe: dict[str, int | bool]
    network: Options
    metric: str
    epochs: Positive | None = None


class StageProtocol(Section):
    """A stage of a published cascade.

    Attributes:
        model: The ``model`` section.
        small_model: The ``model`` section for logs that are too small to train `model`.
        min_depth: Training with BCE uses the items that reached at least this stage, if the log has as many stages.
    """

    name: str
    quota: Positive
    model: Options
    small_model: Options | None = None
    min_depth: int | None = None


class CascadeProtocol(Section):
    """How a paper trained a cascade.

    Attributes:
        platform: The preset that is simulated if the user names no log.
        stages: The stages in order.
        relevant: Number of relevant items per impression.
        items: Number of items per impression, where it selects among several protocols.
        batch: Impressions per batch, as published. Small logs get smaller batches.
        lr: Learning rate of methods for which none is tuned.
    """

    platform: str
    stages: list[StageProtocol] = Field(min_length=1)
    relevant: Positive
    items: Positive | None = None
    batch: Positive = 1024
    lr: float = 0.01


# --- reproductions, one model per driver --------------------------------------------------------------------------


class Time(Section):
    """Estimated duration on two cores, with the data that are used by default."""

    quick: str
    full: str


class Reproduction(Section):
    """A published table or figure.

    Attributes:
        paper: Name of the paper, which the loader adds.
        id: Its name on the command line: ``lcron-table2``.
        title: Paper and number, as reports name it.
        place: Where it is in the paper.
        shows: What it shows, for ``--list``.
        time: How long it takes.
        driver: The module in ``drivers/`` that runs it.
        notes: Where our data or methods differ from those of the paper.
    """

    data: ClassVar[Kind] = "lists"

    paper: str
    id: str
    title: str
    place: str
    shows: str
    time: Time
    driver: str
    notes: list[str] = Field(default_factory=list)


class _TableOfMethods(Reproduction):
    methods: list[Method] = Field(min_length=1)
    published: PublishedTable

    @model_validator(mode="after")
    def _methods_belong_to_printed_rows(self) -> Self:
        _check_names(self.methods)
        rows = self.published.rows()
        for method in self.methods:
            if method.row is not None and method.row not in rows:
                raise ValueError(f"methods.{method.name}.row: found {method.row!r}, expected {', '.join(sorted(rows))}")
        return self


class LossComparison(_TableOfMethods):
    """Losses trained and tested on the same ranking lists, beside a published table."""

    driver: Literal["loss_comparison"]
    protocol: ListProtocol


class LossSweep(Reproduction):
    """Losses at every value of one setting, which their `config` uses as a variable.

    Attributes:
        variable: Name of the variable.
        along: The setting, as axes name it.
        points: Its values.
        metrics: Metrics of the tests, of which the first is drawn.
        config: Sections of the configuration of all methods.
        heading: Title of the figure.
    """

    driver: Literal["loss_sweep"]
    protocol: ListProtocol
    methods: list[Method] = Field(min_length=1)
    variable: str
    along: str
    points: list[Number] = Field(min_length=1)
    metrics: list[str] = Field(min_length=1)
    config: Options = Field(default_factory=dict)
    heading: str
    published: PublishedSweep | None = None

    @model_validator(mode="after")
    def _methods_use_the_variable(self) -> Self:
        _check_names(self.methods)
        required = {self.variable} - variables_in(self.config)
        _check_variables(self.methods, {self.variable}, required=required)
        return self


class Cutoffs(Section):
    """Recall@m@k: the share of the `k` best items among the first `m`."""

    m: Positive
    k: Positive


class CutoffTransfer(Reproduction):
    """Losses trained for one pair of cut-offs (`m`, `k`) and evaluated on every other."""

    driver: Literal["cutoff_transfer"]
    protocol: ListProtocol
    methods: list[Method] = Field(min_length=1)
    cutoffs: list[Cutoffs] = Field(min_length=1)
    metric: str

    @model_validator(mode="after")
    def _methods_use_the_cutoffs(self) -> Self:
        _check_names(self.methods)
        _check_variables(self.methods, {"m", "k"}, required={"k"})
        return self


class LengthTransfer(Reproduction):
    """A loss trained on lists of one length and tested on lists of every other; its `config` uses ``$length``.

    Attributes:
        lengths: Documents per list.
        k: Cut-off of the NDCG of the tests.
        claim: Conclusion of the paper.
    """

    driver: Literal["length_transfer"]
    protocol: ListProtocol
    method: Method
    lengths: list[Positive] = Field(min_length=1)
    k: Positive
    claim: str

    @model_validator(mode="after")
    def _the_method_uses_the_length(self) -> Self:
        _check_variables([self.method], {"length"}, required={"length"})
        return self


class TrainingCurves(Reproduction):
    """The relaxed metric that a loss optimizes and the exact one, after every epoch and at several temperatures."""

    driver: Literal["training_curves"]
    protocol: ListProtocol
    taus: list[Number] = Field(min_length=1)
    k: Positive


class SortRuntime(Reproduction):
    """Time of a soft sort by the length of lists, computed at once and by divide and conquer.

    Attributes:
        lengths: Items per list.
        growth: Published exponent of the length in the time, by depth of the recursion.
    """

    driver: Literal["sort_runtime"]
    lengths: list[Positive] = Field(min_length=2)
    growth: dict[str, float]


class ObjectiveComparison(_TableOfMethods):
    """Objectives of a cascade trained and tested on the same impressions, beside a published table.

    Attributes:
        lists: Options of the ``data`` section: length of test lists, random negatives.
        tune: Whether settings are tuned, if the size of the run allows it.
        leader: A method of which the report counts the `rivals` behind it.
        rivals: Names of methods.
    """

    data: ClassVar[Kind] = "impressions"

    driver: Literal["objective_comparison"]
    protocol: CascadeProtocol
    lists: Options = Field(default_factory=dict)
    tune: bool = True
    leader: str | None = None
    rivals: list[str] = Field(default_factory=list)


class ObjectiveSweep(Reproduction):
    """Objectives of a cascade at every published value of one setting, untuned.

    The variable is part of the methods, which are then trained in one comparison, or of `lists`, with one comparison
    per value.

    Attributes:
        variable: Name of the variable.
        metric: The metric that is compared.
        lists: Options of the ``data`` section: length of test lists, random negatives.
        seeds: Largest number of seeds.
        quick_points: Largest number of values in runs that do not use all of them.
    """

    data: ClassVar[Kind] = "impressions"

    driver: Literal["objective_sweep"]
    protocol: CascadeProtocol
    methods: list[Method] = Field(min_length=1)
    variable: str
    metric: str = "joint_recall"
    lists: Options = Field(default_factory=dict)
    seeds: Positive | None = None
    quick_points: Positive | None = None
    published: PublishedSweep

    @model_validator(mode="after")
    def _something_uses_the_variable(self) -> Self:
        _check_names(self.methods)
        in_lists = variables_in(self.lists)
        if not in_lists <= {self.variable}:
            raise ValueError(f"lists: found the variables {sorted(in_lists)}, expected {self.variable!r} only")
        _check_variables(self.methods, {self.variable}, required=set() if in_lists else {self.variable})
        return self


class StageLossComparison(_TableOfMethods):
    """Losses of a single ranking stage, on several logs with different cut-offs.

    Methods and columns use the variables ``$m``, the quota of the stage, and ``$k``, the number of relevant items.

    Attributes:
        protocols: The protocol for each data set of the published table.
    """

    data: ClassVar[Kind] = "impressions"

    driver: Literal["stage_loss_comparison"]
    protocols: dict[str, CascadeProtocol] = Field(min_length=1)

    @model_validator(mode="after")
    def _data_sets_have_protocols(self) -> Self:
        _check_variables(self.methods, {"m", "k"}, required=set())
        if self.protocols.keys() != self.published.values.keys():
            raise ValueError(
                f"protocols: found {', '.join(self.protocols)}, expected {', '.join(self.published.values)}"
            )
        return self


MODELS: tuple[type[Reproduction], ...] = (
    LossComparison,
    LossSweep,
    CutoffTransfer,
    LengthTransfer,
    TrainingCurves,
    SortRuntime,
    ObjectiveComparison,
    ObjectiveSweep,
    StageLossComparison,
)
DRIVERS = {model.model_fields["driver"].annotation.__args__[0]: model for model in MODELS}  # type: ignore[union-attr]


def _check_names(methods: list[Method]) -> None:
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"methods: found {name!r} {names.count(name)} times, expected different names")


def _check_variables(methods: list[Method], known: set[str], *, required: set[str]) -> None:
    for method in methods:
        found = variables_in(method.config)
        if not required <= found <= known:
            expected = ", ".join(f"${name}" for name in sorted(required or known))
            raise ValueError(f"methods.{method.name}.config: found the variables {sorted(found)}, expected {expected}")


# --- a paper ------------------------------------------------------------------------------------------------------


class PaperFile(Section):
    """Content of a file; each of its `reproductions` is checked by the model of its driver."""

    paper: str
    reference: str
    protocols: dict[str, Options] = Field(default_factory=dict)
    methods: list[Options] = Field(default_factory=list)
    reproductions: list[Options] = Field(min_length=1)
