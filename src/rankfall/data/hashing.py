"""Hashes that are the same on every machine, in every version and in every order of the rows.

They decide which items of a request are sampled and in which bucket a value falls, so they are part of the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, so that its powers never vanish


def hash_values(values: pl.Series, seed: int = 0) -> Hashes:
    """64-bit hashes of whole numbers or strings."""
    if values.dtype.is_integer() or values.dtype == pl.Boolean:
        bits = values.cast(pl.Int64).to_numpy().view(np.uint64)
    elif values.dtype == pl.String:
        bits = _fold_strings(values.to_arrow().cast(pa.large_string()))
    else:
        raise ValueError(f"{values.name or 'values'}: found {values.dtype}, expected whole numbers or strings")
    return combine(np.full(len(bits), seed, np.uint64), bits)


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
