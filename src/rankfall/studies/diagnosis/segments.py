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
from typing import TYPE_CHECKING

import numpy as np
import torch

from rankfall.studies.diagnosis.diagnosis_result import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.studies.diagnosis.attributes import Attribute, TruthItems
    from rankfall.studies.diagnosis.funnel_lists import FunnelLists
    from rankfall.training.stage_figures import Resampler

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LEAST_ITEMS, LEAST_REQUESTS = 30, 20  # of a segment and of all others
LEVEL = 0.05  # expected share of noise among the segments that are listed
LISTED = 20  # segments of a stage
LEFT = 0.25  # share of its stake that a segment must keep without the items of the segments above it


@dataclass(frozen=True, slots=True)
class FoundSegments:
    """Segments of a stage that differ significantly from all other items, the largest stake first."""

    tested: int
    worse: list[Segment]
    better: list[Segment]


def find_segments(
    lists: FunnelLists, stage: int, truth: TruthItems, attributes: Iterable[Attribute], resampler: Resampler
) -> FoundSegments:
    """Compare the segments of all attributes with all other items that arrived at a stage.

    Args:
        lists: The lists.
        stage: Index of the stage.
        truth: The items of the ground truth.
        attributes: Their attributes.
        resampler: Draws requests for intervals.
    """
    at = truth.request, truth.place
    arrived = lists.arrived[stage].numpy()[at] * truth.weight
    lost = arrived * ~lists.arrived[stage + 1].numpy()[at]
    recoverable = lost * lists.would_survive(stage).numpy()[at]
    items = _Items(truth.request, arrived, lost, recoverable, len(lists), resampler)
    tested = [one for attribute in attributes for one in _test(items, attribute)]
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

    def only(self, chosen: NDArray[np.bool_]) -> _Items:
        """Return the same with weight 0 for all but some items."""
        return replace(
            self, arrived=self.arrived * chosen, lost=self.lost * chosen, recoverable=self.recoverable * chosen
        )


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
        p_value: P-value of the difference to all other items.
    """

    attribute: str
    value: str
    chosen: Ints
    arrived: Tensor
    lost: Tensor
    elsewhere: float
    recoverable: float
    p_value: float

    @property
    def name(self) -> str:
        """Attribute and value."""
        return f"{self.attribute} = {self.value}"

    @property
    def stake(self) -> float:
        """What the segment loses beyond the share of all other items, as far as it would survive later stages."""
        return float(self.lost.sum() - self.elsewhere * self.arrived.sum()) * self.recoverable


def _test(items: _Items, attribute: Attribute) -> Iterator[_Tested]:
    """Yield the values of an attribute that have enough items."""
    present = (items.arrived > 0) & (attribute.codes >= 0)
    order = np.flatnonzero(present)
    order = order[attribute.codes[order].argsort(kind="stable")]
    counts = np.bincount(attribute.codes[order], minlength=len(attribute.labels))
    for code, chosen in enumerate(np.split(order, counts.cumsum()[:-1])):
        tested = _compare(items, attribute.name, attribute.labels[code], chosen)
        if tested is not None:
            yield tested


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
    return _Tested(
        attribute=attribute,
        value=value,
        chosen=chosen,
        arrived=arrived,
        lost=lost,
        elsewhere=float((all_lost - lost).sum() / (all_arrived - arrived).sum()),
        recoverable=float(items.recoverable[chosen].sum() / total) if total > 0 else 1.0,
        p_value=score_test(*sums.unbind(-1)),
    )


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


def _explanations(items: _Items, segments: Sequence[_Tested], limit: float) -> Iterator[str | None]:
    """Yield for each segment the one above it that explains it, None if there is none.

    Args:
        items: All items of the ground truth.
        segments: Segments that differ significantly, the largest stake first.
        limit: The largest p-value that is significant.
    """
    free = np.ones(len(items.request), bool)  # items in none of the segments so far that nothing explains
    shown: list[_Tested] = []
    for one in segments:
        left = _compare(items.only(free), one.attribute, one.value, one.chosen) if shown else one
        if left is None or left.p_value > limit or left.stake / one.stake < LEFT:
            common = [len(np.intersect1d(one.chosen, other.chosen, assume_unique=True)) for other in shown]
            yield shown[int(np.argmax(common))].name
        else:
            free[one.chosen] = False
            shown.append(one)
            yield None


def _segments(items: _Items, significant: Sequence[tuple[_Tested, float]], limit: float) -> list[Segment]:
    """Return segments with their intervals, computed together."""
    if not significant:
        return []
    tested = [one for one, _ in significant]
    one_each = torch.ones_like(tested[0].lost)
    # the share of all other items is precise compared with that of the segment, so it is not drawn again
    pairs = [(one.arrived - one.lost, one.arrived) for one in tested]
    pairs += [((one.lost - one.elsewhere * one.arrived) * one.recoverable, one_each) for one in tested]
    estimates = items.resampler.ratios(pairs)
    kept, stakes = estimates[: len(tested)], estimates[len(tested) :]
    all_arrived, all_lost = items.arrived.sum(), items.lost.sum()
    return [
        Segment(
            attribute=one.attribute,
            value=one.value,
            items=len(one.chosen),
            requests=int((one.arrived > 0).sum()),
            kept=kept[column],
            kept_elsewhere=1 - one.elsewhere,
            share_of_items=float(one.arrived.sum() / all_arrived),
            share_of_lost=float(one.lost.sum() / all_lost),
            at_stake=stakes[column],
            p_value=p_value,
            explained_by=explained,
        )
        for column, ((one, p_value), explained) in enumerate(
            zip(significant, _explanations(items, tested, limit), strict=True)
        )
    ]
