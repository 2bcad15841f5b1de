"""DFTopK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def dftopk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: float | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a logistic about the midpoint of the k-th and (k+1)-th score (DFTopK, sec. 4.3).

    .. math:: p_j = \sigma\big((s_j - \theta) / \tau\big), \qquad \theta = (s_{[k]} + s_{[k+1]}) / 2

    One selection, so O(n). The threshold carries gradient: half to each of the two items at the boundary. The sum
    of p is near k but not k; `sigmoid_topk` has the same shape and the exact sum. For k >= n every real item gets 1.

    >>> import torch
    >>> dftopk(torch.tensor([2.0, 0.0, -2.0]), 1)  # threshold 1: logistic of 1, -1 and -3
    tensor([0.7311, 0.2689, 0.0474])
    """
    return threshold_topk("midpoint", scores, k, tau, mask)
