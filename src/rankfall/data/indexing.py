"""Index arithmetic that readers, writers and loaders share: lists as edges and spans of one flat array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]


def edges(lengths: NDArray[np.integer]) -> Indices:
    """Return where lists of these lengths begin in a flat array, and where the last one ends.

    >>> edges(np.array([2, 3]))
    array([0, 2, 5])
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def spans(starts: Indices, lengths: Indices) -> Indices:
    """Return the indices of all spans, one span after the other; span i has `lengths[i]` indices from `starts[i]` on.

    >>> spans(np.array([10, 20]), np.array([2, 3]))
    array([10, 11, 20, 21, 22])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    indices: Indices = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return indices


def rank_share(rows: int, rank: int, world: int) -> slice:
    """Return the rows of a batch that belong to one of `world` ranks; the shares differ by at most one row.

    >>> [rank_share(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    return slice(rows * rank // world, rows * (rank + 1) // world)
