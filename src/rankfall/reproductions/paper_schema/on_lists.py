"""Reproductions on ranking lists, one model per driver."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rankfall._config import Section
from rankfall.reproductions.paper_schema.methods import ListProtocol, Method, Options, check_names, check_variables
from rankfall.reproductions.paper_schema.printed import Number, Positive, PublishedSweep, PublishedTable
from rankfall.reproductions.paper_schema.reproduction import Reproduction, TableOfMethods
from rankfall.reproductions.paper_schema.variables import variables_in


class LossComparison(TableOfMethods):
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
        check_names(self.methods)
        required = {self.variable} - variables_in(self.config)
        check_variables(self.methods, {self.variable}, required=required)
        return self


class Cutoffs(Section):
    """Recall@m@k: the share of the `k` best items among the first `m`."""

    m: Positive
    k: Positive


class CutoffTransfer(Reproduction):
    """Losses trained for one pair of cut-offs (`m`, `k`) and evaluated on every other.

    Attributes:
        cutoffs: The pairs.
        metric: The metric as a function of ``$m`` and ``$k``.
        data_set: The data set of the published maps.
        claim: Conclusion of the paper.
    """

    driver: Literal["cutoff_transfer"]
    protocol: ListProtocol
    methods: list[Method] = Field(min_length=1)
    cutoffs: list[Cutoffs] = Field(min_length=1)
    metric: str
    data_set: str
    claim: str

    @model_validator(mode="after")
    def _methods_use_the_cutoffs(self) -> Self:
        check_names(self.methods)
        check_variables(self.methods, {"m", "k"}, required={"k"})
        return self


class LengthTransfer(Reproduction):
    """A loss trained on lists of one length and tested on lists of every other; its `config` uses ``$length``.

    Attributes:
        lengths: Documents per list. Gains are relative to training on the shortest lists.
        metrics: Metrics of the tests.
    """

    driver: Literal["length_transfer"]
    protocol: ListProtocol
    method: Method
    lengths: list[Positive] = Field(min_length=2)
    metrics: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _the_method_uses_the_length(self) -> Self:
        check_variables([self.method], {"length"}, required={"length"})
        return self


class TrainingCurves(Reproduction):
    """The relaxed metric that a loss optimizes and the exact one, after every epoch and at several temperatures.

    Attributes:
        taus: Temperatures of the figure.
        others: Further temperatures: a number, or a schedule with `start`, `end` and `schedule`.
        k: Cut-off of NDCG@k.
    """

    driver: Literal["training_curves"]
    protocol: ListProtocol
    taus: list[Number] = Field(min_length=1)
    others: list[Number | Options] = Field(default_factory=list)
    k: Positive


class LossCost(TableOfMethods):
    """Time and memory of a training step with each loss, beside a published table of both.

    The first published column is the time per epoch, the second is the memory.

    Attributes:
        documents: Documents per batch.
        complexity: Published growth of the time with the length n of lists, by row.
    """

    driver: Literal["loss_cost"]
    protocol: ListProtocol
    documents: Positive
    complexity: dict[str, str]

    @model_validator(mode="after")
    def _rows_have_a_complexity(self) -> Self:
        rows = self.published.rows()
        if self.complexity.keys() != rows:
            raise ValueError(f"complexity: found {', '.join(self.complexity)}, expected {', '.join(sorted(rows))}")
        return self


class ListStatistics(Reproduction):
    """Sizes of ranking lists and the range of their labels, beside a published table of data sets.

    The published columns are documents for training and for testing, the shortest and the longest list, the lowest and
    the highest label.
    """

    driver: Literal["list_statistics"]
    protocol: ListProtocol
    published: PublishedTable

    @model_validator(mode="after")
    def _has_six_columns(self) -> Self:
        if len(self.published.columns) != 6:
            raise ValueError(f"published.columns: found {len(self.published.columns)}, expected 6")
        return self
