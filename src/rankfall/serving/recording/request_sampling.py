"""Which requests are sampled: a function of their ids."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from rankfall.serving.drawing import Draw

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITS = 53  # of a random number as a float


def draw_for(requests: Sequence[str], *, share: float, counts: tuple[int, ...]) -> Draw:
    """Return which requests are sampled, with a seed for each.

    Both are hashes of the id, so that the same request is sampled in the same way by every process.

    Args:
        requests: Ids of requests.
        share: The share of requests to sample, 0 to 1.
        counts: Number of items to draw per stage.
    """
    digests = [hashlib.blake2b(one.encode(), digest_size=16).digest() for one in requests]
    numbers = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
    uniform = (numbers[:, 0] >> np.uint64(64 - _BITS)) * 2.0**-_BITS
    return Draw(counts, uniform < share, numbers[:, 1])
