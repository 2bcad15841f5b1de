"""Hard top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall._lists import check_count, check_scores, kth_largest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def hard_topk(
    scores: Float[Tensor, "*batch n"], k: int, *, mask: Bool[Tensor, "*batch n"] | None = None
) -> Float[Tensor, "*batch n"]:
    """The exact top-k mask, 1 for the k largest scores, with a straight-through gradient (Bengio et al. 2013).

    Ties at the boundary go to the earlier position, so exactly min(k, n) items are kept. Backward hands the gradient of
    the result on to the scores unchanged. It is the limit of every soft top-k as tau tends to 0.

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
    # Masked items were filled in check_scores, so they get no gradient.
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
