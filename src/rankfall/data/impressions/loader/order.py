"""The order of a day's impressions.

Nothing here has a history: the order of a day follows from the seed, the epoch and the day's name, so a loader can
start anywhere, with whatever other days.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


class Use(IntEnum):
    """What random numbers are for: each use has its own."""

    BLOCKS = 0
    WINDOW = 1
    NEGATIVES = 2


def generator(seed: int, epoch: int, day: str, use: Use, number: int = 0) -> np.random.Generator:
    """The random numbers of one use of one day in one epoch."""
    return np.random.default_rng([seed, epoch, crc32(day.encode()), use, number])


def in_file_order(first: int, last: int) -> Rows:
    """The rows at the places from `first` to `last` of a day that is not shuffled."""
    return np.arange(first, last)


def block_shuffled(starts: Rows, first: int, last: int, *, seed: int, epoch: int, day: str) -> Rows:
    """The rows at the places from `first` to `last`, a window of a shuffled day.

    `starts` says where the blocks of the day's file begin, and where the last ends. The blocks are put in a random
    order on a circle, which is cut open anywhere, so that no row is more likely at the end than others. The window
    takes its part and shuffles it.
    """
    rng = generator(seed, epoch, day, Use.BLOCKS)
    blocks, count = rng.permutation(len(starts) - 1), int(starts[-1])
    begin = int(rng.integers(count)) + first
    parts = [_part(starts, blocks, begin - turn, begin - turn + last - first) for turn in (0, count)]
    return generator(seed, epoch, day, Use.WINDOW, first).permutation(np.concatenate(parts))


def _part(starts: Rows, blocks: Rows, first: int, last: int) -> Rows:
    """The rows from `first` to `last` of the blocks in their order; there are none before the first block."""
    sizes = np.diff(starts)[blocks]
    places = np.cumsum(sizes) - sizes
    begin, end = np.maximum(places, first), np.minimum(places + sizes, last)
    here = begin < end
    return spans((starts[blocks] + begin - places)[here], (end - begin)[here])


def share(rows: int, rank: int, world: int) -> slice:
    """Which rows of a batch belong to a rank: shares differ by one row at most.

    >>> [share(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    return slice(rows * rank // world, rows * (rank + 1) // world)


def spans(starts: Rows, lengths: Rows) -> Rows:
    """The numbers from each start on, as many as its length says, one span after another.

    >>> spans(np.array([10, 20]), np.array([2, 3]))
    array([10, 11, 20, 21, 22])
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Rows = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return numbers
