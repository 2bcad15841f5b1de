"""The items of a bundle, from a prepared log or from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rankfall._ids import FIRST_KNOWN, UNSEEN
from rankfall._suggest import did_you_mean
from rankfall.data.impressions.encoding import BadValueError, Encoding
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.spec import Categorical
from rankfall.serving.bundle_files import numbers
from rankfall.serving.export.encoding_rules import plain_values, raw_column
from rankfall.serving.lookup import NOWHERE, Lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Feature, Features

_CHANGED = 0.5  # share of items of which a feature is another than before, from which on it is no change of theirs
ENDINGS = (".arrow", ".feather", ".ipc", ".parquet")


@dataclass(frozen=True, slots=True)
class ItemTable:
    """Items by the ids of their source, with the features ``item.NAME`` that models look at."""

    lookup: Lookup
    features: dict[str, NDArray[Any]]
    notes: list[str] = field(default_factory=list)  # what whoever exports them should know

    def __len__(self) -> int:
        """How many there are."""
        return len(self.lookup.values)

    def table(self) -> pa.Table:
        """As bundles keep it."""
        columns = {name: _array(values) for name, values in self.features.items()}
        return pa.table({"id": self.lookup.values, **columns, **self.lookup.columns()})


def load_items(
    path: Path | None,
    log: ImpressionLog,
    features: Features,
    names: Iterable[str],
    *,
    without: NDArray[np.int32] | None = None,
) -> ItemTable:
    """The items of a prepared log, by default `log`, that of the training, or of a file with their features.

    A file has the columns of a log's ``items.arrow``, or raw ones under the names that the description of `log` gives
    them. `names` are the features that are kept, such as ``item.author``. Items of `log` may be left out (`without`).
    """
    wanted = [features.item(name.removeprefix("item.")) for name in names]
    if path is None:
        source, where = log.items(), log.path / "items.arrow"
        if without is not None:
            source = source.filter(pa.array(~np.isin(source["item"].to_numpy(), without)))
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
        found = {name: _numbers(source[name], where, name) for name in prepared}
    else:
        ids, found = _encoded(source, log, wanted, where)
    lookup = Lookup.of(plain_values(_one(ids)), name=f"items: {where}")
    if path is not None:
        _check_preparation(lookup, found, log, wanted, where)
    notes = [note for feature in wanted if (note := _fit_into(found, feature, where))]
    return ItemTable(lookup, found, notes)


def _check_preparation(
    lookup: Lookup, found: Mapping[str, NDArray[Any]], log: ImpressionLog, wanted: Iterable[Feature], where: Path
) -> None:
    """Refuse ids that are others than the log's for items that both have: a file does not say what they mean."""
    _, ids = ids_of(log)
    rows = lookup.find(ids) if lookup.values.type == ids.type else np.full(len(ids), NOWHERE)
    both = rows != NOWHERE
    for feature in wanted:
        if not both.any() or not isinstance(log.spec.features.item[feature.name], Categorical):
            continue  # numbers may be newer ones
        name = f"item.{feature.name}"
        here, there = found[name][rows[both]], log.items()[name].to_numpy()[both]
        other = (here != there) & (np.minimum(here, there) >= FIRST_KNOWN)
        # nothing but the ids of the items themselves cannot have changed for some of them
        allowed = 0 if raw_column(log, feature.name) == log.spec.item else _CHANGED
        if other.mean() > allowed:
            raise ValueError(
                f"items: {where}: {name} has other ids than the log of the training for {other.mean():.0%} of the "
                "items that both have, so it was prepared otherwise. Give a file with raw columns"
            )


def ids_of(log: ImpressionLog) -> tuple[NDArray[np.int32], pa.Array]:
    """The numbers of the items of a log, which rise, and their ids in its source."""
    items = log.items()
    ids = items["id"] if "id" in items.column_names else items["item"]
    return items["item"].to_numpy(), plain_values(_one(ids))


def _read(path: Path) -> pa.Table:
    if path.suffix not in ENDINGS:
        raise ValueError(f"items: found {path}, expected a prepared log or a file that ends in {', '.join(ENDINGS)}")
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise ValueError(f"items: {path} is missing, damaged or cut off ({error})") from None


def _encoded(
    source: pa.Table, log: ImpressionLog, wanted: Iterable[Feature], where: Path
) -> tuple[pa.ChunkedArray, dict[str, NDArray[Any]]]:
    """The features of items in raw columns."""
    columns = {feature.name: raw_column(log, feature.name) for feature in wanted}
    for column in (log.spec.item, *columns.values()):
        if column not in source.column_names:
            raise ValueError(
                f"items: {where} has no column {column!r}{did_you_mean(column, source.column_names)}; it has "
                f"{', '.join(source.column_names)}"
            )
    if source[log.spec.item].null_count:
        raise ValueError(f"items: {where} has items without {log.spec.item}")
    encoding = encoding_of(log)
    found = {}
    for name, column in columns.items():
        try:
            found[f"item.{name}"] = encoding.encode("item", name, pl.Series(column, pl.from_arrow(source[column])))
        except BadValueError as error:
            raise ValueError(f"items: {where}: {error} (item {source[log.spec.item][error.position]})") from None
        except ValueError as error:
            raise ValueError(f"items: {where}: {error}") from None
        except pl.exceptions.PolarsError:
            raise ValueError(
                f"items: {where}: column {column!r}: found {source[column].type}, which cannot be read as item.{name}"
            ) from None
    return source[log.spec.item], found


def encoding_of(log: ImpressionLog) -> Encoding:
    """How a log made ids and numbers, as its manifest and its vocabularies tell."""
    about = log.manifest["about"]
    scalings = {
        key: (np.array(scaling["mean"]), np.array(scaling["deviation"]))
        for key, scaling in about.get("scalings", {}).items()
    }
    vocabularies = {table: pl.Series(pl.from_arrow(log.vocabulary(table))) for table in log.manifest["vocabularies"]}
    return Encoding(log.spec, vocabularies, scalings, about.get("edges", {}))


def _fit_into(found: dict[str, NDArray[Any]], feature: Feature, where: Path) -> str | None:
    """Let ids that the model has no row for count as never seen; say how many there were."""
    name = f"item.{feature.name}"
    values = found[name]
    if feature.embedding is None:
        if not np.isfinite(values).all():
            raise ValueError(f"items: {where}: {name} has values that are no finite numbers")
        size = values.shape[1] if values.ndim > 1 else 1
        if size != feature.size:
            raise ValueError(f"items: {where}: {name} has {size} numbers, the model expects {feature.size}")
        return None
    if values.min() < 0:
        raise ValueError(f"items: {where}: {name} has the id {values.min()}, expected ids from 0 on")
    unknown = values >= feature.rows
    if not unknown.any():
        return None
    found[name] = np.where(unknown, UNSEEN, values).astype(np.int32)
    return f"{int(unknown.sum()):,} items have a {name} that the model does not know; it counts as never seen"


def _numbers(column: pa.ChunkedArray, where: Path, name: str) -> NDArray[Any]:
    array = _one(column)
    kind = array.type.value_type if pa.types.is_fixed_size_list(array.type) else array.type
    if array.null_count or kind not in (pa.int32(), pa.float32()):
        raise ValueError(
            f"items: {where}: {name} is {array.type} with {array.null_count} nulls, expected int32 or float32"
        )
    return numbers(array)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _array(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
