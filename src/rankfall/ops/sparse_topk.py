"""Sparse top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def sparse_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: float | Tensor = 1.0,
    p: float = 2,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by projection, with exact zeros and ones, whose values sum to k (Sparse top-k).

    .. math:: \arg\max_{0 \le x \le 1,\ \sum x = k} \langle s / \tau, x \rangle - \tfrac1p \textstyle\sum_j x_j^p

    The norm `p` is 2 (the Euclidean projection) or 4/3. The optimality conditions of this polytope have one threshold
    b, :math:`x_j = \operatorname{clip}(s_j / \tau - b, 0, 1)^{1/(p-1)}`, found in O(n) without isotonic regression. For
    k >= n every real item gets 1.

    >>> import torch
    >>> sparse_topk(torch.tensor([2.0, 1.5, 0.0]), 1)  # threshold 1.25: 0.75 + 0.25 + 0
    tensor([0.7500, 0.2500, 0.0000])
    """
    return threshold_topk(sparse_kind(p), scores, k, tau, mask)


def sparse_kind(p: float) -> str:
    """The member of the threshold family with this norm."""
    if p == 2:
        return "clip"
    if isinstance(p, float) and abs(p - 4 / 3) < 1e-6:
        return "cube"
    raise ValueError(f"p must be 2 or 4/3, got {p}")
