"""RankFlow: stages that learn from what their predecessor keeps, and from their successor (Qin et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from rankfall._lists import check_count, list_mean, mean_over_lists, rank_order
from rankfall.losses import bce_loss
from rankfall.objectives._stages import Impression, Objective, check_quotas

if TYPE_CHECKING:
    from collections.abc import Sequence


class RankFlow(Objective):
    r"""Each stage learns from what its predecessor keeps, and from its successor (Qin et al. 2022).

    Stage 1 learns from everything, stage t + 1 from the items that stage t keeps, and stage t from stage t + 1.

    On the kept items stage t is distilled by :math:`(1 - \alpha)` times the squared error to the next stage's scores,
    which carry no gradient here, plus :math:`\alpha` times :math:`-\log \sigma` of the difference between the mean
    scores of the next stage's best `relevant` items and of the rest.
    """

    def __init__(self, *, relevant: int, quotas: Sequence[int], alpha: float = 0.5) -> None:
        super().__init__(len(quotas))
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(quotas, self.stages)
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
        self.alpha = alpha

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        kept = batch.mask
        terms = {}
        for t, scores in enumerate(batch.scores, 1):
            terms[f"stage{t}/bce"] = bce_loss(scores, truth, mask=kept, threshold=None)
            if t < self.stages:
                kept = _best(scores, self.quotas[t - 1], kept)
                terms[f"stage{t}/distilled"] = self._distil(scores, batch.scores[t].detach(), kept)
        return terms

    def _distil(self, scores: Tensor, teacher: Tensor, kept: Tensor) -> Tensor:
        squared = list_mean((scores - teacher).square(), kept)
        best = _best(teacher, self.relevant, kept)
        rest = kept & ~best
        ahead = list_mean(scores, best) - list_mean(scores, rest)
        ranked = -F.logsigmoid(ahead).masked_fill(~rest.any(-1), 0.0)  # nobody to be ahead of costs nothing
        return mean_over_lists((1 - self.alpha) * squared + self.alpha * ranked)


def _best(scores: Tensor, k: int, mask: Tensor) -> Tensor:
    """The k best of the real items, as a mask without gradient; ties by position."""
    order = rank_order(scores, mask)
    place = order.argsort(-1)
    return mask & (place < k)
