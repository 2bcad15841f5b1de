"""The items of a bundle, from a prepared log or from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.spec import Categorical, column_of
from rankfall.encoding import FIRST_KNOWN, UNSEEN, BadValueError
from rankfall.encoding.lookup import NOWHERE, Lookup, plain_values
from rankfall.serving.bundle_files import DISPLAY, numbers
from rankfall.serving.export.display_columns import display_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Feature, Features

_CHANGED = 0.5  # share of items with a different id above which a file was prepared differently
FILE_SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet")


@dataclass(frozen=True, slots=True)
class ItemTable:
    """Items by their ids in the source, with the features ``item.NAME`` of the models.

    Attributes:
        lookup: The ids.
        features: The features.
        notes: Remarks for the user who exports the items.
        display: Attributes of the items by name, which are shown to people and which no model reads.
    """

    lookup: Lookup
    features: dict[str, NDArray[Any]]
    notes: list[str] = field(default_factory=list)
    display: dict[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lookup.values)

    def table(self) -> pa.Table:
        """Return the table as stored in a bundle."""
        columns = {name: _array(values) for name, values in self.features.items()}
        display = {f"{DISPLAY}{name}": values for name, values in self.display.items()}
        return pa.table({"id": self.lookup.values, **columns, **display, **self.lookup.columns()})


def load_items(
    path: Path | None,
    log: ImpressionLog,
    features: Features,
    names: Iterable[str],
    *,
    known: pa.Table | None = None,
    display: Sequence[str] | None = (),
) -> ItemTable:
    """Load the items of a prepared log or of a file with their features.

    Args:
        path: A prepared log; a file with the columns of a log's ``items.arrow``; or a file with raw columns under the
            names that the description of `log` gives them. By default the items of `log`.
        log: The log of the training run.
        features: The features of the models.
        names: The features to keep, such as ``item.author``.
        known: The items of `log` with their features, if they are not the newest ones.
        display: Attributes to show to people: raw columns of the file, or features of items, whose values are decoded.
            None chooses a few features.

    Raises:
        ValueError: The items are missing or damaged, their ids are not those of the training run, or an attribute does
            not exist.
    """
    wanted = [features.item(name.removeprefix("item.")) for name in names]
    if path is None:
        source, where = log.items() if known is None else known, log.path / "items.arrow"
    elif path.is_dir():
        if not is_log(path):
            raise ValueError(f"items: {path} is neither a prepared log nor a file of items")
        source, where = ImpressionLog.load(path).items(), path / "items.arrow"
    else:
        source, where = _read(path), path
    if not len(source):
        raise ValueError(f"items: {where} has no items")
    prepared = [f"item.{feature.name}" for feature in wanted]
    if "item" in source.column_names and all(name in source.column_names for name in prepared):
        ids = source["id"] if "id" in source.column_names else source["item"]
        values = {name: _numbers(source[name], where, name) for name in prepared}
    else:
        ids, values = _encode_columns(source, log, wanted, where)
    lookup = Lookup.of(plain_values(_one_array(ids)), name=f"items: {where}")
    if path is not None:
        _check_same_ids(lookup, values, log, wanted, where)
    notes = [note for feature in wanted if (note := _limit_to_model(values, feature, where))]
    return ItemTable(lookup, values, notes, display_columns(source, log, display, where))


def _check_same_ids(
    lookup: Lookup, values: Mapping[str, NDArray[Any]], log: ImpressionLog, wanted: Iterable[Feature], where: Path
) -> None:
    """Refuse encoded ids that differ from the log's for items in both: a file does not store what its ids mean."""
    _, ids = ids_of(log)
    rows = lookup.find(ids) if lookup.values.type == ids.type else np.full(len(ids), NOWHERE)
    both = rows != NOWHERE
    for feature in wanted:
        config = log.spec.features.item[feature.name]
        if not both.any() or not isinstance(config, Categorical):
            continue  # numbers may have been updated
        name = f"item.{feature.name}"
        here, there = values[name][rows[both]], log.items()[name].to_numpy()[both]
        differs = (here != there) & (np.minimum(here, there) >= FIRST_KNOWN)
        # the ids of the items themselves cannot change, those of their features can for some items
        allowed = 0 if column_of(log.spec, feature.name, config) == log.spec.item else _CHANGED
        if differs.mean() > allowed:
            raise ValueError(
                f"items: {where}: {name} has other ids than the log of the training run for {differs.mean():.0%} of "
                "the items that both have, so it was prepared differently. Give a file with raw columns"
            )


def ids_of(log: ImpressionLog) -> tuple[NDArray[np.int32], pa.Array]:
    """Return the numbers of the items of a log, in ascending order, and their ids in its source."""
    items = log.items()
    ids = items["id"] if "id" in items.column_names else items["item"]
    return items["item"].to_numpy(), plain_values(_one_array(ids))


def _read(path: Path) -> pa.Table:
    if path.suffix not in FILE_SUFFIXES:
        raise ValueError(
            f"items: found {path}, expected a prepared log or a file that ends in {', '.join(FILE_SUFFIXES)}"
        )
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"items: {path} is missing, damaged or cut off ({error})") from None


def _encode_columns(
    source: pa.Table, log: ImpressionLog, wanted: Iterable[Feature], where: Path
) -> tuple[pa.ChunkedArray, dict[str, NDArray[Any]]]:
    """Return the ids and the encoded features of items in raw columns."""
    columns = {
        feature.name: column_of(log.spec, feature.name, log.spec.features.item[feature.name]) for feature in wanted
    }
    for column in (log.spec.item, *columns.values()):
        if column not in source.column_names:
            raise ValueError(
                f"items: {where} has no column {column!r}{did_you_mean(column, source.column_names)}; it has "
                f"{', '.join(source.column_names)}"
            )
    if source[log.spec.item].null_count:
        raise ValueError(f"items: {where} has items without {log.spec.item}")
    encoding = Encoding.of_log(log)
    values = {}
    for name, column in columns.items():
        try:
            values[f"item.{name}"] = encoding.encode("item", name, pl.Series(column, pl.from_arrow(source[column])))
        except BadValueError as error:
            raise ValueError(f"items: {where}: {error} (item {source[log.spec.item][error.position]})") from None
        except ValueError as error:
            raise ValueError(f"items: {where}: {error}") from None
        except pl.exceptions.PolarsError:
            raise ValueError(
                f"items: {where}: column {column!r}: found {source[column].type}, which cannot be read as item.{name}"
            ) from None
    return source[log.spec.item], values


def _limit_to_model(values: dict[str, NDArray[Any]], feature: Feature, where: Path) -> str | None:
    """Replace ids for which the model has no row by that of unseen values; return a note about their number."""
    name = f"item.{feature.name}"
    column = values[name]
    if feature.embedding is None:
        if not np.isfinite(column).all():
            raise ValueError(f"items: {where}: {name} has values that are not finite numbers")
        size = column.shape[1] if column.ndim > 1 else 1
        if size != feature.size:
            raise ValueError(f"items: {where}: {name} has {size} numbers, the model expects {feature.size}")
        return None
    if column.min() < 0:
        raise ValueError(f"items: {where}: {name} has the id {column.min()}, expected ids from 0 on")
    unknown = column >= feature.rows
    if not unknown.any():
        return None
    values[name] = np.where(unknown, UNSEEN, column).astype(np.int32)
    return f"{int(unknown.sum()):,} items have a value of {name} that the model has no row for; it counts as unseen"


def _numbers(column: pa.ChunkedArray, where: Path, name: str) -> NDArray[Any]:
    array = _one_array(column)
    kind = array.type.value_type if pa.types.is_fixed_size_list(array.type) else array.type
    if array.null_count or kind not in (pa.int32(), pa.float32()):
        raise ValueError(
            f"items: {where}: {name} is {array.type} with {array.null_count} nulls, expected int32 or float32"
        )
    return numbers(array)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _array(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
