"""Whether a stage and the next one want the same items."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rankfall._lists import safe_divide
from rankfall.studies.diagnosis.diagnosis_result import Agreement
from rankfall.studies.diagnosis.funnel_lists import ranks_among

if TYPE_CHECKING:
    from torch import Tensor

    from rankfall.studies.diagnosis.funnel_lists import FunnelLists
    from rankfall.training.stage_figures import Resampler


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
    if lists.complete or stage > 0:
        wants = (ranks_among(lists.orders[stage + 1], before) <= second) & before
        arrived = before.sum(-1).double()
        chosen = arrived > first  # the first stage drops something
        pairs.append(((wants & passed).sum(-1) * chosen, wants.sum(-1) * chosen))
        wanted_chance = _mean(first / arrived.clamp(min=1), chosen)
    estimates = resampler.ratios(pairs)
    return Agreement(
        stages=(lists.stages[stage], lists.stages[stage + 1]),
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
