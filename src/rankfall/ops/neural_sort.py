"""NeuralSort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall._lists import add_gumbel, any_order, check_count, check_positive, check_scores
from rankfall.ops._rows import SoftRows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def neural_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    tau: float | Tensor = 1.0,
    k: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
    gumbel_samples: int = 0,
    beta: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch k n"]:
    r"""First k rows of a soft permutation by a closed form (NeuralSort; ARF, eq. 10; PIR, eq. 12).

    .. math:: \hat P_{ij} = \operatorname{softmax}_j
              \Big( \big((n + 1 - 2i)\, s_j - \textstyle\sum_l |s_j - s_l|\big) / \tau \Big)

    Row i is a distribution over the items for rank i; as tau tends to 0 it becomes the item of that rank. The sums of
    absolute differences come from one sort and prefix sums, so k rows cost O(n log n + k n) and no n x n matrix is
    made. Differences grow with n, and so should tau.

    With `gumbel_samples` > 0, that many soft permutations of ``scores + beta * Gumbel noise`` are drawn and stand in a
    new first dimension.

    >>> neural_sort(torch.tensor([1.0, 3.0, 2.0]), tau=0.01).round()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """
    if gumbel_samples:
        scores = add_gumbel(scores, gumbel_samples, beta, generator)
        mask = None if mask is None else mask.expand(scores.shape)
    rows = neural_rows(scores, tau, mask)
    count = scores.shape[-1] if k is None else check_count("k", k)
    return rows.probabilities(0, count).to(scores.dtype)


def neural_rows(scores: Tensor, tau: float | Tensor, mask: Tensor | None) -> SoftRows:
    r"""The rows of NeuralSort before they are asked for.

    Let items be in descending order, r_j the rank of item j and A_j the sum of all scores before it. Then the sum of
    absolute differences is 2 A_j + (n + 2 - 2 r_j) s_j minus the sum of all scores, which is the same for every item
    and vanishes in the softmax, so that a logit is

        (2 r_j - 1) s_j - 2 A_j - 2 i s_j

    with no n in it: padding cannot change it. With the largest score moved to 0 the terms are small near the top,
    where digits matter.
    """
    check_positive("tau", tau)
    scores, mask = check_scores(scores, mask)
    filled = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    top = filled.detach().amax(-1, keepdim=True)
    if mask is not None:
        top = top.masked_fill(top == -torch.inf, 0.0)  # a list without items
    s = (scores - top) / tau
    order = any_order(filled)
    base = _RankedSums.apply(s, order, mask)  # type: ignore[no-untyped-call]

    def logits(start: int, stop: int) -> Tensor:
        double_rank = 2 * torch.arange(start + 1, stop + 1, device=s.device, dtype=s.dtype).unsqueeze(-1)
        return torch.addcmul(base.unsqueeze(-2), s.unsqueeze(-2), double_rank, value=-1)

    return SoftRows(logits, scores.shape, mask)


class _RankedSums(torch.autograd.Function):
    """s -> (2 r - 1) s - 2 (sum of the scores before), with |x|' = 0 at 0: tied items get equal gradients."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, order: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            s = s.masked_fill(~mask, -torch.inf)
        v = s.gather(-1, order)
        ctx.save_for_backward(v, order)
        if mask is not None:  # masked items stand last, so that nothing is added before any other item
            v = v.masked_fill(v == -torch.inf, 0.0)
        odd = torch.arange(1, 2 * v.shape[-1], 2, device=v.device, dtype=v.dtype)
        # exclusive prefix sums: those that include the item itself, less it
        base = (odd + 2) * v - 2 * v.cumsum(-1)
        return torch.empty_like(base).scatter_(-1, order, base)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        v, order = ctx.saved_tensors
        g = grads[0].gather(-1, order)
        first, last = _tie_bounds(v)
        until = g.cumsum(-1)
        before = (until - g).gather(-1, first)
        grad = (first + last + 2) * g + until.gather(-1, last) + before - 2 * until[..., -1:]
        return torch.empty_like(grad).scatter(-1, order, grad), None, None


def _tie_bounds(v: Tensor) -> tuple[Tensor, Tensor]:
    """First and last position of the run of equal values that each position of a sorted list belongs to."""
    n = v.shape[-1]
    position = torch.arange(n, device=v.device).expand(v.shape)
    changes = v[..., 1:] != v[..., :-1]
    starts = torch.nn.functional.pad(changes, (1, 0), value=True)
    ends = torch.nn.functional.pad(changes, (0, 1), value=True)
    first = position.where(starts, 0).cummax(-1).values
    last = position.where(ends, n - 1).flip(-1).cummin(-1).values.flip(-1)
    return first, last
