"""Exact outcome of a cascade for many quotas at once, from stored scores.

Every list is sorted once per stage. An item survives a stage if fewer items than the quota, of those that survived the
stages before, have a better score: one running count along the order of the stage. The count is shared by all quotas
of the stage, so 1,000 tuples of three stages need about 100 running counts per list and no further sorting.

Lists are processed in blocks. The arrays of a block are small enough for the cache of a processor, and hold requests
in their last dimension, so that a running count is an addition of whole rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall._errors import RankfallError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.studies.evaluate import StageScores

    Floats = NDArray[np.float64]
    Rows = NDArray[np.int64]

SEED = 0  # of the order of items with equal scores, as in metrics.funnel
BLOCK = 2**19  # items of a block


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcome of a cascade for several choices of quotas.

    Attributes:
        values: Share of the weight that survives all stages, summed over requests: ``(choices,)``; or
            ``(choices, requests)`` if single requests were asked for.
        kept: Number of items that each stage keeps, summed over requests: ``(choices, stages)``.
    """

    values: Floats
    kept: Floats


def search(
    scores: StageScores,
    weight: Floats,
    choices: Sequence[Sequence[int]],
    *,
    per_request: bool = False,
    block: int = BLOCK,
    on_requests: Callable[[int], None] = lambda count: None,
) -> Outcomes:
    """Run all lists through a cascade once for each choice of quotas.

    The result is that of :func:`rankfall.metrics.funnel`: stage t keeps the best items, by its own scores, of those
    that the stages before it kept. Items with equal scores are in a random order, drawn for each stage with a fixed
    seed. Lists that are not complete are exact for quotas of the first stage up to the number of its best items that
    they hold.

    Args:
        scores: Scores of all stages, one list per request.
        weight: Weights ``(R, N)``; what survives of a list is the sum of the weights of the items that survive.
        choices: One quota per stage for each choice.
        per_request: Return the values of single requests.
        block: Number of items to process at once.
        on_requests: Called with the number of requests of each block.
    """
    tree: dict[int, Any] = {}  # choices quota by quota; the innermost values are places in `choices`
    for place, quotas in enumerate(choices):
        branch = tree
        for quota in quotas[:-1]:
            branch = branch.setdefault(quota, {})
        branch.setdefault(quotas[-1], []).append(place)
    requests, length = scores.mask.shape
    outcomes = Outcomes(
        np.zeros((len(choices), requests) if per_request else len(choices)),
        np.zeros((len(choices), len(scores.stages))),
    )
    step = max(1, block // length)
    for start in range(0, requests, step):
        some = slice(start, min(requests, start + step))
        lists = _Block(scores, weight, some, min(length, max(tree)), outcomes, per_request=per_request)
        lists.visit(0, lists.real, tree)
        on_requests(some.stop - some.start)
    return outcomes


class _Block:
    """Lists of a block in the order of each stage. Only the `reach` best items of the first stage are held.

    Attributes:
        arrival: For each stage, where the item at a place of its order was in the order of the stage before, as an
            index into a flattened array ``(places, requests)``.
        real: Real items ``(places, requests)`` in the order of the first stage.
        relevant: Index into a flattened array in the order of the last stage, for each item with a weight.
        request: Request of each such item.
        weight: Its weight.
    """

    def __init__(
        self, stored: StageScores, weight: Floats, some: slice, reach: int, outcomes: Outcomes, *, per_request: bool
    ) -> None:
        self.outcomes, self.single = outcomes, some if per_request else None
        mask = stored.mask[some].numpy()
        scores = [stage[some].numpy() for stage in stored.scores]
        self.requests = len(mask)

        @cache
        def ties() -> Floats:  # keys that order items with equal scores: those that rankfall.metrics.funnel draws
            generator = torch.Generator().manual_seed(SEED)
            shape = (len(mask), len(scores), mask.shape[1])
            return torch.rand(shape, generator=generator, dtype=torch.double).numpy()

        def ties_of_first(stage: int) -> Floats:
            return np.take_along_axis(ties()[:, stage], first, 1)

        first = _order(scores[0], mask, lambda: ties()[:, 0])[:, :reach]
        real = np.take_along_axis(mask, first, 1)
        place = np.broadcast_to(np.arange(reach), first.shape)  # of each item in the order of the stage
        self.arrival: list[NDArray[np.int64]] = []
        for stage in range(1, len(scores)):
            own = np.where(real, np.take_along_axis(scores[stage], first, 1), np.nan)
            order = _order(own, real, partial(ties_of_first, stage))
            flat = np.take_along_axis(place, order, 1) * self.requests + np.arange(self.requests)[:, None]
            self.arrival.append(np.ascontiguousarray(flat.T))
            place = np.empty_like(order)
            np.put_along_axis(place, order, np.broadcast_to(np.arange(reach), order.shape), 1)
        self.real = np.ascontiguousarray(real.T)
        own_weight = np.take_along_axis(weight[some], first, 1)
        self.request, item = np.nonzero(own_weight * real)
        self.weight = own_weight[self.request, item]
        self.relevant = place[self.request, item] * self.requests + self.request
        dtype = np.int32 if len(self.real) >= np.iinfo(np.int16).max else np.int16
        self.dtype = np.dtype(dtype)
        self.dropped = int(np.iinfo(dtype).max)  # rank of an item that was dropped

    def visit(self, stage: int, alive: NDArray[np.bool_], tree: dict[int, Any], kept: tuple[float, ...] = ()) -> None:
        """Add the outcomes of all quotas of a stage for the items that arrive, in the order of the stage."""
        last = stage == len(self.arrival)
        count = np.empty(alive.shape, self.dtype)
        count[0] = alive[0]
        ones = alive.view(np.int8)
        for place in range(1, len(alive)):  # faster than accumulate, which converts each element
            np.add(count[place - 1], ones[place], out=count[place])
        places = self.relevant if last else self.arrival[stage]
        rank = np.where(alive.ravel()[places], count.ravel()[places], self.dropped)
        for wanted, branch in tree.items():
            quota = min(wanted, self.dropped - 1)
            left = float(np.minimum(count[-1], quota).sum(dtype=np.int64))
            survives = rank <= quota
            if not last:
                self.visit(stage + 1, survives, branch, (*kept, left))
                continue
            self.outcomes.kept[branch] += (*kept, left)
            if self.single is None:
                self.outcomes.values[branch] += self.weight @ survives
            else:
                values = np.bincount(self.request, self.weight * survives, minlength=self.requests)
                self.outcomes.values[branch, self.single] = values


def _order(scores: NDArray[np.float32], mask: NDArray[np.bool_], keys: Callable[[], Floats]) -> NDArray[np.int64]:
    """Return the indices of the items of each list by descending score; padding comes last.

    Equal scores are ordered by their keys, which are drawn only if there are any.
    """
    descending = np.where(mask, -scores, np.nan)  # NaN is last, even behind an item with the score -inf
    order = descending.argsort(-1)
    ordered = np.take_along_axis(descending, order, 1)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if tied.any():
        order[tied] = np.lexsort((keys()[tied], descending[tied]))
    return order


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
        raise RankfallError("grid: " + "; ".join(problems))
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
            # with two digits other than 0
            grid[stage] = sorted({quota, *(int(float(f"{step:.2g}")) for step in steps)})
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
