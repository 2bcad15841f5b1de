"""The item table of a log: every item once, with its features as a model receives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall.data.impressions.schema import item_schema
from rankfall.data.impressions.spec import column_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.encoding import Encoding


def item_table(items: pl.DataFrame, encoding: Encoding) -> pa.Table:
    """Encode the item table of a log.

    Args:
        items: The raw columns of the items, one row per item.
        encoding: The fitted encoding of the log.

    Returns:
        The table, sorted by item. It has a column ``id`` with the ids of the log if these are not int32.
    """
    spec = encoding.spec
    items = items.sort(spec.item)
    raw = items[spec.item]
    numbers = item_numbers(raw)
    columns: dict[str, Any] = {"item": np.arange(len(raw)) if numbers is None else numbers}
    schema = item_schema(
        spec, ids=None if numbers is not None else pa.string() if raw.dtype == pl.String else pa.int64()
    )
    if numbers is None:
        columns["id"] = raw.to_arrow()
    for name, feature in spec.features.item.items():
        columns[f"item.{name}"] = encoding.encode("item", name, items[column_of(spec, name, feature)])
    arrays = [to_arrow(columns[field.name], field.type) for field in schema]
    return pa.table(arrays, schema=schema)


class GrowingItems:
    """The item table of a log that grows day by day.

    Items keep the features of their last occurrence. If the ids of a log are not int32, a new item gets the next free
    number, so that the numbers of earlier days stay valid; new items of one day are numbered in the order of their ids.

    Args:
        numbered: Whether items have numbers of their own, because the ids of the log are not int32.
        table: The items of the days so far, as :meth:`table` returned them.
    """

    def __init__(self, *, numbered: bool, table: pa.Table | None = None) -> None:
        self.numbered = numbered
        self._table = table

    @property
    def table(self) -> pa.Table:
        """The table of all items so far, sorted by item."""
        assert self._table is not None, "no day was added"
        return self._table

    def add_day(self, items: pl.DataFrame, encoding: Encoding) -> None:
        """Add the items of the next day.

        Args:
            items: The raw columns of the items, one row per item.
            encoding: The encoding of that day.

        Raises:
            BadValueError: The encoding does not accept a value; its position is that of the items sorted by id.
            ValueError: The log has no numbers of items, and an id is not int32.
        """
        found = item_table(items, encoding)
        if ("id" in found.column_names) != self.numbered:
            found = self._in_form(found, encoding.spec.item)
        self._table = found if self._table is None else self._merged(self._table, found)

    def _in_form(self, found: pa.Table, column: str) -> pa.Table:
        """Give the items of a day the form of the log, which was decided on the ids of all its first days."""
        if not self.numbered:
            wrong = next(value for value in found["id"].to_pylist() if not (0 <= value < 2**31))
            raise ValueError(
                f"column {column!r}: found {wrong}, expected whole numbers from 0 to 2^31 - 1, as in the other days of "
                "the log; prepare all days again"
            )
        numbers = pa.array(range(len(found)), pa.int32())
        ids = found["item"].cast(pa.int64())
        return found.set_column(0, found.schema.field("item"), numbers).add_column(
            1, pa.field("id", pa.int64(), nullable=False), ids
        )

    def _merged(self, known: pa.Table, found: pa.Table) -> pa.Table:
        key = "id" if self.numbered else "item"
        places = pl.DataFrame({key: pl.from_arrow(known[key])}).with_row_index("place")
        place = pl.DataFrame({key: pl.from_arrow(found[key])}).join(places, on=key, how="left", maintain_order="left")
        is_new = place["place"].is_null().to_numpy()
        rows = np.arange(len(known))
        rows[place["place"].drop_nulls().to_numpy()] = len(known) + np.flatnonzero(~is_new)
        rows = np.concatenate([rows, len(known) + np.flatnonzero(is_new)])
        merged = pa.concat_tables([known, found.cast(known.schema)]).take(pa.array(rows)).combine_chunks()
        if self.numbered:
            return merged.set_column(0, known.schema.field("item"), pa.array(np.arange(len(merged), dtype=np.int32)))
        return merged.sort_by("item").combine_chunks()


def item_numbers(raw: pl.Series) -> NDArray[np.int32] | None:
    """Return item ids as they are stored, or None if they are not whole numbers that fit into int32."""
    if not raw.dtype.is_integer():
        return None
    values = raw.to_numpy()
    if len(values) and (values.min() < 0 or values.max() >= 2**31):
        return None
    return values.astype(np.int32)


def to_arrow(values: Any, kind: pa.DataType) -> pa.Array:
    """Convert an array (n,) or (n, size) to an Arrow array of that type."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel(), kind.value_type), type=kind)
    return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind)


def from_arrow(column: pa.ChunkedArray) -> NDArray[Any]:
    """Convert a column of numbers or vectors to an array (n,) or (n, size)."""
    array = column.combine_chunks()
    if pa.types.is_fixed_size_list(array.type):
        return np.asarray(array.flatten()).reshape(len(array), array.type.list_size)
    return np.asarray(array)
