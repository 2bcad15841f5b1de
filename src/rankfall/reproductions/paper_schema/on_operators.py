"""Reproductions of properties of operators, which need no data, one model per driver."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rankfall.reproductions.paper_schema.printed import Positive
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
