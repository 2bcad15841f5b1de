"""64-bit hashes that are the same on every machine, in every version and for any order of rows.

The hashes decide which items of a request are sampled and which bucket a value falls into, so they are part of the
file formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, so that its powers never vanish


def hash_array(values: NDArray[np.int64] | pa.Array, seed: int = 0) -> Hashes:
    """Return the hashes of integers, or of an Arrow array of integers or strings, without nulls."""
    if not isinstance(values, pa.Array):
        return hash_numbers(values, seed)
    if is_text(values):
        return hash_strings(values, seed)
    return hash_numbers(values.cast(pa.int64()).to_numpy(zero_copy_only=False), seed)


def is_text(values: pa.Array) -> bool:
    """Return whether an Arrow array holds strings."""
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def hash_numbers(values: NDArray[np.int64], seed: int = 0) -> Hashes:
    """Return the hashes of integers; different integers have different hashes."""
    return combine(np.full(len(values), seed, np.uint64), values.view(np.uint64))


def hash_strings(values: pa.Array, seed: int = 0) -> Hashes:
    """Return the hashes of an Arrow array of strings."""
    return combine(np.full(len(values), seed, np.uint64), _fold_strings(values.cast(pa.large_string())))


def combine(*parts: NDArray[Any] | np.uint64) -> Hashes:
    """Combine several hashes into one, which depends on their order."""
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
    """Evaluate the bytes of each string as a polynomial modulo 2^64, for all strings at once."""
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
