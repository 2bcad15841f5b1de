"""The item table of a log: every item once, with its newest features as a model receives them, and earlier versions.

Requests of a day see the features that an item had before the day, as an export of the evening before would have them.
An item that is new on the day has the features of its first row. No value therefore depends on what happens on the day
or later, nor on whether an item is logged on the day.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.spec import Dense, column_of, is_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import FeatureConfig, Spec


FORMAT = "rankfall impression log"
VERSION = 1
BLOCK = 4096  # impressions per record batch
IMPRESSIONS = "impressions.arrow"  # the file of a day
ITEMS = "items.arrow"  # the item table of a log
VERSIONS = "item_versions.arrow"  # earlier rows of the item table
UNTIL = "until"  # the column with the index of the last day whose requests see a version
VOCABULARIES = "vocabularies"  # the directory of the vocabularies of a log, and their key in its manifest
DAY_SEAL = "seal"  # key of the seal in the manifest of a day, whose key "sha256" is the checksum of its file

_IDS = pa.int32()
_NUMBERS = pa.float32()


def impression_schema(spec: Spec, *, request: pa.DataType) -> pa.Schema:
    """Return the columns of the impressions of a log.

    Args:
        spec: The spec of the log.
        request: The type of request ids, int64 or string.
    """
    columns = [("request", request), ("time", pa.timestamp("ms", "UTC"))]
    for group, name, feature in spec.features:
        if group != "item":
            columns.append((f"{group}.{name}", _type_of(feature)))
    for name, sequence in spec.sequences.items():
        columns += [(f"sequence.{name}.{feature}", _list(_IDS)) for feature in sequence.features]
    columns.append(("item", _list(_IDS)))
    columns += [(f"item.{name}", _list(_type_of(feature))) for name, feature in spec.features.item.items()]
    columns += [("depth", _list(pa.int8())), ("rank", _list(pa.int32())), ("relevance", _list(_NUMBERS))]
    columns.append(("grade", _list(pa.int32())))
    columns += [(f"feedback.{name}", _list(_NUMBERS)) for name in spec.feedback]
    if spec.position is not None:
        columns.append(("position", _list(pa.int32())))
    if spec.inclusion is not None:
        columns.append(("inclusion", _list(_NUMBERS)))
    columns.append(("left_out", _list(_IDS)))
    if spec.truth is not None:
        columns.append(("truth", _list(_NUMBERS)))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def item_schema(spec: Spec, *, ids: pa.DataType | None = None) -> pa.Schema:
    """Return the columns of the item table.

    Args:
        spec: The spec of the log.
        ids: The type of item ids in the source, if they are not int32 and need a column ``id``.
    """
    columns = [("item", _IDS)] + ([("id", ids)] if ids is not None else [])
    columns += [(f"item.{name}", _type_of(feature)) for name, feature in spec.features.item.items()]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def version_schema(spec: Spec) -> pa.Schema:
    """Return the columns of earlier versions of items."""
    return item_schema(spec).insert(0, pa.field(UNTIL, pa.int32(), nullable=False))


def _type_of(feature: FeatureConfig) -> pa.DataType:
    if not isinstance(feature, Dense) or not is_dense(feature):
        return _IDS
    return _NUMBERS if feature.width == 1 else pa.list_(pa.field("value", _NUMBERS, nullable=False), feature.width)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


# --- checks -----------------------------------------------------------------------------------------------------


def check_schema(found: pa.Schema, spec: Spec, where: str) -> None:
    """Check that impressions have exactly the columns of their log.

    Args:
        found: The schema of the impressions.
        spec: The spec of the log.
        where: The prefix of the error message, usually the file.

    Raises:
        ValueError: If columns are missing, unexpected, of a wrong type or in another order.
    """
    request = found.field("request").type if "request" in found.names else None
    expected = impression_schema(spec, request=request if request == pa.string() else pa.int64())
    if found.equals(expected):
        return
    missing = [name for name in expected.names if name not in found.names]
    unexpected = [name for name in found.names if name not in expected.names]
    common = [name for name in expected.names if name in found.names]
    wrong = [
        f"{name} (found {found.field(name).type}, expected {expected.field(name).type})"
        for name in common
        if not found.field(name).equals(expected.field(name))
    ]
    problems = (("missing", missing), ("unexpected", unexpected), ("of a wrong type", wrong))
    listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems if names)
    raise RankfallError(f"{where}: the columns do not match the spec of the log; {listed or 'their order differs'}")


def check_no_nulls(block: pa.RecordBatch, where: str) -> None:
    """Raise an error if a column has nulls, also inside of lists, which Arrow schemas do not check.

    Args:
        block: Impressions.
        where: The prefix of the error message.
    """
    for name, values in zip(block.schema.names, block.columns, strict=True):
        if _has_nulls(values):
            raise RankfallError(f"{where}: column {name!r} has nulls, which no column may have")


def _has_nulls(values: pa.Array) -> bool:
    nested = pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type)
    return values.null_count > 0 or (nested and _has_nulls(values.flatten()))


FEATURE = "item."  # prefix of the columns of item features
_DAYS = b"days"  # key of the names of days in the metadata of versions


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
    """The item table of a log that grows day by day, and the versions of items that changed.

    The table has the features of the last occurrence of items. If the ids of a log are not int32, a new item gets the
    next free number, so that the numbers of earlier days stay valid; new items of one day are numbered in the order of
    their ids.

    Args:
        numbered: Whether items have numbers of their own, because the ids of the log are not int32.
        table: The items of the days so far, as :attr:`table` returned them.
        versions: Earlier versions, as :attr:`versions` returned them.
        days: The names of the days so far, if there are no versions, which have them.
    """

    def __init__(
        self,
        *,
        numbered: bool,
        table: pa.Table | None = None,
        versions: pa.Table | None = None,
        days: Sequence[str] = (),
    ) -> None:
        self.numbered = numbered
        self._table, self._versions = table, versions
        self._days = list(days) if versions is None else version_days(versions)

    @property
    def table(self) -> pa.Table:
        """The table of all items so far, sorted by item."""
        assert self._table is not None, "no day was added"
        return self._table

    @property
    def versions(self) -> pa.Table | None:
        """The versions that were replaced, sorted by item and day; None if no item ever changed."""
        if self._versions is None:
            return None
        return self._versions.replace_schema_metadata({_DAYS: json.dumps(self._days)})

    def add_day(self, day: str, last: pa.Table, first: pa.Table, column: str) -> None:
        """Add the items of the next day.

        Args:
            day: The name of the day.
            last: The items with the features of their last row of the day, as :func:`item_table` returns them.
            first: The same items with the features of their first row of the day.
            column: The column of item ids in the log.

        Raises:
            ValueError: The log has no numbers of items, and an id is not int32.
        """
        if ("id" in last.column_names) != self.numbered:
            last = self._in_form(last, column)
        known = last[:0] if self._table is None else self._table
        key = "id" if self.numbered else "item"
        places = pl.DataFrame({key: pl.from_arrow(known[key])}).with_row_index("place")
        found = pl.DataFrame({key: pl.from_arrow(last[key])}).join(places, on=key, how="left", maintain_order="left")
        is_new = found["place"].is_null().to_numpy()
        place = found["place"].drop_nulls().to_numpy()
        self._add_versions(len(self._days), known, place, last, first, is_new)
        self._days.append(day)
        if self._table is None:
            self._table = last
            return
        rows = np.arange(len(known))
        rows[place] = len(known) + np.flatnonzero(~is_new)
        rows = np.concatenate([rows, len(known) + np.flatnonzero(is_new)])
        merged = pa.concat_tables([known, last.cast(known.schema)]).take(pa.array(rows)).combine_chunks()
        if self.numbered:
            numbers = pa.array(np.arange(len(merged), dtype=np.int32))
            self._table = merged.set_column(0, known.schema.field("item"), numbers)
        else:
            self._table = merged.sort_by("item").combine_chunks()

    def _add_versions(
        self,
        day: int,
        known: pa.Table,
        place: NDArray[np.uint32],
        last: pa.Table,
        first: pa.Table,
        is_new: NDArray[np.bool_],
    ) -> None:
        """Keep the features that requests of the day see, of items that have others after the day."""
        features = [name for name in last.column_names if name.startswith(FEATURE)]
        new = np.flatnonzero(is_new)
        numbers = len(known) + np.arange(len(new)) if self.numbered else last["item"].to_numpy()[new]
        before = {
            name: pa.concat_arrays([*known[name].take(pa.array(place)).chunks, *first[name].take(pa.array(new)).chunks])
            for name in features
        }
        before["item"] = pa.array(np.concatenate([known["item"].to_numpy()[place], numbers]), pa.int32())
        after = np.concatenate([np.flatnonzero(~is_new), new])
        changed = np.zeros(len(after), bool)
        for name in features:
            changed |= differ(from_arrow(pa.chunked_array([before[name]])), from_arrow(last[name])[after])
        if not changed.any():
            return
        before[UNTIL] = pa.array(np.full(len(after), day, np.int32))
        names = [UNTIL, "item", *features]
        kinds = [pa.field(name, before[name].type, nullable=False) for name in names]
        found = pa.table([before[name] for name in names], schema=pa.schema(kinds)).filter(pa.array(changed))
        old = [] if self._versions is None else [self._versions.replace_schema_metadata()]
        both = pa.concat_tables([*old, found])
        order = np.lexsort((both[UNTIL].to_numpy(), both["item"].to_numpy()))
        self._versions = both.take(pa.array(order)).combine_chunks()

    def _in_form(self, found: pa.Table, column: str) -> pa.Table:
        """Give the items of a day the form of the log, which was decided on the ids of all its first days."""
        if not self.numbered:
            wrong = next(value for value in found["id"].to_pylist() if not (0 <= value < 2**31))
            raise RankfallError(
                f"column {column!r}: found {wrong}, expected whole numbers from 0 to 2^31 - 1, as in the other days of "
                "the log; prepare all days again"
            )
        numbers = pa.array(range(len(found)), pa.int32())
        ids = found["item"].cast(pa.int64())
        return found.set_column(0, found.schema.field("item"), numbers).add_column(
            1, pa.field("id", pa.int64(), nullable=False), ids
        )


def version_days(versions: pa.Table) -> list[str]:
    """Return the names of the days of a log, to which the column `until` of its versions refers."""
    days: list[str] = json.loads(versions.schema.metadata[_DAYS])
    return days


def are_versions(table: pa.Table) -> bool:
    """Return whether a table has names of days and is sorted by item and day, as lookups need."""
    try:
        days, keys = version_days(table), table["item"].cast(pa.int64()).to_numpy() << 32 | table[UNTIL].to_numpy()
    except (TypeError, LookupError, ValueError):
        return False
    return isinstance(days, list) and len(keys) > 0 and bool((np.diff(keys) > 0).all())


def version_rows(items: NDArray[np.int32], versions: pa.Table, day: str) -> NDArray[np.int32]:
    """Return where the features are that requests of a day see.

    Args:
        items: The items of the item table, sorted.
        versions: The versions of items that changed, sorted by item and day.
        day: The name of the day. Days that the versions do not know are later than all others.

    Returns:
        For each item a row of the item table followed by the versions.
    """
    days = version_days(versions)
    rows = np.arange(len(items), dtype=np.int32)
    valid = np.flatnonzero(versions[UNTIL].to_numpy() >= (days.index(day) if day in days else len(days)))
    valid = valid[np.diff(versions["item"].to_numpy()[valid], prepend=-1) > 0]  # the first version of each item
    places, known = find_items(items, versions["item"].to_numpy()[valid])  # versions may be newer than the table
    rows[places[known]] = len(items) + valid[known]
    return rows


def find_items(items: NDArray[np.int32], wanted: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the places of items among sorted ones, and whether they are there."""
    if items[-1] == len(items) - 1:  # sorted, different and from 0 on, so the number of an item is its place
        return np.clip(wanted, 0, len(items) - 1), wanted.view(np.uint32) < len(items)
    places = np.minimum(np.searchsorted(items, wanted), len(items) - 1)
    return places, items[places] == wanted


def items_on(table: pa.Table, versions: pa.Table | None, day: str) -> pa.Table:
    """Return the item table with the features that requests of a day see."""
    if versions is None:
        return table
    rows = pa.array(version_rows(table["item"].to_numpy(), versions, day))
    for place, field in enumerate(table.schema):
        if field.name.startswith(FEATURE):
            both = pa.chunked_array([*table[field.name].chunks, *versions[field.name].chunks])
            table = table.set_column(place, field, both.take(rows))
    return table.combine_chunks()


def differ(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values of two arrays (n,) or (n, size) differ."""
    differs: NDArray[np.bool_] = np.not_equal(one, other)
    return np.asarray(differs.any(axis=1)) if differs.ndim > 1 else differs


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
