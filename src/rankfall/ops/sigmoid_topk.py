"""Exact sigmoid top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall import register
from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from rankfall.option_types import Scale


@register.operator
def sigmoid_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a logistic whose values sum to k exactly (rankfall).

    .. math:: p_j = \sigma\big((s_j - b) / \tau\big), \qquad \textstyle\sum_j p_j = k

    This is :func:`dftopk` with an exact sum: the threshold starts at the one of DFTopK and is moved by Newton steps
    until the sum is k, O(n). Use it if you want the logistic of DFTopK and probabilities that sum to k.

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
        >>> sigmoid_topk(torch.tensor([5.0, 5.0, 5.0, 5.0]), 1)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return threshold_topk("logistic", scores, k, tau, mask)
