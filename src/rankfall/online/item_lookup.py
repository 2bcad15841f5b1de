"""Raw values of items, from the table of items that a log is prepared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall.data.sources.rows.column_types import text_type, to_type
from rankfall.data.sources.rows.row_files import find_row_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.data.impressions.spec import Spec

_ID = "\1id"


class ItemLookup:
    """Values of items by their ids.

    Args:
        path: The table, or None for no table.
        spec: The description of the log.
        columns: The columns that are looked up.
    """

    def __init__(self, path: Path | None, spec: Spec, columns: Sequence[str]) -> None:
        self._path = path
        self._frame = pl.DataFrame(schema={_ID: pl.String, **dict.fromkeys(columns, pl.Null)})
        if path is None:
            return
        names = list(dict.fromkeys([spec.item, *columns]))
        files = find_row_files([path])
        parts = [frame for file in files for frame in file.batches(names)]
        whole = pl.concat(parts, how="vertical_relaxed")
        if any(file.is_text for file in files):
            whole = whole.with_columns(_narrowed(whole[name], spec) for name in columns)
        ids = whole[spec.item]
        ids = ids.cast(pl.Int64) if ids.dtype.is_float() else ids
        self._frame = whole.select(ids.cast(pl.String).alias(_ID), *columns).unique(_ID, keep="first")

    def check(self, ids: pl.Series) -> None:
        """Check that the table has items.

        Raises:
            ValueError: If it lacks one.
        """
        if self._path is None:
            return
        wanted = ids.cast(pl.String).unique().alias(_ID).to_frame()
        lacking = wanted.join(self._frame, on=_ID, how="anti")
        if len(lacking):
            more = f" and {len(lacking) - 1:,} others" if len(lacking) > 1 else ""
            raise ValueError(
                f"items: {self._path} has no item {lacking[_ID].min()!r}{more}, which a service has recorded; add "
                "the items to the table, with the features that they had when they were served"
            )

    def columns(self, ids: pl.Series, names: Sequence[str]) -> list[pl.Series]:
        """Return columns of items, null for unknown ones."""
        wanted = ids.cast(pl.String).alias(_ID).to_frame()
        return wanted.join(self._frame, on=_ID, how="left", maintain_order="left").select(names).get_columns()

    def values(self, column: str, ids: Sequence[Any]) -> list[Any]:
        """Return a column of items, None for unknown ones."""
        texts = pl.Series([None if value is None else str(value) for value in ids], dtype=pl.String)
        (found,) = self.columns(texts, [column])
        return found.to_list()


def _narrowed(values: pl.Series, spec: Spec) -> pl.Series:
    """Return values of text files as numbers, if they are numbers."""
    return to_type(values, text_type(values, pl.Null(), {"id"}), spec.zone) if values.dtype == pl.String else values
