"""Which items of the ground truth a stage keeps fewer of than of others.

A segment is compared with all other items of the ground truth that arrived at the stage, by a score test whose
variance is over requests or users, so that several items of one request count as what they are: not independent. The
p-values of all segments of a stage are corrected together (Benjamini and Hochberg), so that of the segments that are
listed at most 5 % are expected to be noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from rankfall.studies.diagnosis.results import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.studies.diagnosis.attributes import Attribute, TruthItems
    from rankfall.studies.diagnosis.funnel_lists import FunnelLists
    from rankfall.studies.diagnosis.resampling import Resampler

LEAST_ITEMS, LEAST_REQUESTS = 30, 20  # of a segment and of all others
LEVEL = 0.05  # expected share of noise among the segments that are listed
LISTED = 20  # segments of a stage


@dataclass(frozen=True, slots=True)
class _Tested:
    """A segment with enough items, before the correction of its p-value.

    `arrived` and `lost` are the weights ``(R,)`` of its items per request.
    """

    attribute: str
    value: str
    items: int
    requests: int
    arrived: Tensor
    lost: Tensor
    p_value: float


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
    arrived = lists.arrived[stage].numpy()[truth.request, truth.place] * truth.weight
    lost = arrived * ~lists.arrived[stage + 1].numpy()[truth.request, truth.place]
    requests = len(lists)
    total = _per_request(truth.request, lost, requests), _per_request(truth.request, arrived, requests)
    tested = [
        one for attribute in attributes for one in _test(attribute, truth, arrived, lost, requests, total, resampler)
    ]
    corrected = benjamini_hochberg([one.p_value for one in tested])
    significant = [(one, p) for one, p in zip(tested, corrected, strict=True) if p <= LEVEL]
    later = _later(lists, stage)
    segments = _segments(significant, total, later, resampler)
    return FoundSegments(
        tested=len(tested),
        worse=sorted((one for one in segments if one.at_stake.value > 0), key=lambda one: -one.at_stake.value)[:LISTED],
        better=sorted((one for one in segments if one.at_stake.value < 0), key=lambda one: one.at_stake.value)[:LISTED],
    )


def _later(lists: FunnelLists, stage: int) -> float:
    """Return the share of what passes a stage that survives all later stages."""
    passed = float(lists.recall(lists.arrived[stage + 1]).sum())
    return float(lists.recall(lists.arrived[-1]).sum()) / passed if passed else 0.0


def _per_request(request: NDArray[np.int64], values: NDArray[np.float64], requests: int) -> Tensor:
    return torch.from_numpy(np.bincount(request, values, minlength=requests))


def _test(
    attribute: Attribute,
    truth: TruthItems,
    arrived: NDArray[np.float64],
    lost: NDArray[np.float64],
    requests: int,
    total: tuple[Tensor, Tensor],
    resampler: Resampler,
) -> list[_Tested]:
    """Test the values of an attribute that have enough items."""
    present = (arrived > 0) & (attribute.codes >= 0)
    counts = np.bincount(attribute.codes[present], minlength=len(attribute.labels))
    everything, found = int((arrived > 0).sum()), []
    for code in np.flatnonzero((counts >= LEAST_ITEMS) & (everything - counts >= LEAST_ITEMS)):
        chosen = np.flatnonzero(present & (attribute.codes == code))
        request = truth.request[chosen]
        here = _per_request(request, lost[chosen], requests), _per_request(request, arrived[chosen], requests)
        inside, outside = int((here[1] > 0).sum()), int((total[1] - here[1] > 1e-9).sum())
        if min(inside, outside) < LEAST_REQUESTS:
            continue
        p_value = score_test(*(resampler.per_group(torch.stack([*here, *total], -1)).unbind(-1)))
        label = attribute.labels[code]
        found.append(_Tested(attribute.name, label, int(counts[code]), inside, here[1], here[0], p_value))
    return found


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

    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]
    """
    values = np.array(p_values, np.float64)
    order = values.argsort()
    scaled = values[order] * len(values) / np.arange(1, len(values) + 1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return [min(1.0, round(float(value), 12)) for value in corrected]


def _segments(
    significant: Sequence[tuple[_Tested, float]], total: tuple[Tensor, Tensor], later: float, resampler: Resampler
) -> list[Segment]:
    """Return segments with their intervals, computed together."""
    if not significant:
        return []
    lost = torch.stack([one.lost for one, _ in significant], -1)
    arrived = torch.stack([one.arrived for one, _ in significant], -1)
    all_lost, all_arrived = total[0][:, None], total[1][:, None]
    kept = resampler.ratios(arrived - lost, arrived)
    elsewhere = (all_lost - lost).sum(0) / (all_arrived - arrived).sum(0)
    # the rate of all other items is precise compared with that of the segment, so it is not drawn again
    stakes = resampler.ratios((lost - elsewhere * arrived) * later, torch.ones_like(lost))
    return [
        Segment(
            attribute=one.attribute,
            value=one.value,
            items=one.items,
            requests=one.requests,
            kept=kept[column],
            kept_elsewhere=1 - float(elsewhere[column]),
            share_of_items=float(arrived[:, column].sum() / all_arrived.sum()),
            share_of_lost=float(lost[:, column].sum() / all_lost.sum()),
            at_stake=stakes[column],
            p_value=p_value,
        )
        for column, (one, p_value) in enumerate(significant)
    ]
