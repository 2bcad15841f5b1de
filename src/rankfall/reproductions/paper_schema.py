"""Schema of the files in ``papers/``: what was published, and how each table or figure is reproduced.

A file describes one paper. Its `reproductions` are checked by the model of their driver, see `DRIVERS`; `protocols` and
`methods` are definitions that several reproductions share and refer to by name. Text of the form ``$tau`` in a method,
a metric or the options of lists is a variable, replaced by each value of a sweep or by the cut-offs of a protocol.

Nothing here imports torch, so that ``rankfall reproduce --list`` responds at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from rankfall._config import ConfigError, Section, explain
from rankfall._errors import RankfallError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Sized


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
    """

    name: str
    unit: Number | None = None


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
        columns: Metrics, or columns with their unit.
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
                    raise RankfallError(
                        f"marks.values.{data}: found the row {row!r}, which values.{data} does not have"
                    )
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

    def printed(self) -> dict[str, dict[str, dict[str, Number | None]]]:
        """Numbers as printed, without deviations, by data set, row and column."""
        return {
            data: {row: dict(zip(self.metrics, map(mean_of, cells), strict=True)) for row, cells in rows.items()}
            for data, rows in self.values.items()
        }

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

    @property
    def only(self) -> tuple[str, dict[str, dict[str, float]]]:
        """The name and the values of the data set, if there is one."""
        (data,) = self.values
        return data, self.figures(data)

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
        raise RankfallError(f"{key}: found {len(cells)} values, expected {expected}, one for each of the {unit}")


Options = dict[str, Any]  # part of a training configuration, which checks it


class Method(Section):
    """A method of a table: what it changes in the training configuration.

    Attributes:
        name: The name in our tables.
        config: Sections of the configuration, such as ``loss`` or ``objective``. Without tuning they are used as is.
        tune: Values tried on validation data, by dotted key of the configuration, beside learning rates unless the
            protocol keeps that of the paper.
        variant: "published" if it computes what produced the printed row, "sound" if it is our better version, which is
            only run with ``--improved``. None where both agree.
        row: The printed row it belongs to, if that is not called `name`.
    """

    name: str
    config: Options
    tune: dict[str, Annotated[list[Number], Field(min_length=2)]] = Field(default_factory=dict)
    variant: Literal["published", "sound"] | None = None
    row: str | None = None

    def filled(self, variables: Mapping[str, Any], name: str | None = None, **sections: Any) -> Self:
        """Return a copy with more sections, in which variables are replaced by their values."""
        config = fill({**self.config, **sections}, variables)
        return self.model_copy(update={"name": name or self.name, "config": config})


class ListProtocol(Section):
    """How a paper prepared ranking lists and trained on them.

    Attributes:
        recipe: Options of `rankfall.data.Recipe`.
        network: The ``model`` section. Small data sets get a smaller network.
        metric: The validation metric.
        epochs: Largest number of epochs on data as large as the paper's.
        steps: Number of training steps on data as large as the paper's, without early stopping.
        optimizer: The ``optimizer`` section. Its `lr` is that of methods for which none is tuned.
        rates: Learning rates that the paper tried. They replace ours.
        data: Options of the ``data`` section, such as standardisation.
    """

    recipe: dict[str, int | bool]
    network: Options
    metric: str
    epochs: Positive | None = None
    steps: Positive | None = None
    optimizer: Options = Field(default_factory=dict)
    rates: list[float] = Field(default_factory=list)
    data: Options = Field(default_factory=dict)


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
        data: Options of the ``data`` section, such as the label scheme.
        optimizer: Options of the ``optimizer`` section beside `lr`.
        keep_rate: Whether the published methods keep `lr`, and only the settings in their `tune` are tuned.
        stage_metrics: Further metrics of each stage.
    """

    platform: str
    stages: list[StageProtocol] = Field(min_length=1)
    relevant: Positive
    items: Positive | None = None
    batch: Positive = 1024
    lr: float = 0.01
    data: Options = Field(default_factory=dict)
    optimizer: Options = Field(default_factory=dict)
    keep_rate: bool = False
    stage_metrics: list[str] = Field(default_factory=list)


def check_known(key: str, name: str, methods: list[Method]) -> None:
    names = [method.name for method in methods]
    if name not in names:
        raise RankfallError(f"{key}: found {name!r}, expected {', '.join(names)}")


def check_variables(methods: list[Method], known: set[str], *, required: set[str]) -> None:
    for method in methods:
        found = variables_in(method.config)
        if not required <= found <= known:
            text = f"the variables {_listed(found)}" if found else "no variable"
            raise RankfallError(f"methods.{method.name}: found {text}, expected {_listed(required or known) or 'none'}")


def _listed(variables: set[str]) -> str:
    return ", ".join(f"${name}" for name in sorted(variables))


# what a reproduction runs on: ranking lists, impressions of a cascade, operators alone (it needs no data), or nothing
Kind = Literal["lists", "impressions", "operators", "none"]


class Time(Section):
    """Estimated duration on two cores, with the data that are used by default."""

    quick: str
    full: str


DRIVERS: dict[str, type[Reproduction]] = {}  # the model of each driver, which the classes below add


class Reproduction(Section):
    """A published table or figure.

    The model of a driver has as keywords of its class the name of the driver in the files, the module and function that
    runs it, and what it runs on, if those are not the ones of its base class.

    Attributes:
        paper: Name of the paper, which the loader adds.
        id: Its name on the command line: ``lcron-table2``.
        title: Paper and number, as reports name it.
        place: Where it is in the paper.
        shows: What it shows, for ``--list``.
        time: How long it takes.
        driver: The kind of reproduction.
        notes: Where our data or methods differ from those of the paper.
    """

    data: ClassVar[Kind] = "lists"
    runner: ClassVar[str]

    paper: str
    id: str
    title: str
    place: str
    shows: str
    time: Time
    driver: str
    notes: list[str] = Field(default_factory=list)

    def __init_subclass__(cls, driver: str = "", runner: str = "", data: Kind | None = None, **options: Any) -> None:
        """Add the model of a driver."""
        super().__init_subclass__(**options)
        cls.runner, cls.data = runner or getattr(cls, "runner", ""), data or cls.data
        if driver:
            DRIVERS[driver] = cls

    @property
    def has_improved(self) -> bool:
        """Whether there are better versions of its methods, which ``--improved`` adds."""
        return any(method.variant == "sound" for method in self._all_methods)

    def with_variants(self, *, improved: bool) -> Self:
        """Return a copy with the methods of the paper, and only if `improved` with our better versions of them."""
        if improved or not self.has_improved:
            return self
        published = [method for method in self._all_methods if method.variant != "sound"]
        return self.model_copy(update={"methods": published})

    def with_methods(self, own: Sequence[Method]) -> Self:
        """Return a copy that also runs methods of the user, after those of the paper.

        Raises:
            ConfigError: If it compares no methods, a name is that of one of its methods, or a method does not use the
                setting that the reproduction varies.
        """
        if not own:
            return self
        if not self._all_methods:
            raise ConfigError(f"methods: {self.id} compares no methods, so that none can be added")
        changed = self.model_copy(update={"methods": [*self._all_methods, *own]})
        try:
            return self.model_validate(changed.model_dump())
        except ValidationError as error:
            raise ConfigError(explain(error, self.id)) from None

    @property
    def _all_methods(self) -> list[Method]:
        """The methods; reproductions of operators have none."""
        methods: list[Method] = getattr(self, "methods", [])
        return methods


class WithMethods(Reproduction):
    """Methods that are trained, all with different names."""

    methods: list[Method] = Field(min_length=1)

    @model_validator(mode="after")
    def _methods_have_different_names(self) -> Self:
        names = [method.name for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise RankfallError(f"methods: found {name!r} {names.count(name)} times, expected different names")
        return self


class TableOfMethods(WithMethods):
    """Methods beside a published table."""

    published: PublishedTable


class PublishedOnly(Reproduction, driver="published_only", runner="statistics.published_only", data="none"):
    """A published table that needs private traffic, such as the result of an A/B test. It is shown, not run.

    Attributes:
        reason: What it would take to measure it.
    """

    reason: str
    published: PublishedTable
    time: Time = Time(quick="-", full="-")


class Comparison(TableOfMethods, runner="comparisons.compare"):
    """Methods trained and tested on the same data, beside a published table.

    Attributes:
        lists: Options of the ``data`` section of impressions: length of test lists, random negatives.
        tune: Whether settings are tuned, if the size of the run allows it.
        leader: A method of which the report counts the `rivals` behind it.
        rivals: Names of methods.
    """

    protocol: ListProtocol | CascadeProtocol
    lists: Options = Field(default_factory=dict)
    tune: bool = True
    leader: str | None = None
    rivals: list[str] = Field(default_factory=list)


class LossComparison(Comparison, driver="loss_comparison"):
    """Losses on ranking lists."""

    protocol: ListProtocol


class ObjectiveComparison(Comparison, driver="objective_comparison", data="impressions"):
    """Objectives of a cascade on impressions."""

    protocol: CascadeProtocol


class Sweep(WithMethods, runner="comparisons.sweep"):
    """Methods at every value of one setting, untuned, beside a published sweep.

    The variable is part of the methods or of `config`, which are then trained in one comparison, or of `lists`, with
    one comparison per value.

    Attributes:
        variable: Name of the variable.
        points: Its values, if not those of the published sweep.
        metrics: Metrics of the tests, of which the first is drawn. Tables show all published ones.
        config: Sections of the configuration of all methods.
        lists: Options of the ``data`` section of impressions: length of test lists, random negatives.
        seeds: Largest number of seeds.
        quick_points: Largest number of values in runs that do not use all of them.
    """

    protocol: ListProtocol | CascadeProtocol
    variable: str
    points: list[Number] = Field(default_factory=list)
    metrics: list[str] = Field(default=["joint_recall"], min_length=1)
    config: Options = Field(default_factory=dict)
    lists: Options = Field(default_factory=dict)
    seeds: Positive | None = None
    quick_points: Positive | None = None
    published: PublishedSweep

    @model_validator(mode="after")
    def _something_uses_the_variable(self) -> Self:
        shared = variables_in([self.lists, self.config])
        if not shared <= {self.variable}:
            raise RankfallError(f"lists, config: found the variables {sorted(shared)}, expected {self.variable!r} only")
        check_variables(self.methods, {self.variable}, required={self.variable} - shared)
        return self


class LossSweep(Sweep, driver="loss_sweep"):
    """Losses on ranking lists."""

    protocol: ListProtocol


class ObjectiveSweep(Sweep, driver="objective_sweep", data="impressions"):
    """Objectives of a cascade on impressions."""

    protocol: CascadeProtocol


class Cutoffs(Section):
    """Recall@m@k: the share of the `k` best items among the first `m`."""

    m: Positive
    k: Positive


class CutoffTransfer(WithMethods, driver="cutoff_transfer", runner="transfers.cutoff_transfer"):
    """Losses trained for one pair of cut-offs (`m`, `k`) and evaluated on every other.

    Attributes:
        cutoffs: The pairs.
        metric: The metric as a function of ``$m`` and ``$k``.
        data_set: The data set of the published maps.
        claim: Conclusion of the paper.
    """

    protocol: ListProtocol
    cutoffs: list[Cutoffs] = Field(min_length=1)
    metric: str
    data_set: str
    claim: str

    @model_validator(mode="after")
    def _methods_use_the_cutoffs(self) -> Self:
        check_variables(self.methods, {"m", "k"}, required={"k"})
        return self


class LengthTransfer(Reproduction, driver="length_transfer", runner="transfers.length_transfer"):
    """A loss trained on lists of one length and tested on lists of every other; its `config` uses ``$length``.

    Attributes:
        lengths: Documents per list. Gains are relative to training on the shortest lists.
        metrics: Metrics of the tests.
    """

    protocol: ListProtocol
    method: Method
    lengths: list[Positive] = Field(min_length=2)
    metrics: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _the_method_uses_the_length(self) -> Self:
        check_variables([self.method], {"length"}, required={"length"})
        return self


class TrainingCurves(Reproduction, driver="training_curves", runner="transfers.training_curves"):
    """The relaxed metric that a loss optimizes and the exact one, after every epoch and at several temperatures.

    Attributes:
        taus: Temperatures of the figure.
        others: Further temperatures: a number, or a schedule with `start`, `end` and `schedule`.
        k: Cut-off of NDCG@k.
    """

    protocol: ListProtocol
    taus: list[Number] = Field(min_length=1)
    others: list[Number | Options] = Field(default_factory=list)
    k: Positive


class ListStatistics(Reproduction, driver="list_statistics", runner="statistics.list_statistics"):
    """Sizes of ranking lists and the range of their labels, beside a published table of data sets.

    The published columns are documents for training and for testing, the shortest and the longest list, the lowest and
    the highest label.
    """

    protocol: ListProtocol
    published: PublishedTable


class StageLossComparison(
    TableOfMethods, driver="stage_loss_comparison", runner="comparisons.stage_loss_comparison", data="impressions"
):
    """Losses of a single ranking stage, on several logs with different cut-offs.

    Methods and columns use the variables ``$m``, the quota of the stage, and ``$k``, the number of relevant items.

    Attributes:
        protocols: The protocol for each data set of the published table.
    """

    protocols: dict[str, CascadeProtocol] = Field(min_length=1)

    @model_validator(mode="after")
    def _methods_use_the_cutoffs(self) -> Self:
        check_variables(self.methods, {"m", "k"}, required=set())
        return self


class ObjectiveStream(
    WithMethods, driver="objective_stream", runner="comparisons.objective_stream", data="impressions"
):
    """Objectives of a cascade, tested on every day with the models of the days before, untuned.

    Attributes:
        metric: The metric of the curves.
        lists: Options of the ``data`` section: length of test lists, random negatives.
        seeds: Largest number of seeds.
        leader: The method whose lead is reported.
        phases: Days of the first and of the later phase that the paper describes.
    """

    protocol: CascadeProtocol
    metric: Literal["joint_recall"] = "joint_recall"
    lists: Options = Field(default_factory=dict)
    seeds: Positive | None = None
    leader: str
    phases: Annotated[list[Positive], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _methods_are_known(self) -> Self:
        check_variables(self.methods, set(), required=set())
        check_known("leader", self.leader, self.methods)
        return self


class TrainingCost(TableOfMethods):
    """Time and memory of a training step with each method, beside a published table of both, for one data set.

    Attributes:
        baseline: The method to which costs are relative.
        complexity: Published growth of the time with the length n of lists, by row.
    """

    protocol: ListProtocol | CascadeProtocol
    baseline: str
    complexity: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _costs_are_printed(self) -> Self:
        check_known("baseline", self.baseline, self.methods)
        if len(self.published.columns) != 2 or len(self.published.values) != 1:
            raise RankfallError("published: expected one data set with two columns, time and memory")
        return self


class LossCost(TrainingCost, driver="loss_cost", runner="costs.loss_cost"):
    """Losses on batches of `documents` documents; times are those of an epoch."""

    protocol: ListProtocol
    documents: Positive


class ObjectiveRuntime(TrainingCost, driver="objective_runtime", runner="costs.objective_runtime", data="impressions"):
    """Objectives of a cascade."""

    protocol: CascadeProtocol


class LogStatistics(Reproduction, driver="log_statistics", runner="statistics.log_statistics", data="impressions"):
    """Users, impressions and labels of each stage of a log, beside a published table of them.

    Attributes:
        platform: The preset that is simulated if the user names no log.
    """

    platform: str
    published: PublishedTable


class TrainingSteps(Section):
    """Training steps on generated lists, which are timed as a whole.

    Attributes:
        steps: Number of steps that the reported time is scaled to.
        queries: Lists per step.
        query_features: Features that all documents of a list share.
        document_features: Features of each document.
        hidden: Widths of the hidden layers of the network.
        ks: Cut-offs of the loss, NDCG@k.
    """

    steps: Positive
    queries: Positive
    query_features: Positive
    document_features: Positive
    hidden: list[Positive] = Field(min_length=1)
    ks: list[Positive] = Field(min_length=1)


class SortRuntime(Reproduction, driver="sort_runtime", runner="costs.sort_runtime", data="operators"):
    """Time of a soft sort by the length of lists, computed at once and by divide and conquer.

    Attributes:
        lengths: Items per list.
        growth: Published exponent of the length in the time, by depth of the recursion.
        training: Training steps with the sort in the loss, timed beside the sort alone.
    """

    lengths: list[Positive] = Field(min_length=2)
    growth: dict[str, float]
    training: TrainingSteps


class GradientSigns(
    Reproduction, driver="gradient_signs", runner="operator_properties.gradient_signs", data="operators"
):
    """Which items losses push up or down, in lists that are sorted by score.

    Attributes:
        k: Cut-off of the losses.
        lists: Labels by descending score, by description of the list.
        losses: The ``loss`` section of each loss.
    """

    k: Positive
    lists: dict[str, list[Number]] = Field(min_length=1)
    losses: dict[str, Options] = Field(min_length=1)


class SortTree(Reproduction, driver="sort_tree", runner="operator_properties.sort_tree", data="operators"):
    """A small tree of soft sorts, as an example.

    Attributes:
        scores: Scores of the items at the leaves.
        branches: Children per node of each level, from the leaves to the root.
        k: Number of values that a node keeps.
        taus: Temperatures.
    """

    scores: list[Number] = Field(min_length=1)
    branches: list[Positive] = Field(min_length=1)
    k: Positive
    taus: list[Number] = Field(min_length=1)


class SurvivalBounds(
    Reproduction, driver="survival_bounds", runner="operator_properties.survival_bounds", data="operators"
):
    """Bounds of the survival through two stages, by enumeration of the sets that the first stage can keep.

    Attributes:
        lengths: Items per list. Every pair of quotas, the first larger, is checked.
        operators: Name and options of the operators whose inclusions are checked.
        correlations: Correlations of the scores of both stages.
        lists: Lists per length and correlation.
    """

    lengths: list[Annotated[int, Field(ge=3, le=12)]] = Field(min_length=1)
    operators: list[Options] = Field(min_length=1)
    correlations: list[Annotated[Number, Field(ge=-1, le=1)]] = Field(min_length=1)
    lists: Positive


class TopkRuntime(Reproduction, driver="topk_runtime", runner="costs.topk_runtime", data="operators"):
    """Time of soft top-k operators by the length of lists, for k = n/2, beside published times.

    Attributes:
        lists: Lists that a pass computes at once.
        operators: For each printed row, the operator as `rankfall bench ops` names it.
        published: Published milliseconds by operator and length.
    """

    lists: Positive
    operators: dict[str, str] = Field(min_length=1)
    published: PublishedSweep


class SyntheticLists(Section):
    """Lists with normally distributed scores, to which `shift` is added for relevant items.

    Attributes:
        lists: Number of lists.
        items: Items per list.
        relevant: Relevant items per list.
        shift: Mean score of relevant items; that of the others is 0.
    """

    lists: Positive = 1000
    items: Positive = 40
    relevant: Positive = 10
    shift: float = 1.0


class GradientConflict(
    Reproduction, driver="gradient_conflict", runner="operator_properties.gradient_conflict", data="operators"
):
    """Items that a loss pushes to the wrong side, by operator and number of selected items.

    Attributes:
        lists: The lists that gradients are taken on.
        ks: Numbers of selected items.
        operators: Options of `rankfall.ops.topk` for each operator and gradient, by the name in tables.
    """

    lists: SyntheticLists
    ks: list[Positive] = Field(min_length=1)
    operators: dict[str, Options] = Field(min_length=1)


class TemperatureEffect(
    Reproduction, driver="temperature_effect", runner="operator_properties.temperature_effect", data="operators"
):
    """Distance of a soft top-k to the hard one and size of its gradient, by temperature.

    Attributes:
        lists: The lists that gradients are taken on.
        k: Number of selected items.
        operator: Name of the operator.
        taus: Temperatures.
    """

    lists: SyntheticLists
    k: Positive
    operator: str
    taus: list[Number] = Field(min_length=2)


class Statement(Section):
    """An equation, a protocol or a claim of a paper, and where we have it.

    Attributes:
        place: Where it is in the paper: ``eq. 11``, ``appendix B.2``.
        kind: An equation, a protocol of data or training, or a claim in the text.
        what: What it states.
        state: "done"; "differs" if ours deviates, which `note` explains; "unavailable" if it needs data or traffic that
            is not public.
        where: A name of the library, an option of the configuration, or a command.
        note: How ours differs, or what was found.
    """

    place: str
    kind: Literal["equation", "protocol", "claim"]
    what: str
    state: Literal["done", "differs", "unavailable"] = "done"
    where: str = ""
    note: str = ""


class PaperFile(Section):
    """Content of a file; each of its `reproductions` is checked by the model of its driver."""

    paper: str
    reference: str
    protocols: dict[str, Options] = Field(default_factory=dict)
    methods: list[Options] = Field(default_factory=list)
    reproductions: list[Options] = Field(min_length=1)
    statements: list[Statement] = Field(default_factory=list)
