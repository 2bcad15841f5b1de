"""Metrics made smooth by replacing each rank with a sum of sigmoids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_lists, check_scale
from rankfall._lists import (
    Reduction,
    add_gumbel,
    gains,
    has_positive,
    ideal_dcg,
    item_weight,
    reduce_lists,
    safe_divide,
)
from rankfall.losses._module import LossModule
from rankfall.losses._pairs import map_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from rankfall.option_types import NotNegativeCount, Scale


@register.loss
def approx_ndcg_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    tau: Scale | Tensor = 1.0,
    gumbel_samples: NotNegativeCount = 0,
    beta: Scale = 1.0,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ApproxNDCG: one minus NDCG at smooth ranks (Qin et al. 2010; LLK, eq. 8; Gumbel: Bruch et al. 2020).

    .. math:: 1 - \frac{1}{\text{ideal DCG}} \sum_i \frac{G_i}{D(\hat r_i)}, \quad
              \hat r_i = 1 + \sum_{j \ne i} \sigma\Big(\frac{s_j - s_i}{\tau}\Big)

    LLK, eq. 8 sums over all j, which would add the constant 1/2 to each rank; here the item itself is left out. With
    item weights, the loss is the difference of the ideal DCG and the DCG of weighted gains, divided by the ideal DCG
    without weights. Use it to optimise NDCG directly, without a soft sort.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, at least 0. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is, the
            closer the ranks are to the exact ones.
        gumbel_samples: Number of draws of Gumbel noise that is added to the scores, 0 for no noise. The loss is the
            mean over the draws.
        beta: Positive scale of the Gumbel noise.
        generator: Random generator of the Gumbel noise. Default: torch's global generator.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Two equal scores share the ranks 1 and 2, so NDCG is 1/log2(2.5):

        >>> approx_ndcg_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor(0.2435)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_scale("tau", tau, scores)
    check_scale("beta", beta)
    of_items = item_weight(weight, scores, mask)
    gain = gains(labels, mask)
    weighted = gain if of_items is None else gain * of_items
    noisy = add_gumbel(scores, gumbel_samples, beta, generator) if gumbel_samples else scores[None]
    discount = torch.log2(1 + _smooth_ranks(noisy / tau, mask)).reciprocal()
    ideal = ideal_dcg(gain)
    best = 1.0 if of_items is None else safe_divide(ideal_dcg(weighted), ideal)
    reached = safe_divide((weighted * discount).sum(-1), ideal)
    per_list = (best - reached).mean(0).masked_fill(~has_positive(gain, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class ApproxNDCGLoss(LossModule):
    """Module of :func:`approx_ndcg_loss`."""

    function = staticmethod(approx_ndcg_loss)


def _smooth_ranks(scores: Tensor, mask: Tensor) -> Tensor:
    def block(start: int, stop: int) -> Tensor:
        ahead = torch.sigmoid(scores[..., None, :] - scores[..., start:stop, None])
        # The item's own sigmoid is 1/2, and ranks start at 1.
        return 0.5 + (ahead * mask[..., None, :]).sum(-1)

    return torch.cat(map_rows(block, scores.shape[-1], scores.numel()), -1)
