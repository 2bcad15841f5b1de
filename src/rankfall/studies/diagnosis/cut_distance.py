"""How far below the cut the lost items of a stage were, and what perfect stages or larger quotas would recover."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from rankfall._lists import safe_divide
from rankfall.studies.diagnosis.diagnosis_result import CutDistance, LargerQuota, Oracle
from rankfall.studies.diagnosis.funnel_lists import survivors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.studies.diagnosis.funnel_lists import FunnelLists
    from rankfall.training.stage_figures import Resampler

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
    distance = _score_distance(lists, stage)[where].numpy()
    return CutDistance(
        items=len(weight),
        requests=int(lost.any(-1).sum()),
        rank_over_quota=quantiles(multiples if known is None else np.minimum(multiples, known), weight),
        known_up_to=known,
        score_distance=quantiles(distance, weight),
        larger_quotas=_larger_quotas(lists, stage, known, ranks, lost, resampler),
    )


def _score_distance(lists: FunnelLists, stage: int) -> Tensor:
    """Return the score of the last kept item minus that of each item, in deviations of the scores that arrived."""
    alive, scores = lists.arrived[stage], lists.scores[stage].double()
    last = scores.masked_fill(~lists.arrived[stage + 1], torch.inf).amin(-1, keepdim=True)
    count = alive.sum(-1, keepdim=True).double()
    mean = (scores * alive).sum(-1, keepdim=True) / count
    deviation = (((scores - mean) ** 2 * alive).sum(-1, keepdim=True) / count).sqrt()
    return safe_divide(last - scores, deviation)


def _larger(lists: FunnelLists, stage: int, known: float | None) -> dict[int, float]:
    """Return larger quotas and their factors: at most the quota before, and only as far as ranks are known."""
    quota = lists.quotas[stage]
    most = lists.quotas[stage - 1] if stage else lists.mask.shape[-1]
    found: dict[int, float] = {}
    for factor in FACTORS:
        larger = min(round(quota * factor), most)
        if larger > quota and (known is None or larger <= known * quota):
            found.setdefault(larger, factor)
    return found


def _larger_quotas(
    lists: FunnelLists, stage: int, known: float | None, ranks: Tensor, lost: Tensor, resampler: Resampler
) -> list[LargerQuota]:
    now, weight = lists.recall(lists.arrived[-1]), lists.weight * lost
    pairs: list[tuple[Tensor, Tensor]] = []
    quotas = _larger(lists, stage, known)
    for quota in quotas:
        recall = lists.recall(lists.with_quotas([*lists.quotas[:stage], quota, *lists.quotas[stage + 1 :]]))
        one = torch.ones_like(recall)
        pairs += [((weight * (ranks <= quota)).sum(-1), weight.sum(-1)), (recall, one), (recall - now, one)]
    found = iter(resampler.ratios(pairs) if pairs else [])
    return [LargerQuota(factor, quota, next(found), next(found), next(found)) for quota, factor in quotas.items()]


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
