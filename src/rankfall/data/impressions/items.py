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
