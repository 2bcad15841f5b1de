"""SoftSort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall._lists import check_count, check_positive, check_scores
from rankfall.ops._rows import SoftRows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def soft_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    tau: float | Tensor = 1.0,
    power: int = 1,
    k: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch k n"]:
    r"""First k rows of a soft permutation by distance to the sorted scores (SoftSort).

    .. math:: \hat P_{ij} = \operatorname{softmax}_j ( -|s_{[i]} - s_j|^p / \tau )

    with :math:`s_{[i]}` the i-th largest score and p = `power`, 1 or 2. Row i is a distribution over the items for rank
    i. k rows cost O(k n) after the selection of the k largest.

    >>> soft_sort(torch.tensor([1.0, 3.0, 2.0]), tau=0.01).round()
    tensor([[0., 1., 0.],
            [0., 0., 1.],
            [1., 0., 0.]])
    """
    count = scores.shape[-1] if k is None else check_count("k", k)
    return soft_sort_rows(scores, tau, mask, power).probabilities(0, count).to(scores.dtype)


def soft_sort_rows(scores: Tensor, tau: float | Tensor, mask: Tensor | None, power: int = 1) -> SoftRows:
    """The rows of SoftSort before they are asked for."""
    check_positive("tau", tau)
    if isinstance(power, bool) or power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, got {power}")
    scores, mask = check_scores(scores, mask)
    scores = scores / (tau if power == 1 else tau**0.5)
    filled = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    order = filled.detach().argsort(-1, descending=True)
    ranked = scores.gather(-1, order)

    def logits(start: int, stop: int, mask: Tensor | None, ranked: Tensor, scores: Tensor) -> Tensor:
        # Rows past the last item exist only where a mask makes them void; any score will do there.
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
