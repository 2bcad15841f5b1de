"""The depth of each item: the index of the deepest stage that it reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec

    Integers = NDArray[np.int64]


def stage_depths(rows: pl.DataFrame, spec: Spec) -> Integers:
    """Return the index of the deepest stage of each row.

    Raises:
        ValueError: If a row names an unknown stage or has none of the stage flags.
    """
    if spec.stage is not None:
        return _depths_from_column(rows, spec)
    flags = [stage.flag for stage in spec.stages]
    if flags == [None]:
        return np.zeros(len(rows), np.int64)
    depth = np.full(len(rows), -1, np.int64)
    for index, flag in enumerate(flags):
        assert flag is not None  # validated by the spec
        depth[above_zero(rows[flag]).to_numpy()] = index
    if (bad := np.flatnonzero(depth < 0)).size:
        raise ValueError(
            f"none of the columns {', '.join(map(str, flags))} is above 0, expected the stage that the item reached "
            f"({row_name(rows, spec, int(bad[0]))})"
        )
    return depth


def above_zero(values: pl.Series) -> pl.Series:
    """Return which numbers are above 0. Null and NaN are not, although polars orders NaN above all numbers."""
    return values.cast(pl.Float64).fill_null(0).fill_nan(0) > 0


def _depths_from_column(rows: pl.DataFrame, spec: Spec) -> Integers:
    assert spec.stage is not None
    names, raw = spec.stage_names, rows[spec.stage]
    if raw.dtype == pl.String:
        depth = raw.replace_strict(names, list(range(len(names))), default=-1, return_dtype=pl.Int64).to_numpy()
    elif raw.dtype.is_integer():
        depth = raw.cast(pl.Int64).fill_null(-1).to_numpy()
    else:
        raise ValueError(f"column {spec.stage!r}: found {raw.dtype}, expected names or indices of stages")
    if (bad := np.flatnonzero((depth < 0) | (depth >= len(names)))).size:
        position = int(bad[0])
        allowed = ", ".join(names) if raw.dtype == pl.String else f"0 to {len(names) - 1} ({', '.join(names)})"
        raise ValueError(
            f"column {spec.stage!r}: found the unknown stage {raw[position]!r}, expected one of {allowed} "
            f"({row_name(rows, spec, position)})"
        )
    return depth


def row_name(rows: pl.DataFrame, spec: Spec, position: int) -> str:
    """Return the request and the item of a row, for error messages."""
    return f"request {rows[spec.request][position]!r}, item {rows[spec.item][position]!r}"
