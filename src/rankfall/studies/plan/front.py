"""Choices of quotas with their costs and values: which are on the Pareto front, which is best for a target."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from rankfall._suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_TUPLES = 1000  # of a grid that is not given
MOST_QUOTAS = 32  # of a stage in a grid that is not given
WIDEST = 4  # times the current quota


def default_reach(quota: int) -> int:
    """Return the largest quota that a grid tries for a stage if none is given."""
    return WIDEST * quota


def parse_grid(words: Sequence[str], stages: Sequence[str]) -> dict[str, list[int]]:
    """Return the quotas of ``STAGE=N,N,...`` by stage.

    Raises:
        ValueError: A word is wrong. The message names all problems.

    Examples:
        >>> parse_grid(["retrieval=20,50"], ["retrieval", "ranking"])
        {'retrieval': [20, 50]}
    """
    grid: dict[str, list[int]] = {}
    problems = []
    for word in words:
        stage, _, text = word.partition("=")
        if stage not in stages:
            problems.append(
                f"found the stage {stage!r}, expected one of {', '.join(stages)}{did_you_mean(stage, stages)}"
            )
        elif not re.fullmatch(r" *0*[1-9][0-9]*( *, *0*[1-9][0-9]*)* *", text):
            problems.append(f"found {word!r}, expected {stage}=N,N,... with whole numbers of at least 1")
        else:
            grid[stage] = [*grid.get(stage, []), *map(int, text.split(","))]
    if problems:
        raise ValueError("grid: " + "; ".join(problems))
    return grid


def make_grid(
    stages: Sequence[str], current: Sequence[int], given: Mapping[str, Sequence[int]], limit: int
) -> dict[str, list[int]]:
    """Return the quotas to try for each stage.

    Quotas of a stage that is not in `given` grow by a constant factor from the last quota to four times the current
    one. The quota of the last stage costs nothing and is usually fixed by what is shown, so it stays as it is.

    Args:
        stages: Names of the stages.
        current: Quotas of the run, which are part of every default.
        given: Quotas by stage.
        limit: Length of the longest list, which no default exceeds.
    """
    free = sum(stage not in given for stage in stages[:-1])
    count = min(MOST_QUOTAS, int(MOST_TUPLES ** (1 / max(1, free))))
    grid = {}
    for stage, quota in zip(stages, current, strict=True):
        if stage in given:
            grid[stage] = sorted(set(given[stage]))
        elif stage == stages[-1]:
            grid[stage] = [quota]
        else:
            low, high = current[-1], max(quota, min(default_reach(quota), limit))
            steps = np.geomspace(low, high, count) if low < high else [quota]
            grid[stage] = sorted({quota, *(_round(step) for step in steps)})
    return grid


def quota_tuples(grid: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
    """Return all quotas of a grid in which no stage keeps more than the one before it."""
    return [quotas for quotas in product(*grid.values()) if list(quotas) == sorted(quotas, reverse=True)]


def pareto(cost: Floats, value: Floats) -> list[int]:
    """Return the places of the points that no other point dominates, from the cheapest on.

    Of points with equal cost and value, the first is returned.

    >>> pareto(np.array([3.0, 1.0, 2.0, 2.0]), np.array([0.5, 0.2, 0.5, 0.4]))
    [1, 2]
    """
    found: list[int] = []
    best = -np.inf
    for place in np.lexsort((-value, cost)).tolist():
        if value[place] > best:
            found.append(place)
            best = value[place]
    return found


def best_for_budget(cost: Floats, value: Floats, budget: float) -> int | None:
    """Return the place of the best point that costs at most `budget`, and the cheapest of equal ones."""
    inside = [place for place in pareto(cost, value) if cost[place] <= budget]
    return inside[-1] if inside else None


def cheapest_for_value(cost: Floats, value: Floats, target: float) -> int | None:
    """Return the place of the cheapest point with at least the value `target`, and the best of equal ones."""
    inside = [place for place in pareto(cost, value) if value[place] >= target]
    return inside[0] if inside else None


def _round(quota: float) -> int:
    """Return a quota with two digits other than 0."""
    return int(float(f"{quota:.2g}"))
