"""Choosing some points of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

Point = TypeVar("Point")


def pick(points: Sequence[Point], count: int | None) -> list[Point]:
    """So many of the points, the first and the last among them, evenly spread; all without a count.

    >>> pick([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 4, 7]
    """
    if count is None or count >= len(points):
        return list(points)
    if count == 1:
        return [points[0]]
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]
