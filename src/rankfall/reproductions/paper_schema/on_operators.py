"""Reproductions of properties of operators, which need no data, one model per driver."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rankfall.reproductions.paper_schema.methods import Options
from rankfall.reproductions.paper_schema.printed import Number, Positive
from rankfall.reproductions.paper_schema.reproduction import Kind, Reproduction


class SortRuntime(Reproduction):
    """Time of a soft sort by the length of lists, computed at once and by divide and conquer.

    Attributes:
        lengths: Items per list.
        growth: Published exponent of the length in the time, by depth of the recursion.
    """

    data: ClassVar[Kind] = "operators"

    driver: Literal["sort_runtime"]
    lengths: list[Positive] = Field(min_length=2)
    growth: dict[str, float]


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
