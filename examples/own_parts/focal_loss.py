"""A loss: focal loss (Lin et al. 2017), which gives less weight to items that are classified well already."""

import torch
from torch import Tensor
from torch.nn import functional as F

from rankfall.option_types import Fraction, NotNegative


def focal(
    scores: Tensor,
    labels: Tensor,
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    gamma: NotNegative = 2.0,
    alpha: Fraction = 0.5,
) -> Tensor:
    """Focal loss of independent items: -(1 - p)^gamma log p of the right class, whose probability is p.

    Args:
        scores: Logits ``(..., n)``.
        labels: Tensor ``(..., n)``, 1 for relevant items and 0 for all others.
        mask: Boolean tensor ``(..., n)``, True for real items.
        weight: Tensor ``(..., n)`` of item weights.
        gamma: Exponent. With 0 the loss is half the binary cross-entropy, if alpha is 0.5.
        alpha: Weight of relevant items; all others have 1 - alpha.
    """
    real = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
    sign = 2 * labels - 1  # log p of the right class is log sigmoid(sign * score)
    log_p = F.logsigmoid(sign * scores)
    balance = alpha * labels + (1 - alpha) * (1 - labels)
    terms = -balance * (1 - log_p.exp()) ** gamma * log_p * real
    if weight is not None:
        terms = terms * weight
    return (terms.sum(-1) / real.sum(-1).clamp(min=1)).mean()
