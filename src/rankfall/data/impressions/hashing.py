"""Hashes of the values of a log (:mod:`rankfall._ids` says what they are for)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rankfall._ids import combine, hash_numbers, hash_strings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

__all__ = ["combine", "hash_values"]


def hash_values(values: pl.Series, seed: int = 0) -> Hashes:
    """64-bit hashes of whole numbers or strings."""
    if values.dtype.is_integer() or values.dtype == pl.Boolean:
        return hash_numbers(values.cast(pl.Int64).to_numpy(), seed)
    if values.dtype == pl.String:
        return hash_strings(values.to_arrow(), seed)
    raise ValueError(f"{values.name or 'values'}: found {values.dtype}, expected whole numbers or strings")
