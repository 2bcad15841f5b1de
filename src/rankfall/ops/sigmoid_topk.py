"""Exact sigmoid top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def sigmoid_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: float | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a logistic whose values sum to k exactly (rankfall).

    .. math:: p_j = \sigma\big((s_j - b) / \tau\big), \qquad \textstyle\sum_j p_j = k

    DFTopK with the constraint it gives up: the threshold starts at DFTopK's and is moved by Newton steps until the
    sum is k; O(n). For k >= n every real item gets 1.

    >>> import torch
    >>> sigmoid_topk(torch.tensor([5.0, 5.0, 5.0, 5.0]), 1)  # equal scores share k equally
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return threshold_topk("logistic", scores, k, tau, mask)
