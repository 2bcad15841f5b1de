"""The divide-and-conquer soft sort of PiRank."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from rankfall._lists import check_count, check_positive, check_scores
from rankfall.ops.neural_sort import neural_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def pirank_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    k: int,
    tau: float | Tensor = 1.0,
    depth: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch k n"]:
    """Soft permutation by merging soft top-k lists in a tree (PIR, eq. 13-17).

    The n items are the leaves of a tree of `depth` levels with about :math:`n^{1/depth}` children per node. Each node
    sorts the items that its children kept with NeuralSort and keeps the first k; the rows of the levels are multiplied
    on the way up. With ``depth=1`` this is :func:`neural_sort`. The cost in the paper is :math:`O(n^{1+1/d} + (d-1) k^2
    n)`. Here nodes compute only the k rows that they keep, so the cost is about linear in n at any depth, and more
    levels save nothing. Use it to reproduce PiRank. The tree of a list depends only on its number of real items.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of rows to return, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        depth: Number of levels of the tree, at least 1. Default: 1, which costs least.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        The first k rows of the soft permutation, ``(..., k, n)``, in the dtype of `scores`. Masked columns, and rows
        for ranks beyond the length of a list, are 0.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or +inf.

    Examples:
        >>> pirank_sort(torch.tensor([1.0, 4.0, 3.0, 2.0]), k=2, tau=0.01, depth=2).round()
        tensor([[0., 1., 0., 0.],
                [0., 0., 1., 0.]])
    """
    check_count("k", k)
    check_positive("tau", tau)
    wide, mask = check_scores(scores, mask)
    n = wide.shape[-1]
    depth = 1 if depth is None else check_count("depth", depth)
    if depth == 1:
        return neural_rows(scores, tau, mask).probabilities(0, k).to(scores.dtype)
    wide = wide / tau  # once for all levels: the values that a node keeps are means of scores
    real = torch.ones_like(wide, dtype=torch.bool) if mask is None else mask
    branches = _root(n, depth)
    slot = _slots(real, branches, depth)  # the leaf of each item
    leaves = math.prod([branches] * depth)
    spare = wide.new_zeros(*wide.shape[:-1], leaves + 1)  # all masked items go to one leaf past the end
    values = spare.scatter(-1, slot, wide)[..., :-1]
    filled = (spare > 0).scatter(-1, slot, real)[..., :-1]
    with _full_precision(wide.device):
        rows = _merge(values, filled, k, branches, depth)
    rows = F.pad(rows, (0, 1))  # add the leaf past the end again
    return rows.gather(-1, slot.unsqueeze(-2).expand(*rows.shape[:-1], n)).to(scores.dtype)


def _full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast for the matrix products in the context."""
    if device.type == "meta":  # not supported by autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _root(n: int, depth: int) -> int:
    """Return the smallest number of children per node with room for n leaves."""
    b: int = max(1, math.floor(n ** (1 / depth)) - 1)  # floating roots may be off by one
    while math.prod([b] * depth) < n:
        b += 1
    return b


def _slots(real: Tensor, branches: int, depth: int) -> Tensor:
    """Return the leaf of each item: its position among the real items, in base of the list's own number of children.

    A short list in a wide tensor gets the same tree as without padding, in a corner of the larger tree.
    """
    position = real.cumsum(-1) - 1
    count = real.sum(-1, keepdim=True)
    bases = torch.arange(1, branches + 1, device=real.device)
    own = 1 + (bases**depth < count).sum(-1, keepdim=True)
    slot, unit = torch.zeros_like(position), 1
    for _ in range(depth):
        slot = slot + unit * (position % own)
        position, unit = position // own, unit * branches
    return slot.masked_fill(~real, math.prod([branches] * depth))


def _merge(values: Tensor, real: Tensor, k: int, branches: int, depth: int) -> Tensor:
    """Return the rows ``(..., k, leaves)`` of the tree over the values of the leaves."""
    batch = values.shape[:-1]
    # At each level: the values of each node (..., nodes, kept), and its rows over the leaves below (..., kept, width).
    nodes, kept, width = values.shape[-1], 1, 1
    values, real = values.unsqueeze(-1), real.unsqueeze(-1)
    rows = real.to(values.dtype).unsqueeze(-1)
    for _ in range(depth):
        nodes = nodes // branches
        joined = values.reshape(*batch, nodes, branches * kept)
        joined_real = real.reshape(*batch, nodes, branches * kept)
        keep = min(k, branches * kept)
        q = neural_rows(joined, 1.0, joined_real).probabilities(0, keep)
        values = torch.matmul(q, joined.unsqueeze(-1)).squeeze(-1)
        below = rows.reshape(*batch, nodes, branches, kept, width)
        parts = torch.matmul(q.unflatten(-1, (branches, kept)).transpose(-3, -2), below)  # one product per child
        width = width * branches
        rows = parts.transpose(-3, -2).reshape(*batch, nodes, keep, width)
        real = torch.arange(keep, device=values.device) < joined_real.sum(-1, keepdim=True)
        kept = keep
    return F.pad(rows.squeeze(-3), (0, 0, 0, k - kept))
