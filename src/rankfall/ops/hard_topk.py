"""Hard top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_count, check_scores
from rankfall._lists import kth_largest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@register.operator
def hard_topk(
    scores: Float[Tensor, "*batch n"], k: int, *, mask: Bool[Tensor, "*batch n"] | None = None
) -> Float[Tensor, "*batch n"]:
    """Hard top-k selection with a straight-through gradient (Bengio et al. 2013).

    The result is 1 for the k largest scores and 0 for all others. Ties at the boundary are resolved by position, so
    exactly min(k, n) items are selected. The backward pass hands the gradient of the result to the scores unchanged. It
    is the limit of every soft top-k as tau tends to 0; use it as a baseline for the soft operators.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Tensor ``(..., n)`` of zeros and ones, in the dtype of `scores`.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        >>> hard_topk(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
        tensor([0., 1., 0., 1.])
    """
    check_count("k", k)
    wide, mask = check_scores(scores, mask)
    values = wide if mask is None else wide.masked_fill(~mask, -torch.inf)
    kept = values > -torch.inf
    if k < scores.shape[-1]:
        boundary = kth_largest(values, k)[..., :1]
        above = values > boundary
        tied = (values == boundary) & kept
        places = k - above.sum(-1, keepdim=True)
        kept = above | (tied & (tied.cumsum(-1) <= places))
    # check_scores has filled masked items, so they get no gradient.
    result: Tensor = _StraightThrough.apply(wide, kept)  # type: ignore[no-untyped-call]
    return result.to(scores.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, kept: Tensor) -> Tensor:
        return kept.to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None
