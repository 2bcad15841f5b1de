"""DFTopK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall import register
from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from rankfall.option_types import Scale


@register.operator
def dftopk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a logistic around the midpoint of the k-th and (k+1)-th score (DFTopK, sec. 4.3).

    .. math:: p_j = \sigma\big((s_j - \theta) / \tau\big), \qquad \theta = (s_{[k]} + s_{[k+1]}) / 2

    The cost is one selection, O(n). The threshold carries gradient: half of it goes to each of the two items at the
    boundary. The sum of p is close to k, but not equal to k. Use it if speed matters most; :func:`sigmoid_topk` has the
    same shape and an exact sum.

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
        The threshold is 1, so the values are the logistic of 1, -1 and -3:

        >>> import torch
        >>> dftopk(torch.tensor([2.0, 0.0, -2.0]), 1)
        tensor([0.7311, 0.2689, 0.0474])
    """
    return threshold_topk("midpoint", scores, k, tau, mask)
