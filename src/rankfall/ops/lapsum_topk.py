"""LapSum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def lapsum_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: float | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a Laplace distribution function whose values sum to k (LapSum).

    .. math:: p_j = F\big((s_j - b) / \tau\big), \quad F(u) = \begin{cases} e^u / 2 & u < 0 \\ 1 - e^{-u} / 2 &
              u \ge 0 \end{cases}, \quad \textstyle\sum_j p_j = k

    The threshold b comes from a few exact steps that start at the midpoint of the k-th and (k+1)-th score: O(n),
    no sort. For k >= n every real item gets 1.

    >>> import torch
    >>> lapsum_topk(torch.tensor([5.0, 5.0, 5.0, 5.0]), 1)  # equal scores share k equally
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return threshold_topk("laplace", scores, k, tau, mask)
