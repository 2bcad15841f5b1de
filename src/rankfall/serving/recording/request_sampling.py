"""Which requests are sampled: a function of their ids."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_BITS = 53  # of a random number as a float


def sample_requests(requests: Sequence[str], share: float) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return which requests are sampled, and a seed for each of them.

    Both are hashes of the id, so that the same request is sampled in the same way by every process.

    Args:
        requests: Ids of requests.
        share: The share of requests to sample, 0 to 1.
    """
    digests = [hashlib.blake2b(one.encode(), digest_size=16).digest() for one in requests]
    numbers = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
    uniform = (numbers[:, 0] >> np.uint64(64 - _BITS)) * 2.0**-_BITS
    return uniform < share, numbers[:, 1]
