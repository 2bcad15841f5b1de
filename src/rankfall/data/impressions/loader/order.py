"""The order of a day's impressions.

The order of a day depends on the seed, the epoch and the name of the day only, so a loader can start at any position
and with any other days.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from rankfall.data.indexing import spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


class RandomStream(IntEnum):
    """The independent streams of random numbers."""

    BLOCKS = 0
    WINDOW = 1
    NEGATIVES = 2


def generator(seed: int, epoch: int, day: str, use: RandomStream, number: int = 0) -> np.random.Generator:
    """Return the random numbers of one stream of a day in an epoch."""
    return np.random.default_rng([seed, epoch, crc32(day.encode()), use, number])


def in_file_order(first: int, last: int) -> Rows:
    """Return the rows at the positions from `first` to `last` of a day that is not shuffled."""
    return np.arange(first, last)


def block_shuffled(starts: Rows, first: int, last: int, *, seed: int, epoch: int, day: str) -> Rows:
    """Return the rows at the positions from `first` to `last`, a window of a shuffled day.

    The blocks are put in a random order on a circle, which is cut at a random position, so that all rows are equally
    likely at the end. The window takes its part of the circle and shuffles it.

    Args:
        starts: Where the blocks of the file begin, and where the last one ends.
        first: The first position.
        last: The position after the last.
        seed: The seed of the loader.
        epoch: The epoch.
        day: The name of the day.
    """
    rng = generator(seed, epoch, day, RandomStream.BLOCKS)
    blocks, count = rng.permutation(len(starts) - 1), int(starts[-1])
    begin = int(rng.integers(count)) + first
    parts = [_part(starts, blocks, begin - turn, begin - turn + last - first) for turn in (0, count)]
    return generator(seed, epoch, day, RandomStream.WINDOW, first).permutation(np.concatenate(parts))


def _part(starts: Rows, blocks: Rows, first: int, last: int) -> Rows:
    """Return the rows from `first` to `last` of the blocks in their order; positions below 0 have no rows."""
    sizes = np.diff(starts)[blocks]
    places = np.cumsum(sizes) - sizes
    begin, end = np.maximum(places, first), np.minimum(places + sizes, last)
    here = begin < end
    return spans((starts[blocks] + begin - places)[here], (end - begin)[here])
