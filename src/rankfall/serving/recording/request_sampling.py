"""Which requests are sampled: a function of their ids and of a secret.

Clients choose the ids of their requests. Without the secret they could choose ids that are always sampled.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankfall._disk import make_directory
from rankfall._files import locked, write_file
from rankfall._trust import state_directory
from rankfall.serving.recording.sinks.sink_url import parse_sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_BITS = 53  # of a random number as a float
KEY, _KEY_BYTES = "sampling.key", 32


def sampling_key(target: str) -> bytes:
    """Return the secret of a sink, which is created once, so that workers and restarts sample the same requests.

    It is in the directory of the records, or for brokers in the user's directory of states. Only the owner can read it.

    Args:
        target: A directory or the URL of a broker.

    Raises:
        OSError: If it cannot be read or written.
        ValueError: If the file was changed.
    """
    place = parse_sink(target)
    path = (place if isinstance(place, Path) else state_directory()) / KEY
    if not path.exists():
        make_directory(path.parent)
        with locked(path.with_suffix(".lock"), wait=True):
            if not path.exists():
                write_file(path, secrets.token_bytes(_KEY_BYTES), mode=0o600)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} has {len(key)} bytes, expected {_KEY_BYTES}; delete it to create another key")
    return key


def sample_requests(requests: Sequence[str], share: float, key: bytes) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return which requests are sampled, and a seed for each of them.

    Both are keyed hashes of the id, so that the same request is sampled in the same way by every process.

    Args:
        requests: Ids of requests.
        share: The share of requests to sample, 0 to 1.
        key: The secret.
    """
    digests = [hashlib.blake2b(one.encode(), digest_size=16, key=key).digest() for one in requests]
    numbers = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
    uniform = (numbers[:, 0] >> np.uint64(64 - _BITS)) * 2.0**-_BITS
    return uniform < share, numbers[:, 1]
