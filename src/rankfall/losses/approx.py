"""Metrics made smooth by replacing each rank by a sum of sigmoids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall._lists import (
    Reduction,
    add_gumbel,
    check_lists,
    check_positive,
    gains,
    has_positive,
    ideal_dcg,
    item_weight,
    reduce_lists,
    safe_divide,
)
from rankfall.losses._pairs import map_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def approx_ndcg_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    tau: float | Tensor = 1.0,
    gumbel_samples: int = 0,
    beta: float = 1.0,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ApproxNDCG: one minus NDCG at smooth ranks (Qin et al. 2010; LLK 8; Gumbel: Bruch et al. 2020).

    .. math:: 1 - \frac{1}{\text{ideal DCG}} \sum_i \frac{G_i}{D(\hat r_i)}, \quad
              \hat r_i = 1 + \sum_{j \ne i} \sigma\Big(\frac{s_j - s_i}{\tau}\Big)

    LLK 8 sums over all j, which would add the constant 1/2 to each rank; the item itself is left out here.

    tau: temperature; the ranks become exact as it goes to 0.
    gumbel_samples: 0, or the number of times Gumbel noise of scale `beta` is added to the scores; the loss is the
      mean over these draws.
    generator: source of the noise.

    Item weights multiply the gains, of the ideal order too.

    Two equal scores share the ranks 1 and 2, so NDCG is 1/log2(2.5):

    >>> approx_ndcg_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(0.2435)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_positive("tau", tau)
    check_positive("beta", beta)
    of_items = item_weight(weight, scores, mask)
    gain = gains(labels, mask) if of_items is None else gains(labels, mask) * of_items
    noisy = add_gumbel(scores, gumbel_samples, beta, generator) if gumbel_samples else scores[None]
    discount = torch.log2(1 + _smooth_ranks(noisy / tau, mask)).reciprocal()
    ndcg = safe_divide((gain * discount).sum(-1), ideal_dcg(gain))
    per_list = (1 - ndcg).mean(0).masked_fill(~has_positive(gain, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


def _smooth_ranks(scores: Tensor, mask: Tensor) -> Tensor:
    def block(start: int, stop: int) -> Tensor:
        ahead = torch.sigmoid(scores[..., None, :] - scores[..., start:stop, None])
        # The item's own sigmoid is 1/2 and its rank starts at 1.
        return 0.5 + (ahead * mask[..., None, :]).sum(-1)

    return torch.cat(map_rows(block, scores.shape[-1], scores.numel()), -1)
