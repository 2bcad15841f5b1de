"""The stages of a log: how far each item got."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec

    Integers = NDArray[np.int64]


def stage_of(rows: pl.DataFrame, spec: Spec) -> Integers:
    """The number of the deepest stage of each row."""
    if spec.stage is not None:
        return _stage_by_column(rows, spec)
    flags = [stage.flag for stage in spec.stages]
    if flags == [None]:
        return np.zeros(len(rows), np.int64)
    depth = np.full(len(rows), -1, np.int64)
    for number, flag in enumerate(flags):
        assert flag is not None  # the description was checked
        depth[above_zero(rows[flag]).to_numpy()] = number
    if (bad := np.flatnonzero(depth < 0)).size:
        raise ValueError(
            f"none of the columns {', '.join(map(str, flags))} says which stage an item reached "
            f"({place(rows, spec, int(bad[0]))})"
        )
    return depth


def above_zero(values: pl.Series) -> pl.Series:
    """Which numbers are above 0. Nothing is not, and neither is NaN, which polars takes for the largest number."""
    return values.cast(pl.Float64).fill_null(0).fill_nan(0) > 0


def _stage_by_column(rows: pl.DataFrame, spec: Spec) -> Integers:
    assert spec.stage is not None
    names, raw = spec.stage_names, rows[spec.stage]
    if raw.dtype == pl.String:
        depth = raw.replace_strict(names, list(range(len(names))), default=-1, return_dtype=pl.Int64).to_numpy()
    elif raw.dtype.is_integer():
        depth = raw.cast(pl.Int64).fill_null(-1).to_numpy()
    else:
        raise ValueError(f"column {spec.stage!r}: found {raw.dtype}, expected names or numbers of stages")
    if (bad := np.flatnonzero((depth < 0) | (depth >= len(names)))).size:
        position = int(bad[0])
        allowed = ", ".join(names) if raw.dtype == pl.String else f"0 to {len(names) - 1} ({', '.join(names)})"
        raise ValueError(
            f"column {spec.stage!r}: unknown stage {raw[position]!r}, allowed are {allowed} "
            f"({place(rows, spec, position)})"
        )
    return depth


def place(rows: pl.DataFrame, spec: Spec, position: int) -> str:
    """Where something was found, as messages say it."""
    return f"request {rows[spec.request][position]!r}, item {rows[spec.item][position]!r}"
