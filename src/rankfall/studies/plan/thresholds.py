"""Dynamic quotas: a stage keeps the items above a threshold on its scores, more for some requests than for others.

Thresholds are worth their trouble only if they keep more than fixed quotas of the same mean cost. Both are chosen on
one half of the requests and measured on the other half, since a choice among hundreds looks better than it is on the
requests that chose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from rankfall.studies.plan.front import best_for_budget, pareto
from rankfall.studies.plan.plan_result import FrontPoint, HalfComparison, ThresholdPoint
from rankfall.studies.plan.priced_lists import estimate_means
from rankfall.studies.plan.quota_search import Threshold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankfall.studies.plan.priced_lists import Measured, PricedLists, Rows
    from rankfall.studies.plan.quota_search import Rule
    from rankfall.studies.stage_scores import StageScores

SEED = 0  # of the halves
MOST_CHOICES = 1000  # of thresholds
MOST_THRESHOLDS = 32  # of a stage
MOST_COMPARISONS = 8
FEWEST = 20  # requests with a relevant item in each half


@dataclass(frozen=True, slots=True)
class Fronts:
    """Fronts of thresholds and of quotas, chosen on one half of the requests and measured on the other half."""

    thresholds: list[ThresholdPoint]
    quotas: list[FrontPoint]
    comparisons: list[HalfComparison]


def compare_thresholds(
    lists: PricedLists,
    grid: Mapping[str, Sequence[int]],
    current: Sequence[int],
    quotas: Sequence[tuple[int, ...]],
) -> Fronts | None:
    """Choose thresholds and quotas on one half of the requests, and measure both on the other half.

    Args:
        lists: Lists and costs.
        grid: Quotas of each stage; a threshold keeps at least the smallest and at most the largest of them.
        current: Current quotas. The last stage keeps its quota.
        quotas: Quotas to choose from; those with another quota of the last stage are ignored.

    Returns:
        The fronts, or None if there are too few requests.
    """
    choosing, measuring = (lists.take(rows) for rows in _halves(lists))
    if min(choosing.defined.sum(), measuring.defined.sum()) < FEWEST:
        return None
    rules = threshold_choices(choosing.scores, grid, current)
    fixed = [one for one in quotas if one[-1] == current[-1]]
    priced, priced_fixed = choosing.price(rules), choosing.price(fixed)
    front, fixed_front = pareto(*priced), pareto(*priced_fixed)
    found = measuring.measure([rules[place] for place in front])
    found_fixed = measuring.measure([fixed[place] for place in fixed_front])
    thresholds = [_threshold_point(found, number) for number in range(len(front))]
    points = [found_fixed.quota_point(number) for number in range(len(fixed_front))]

    pairs = []  # numbers of a point of each front for the same budget
    for number in spread(len(fixed_front), MOST_COMPARISONS):
        budget = float(priced_fixed[0][fixed_front[number]])
        best = best_for_budget(*priced, budget)
        if best is not None:
            pairs.append((number, front.index(best), budget))
    differences = [found.values[other] - found_fixed.values[number] for number, other, _ in pairs]
    estimates = estimate_means(np.array(differences), found.users) if pairs else []
    comparisons = [
        HalfComparison(budget, points[number], thresholds[other], difference)
        for (number, other, budget), difference in zip(pairs, estimates, strict=True)
    ]
    return Fronts(thresholds, points, comparisons)


def threshold_choices(
    scores: StageScores, grid: Mapping[str, Sequence[int]], current: Sequence[int]
) -> list[tuple[Rule, ...]]:
    """Return thresholds to try: scores that keep from the smallest to the largest quota of the grid on average.

    The first stage has thresholds for the items it ranks best, later stages for the items that the first stage keeps
    with its current quota. The best score of all keeps the smallest number of items, and -inf the largest.
    """
    *free, _ = grid.values()
    count = min(MOST_THRESHOLDS, int(MOST_CHOICES ** (1 / max(1, len(free)))))
    rules: list[list[Rule]] = []
    for stage, quotas in enumerate(free):
        cap = max(quotas)
        pooled = _best_first(scores, stage, cap if stage == 0 else current[0])
        counts = np.geomspace(min(quotas), cap, count) * len(scores)
        places = np.unique(np.minimum(counts, len(pooled)).astype(int)) - 1
        levels = sorted({-np.inf, float(pooled[0]), *pooled[places].tolist()}, reverse=True)
        rules.append([Threshold(level, min(quotas), cap) for level in levels])
    return list(product(*rules, [current[-1]]))


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers from 0 to `count` - 1, evenly spread, with the first and the last.

    >>> spread(9, 3), spread(2, 3)
    ([0, 4, 8], [0, 1])
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def _best_first(scores: StageScores, stage: int, reach: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return the scores of a stage for the `reach` best items of the first stage of all lists, from the best on."""
    first = scores.scores[0].masked_fill(~scores.mask, -np.inf)
    kept = first.topk(min(reach, first.shape[1])).indices
    pooled = scores.scores[stage].gather(1, kept)[scores.mask.gather(1, kept)].numpy()
    return -np.sort(-pooled)


def _halves(lists: PricedLists) -> list[Rows]:
    """Return the requests of two halves; all requests of a user are in the same half."""
    units = np.arange(len(lists.scores)) if lists.users is None else np.unique(lists.users, return_inverse=True)[1]
    order = np.random.default_rng(SEED).permutation(units.max() + 1)
    first = order[units] < len(order) / 2
    return [np.flatnonzero(first), np.flatnonzero(~first)]


def _threshold_point(found: Measured, place: int) -> ThresholdPoint:
    rules = [rule for rule in found.choices[place] if isinstance(rule, Threshold)]
    return ThresholdPoint(
        thresholds=[rule.score if np.isfinite(rule.score) else None for rule in rules],
        least=[rule.least for rule in rules],
        caps=[rule.cap for rule in rules],
        mean_kept=found.entered[place, 1:].tolist(),
        cost=float(found.cost[place]),
        value=found.estimates[place],
    )
