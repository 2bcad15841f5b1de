"""SoftSort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_rows, check_scale, check_scores
from rankfall.ops._rows import SoftRows

if TYPE_CHECKING:
    from typing import Literal

    from jaxtyping import Bool, Float

    from rankfall.option_types import Scale


LARGEST_ROOT = 1e12
"""Largest absolute value of the scores in units of the square root of tau, with power 2."""


@register.operator
def soft_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    tau: Scale | Tensor = 1.0,
    power: Literal[1, 2] = 1,
    k: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch k n"]:
    r"""Soft permutation by the distance to the sorted scores (SoftSort).

    .. math:: \hat P_{ij} = \operatorname{softmax}_j ( -|s_{[i]} - s_j|^p / \tau )

    where :math:`s_{[i]}` is the i-th largest score and p is `power`. After the selection of the k largest scores, k
    rows cost O(k n). Use it as a cheaper alternative to :func:`neural_sort`.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        power: Power p of the distance, 1 or 2.
        k: Number of rows to return, at least 1. Default: n.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        The first k rows of the soft permutation, ``(..., k, n)``, in the dtype of `scores`. Masked columns, and rows
        for ranks beyond the length of a list, are 0.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        >>> soft_sort(torch.tensor([1.0, 3.0, 2.0]), tau=0.01).round()
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """
    rows = soft_sort_rows(scores, tau, mask, power)
    return rows.probabilities(0, check_rows("k", k, scores.shape[-1])).to(scores.dtype)


def soft_sort_rows(scores: Tensor, tau: float | Tensor, mask: Tensor | None, power: int = 1) -> SoftRows:
    """Return the rows of SoftSort as lazily computed :class:`SoftRows`."""
    if isinstance(power, bool | Tensor) or power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, got {power}")
    scores, mask = check_scores(scores, mask)
    check_scale("tau", tau, scores)
    # Squares of differences must stay far above LOG_ZERO.
    scores = scores / tau if power == 1 else (scores / tau**0.5).clamp(-LARGEST_ROOT, LARGEST_ROOT)
    filled = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    order = filled.detach().argsort(-1, descending=True)
    ranked = scores.gather(-1, order)

    def logits(start: int, stop: int, mask: Tensor | None, ranked: Tensor, scores: Tensor) -> Tensor:
        # Rows past the last item exist only where the mask sets them to 0, so any score can be used there.
        heads = ranked[..., start:stop] if stop <= scores.shape[-1] else _extend(ranked, stop)[..., start:stop]
        distance = (heads.unsqueeze(-1) - scores.unsqueeze(-2)).abs()
        return -distance if power == 1 else -distance.square()

    def pull(start: int, stop: int, grad: Tensor, ranked: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        apart = scores.unsqueeze(-2) - ranked[..., start:stop].unsqueeze(-1)
        of_scores = -grad * (apart.sign() if power == 1 else 2 * apart)
        return torch.nn.functional.pad(-of_scores.sum(-1), (start, ranked.shape[-1] - stop)), of_scores.sum(-2)

    return SoftRows((ranked, scores), logits, pull, scores.shape, mask)


def _extend(ranked: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(ranked, (0, count - ranked.shape[-1]))
