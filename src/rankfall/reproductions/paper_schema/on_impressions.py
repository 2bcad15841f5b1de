"""Reproductions on impressions of a cascade, one model per driver."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rankfall.reproductions.paper_schema.methods import (
    CascadeProtocol,
    Method,
    Options,
    check_known,
    check_names,
    check_variables,
)
from rankfall.reproductions.paper_schema.printed import Positive, PublishedSweep, PublishedTable
from rankfall.reproductions.paper_schema.reproduction import Kind, Reproduction, TableOfMethods
from rankfall.reproductions.paper_schema.variables import variables_in


class ObjectiveComparison(TableOfMethods):
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
        metric: The metric that is drawn. Tables show all published ones.
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
        check_names(self.methods)
        in_lists = variables_in(self.lists)
        if not in_lists <= {self.variable}:
            raise ValueError(f"lists: found the variables {sorted(in_lists)}, expected {self.variable!r} only")
        check_variables(self.methods, {self.variable}, required=set() if in_lists else {self.variable})
        return self


class StageLossComparison(TableOfMethods):
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
        check_variables(self.methods, {"m", "k"}, required=set())
        if self.protocols.keys() != self.published.values.keys():
            raise ValueError(
                f"protocols: found {', '.join(self.protocols)}, expected {', '.join(self.published.values)}"
            )
        return self


class ObjectiveStream(Reproduction):
    """Objectives of a cascade, tested on every day with the models of the days before, untuned.

    Attributes:
        metric: The metric of the curves.
        lists: Options of the ``data`` section: length of test lists, random negatives.
        seeds: Largest number of seeds.
        leader: The method whose lead is reported.
        phases: Days of the first and of the later phase that the paper describes.
    """

    data: ClassVar[Kind] = "impressions"

    driver: Literal["objective_stream"]
    protocol: CascadeProtocol
    methods: list[Method] = Field(min_length=1)
    metric: Literal["joint_recall"] = "joint_recall"
    lists: Options = Field(default_factory=dict)
    seeds: Positive | None = None
    leader: str
    phases: Annotated[list[Positive], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _methods_are_known(self) -> Self:
        check_names(self.methods)
        check_variables(self.methods, set(), required=set())
        check_known("leader", self.leader, self.methods)
        return self


class ObjectiveRuntime(TableOfMethods):
    """Time and memory of training with each objective, beside a published table of time and memory.

    Attributes:
        baseline: The method to which costs are relative.
    """

    data: ClassVar[Kind] = "impressions"

    driver: Literal["objective_runtime"]
    protocol: CascadeProtocol
    baseline: str

    @model_validator(mode="after")
    def _baseline_is_printed(self) -> Self:
        check_known("baseline", self.baseline, self.methods)
        if len(self.published.columns) != 2 or len(self.published.values) != 1:
            raise ValueError("published: expected one data set with two columns, time and memory")
        return self


class LogStatistics(Reproduction):
    """Users, impressions and labels of each stage of a log, beside a published table of them.

    Attributes:
        platform: The preset that is simulated if the user names no log.
    """

    data: ClassVar[Kind] = "impressions"

    driver: Literal["log_statistics"]
    platform: str
    published: PublishedTable
