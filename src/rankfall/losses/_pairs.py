"""Pairs of items without the memory of all pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Pairs computed at a time: larger blocks fall out of the cache, smaller ones pay more for calls.
BLOCK = 2**17
# Pairs kept by autograd. Beyond it they are computed again in the backward pass: more work, but linear memory.
KEPT = 2**22


def row_blocks(rows: int, width: int) -> list[tuple[int, int]]:
    """Consecutive ranges (start, stop) of the rows of a matrix with `width` pairs in each row."""
    if torch.compiler.is_compiling():
        return [(0, rows)]  # which the compiler blocks better, and in one graph for lists of any length
    step = max(1, BLOCK // max(1, width))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def map_rows(function: Callable[[int, int], Tensor], rows: int, width: int) -> list[Tensor]:
    """`function(start, stop)` of each block of rows, under autograd."""
    blocks = row_blocks(rows, width)
    if len(blocks) == 1 or rows * width <= KEPT:
        return [function(*block) for block in blocks]
    return [
        cast("Tensor", checkpoint(function, *block, use_reentrant=False, preserve_rng_state=False)) for block in blocks
    ]
