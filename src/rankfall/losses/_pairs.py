"""Blocks of pairs of items, so that no more than one block of pairs is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# Pairs computed at a time: larger blocks do not fit into the cache, smaller ones have more overhead.
BLOCK = 2**17
# Largest number of pairs that autograd keeps. Beyond it, pairs are recomputed in the backward pass: more work, but
# linear memory.
KEPT = 2**22


def row_blocks(rows: int, width: int) -> list[tuple[int, int]]:
    """Return consecutive ranges (start, stop) of the rows of a matrix with `width` pairs in each row."""
    if torch.compiler.is_compiling():
        return [(0, rows)]  # the compiler makes better blocks, in one graph for lists of any length
    step = max(1, BLOCK // max(1, width))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def map_rows(function: Callable[[int, int], Tensor], rows: int, width: int) -> list[Tensor]:
    """Call `function(start, stop)` for each block of rows, under autograd."""
    blocks = row_blocks(rows, width)
    if len(blocks) == 1 or rows * width <= KEPT:
        return [function(*block) for block in blocks]
    return [
        cast("Tensor", checkpoint(function, *block, use_reentrant=False, preserve_rng_state=False)) for block in blocks
    ]
