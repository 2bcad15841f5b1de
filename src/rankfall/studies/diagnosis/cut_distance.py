"""How far below the cut the lost items of a stage were, and what perfect stages or larger quotas would recover."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from rankfall._lists import safe_divide
from rankfall.studies.diagnosis.funnel_lists import survivors
from rankfall.studies.diagnosis.results import CutDistance, LargerQuota, Oracle

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.studies.diagnosis.funnel_lists import FunnelLists
    from rankfall.studies.diagnosis.resampling import Resampler

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
    quota = lists.quotas[stage]
    lost = lists.arrived[stage] & ~lists.arrived[stage + 1] & (lists.weight > 0)
    where, weight = lost.nonzero(as_tuple=True), lists.weight[lost].numpy()
    ranks = lists.ranks(stage)
    censored = stage == 0 and not lists.complete
    known = None if not censored else max(reach or quota, quota) / quota
    multiples = ranks[where].double().numpy() / quota
    distance = _score_distance(lists, stage, ranks)[where].numpy()
    return CutDistance(
        items=len(weight),
        requests=int(lost.any(-1).sum()),
        rank_over_quota=quantiles(multiples if known is None else np.minimum(multiples, known), weight),
        known_up_to=known,
        score_distance=quantiles(distance, weight),
        larger_quotas=[
            _larger_quota(lists, stage, factor, ranks, lost, resampler)
            for factor in FACTORS
            if known is None or _larger(lists, stage, factor) <= known * quota
        ],
    )


def _score_distance(lists: FunnelLists, stage: int, ranks: Tensor) -> Tensor:
    """Return the score of the last kept item minus that of each item, in deviations of the scores that arrived."""
    alive, scores = lists.arrived[stage], lists.scores[stage].double()
    last = scores.masked_fill(~lists.arrived[stage + 1], torch.inf).amin(-1, keepdim=True)
    count = alive.sum(-1, keepdim=True).double()
    mean = (scores * alive).sum(-1, keepdim=True) / count
    deviation = (((scores - mean) ** 2 * alive).sum(-1, keepdim=True) / count).sqrt()
    return safe_divide(last - scores, deviation)


def _larger(lists: FunnelLists, stage: int, factor: float) -> int:
    largest = lists.quotas[stage - 1] if stage else None
    quota = round(lists.quotas[stage] * factor)
    return quota if largest is None else min(quota, largest)


def _larger_quota(
    lists: FunnelLists, stage: int, factor: float, ranks: Tensor, lost: Tensor, resampler: Resampler
) -> LargerQuota:
    quota = _larger(lists, stage, factor)
    quotas = [*lists.quotas[:stage], quota, *lists.quotas[stage + 1 :]]
    recall = lists.recall(lists.with_quotas(quotas))
    recovered = (lists.weight * (lost & (ranks <= quota))).sum(-1)
    return LargerQuota(
        factor=factor,
        quota=quota,
        passes=resampler.ratio(recovered, (lists.weight * lost).sum(-1)),
        joint_recall=resampler.mean(recall),
        gain=resampler.mean(recall - lists.recall(lists.arrived[-1])),
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
    perfected, alone = (lists.recall(survivors(orders, lists.mask, lists.quotas)[-1]) for orders in (one, others))
    return Oracle(
        perfect=resampler.mean(perfected), gain=resampler.mean(perfected - now), others_perfect=resampler.mean(alone)
    )


def quantiles(values: NDArray[np.float64], weights: NDArray[np.float32]) -> dict[str, float]:
    """Return weighted quantiles by percent: the smallest value with at least this share of the weight up to it."""
    if not len(values):
        return {str(percent): float("nan") for percent in QUANTILES}
    order = values.argsort()
    share = weights[order].cumsum(dtype=np.float64)
    places = np.searchsorted(share, np.array(QUANTILES) / 100 * share[-1] - 1e-9)
    found = values[order][np.minimum(places, len(values) - 1)]
    return {str(percent): float(value) for percent, value in zip(QUANTILES, found, strict=True)}
