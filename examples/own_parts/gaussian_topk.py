"""An operator: a soft top-k with Gaussian noise. An item is selected if its score plus noise exceeds a threshold."""

import torch
from torch import Tensor

from rankfall.option_types import Positive

STEPS = 60  # of the bisection, after which the threshold is exact to the last digits


def gaussian_topk(scores: Tensor, k: int, *, mask: Tensor | None = None, tau: Positive = 1.0) -> Tensor:
    """Inclusion probabilities Phi((s - t) / tau), with the threshold t for which they sum to k.

    Args:
        scores: Floating tensor ``(..., n)``.
        k: Number of items to select, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items.
        tau: Standard deviation of the noise. The smaller it is, the harder the selection.

    Returns:
        Tensor ``(..., n)`` of probabilities: 0 for masked items, 1 for all items of lists with at most k.
    """
    real = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    kept = real.sum(-1, keepdim=True) <= k  # such lists have no threshold
    threshold = _threshold(scores.detach(), k, real, tau)
    # One step of Newton's method from the solution changes no value. It gives the threshold its gradient.
    z = (scores - threshold) / tau
    slope = (torch.exp(-(z.detach() ** 2) / 2) * real).sum(-1, keepdim=True).clamp(min=1e-12)
    excess = (torch.special.ndtr(z) * real).sum(-1, keepdim=True)
    shift = (excess - excess.detach()) * (2 * torch.pi) ** 0.5 / slope
    p = torch.special.ndtr(z - shift)
    return torch.where(kept, torch.ones_like(p), p).masked_fill(~real, 0.0)


def _threshold(scores: Tensor, k: int, real: Tensor, tau: float) -> Tensor:
    low = scores.masked_fill(~real, torch.inf).amin(-1, keepdim=True).nan_to_num(posinf=0.0) - 10 * tau
    high = scores.masked_fill(~real, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0) + 10 * tau
    for _ in range(STEPS):
        middle = (low + high) / 2
        too_many = (torch.special.ndtr((scores - middle) / tau) * real).sum(-1, keepdim=True) > k
        low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
    return (low + high) / 2
