"""The divide-and-conquer soft sort of PiRank."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from rankfall import register
from rankfall._checks import check_count, check_rows, check_scale, check_scores, full_precision
from rankfall._errors import RankfallError
from rankfall.ops.softmax_sorts import neural_rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float

    from rankfall.option_types import Count, Fraction, Scale


DEPTH = 32
"""Largest number of levels of a tree."""

LEAVES = 1 << 20
"""Largest number of leaves of a tree, unless lists are long."""


@register.operator
def pirank_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    k: int,
    tau: Scale | Tensor = 1.0,
    depth: Count | None = None,
    branches: Sequence[Count] | None = None,
    kept: Sequence[Count] | None = None,
    tau_shares: Sequence[Fraction] | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch k n"]:
    r"""Soft permutation by merging soft top-k lists in a tree (PIR, eq. 13-17).

    The n items are the leaves of a tree of `depth` levels with about :math:`n^{1/depth}` children per node. Each node
    sorts the items that its children kept with NeuralSort and keeps the first k; the rows of the levels are multiplied
    on the way up. With ``depth=1`` this is :func:`neural_sort`. The cost in the paper is :math:`O(n^{1+1/d} + (d-1) k^2
    n)`. Here nodes compute only the k rows that they keep, so the cost is about linear in n at any depth, and more
    levels save nothing. Use it to reproduce PiRank. The tree of a list depends only on its number of real items.

    `branches`, `kept` and `tau_shares` choose the tree of the paper freely: a node of level j has :math:`b_j` children
    and keeps :math:`k_j` values at the temperature :math:`\tau_j`. Level 1 joins neighbouring items.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of rows to return, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        depth: Number of levels of the tree, at least 1. Default: 1, which costs least, or the number of `branches`.
        branches: Number of children per node of each level, from the leaves to the root. Their product must be at least
            n. Default: the smallest number with room for the list, the same for all levels.
        kept: Number of values that a node of each level below the root keeps, from the leaves on. It must be at least
            k, or everything that the node has if that is less. Default: the smallest number allowed.
        tau_shares: Temperature of each level below the root as a share of `tau`, from the leaves on: above 0, not
            decreasing, at most 1. Default: 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        The first k rows of the soft permutation, ``(..., k, n)``, in the dtype of `scores`. Masked columns, and rows
        for ranks beyond the length of a list, are 0.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        >>> pirank_sort(torch.tensor([1.0, 4.0, 3.0, 2.0]), k=2, tau=0.01, depth=2).round()
        tensor([[0., 1., 0., 0.],
                [0., 0., 1., 0.]])
    """
    wide, mask = check_scores(scores, mask)
    n = wide.shape[-1]
    if k is None:
        raise RankfallError("k must be a number of rows, at least 1, got None")
    check_rows("k", k, n)
    check_scale("tau", tau, wide)
    depth = _check_depth(depth, branches)
    if depth == 1 and (branches is None or branches[0] >= n):
        _check_levels("kept", kept, 0)
        _check_levels("tau_shares", tau_shares, 0)
        return neural_rows_of(wide, tau, mask).probabilities(0, k).to(scores.dtype)
    sizes = [_root(n, depth)] * depth if branches is None else list(branches)
    _check_leaves(sizes, n, "depth" if branches is None else "branches")
    keeps = _check_kept(kept, sizes, k)
    shares = _check_tau_shares(tau_shares, depth)
    wide = wide / tau  # once for all levels: the values that a node keeps are means of scores
    real = torch.ones_like(wide, dtype=torch.bool) if mask is None else mask
    slot = _slots(real, sizes[0], depth) if branches is None else _slots_of_one_tree(real, sizes)  # leaf of each item
    leaves = math.prod(sizes)
    spare = wide.new_zeros(*wide.shape[:-1], leaves + 1)  # all masked items go to one leaf past the end
    values = spare.scatter(-1, slot, wide)[..., :-1]
    filled = (spare > 0).scatter(-1, slot, real)[..., :-1]
    with full_precision(wide.device):
        rows = _merge(values, filled, sizes, keeps, shares)
    rows = F.pad(rows, (0, 1, 0, k - keeps[-1]))  # the leaf past the end again, and ranks that no list has
    return rows.gather(-1, slot.unsqueeze(-2).expand(*rows.shape[:-1], n)).to(scores.dtype)


def _check_leaves(sizes: Sequence[int], n: int, name: str) -> None:
    leaves, most = math.prod(sizes), max(LEAVES, 16 * n)
    if leaves < n:
        raise RankfallError(f"branches must have a product of at least {n}, the length of the lists, got {sizes}")
    if leaves > most:
        raise RankfallError(f"{name} must give a tree of at most {most} leaves for lists of {n} items, got {sizes}")


def _check_depth(depth: int | None, branches: Sequence[int] | None) -> int:
    if branches is None:
        return 1 if depth is None else check_count("depth", depth, most=DEPTH)
    _check_list("branches", branches)
    if not branches:
        raise RankfallError("branches must have at least one level, got none")
    for level, children in enumerate(branches):
        check_count(f"branches[{level}]", children)
    if depth not in (None, len(branches)):
        raise RankfallError(f"depth must be {len(branches)}, the number of branches, or left out, got {depth}")
    return len(branches)


def _check_levels(name: str, values: Sequence[float] | None, count: int) -> None:
    if values is None:
        return
    _check_list(name, values)
    if len(values) != count:
        raise RankfallError(f"{name} must have one value per level below the root, {count}, got {len(values)}")


def _check_list(name: str, values: Sequence[float]) -> None:
    if not isinstance(values, list | tuple) or len(values) > DEPTH:
        raise RankfallError(f"{name} must be a list of at most {DEPTH} numbers, got {type(values).__name__}")


def _check_kept(kept: Sequence[int] | None, branches: Sequence[int], k: int) -> list[int]:
    """Return the number of values that the nodes of each level keep, which is at most k for the root."""
    _check_levels("kept", kept, len(branches) - 1)
    keeps: list[int] = []
    for level, children in enumerate(branches):
        joined = children * (keeps[-1] if keeps else 1)
        least = min(k, joined)
        keep = least if kept is None or level == len(kept) else check_count(f"kept[{level}]", kept[level])
        if not least <= keep <= joined:
            raise RankfallError(f"kept[{level}] must be from {least} to {joined}, got {keep}")
        keeps.append(keep)
    return keeps


def _check_tau_shares(tau_shares: Sequence[float] | None, depth: int) -> list[float]:
    """Return the temperature of each level as a share of that of the root."""
    _check_levels("tau_shares", tau_shares, depth - 1)
    shares = [1.0] * depth if tau_shares is None else [*tau_shares, 1.0]
    for level, share in enumerate(shares):
        check_scale(f"tau_shares[{level}]", share)
    if any(low > high for low, high in itertools.pairwise(shares)):
        raise RankfallError(f"tau_shares must not decrease, nor exceed 1, got {shares[:-1]}")
    return shares


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


def _slots_of_one_tree(real: Tensor, branches: Sequence[int]) -> Tensor:
    """Return the leaf of each item, its position among the real items: every list has the same tree."""
    return (real.cumsum(-1) - 1).masked_fill(~real, math.prod(branches))


def _merge(
    values: Tensor, real: Tensor, branches: Sequence[int], keeps: Sequence[int], taus: Sequence[float]
) -> Tensor:
    """Return the rows ``(..., kept, leaves)`` of the tree over the values of the leaves."""
    batch = values.shape[:-1]
    # At each level: the values of each node (..., nodes, kept), and its rows over the leaves below (..., kept, width).
    nodes, kept, width = values.shape[-1], 1, 1
    values, real = values.unsqueeze(-1), real.unsqueeze(-1)
    rows = real.to(values.dtype).unsqueeze(-1)
    for children, keep, tau in zip(branches, keeps, taus, strict=True):
        nodes = nodes // children
        joined = values.reshape(*batch, nodes, children * kept)
        joined_real = real.reshape(*batch, nodes, children * kept)
        q = neural_rows_of(joined.masked_fill(~joined_real, 0.0), tau, joined_real).probabilities(0, keep)
        values = torch.matmul(q, joined.unsqueeze(-1)).squeeze(-1)
        below = rows.reshape(*batch, nodes, children, kept, width)
        parts = torch.matmul(q.unflatten(-1, (children, kept)).transpose(-3, -2), below)  # one product per child
        width = width * children
        rows = parts.transpose(-3, -2).reshape(*batch, nodes, keep, width)
        real = torch.arange(keep, device=values.device) < joined_real.sum(-1, keepdim=True)
        kept = keep
    return rows.squeeze(-3)
