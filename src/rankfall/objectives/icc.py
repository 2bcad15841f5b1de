"""ICC: one score fused from all stages (Gallagher et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_choice, check_count, check_scale, is_published
from rankfall._lists import has_order, rank_order
from rankfall.losses import lambdarank_loss, ranknet_loss
from rankfall.objectives._stages import Impression, Objective, check_quotas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.option_types import Count, Scale


@register.objective("icc")
class ICC(Objective):
    r"""Ranking loss on scores that are fused by soft cutoffs (Gallagher et al. 2019).

    .. math:: \sum_{t < T} \Big(\prod_{u < t} I_u\Big) (1 - I_t)\, s^t + \Big(\prod_{u < T} I_u\Big) s^T, \quad
              I_t = \sigma\Big(\frac{s^t - s^t_{[q_t]}}{temperature}\Big)

    The q-th largest score carries gradient. The labels of the ranking loss are the membership in the ground truth. A
    pair has the weight of its relevant item. Use it as a baseline that trains all stages jointly through one fused
    score.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        quotas: Number of items that each stage keeps; must not grow from stage to stage. The length is the number of
            stages.
        temperature: Positive temperature of the soft cutoffs. The smaller it is, the harder they are.
        loss: Ranking loss of the fused scores: ``"lambdarank"`` as in the paper (the default of the sound variant), or
            ``"ranknet"`` (the default of the published variant).
        variant: ``"published"`` is the baseline of LCRON's code: another default of `loss`. That code also trains pairs
            of equal labels, in a direction that depends on the order of the items; here such pairs do not count.

    Examples:
        The cutoff is sharp, so the first item has the score 2 in either stage, and the second item the score of stage
        1, 1:

        >>> scores = torch.tensor([2.0, 1.0])
        >>> ICC(relevant=1, quotas=[1, 1], temperature=1e-3, loss="ranknet")([scores, scores], torch.tensor([1.0, 0.0]))
        tensor(0.3133)
    """

    def __init__(
        self,
        *,
        relevant: int,
        quotas: Sequence[Count],
        temperature: Scale = 1.0,
        loss: Literal["lambdarank", "ranknet"] | None = None,
        variant: Literal["sound", "published"] = "sound",
    ) -> None:
        super().__init__(len(check_quotas(quotas)))
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(quotas)
        self.temperature = check_scale("temperature", temperature)
        default = "ranknet" if is_published(variant) else "lambdarank"
        self.variant = variant
        self.loss = check_choice("loss", loss or default, ("lambdarank", "ranknet"))

    def fuse(self, batch: Impression) -> Tensor:
        """Return the fused scores ``(..., n)``."""
        reached = torch.ones_like(batch.scores[0])
        fused = torch.zeros_like(reached)
        for scores, quota in zip(batch.scores[:-1], self.quotas[:-1], strict=True):
            stays = torch.sigmoid((scores - _kth(scores, quota, batch.mask)) / self.temperature)
            fused = fused + reached * (1 - stays) * scores
            reached = reached * stays
        return fused + reached * batch.scores[-1]

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        rank = lambdarank_loss if self.loss == "lambdarank" else ranknet_loss
        truth = batch.truth(self.relevant)
        return {f"fused/{self.loss}": rank(self.fuse(batch), truth, mask=batch.mask, weight=batch.weight)}

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return {"relevance": has_order(batch.truth(self.relevant), batch.mask)}


def _kth(scores: Tensor, k: int, mask: Tensor) -> Tensor:
    """Return the k-th largest real score of each list, or the smallest one of a list with fewer items."""
    order = rank_order(scores, mask)
    last = (mask.sum(-1, keepdim=True).clamp(max=k) - 1).clamp(min=0)
    return scores.gather(-1, order.gather(-1, last))
