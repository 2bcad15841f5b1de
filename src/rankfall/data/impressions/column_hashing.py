"""Hashes of the columns of a log (see :mod:`rankfall.encoding.hashing`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rankfall.encoding.hashing import combine, hash_array

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

__all__ = ["combine", "hash_values", "hashable"]


def hash_values(values: pl.Series, seed: int = 0) -> Hashes:
    """Return the 64-bit hashes of integers or strings without nulls."""
    return hash_array(hashable(values), seed)


def hashable(values: pl.Series) -> NDArray[np.int64] | pa.Array:
    """Return integers and booleans as a numpy array, strings as an Arrow array; refuse other types."""
    if values.dtype.is_integer() or values.dtype == pl.Boolean:
        return values.cast(pl.Int64).to_numpy()
    if values.dtype == pl.String:
        return values.to_arrow()
    raise ValueError(f"{values.name or 'values'}: found {values.dtype}, expected whole numbers or strings")
