"""Ids of embedding rows, and hashes that are the same on every machine, in every version and any order of rows.

Preparing a log and serving a model have to agree on both. The hashes decide which items of a request are sampled and
in which bucket a value falls, so they are part of the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

MISSING = 0  # the id of what is missing, and of padding
UNSEEN = 1  # the id of everything that was not known when ids were given out
FIRST_KNOWN = 2

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, so that its powers never vanish


def hash_numbers(values: NDArray[np.int64], seed: int = 0) -> Hashes:
    """64-bit hashes of whole numbers, different ones of different numbers."""
    return combine(np.full(len(values), seed, np.uint64), values.view(np.uint64))


def hash_strings(values: pa.Array, seed: int = 0) -> Hashes:
    """64-bit hashes of an Arrow array of strings."""
    return combine(np.full(len(values), seed, np.uint64), _fold_strings(values.cast(pa.large_string())))


def combine(*parts: NDArray[Any] | np.uint64) -> Hashes:
    """One hash of several, which depends on their order."""
    mixed = np.uint64(0)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        for part in parts:
            mixed = _mix(mixed ^ np.asarray(part, np.uint64))
    hashes: Hashes = np.asarray(mixed)
    return hashes


def _mix(bits: Any) -> Any:
    """Spread every bit over all others (the finalizer of splitmix64, Steele et al. 2014)."""
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _fold_strings(strings: Any) -> Hashes:
    """The bytes of each string as a polynomial modulo 2^64, for all strings at once."""
    _, offsets, data = strings.buffers()
    edges = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    first, last = int(edges[0]), int(edges[-1])
    content = np.frombuffer(data, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
    lengths = np.diff(edges)
    places = np.arange(last - first) - np.repeat(edges[:-1] - first, lengths)
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _BASE))
        terms = (content.astype(np.uint64) + np.uint64(1)) * powers[places]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
        folded: Hashes = sums[edges[1:] - first] - sums[edges[:-1] - first]
    return folded
