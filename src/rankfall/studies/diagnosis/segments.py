"""Which items of the ground truth a stage keeps fewer of than of others.

A segment is compared with all other items of the ground truth that arrived at the stage, by a score test whose
variance is over requests or users, so that several items of one request count as what they are: not independent. The
p-values of all segments of a stage are corrected together (Benjamini and Hochberg), so that of the segments that are
listed at most 5 % are expected to be noise.

Segments overlap: new items are unpopular, and an author has a category. A segment is explained by those above it in the
list if the difference is not significant, or has lost most of its stake, among the items that are in none of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from rankfall._errors import RankfallError
from rankfall._lists import any_order, rank_order, safe_divide
from rankfall.studies.diagnosis.diagnosis_result import Agreement, CutDistance, LargerQuota, Oracle, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.studies.diagnosis.attributes import Attribute
    from rankfall.studies.evaluate import StageScores
    from rankfall.training.cascade_metrics import Resampler

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LEAST_ITEMS, LEAST_REQUESTS = 30, 20  # of a segment and of all others
LEVEL = 0.05  # expected share of noise among the segments that are listed
LISTED = 20  # segments of a stage
LEFT = 0.25  # share of its stake that a segment must keep without the items of the segments above it


class FoundSegments(NamedTuple):
    """Segments of a stage that differ significantly from all other items, the largest stake first."""

    tested: int
    worse: list[Segment]
    better: list[Segment]


def find_segments(
    lists: FunnelLists, stage: int, attributes: Iterable[Attribute], resampler: Resampler
) -> FoundSegments:
    """Compare the segments of all attributes with all other items that arrived at a stage.

    Args:
        lists: The lists.
        stage: Index of the stage.
        attributes: Attributes of the ground truth.
        resampler: Draws requests for intervals.
    """
    truth = lists.truth
    arrived = truth.arrived[stage] * truth.weight
    lost = arrived * ~truth.arrived[stage + 1]
    recoverable = lost * lists.would_survive(stage).numpy()[truth.request, truth.place]
    items = _Items(truth.request, arrived, lost, recoverable, len(lists), resampler)
    tested = []
    for attribute in attributes:
        present = np.flatnonzero((arrived > 0) & (attribute.codes >= 0))
        present = present[attribute.codes[present].argsort(kind="stable")]
        counts = np.bincount(attribute.codes[present], minlength=len(attribute.labels))
        for label, chosen in zip(attribute.labels, np.split(present, counts.cumsum()[:-1]), strict=True):
            if (compared := _compare(items, attribute.name, label, chosen)) is not None:
                tested.append(compared)
    corrected = benjamini_hochberg([one.p_value for one in tested])
    significant = [(one, p) for one, p in zip(tested, corrected, strict=True) if p <= LEVEL]
    significant.sort(key=lambda entry: -entry[0].stake)
    limit = max((one.p_value for one, _ in significant), default=0.0)  # of p-values before their correction
    return FoundSegments(
        tested=len(tested),
        worse=_segments(items, [entry for entry in significant if entry[0].stake > 0][:LISTED], limit),
        better=_segments(items, [entry for entry in reversed(significant) if entry[0].stake < 0][:LISTED], limit),
    )


@dataclass(frozen=True, slots=True)
class _Items:
    """Items of the ground truth.

    Attributes:
        request: Place ``(M,)`` of the request of each item.
        arrived: Weight ``(M,)`` of each item, 0 if it did not arrive.
        lost: The same if the stage lost it, else 0.
        recoverable: The same if it would then have survived all later stages, else 0.
        requests: Number of requests.
        resampler: Draws requests for intervals.
    """

    request: Ints
    arrived: Floats
    lost: Floats
    recoverable: Floats
    requests: int
    resampler: Resampler

    def per_request(self, values: Floats, chosen: Ints | slice = slice(None)) -> Tensor:
        """Return the sums ``(R,)`` of the values of some items."""
        return torch.from_numpy(np.bincount(self.request[chosen], values[chosen], minlength=self.requests))


@dataclass(frozen=True, slots=True)
class _Tested:
    """A segment with enough items, before the correction of its p-value.

    Attributes:
        attribute: Name of the attribute.
        value: Its value.
        chosen: Places of its items among all items of the ground truth.
        arrived: Weight ``(R,)`` of its items that arrived, per request.
        lost: Weight of those that were lost.
        elsewhere: Share of all other items that was lost.
        recoverable: Share of its lost items that would survive all later stages.
        stake: What it loses beyond the share of all other items, as far as it would survive all later stages.
        p_value: P-value of the difference to all other items.
    """

    attribute: str
    value: str
    chosen: Ints
    arrived: Tensor
    lost: Tensor
    elsewhere: float
    recoverable: float
    stake: float
    p_value: float


def _compare(items: _Items, attribute: str, value: str, chosen: Ints) -> _Tested | None:
    """Compare some items with all others; None if there are too few of either."""
    chosen = chosen[items.arrived[chosen] > 0]
    others = int((items.arrived > 0).sum()) - len(chosen)
    if min(len(chosen), others) < LEAST_ITEMS:
        return None
    arrived, lost = items.per_request(items.arrived, chosen), items.per_request(items.lost, chosen)
    all_arrived, all_lost = items.per_request(items.arrived), items.per_request(items.lost)
    if min(int((arrived > 0).sum()), int((all_arrived - arrived > 1e-9).sum())) < LEAST_REQUESTS:
        return None
    sums = items.resampler.per_unit(torch.stack([lost, arrived, all_lost, all_arrived], -1))
    total = items.lost[chosen].sum()
    elsewhere = float((all_lost - lost).sum() / (all_arrived - arrived).sum())
    recoverable = float(items.recoverable[chosen].sum() / total) if total > 0 else 1.0
    stake = float(lost.sum() - elsewhere * arrived.sum()) * recoverable
    p_value = score_test(*sums.unbind(-1))
    return _Tested(attribute, value, chosen, arrived, lost, elsewhere, recoverable, stake, p_value)


def score_test(lost: Tensor, arrived: Tensor, all_lost: Tensor, all_arrived: Tensor) -> float:
    """Return the two-sided p-value of the difference of two shares, those of a segment and of all other items.

    Args:
        lost: Weight ``(groups,)`` of the lost items of the segment, per request or user.
        arrived: Weight of its items that arrived.
        all_lost: Weight of all lost items.
        all_arrived: Weight of all items that arrived.
    """
    pooled = all_lost.sum() / all_arrived.sum()
    here = (lost - pooled * arrived) / arrived.sum()
    elsewhere = (all_lost - lost - pooled * (all_arrived - arrived)) / (all_arrived - arrived).sum()
    influence = here - elsewhere
    deviation = float((influence**2).sum().sqrt())
    return math.erfc(abs(float(influence.sum())) / deviation / math.sqrt(2)) if deviation > 0 else 1.0


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, such that those up to a level have it as false discovery rate.

    >>> benjamini_hochberg([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.03]
    """
    values = np.array(p_values, np.float64)
    order = values.argsort()
    scaled = values[order] * len(values) / np.arange(1, len(values) + 1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return [min(1.0, value) for value in corrected.tolist()]


def _segments(items: _Items, significant: Sequence[tuple[_Tested, float]], limit: float) -> list[Segment]:
    """Return segments with their intervals, computed together, and what explains them.

    Args:
        items: All items of the ground truth.
        significant: Segments that differ significantly, the largest stake first, with their corrected p-values.
        limit: The largest p-value before the correction that is significant.
    """
    if not significant:
        return []
    tested = [one for one, _ in significant]
    one_each = torch.ones_like(tested[0].lost)
    # the share of all other items is precise compared with that of the segment, so it is not drawn again
    pairs = [(one.arrived - one.lost, one.arrived) for one in tested]
    pairs += [((one.lost - one.elsewhere * one.arrived) * one.recoverable, one_each) for one in tested]
    estimates = items.resampler.ratios(pairs)
    all_arrived, all_lost = items.arrived.sum(), items.lost.sum()
    free = np.ones(len(items.request), bool)  # items in none of the segments so far that nothing explains
    shown: list[_Tested] = []
    segments = []
    for place, (one, p_value) in enumerate(significant):
        left: _Tested | None = one
        if shown:
            rest = replace(
                items, arrived=items.arrived * free, lost=items.lost * free, recoverable=items.recoverable * free
            )
            left = _compare(rest, one.attribute, one.value, one.chosen)
        explained_by = None
        if left is None or left.p_value > limit or left.stake / one.stake < LEFT:
            above = max(shown, key=lambda other: len(np.intersect1d(one.chosen, other.chosen, assume_unique=True)))
            explained_by = f"{above.attribute} = {above.value}"
        else:
            free[one.chosen] = False
            shown.append(one)
        segments.append(
            Segment(
                attribute=one.attribute,
                value=one.value,
                items=len(one.chosen),
                requests=int((one.arrived > 0).sum()),
                kept=estimates[place],
                kept_elsewhere=1 - one.elsewhere,
                share_of_items=float(one.arrived.sum() / all_arrived),
                share_of_lost=float(one.lost.sum() / all_lost),
                at_stake=estimates[len(tested) + place],
                p_value=p_value,
                explained_by=explained_by,
            )
        )
    return segments


SEED = 0  # of the order of equal scores


class TruthItems(NamedTuple):
    """All items of the ground truth.

    Attributes:
        request: Place ``(M,)`` of the request in the lists.
        place: Place ``(M,)`` of the item in its list.
        weight: Share ``(M,)`` of the item in the ground truth of its request.
        arrived: Whether the item ``(M,)`` arrived at each stage, and whether it survived the last one.
    """

    request: Ints
    place: Ints
    weight: Floats
    arrived: list[NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class FunnelLists:
    """The requests with a relevant item, and what each stage did with them.

    Attributes:
        scores: Scores of these requests.
        rows: Their places ``(R,)`` among all requests that were scored.
        quotas: Number of items that each stage keeps.
        weight: Share ``(R, N)`` of each item in the ground truth of its request, float32; the sum of a request is 1.
        orders: Indices ``(R, N)`` of the items by descending score of each stage; equal scores are in random order.
        arrived: Items ``(R, N)`` that arrived at each stage, and after the last stage those that survived.
    """

    scores: StageScores
    rows: Tensor
    quotas: list[int]
    weight: Tensor
    orders: list[Tensor]
    arrived: list[Tensor]

    @classmethod
    def of_scores(cls, collected: StageScores, quotas: Sequence[int]) -> FunnelLists:
        """Sort the lists of all requests with a relevant item by every stage.

        Args:
            collected: Scores of all stages.
            quotas: Number of items that each stage keeps.

        Raises:
            ValueError: No request has a relevant item.
        """
        total = collected.truth.double().sum(-1, keepdim=True)
        rows = (total.squeeze(-1) > 0).nonzero().squeeze(-1)
        if not len(rows):
            raise RankfallError("diagnosis: no request has a relevant item, so nothing can be lost")
        scores = collected.select(rows)
        generator = torch.Generator().manual_seed(SEED)
        orders = []
        for stage in scores.scores:  # masked items last
            shuffle = any_order(torch.rand(stage.shape, generator=generator))
            order = rank_order(stage.gather(-1, shuffle), scores.mask.gather(-1, shuffle))
            orders.append(shuffle.gather(-1, order))
        weight = (scores.truth / total[rows]).float()
        return cls(scores, rows, list(quotas), weight, orders, survivors(orders, scores.mask, quotas))

    @cached_property
    def truth(self) -> TruthItems:
        """All items of the ground truth."""
        chosen = self.weight > 0
        request, place = chosen.nonzero(as_tuple=True)
        arrived = [alive[chosen].numpy() for alive in self.arrived]
        return TruthItems(request.numpy(), place.numpy(), self.weight[chosen].double().numpy(), arrived)

    def __len__(self) -> int:
        """The number of requests with a relevant item."""
        return len(self.rows)

    def recall(self, alive: Tensor) -> Tensor:
        """Return the share ``(R,)`` of the ground truth of each request that is among some items ``(R, N)``."""
        return (self.weight * alive).sum(-1).double()

    def ranks(self, stage: int) -> Tensor:
        """Return the rank ``(R, N)`` of each item that arrived at a stage, from 1, among those; 0 for all others."""
        return ranks_among(self.orders[stage], self.arrived[stage])

    def would_survive(self, stage: int) -> Tensor:
        """Return which items ``(R, N)`` would survive all stages after this one if they alone were passed to them too.

        The items that pass the stage now are passed as well, so that an item that they displace may be relevant.
        """
        would = self.scores.mask
        for later in range(stage + 1, len(self.quotas)):
            arrived, order = self.arrived[later], self.orders[later]
            before = arrived.gather(-1, order).cumsum(-1, dtype=torch.int32)
            better = torch.empty_like(before).scatter_(-1, order, before) - arrived.int()
            would = would & (better < self.quotas[later])
        return would

    def perfect_order(self, stage: int) -> Tensor:
        """Return the order of a stage that puts the ground truth first, and leaves the order of all others."""
        order = self.orders[stage]
        return order.gather(-1, self.weight.gather(-1, order).argsort(dim=-1, descending=True, stable=True))


def survivors(orders: Sequence[Tensor], mask: Tensor, quotas: Sequence[int]) -> list[Tensor]:
    """Return the items ``(R, N)`` that arrive at each stage, and then those that survive the last one.

    Args:
        orders: Indices of the items by descending score of each stage, masked items last.
        mask: Real items.
        quotas: Number of items that each stage keeps.
    """
    alive = [mask]
    for order, quota in zip(orders, quotas, strict=True):
        alive.append((ranks_among(order, alive[-1]) <= quota) & alive[-1])
    return alive


def ranks_among(order: Tensor, alive: Tensor) -> Tensor:
    """Return the rank of each item that is alive among those, from 1, in int32; 0 for all others."""
    in_order = alive.gather(-1, order)
    ranks = in_order.cumsum(-1, dtype=torch.int32) * in_order
    return torch.empty_like(ranks).scatter_(-1, order, ranks)


FACTORS = (1.25, 1.5, 2.0)  # of larger quotas
QUANTILES = (10, 25, 50, 75, 90)  # percent


def cut_distance(lists: FunnelLists, stage: int, resampler: Resampler, *, reach: int | None = None) -> CutDistance:
    """Return how far below the cut of a stage its lost items were.

    Args:
        lists: The lists.
        stage: Index of the stage.
        resampler: Draws requests for intervals.
        reach: Number of best items of the first stage that incomplete lists hold. Its ranks are known up to here.
    """
    quota, ranks = lists.quotas[stage], lists.ranks(stage)
    lost = lists.arrived[stage] & ~lists.arrived[stage + 1] & (lists.weight > 0)
    where, weight = lost.nonzero(as_tuple=True), lists.weight[lost].numpy()
    known = None if stage or lists.scores.complete else max(reach or quota, quota) / quota
    multiples = ranks[where].double().numpy() / quota
    # score of the last kept item minus that of each item, in deviations of the scores that arrived
    alive, scores = lists.arrived[stage], lists.scores.scores[stage].double()
    last = scores.masked_fill(~lists.arrived[stage + 1], torch.inf).amin(-1, keepdim=True)
    count = alive.sum(-1, keepdim=True).double()
    mean = (scores * alive).sum(-1, keepdim=True) / count
    deviation = (((scores - mean) ** 2 * alive).sum(-1, keepdim=True) / count).sqrt()
    distance = safe_divide(last - scores, deviation)[where].numpy()

    most = lists.quotas[stage - 1] if stage else lists.weight.shape[-1]
    larger: dict[int, float] = {}  # factors of larger quotas, only as far as ranks are known
    for factor in FACTORS:
        more = min(round(quota * factor), most)
        if more > quota and (known is None or more <= known * quota):
            larger.setdefault(more, factor)
    now, lost_weight = lists.recall(lists.arrived[-1]), lists.weight * lost
    pairs: list[tuple[Tensor, Tensor]] = []
    for more in larger:
        quotas = [*lists.quotas[:stage], more, *lists.quotas[stage + 1 :]]
        recall = lists.recall(survivors(lists.orders, lists.scores.mask, quotas)[-1])
        one = torch.ones_like(recall)
        pairs += [((lost_weight * (ranks <= more)).sum(-1), lost_weight.sum(-1)), (recall, one), (recall - now, one)]
    found = iter(resampler.ratios(pairs) if pairs else [])
    return CutDistance(
        items=len(weight),
        requests=int(lost.any(-1).sum()),
        rank_over_quota=quantiles(multiples if known is None else np.minimum(multiples, known), weight),
        known_up_to=known,
        score_distance=quantiles(distance, weight),
        larger_quotas=[
            LargerQuota(factor, more, next(found), next(found), next(found)) for more, factor in larger.items()
        ],
    )


def oracle(lists: FunnelLists, perfect: list[Tensor], stage: int, resampler: Resampler) -> Oracle:
    """Return the joint recall if a stage were perfect, and if all others were.

    Args:
        lists: The lists.
        perfect: The perfect order of each stage, see :meth:`FunnelLists.perfect_order`.
        stage: Index of the stage.
        resampler: Draws requests for intervals.
    """
    one = [perfect[at] if at == stage else order for at, order in enumerate(lists.orders)]
    others = [order if at == stage else perfect[at] for at, order in enumerate(lists.orders)]
    now = lists.recall(lists.arrived[-1])
    perfected, alone = (
        lists.recall(survivors(orders, lists.scores.mask, lists.quotas)[-1]) for orders in (one, others)
    )
    return Oracle(*resampler.means([perfected, perfected - now, alone]))


def quantiles(values: NDArray[np.float64], weights: NDArray[np.float32]) -> dict[str, float]:
    """Return weighted quantiles by percent: the smallest value with at least this share of the weight up to it."""
    if not len(values):
        return {str(percent): float("nan") for percent in QUANTILES}
    order = values.argsort()
    share = weights[order].cumsum(dtype=np.float64)
    places = np.searchsorted(share, np.array(QUANTILES) / 100 * share[-1] - 1e-9)
    found = values[order][np.minimum(places, len(values) - 1)]
    return {str(percent): float(value) for percent, value in zip(QUANTILES, found, strict=True)}


def agreement(lists: FunnelLists, stage: int, resampler: Resampler) -> Agreement:
    """Compare the scores of a stage with those of the next one.

    Lists that no item is dropped from at either stage say nothing about agreement and are left out.

    Args:
        lists: The lists.
        stage: Index of the first of both stages.
        resampler: Draws requests for intervals.
    """
    first, second = lists.quotas[stage : stage + 2]
    before, passed, kept = lists.arrived[stage : stage + 3]
    ranks = [ranks_among(lists.orders[at], passed) for at in (stage, stage + 1)]
    count = passed.sum(-1).double()
    drops = count > second  # the second stage drops something
    same = (kept & (ranks[0] <= second)).sum(-1).double()
    correlation = spearman(ranks[0], ranks[1], passed)
    several = count > 1
    pairs = [(correlation * several, several), (same * drops, second * drops)]
    wanted_chance = None
    if lists.scores.complete or stage > 0:
        wants = (ranks_among(lists.orders[stage + 1], before) <= second) & before
        arrived = before.sum(-1).double()
        chosen = arrived > first  # the first stage drops something
        pairs.append(((wants & passed).sum(-1) * chosen, wants.sum(-1) * chosen))
        wanted_chance = _mean(first / arrived.clamp(min=1), chosen)
    estimates = resampler.ratios(pairs)
    return Agreement(
        stages=(lists.scores.stages[stage], lists.scores.stages[stage + 1]),
        quotas=(first, second),
        correlation=estimates[0],
        overlap=estimates[1],
        overlap_chance=_mean(second / count.clamp(min=1), drops),
        wanted=None if wanted_chance is None else estimates[2],
        wanted_chance=wanted_chance,
    )


def spearman(first: Tensor, second: Tensor, among: Tensor) -> Tensor:
    """Return the correlation ``(R,)`` of two rankings of some items; 0 for fewer than two items.

    Args:
        first: Ranks ``(R, N)`` from 1, all different.
        second: The same of the other ranking.
        among: The items that are ranked.
    """
    count = among.sum(-1).double()
    squares = ((first - second).double() ** 2 * among).sum(-1)
    return (1 - safe_divide(6 * squares, count * (count**2 - 1))).masked_fill(count < 2, 0.0)


def _mean(values: Tensor, where: Tensor) -> float:
    return float((values * where).sum() / where.sum()) if where.any() else math.nan
