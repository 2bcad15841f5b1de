"""Reproductions of properties of operators, which need no data, one model per driver."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rankfall._config import Section
from rankfall.reproductions.paper_schema.methods import Options
from rankfall.reproductions.paper_schema.printed import Number, Positive, PublishedSweep
from rankfall.reproductions.paper_schema.reproduction import Kind, Reproduction


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


class SortRuntime(Reproduction):
    """Time of a soft sort by the length of lists, computed at once and by divide and conquer.

    Attributes:
        lengths: Items per list.
        growth: Published exponent of the length in the time, by depth of the recursion.
        training: Training steps with the sort in the loss, timed beside the sort alone.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["sort_runtime"]
    lengths: list[Positive] = Field(min_length=2)
    growth: dict[str, float]
    training: TrainingSteps


class GradientSigns(Reproduction):
    """Which items losses push up or down, in lists that are sorted by score.

    Attributes:
        k: Cut-off of the losses.
        lists: Labels by descending score, by description of the list.
        losses: The ``loss`` section of each loss.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["gradient_signs"]
    k: Positive
    lists: dict[str, list[Number]] = Field(min_length=1)
    losses: dict[str, Options] = Field(min_length=1)


class SortTree(Reproduction):
    """A small tree of soft sorts, as an example.

    Attributes:
        scores: Scores of the items at the leaves.
        branches: Children per node of each level, from the leaves to the root.
        k: Number of values that a node keeps.
        taus: Temperatures.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["sort_tree"]
    scores: list[Number] = Field(min_length=1)
    branches: list[Positive] = Field(min_length=1)
    k: Positive
    taus: list[Number] = Field(min_length=1)


class SurvivalBounds(Reproduction):
    """Bounds of the survival through two stages, by enumeration of the sets that the first stage can keep.

    Attributes:
        lengths: Items per list. Every pair of quotas, the first larger, is checked.
        operators: Name and options of the operators whose inclusions are checked.
        correlations: Correlations of the scores of both stages.
        lists: Lists per length and correlation.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["survival_bounds"]
    lengths: list[Annotated[int, Field(ge=3, le=12)]] = Field(min_length=1)
    operators: list[Options] = Field(min_length=1)
    correlations: list[Annotated[Number, Field(ge=-1, le=1)]] = Field(min_length=1)
    lists: Positive


class TopkRuntime(Reproduction):
    """Time of soft top-k operators by the length of lists, for k = n/2, beside published times.

    Attributes:
        lists: Lists that a pass computes at once.
        operators: For each printed row, the operator as `rankfall bench ops` names it.
        published: Published milliseconds by operator and length.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["topk_runtime"]
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


class GradientConflict(Reproduction):
    """Items that a loss pushes to the wrong side, by operator and number of selected items.

    Attributes:
        lists: The lists that gradients are taken on.
        ks: Numbers of selected items.
        operators: Options of `rankfall.ops.topk` for each operator and gradient, by the name in tables.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["gradient_conflict"]
    lists: SyntheticLists
    ks: list[Positive] = Field(min_length=1)
    operators: dict[str, Options] = Field(min_length=1)


class TemperatureEffect(Reproduction):
    """Distance of a soft top-k to the hard one and size of its gradient, by temperature.

    Attributes:
        lists: The lists that gradients are taken on.
        k: Number of selected items.
        operator: Name of the operator.
        taus: Temperatures.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["temperature_effect"]
    lists: SyntheticLists
    k: Positive
    operator: str
    taus: list[Number] = Field(min_length=2)
