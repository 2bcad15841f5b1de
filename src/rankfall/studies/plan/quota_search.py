"""Exact outcome of a cascade for many quotas at once, from stored scores.

Every list is sorted once per stage. An item survives a stage if fewer items than the quota, of those that survived the
stages before, have a better score: one running count along the order of the stage. The count is shared by all quotas
of the stage, so 1,000 tuples of three stages need about 100 running counts per list and no further sorting.

Lists are processed in blocks. The arrays of a block are small enough for the cache of a processor, and hold requests
in their last dimension, so that a running count is an addition of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.studies.stage_scores import StageScores

    Floats = NDArray[np.float64]
    Counts = NDArray[np.signedinteger[Any]]

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
    tree = _tree(choices)
    requests, length = scores.mask.shape
    outcomes = Outcomes(
        np.zeros((len(choices), requests) if per_request else len(choices)),
        np.zeros((len(choices), len(scores.stages))),
    )
    reach = min(length, max(tree))
    step = max(1, block // length)
    for start in range(0, requests, step):
        some = slice(start, min(requests, start + step))
        lists = _SortedLists(scores, weight, some, reach)
        _Visit(lists, outcomes, some if per_request else None).run(tree)
        on_requests(some.stop - some.start)
    return outcomes


def _tree(choices: Sequence[Sequence[int]]) -> dict[int, Any]:
    """Return choices as nested dictionaries, quota by quota; the innermost values are places in `choices`."""
    tree: dict[int, Any] = {}
    for place, quotas in enumerate(choices):
        branch = tree
        for quota in quotas[:-1]:
            branch = branch.setdefault(quota, {})
        branch.setdefault(quotas[-1], []).append(place)
    return tree


# --- sorted lists -------------------------------------------------------------------------------------------------


class _SortedLists:
    """Lists of a block in the order of each stage. Only the `reach` best items of the first stage are held.

    Attributes:
        arrival: For each stage, where the item at a place of its order was in the order of the stage before, as an
            index into a flattened array ``(places, requests)``.
        real: Real items ``(places, requests)`` in the order of the first stage.
        relevant: Index into a flattened array in the order of the last stage, for each item with a weight.
        request: Request of each such item.
        weight: Its weight.
    """

    def __init__(self, stored: StageScores, weight: Floats, some: slice, reach: int) -> None:
        mask = stored.mask[some].numpy()
        scores = [stage[some].numpy() for stage in stored.scores]
        self.requests = len(mask)
        ties = _Ties((len(mask), len(scores), mask.shape[1]))
        first = _order(scores[0], mask, partial(ties.keys, 0))[:, :reach]
        real = np.take_along_axis(mask, first, 1)
        place = np.broadcast_to(np.arange(reach), first.shape)  # of each item in the order of the stage
        self.arrival: list[NDArray[np.int64]] = []
        for stage in range(1, len(scores)):
            own = np.where(real, np.take_along_axis(scores[stage], first, 1), np.nan)
            order = _order(own, real, partial(ties.keys, stage, first))
            self.arrival.append(self._flat(np.take_along_axis(place, order, 1)))
            place = np.empty_like(order)
            np.put_along_axis(place, order, np.broadcast_to(np.arange(reach), order.shape), 1)
        self.real = _by_place(real)
        own_weight = np.take_along_axis(weight[some], first, 1)
        self.request, item = np.nonzero(own_weight * real)
        self.weight = own_weight[self.request, item]
        self.relevant = place[self.request, item] * self.requests + self.request

    def _flat(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return _by_place(places * self.requests + np.arange(self.requests)[:, None])


class _Ties:
    """Random keys that order items with equal scores: those that :func:`rankfall.metrics.funnel` draws."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        self._keys: Floats | None = None

    def keys(self, stage: int, items: NDArray[np.int64] | None = None) -> Floats:
        """Return the keys of all items, or of some items of each list."""
        if self._keys is None:
            generator = torch.Generator().manual_seed(SEED)
            self._keys = torch.rand(self._shape, generator=generator, dtype=torch.double).numpy()
        keys = self._keys[:, stage]
        return keys if items is None else np.take_along_axis(keys, items, 1)


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


def _by_place(array: NDArray[Any]) -> NDArray[Any]:
    """Return ``(requests, places)`` as ``(places, requests)``."""
    return np.ascontiguousarray(array.T)


# --- running counts -----------------------------------------------------------------------------------------------


class _Visit:
    """Adds the outcomes of a block of lists: each quota of a stage once for each choice of the quotas before it."""

    def __init__(self, lists: _SortedLists, outcomes: Outcomes, single: slice | None) -> None:
        self._lists = lists
        self._outcomes = outcomes
        self._single = single
        self._last = len(lists.arrival)
        wide = len(lists.real) >= np.iinfo(np.int16).max
        self._dtype = np.dtype(np.int32 if wide else np.int16)
        self._dropped = int(np.iinfo(np.int32 if wide else np.int16).max)  # rank of an item that was dropped

    def run(self, tree: dict[int, Any]) -> None:
        self._stage(0, self._lists.real, tree, ())

    def _stage(self, stage: int, alive: NDArray[np.bool_], tree: dict[int, Any], kept: tuple[float, ...]) -> None:
        """Visit all quotas of a stage for the items that arrive, in the order of the stage."""
        count = self._running_count(alive)
        last = stage == self._last
        places = self._lists.relevant if last else self._lists.arrival[stage]
        rank = np.where(alive.ravel()[places], count.ravel()[places], self._dropped)
        for wanted, branch in tree.items():
            quota = min(wanted, self._dropped - 1)
            left = float(np.minimum(count[-1], quota).sum(dtype=np.int64))
            if last:
                self._add(branch, rank <= quota, (*kept, left))
            else:
                self._stage(stage + 1, rank <= quota, branch, (*kept, left))

    def _add(self, choices: list[int], survives: NDArray[np.bool_], kept: tuple[float, ...]) -> None:
        """Add the outcome of a block, of whose items with a weight some survive."""
        lists, outcomes = self._lists, self._outcomes
        outcomes.kept[choices] += kept
        if self._single is None:
            outcomes.values[choices] += lists.weight @ survives
        else:
            weight = lists.weight * survives
            outcomes.values[choices, self._single] = np.bincount(lists.request, weight, minlength=lists.requests)

    def _running_count(self, alive: NDArray[np.bool_]) -> Counts:
        count: Counts = np.empty(alive.shape, self._dtype)
        count[0] = alive[0]
        ones = alive.view(np.int8)
        for place in range(1, len(alive)):  # faster than accumulate, which converts each element
            np.add(count[place - 1], ones[place], out=count[place])
        return count
