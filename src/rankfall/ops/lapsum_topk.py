"""LapSum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall import register
from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from rankfall.option_types import Scale


@register.operator
def lapsum_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a Laplace distribution function whose values sum to k (LapSum).

    .. math:: p_j = F\big((s_j - b) / \tau\big), \quad F(u) = \begin{cases} e^u / 2 & u < 0 \\ 1 - e^{-u} / 2 &
              u \ge 0 \end{cases}, \quad \textstyle\sum_j p_j = k

    The threshold b is found by a few exact steps that start at the midpoint of the k-th and (k+1)-th score: O(n), no
    sort. Use it where the probabilities must sum to k.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Inclusion probabilities ``(..., n)``, in the dtype of `scores`. Masked items get 0. If a list has at most k real
        items, each of them gets 1.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        Equal scores share k equally:

        >>> import torch
        >>> lapsum_topk(torch.tensor([5.0, 5.0, 5.0, 5.0]), 1)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return threshold_topk("laplace", scores, k, tau, mask)
