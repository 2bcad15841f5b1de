"""The items of a bundle, from a prepared log or from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.spec import Categorical, Dense, column_of
from rankfall.encoding import (
    FIRST_KNOWN,
    MISSING,
    NOWHERE,
    UNSEEN,
    BadValueError,
    Buckets,
    Lookup,
    NumberedIds,
    Numbers,
    VocabularyIds,
    plain_values,
    rule_from_json,
)
from rankfall.serving.bundle_files import DISPLAY, numbers
from rankfall.serving.request_encoder import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Feature, Features
    from rankfall.encoding import Rule
    from rankfall.serving.export.measure_bundle import Reactions, RequestSample
    from rankfall.serving.export.onnx_graphs import Rules


BY_DEFAULT = 3  # features that are shown if no attribute was chosen


def display_columns(
    source: pa.Table, log: ImpressionLog, names: Sequence[str] | None, where: Path
) -> dict[str, pa.Array]:
    """Return attributes of items, as text or numbers with nulls for missing values.

    Args:
        source: The items, with raw columns or with the columns ``item.NAME`` of a log.
        log: The log of the training run.
        names: Columns of the source, or features of items; None for the first categorical features that can be decoded.
        where: The name of the source in messages.

    Raises:
        ValueError: There is no such attribute, or its values cannot be shown. The message lists all such attributes.
    """
    if names is None:
        names = []  # the first categorical features whose values are known, without the id of the item
        for name, config in log.spec.features.item.items():
            column = column_of(log.spec, name, config)
            is_decodable = isinstance(config, Categorical) and config.hash_bucket_size is None
            is_present = f"item.{name}" in source.column_names or column in source.column_names
            if is_decodable and is_present and column != log.spec.item:
                names.append(name)
        names = names[:BY_DEFAULT]
    encoding = Encoding.of_log(log)
    columns: dict[str, pa.Array] = {}
    problems: list[str] = []
    for name in names:
        try:
            columns[name] = _column(source, log, encoding, name)
        except ValueError as error:
            problems.append(f"display: {where}: {error}")
    if problems:
        raise RankfallError("\n".join(problems))
    return columns


def _column(source: pa.Table, log: ImpressionLog, encoding: Encoding, name: str) -> pa.Array:
    features = log.spec.features.item
    if name in source.column_names and not name.startswith("item.") and name not in ("item", "id"):
        return _shown(source[name].combine_chunks(), name)
    feature = name.removeprefix("item.")
    if feature not in features:
        known = [*(one for one in source.column_names if "." not in one and one not in ("item", "id")), *features]
        known = list(dict.fromkeys(known))
        raise RankfallError(f"found {name!r}{did_you_mean(name, known)}; allowed are {', '.join(known) or 'none'}")
    raw = column_of(log.spec, feature, features[feature])
    if raw in source.column_names:
        return _shown(source[raw].combine_chunks(), name)
    if f"item.{feature}" not in source.column_names:
        raise RankfallError(f"found {name!r}, but there is neither a column {raw!r} nor a column 'item.{feature}'")
    if not isinstance(features[feature], Categorical | Dense):
        raise RankfallError(f"{name} is a part of a time, whose value is not known")
    return _decoded(source[f"item.{feature}"].combine_chunks(), encoding.rule("item", feature), name)


def _shown(values: pa.Array, name: str) -> pa.Array:
    """Return raw values as text or numbers."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_temporal(kind):
        return values.cast(pa.large_string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = values.cast(pa.float64())
        return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))  # JSON has finite numbers only
    raise RankfallError(f"column {name!r}: found {kind}, expected text or numbers")


def _decoded(values: pa.Array, rule: Rule, name: str) -> pa.Array:
    """Return the values that were encoded as ids or numbers, null for missing and unseen ones."""
    if isinstance(rule, Numbers):
        if rule.size > 1:
            raise RankfallError(f"{name} is a vector of {rule.size} numbers, expected single numbers or text")
        if not rule.indicator:
            return pa.array(_raw_numbers(rule, np.asarray(values, np.float64)))
        numbers, indicators = np.asarray(values.flatten(), np.float64).reshape(-1, 2).T
        return pa.array(_raw_numbers(rule, numbers), mask=indicators > 0)
    if not isinstance(rule, NumberedIds | VocabularyIds):
        raise RankfallError(
            f"{name} is hashed or in buckets, so that its values are not known; give a file with raw columns"
        )
    ids = np.asarray(values, np.int64)
    missing = ids < FIRST_KNOWN
    places = np.where(missing, 0, ids - FIRST_KNOWN)
    if isinstance(rule, NumberedIds):
        return pa.array(places, mask=missing)
    return rule.known.values.take(pa.array(places, mask=missing | (places >= len(rule.known.values))))


def _raw_numbers(rule: Numbers, values: NDArray[np.float64]) -> NDArray[Any]:
    if rule.mean is not None and rule.deviation is not None:
        values = values * rule.deviation + rule.mean
    if rule.log1p:
        values = np.copysign(np.expm1(np.abs(values)), values)
    return values


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
        columns = {
            name: pa.array(values)
            if values.ndim == 1
            else pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
            for name, values in self.features.items()
        }
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
            names that the spec of `log` gives them. By default the items of `log`.
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
            raise RankfallError(f"items: {path} is neither a prepared log nor a file of items")
        source, where = ImpressionLog.load(path).items(), path / "items.arrow"
    else:
        source, where = _read(path), path
    if not len(source):
        raise RankfallError(f"items: {where} has no items")
    prepared = [f"item.{feature.name}" for feature in wanted]
    if "item" in source.column_names and all(name in source.column_names for name in prepared):
        ids = source["id"] if "id" in source.column_names else source["item"]
        values = {}
        for name in prepared:
            array = _one_array(source[name])
            kind = array.type.value_type if pa.types.is_fixed_size_list(array.type) else array.type
            if array.null_count or kind not in (pa.int32(), pa.float32()):
                found = f"{array.type} with {array.null_count} nulls"
                raise RankfallError(f"items: {where}: {name} is {found}, expected int32 or float32")
            values[name] = numbers(array)
    else:
        ids, values = _encode_columns(source, log, wanted, where)
    lookup = Lookup.of(plain_values(_one_array(ids)), name=f"items: {where}")
    if path is not None:  # its encoded ids must be those of the log: a file does not store what its ids mean
        _, known_ids = ids_of(log)
        rows = lookup.find(known_ids) if lookup.values.type == known_ids.type else np.full(len(known_ids), NOWHERE)
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
                raise RankfallError(
                    f"items: {where}: {name} has other ids than the log of the training run for {differs.mean():.0%} "
                    "of the items that both have, so it was prepared differently. Give a file with raw columns"
                )
    notes = [note for feature in wanted if (note := _limit_to_model(values, feature, where))]
    return ItemTable(lookup, values, notes, display_columns(source, log, display, where))


def ids_of(log: ImpressionLog) -> tuple[NDArray[np.int32], pa.Array]:
    """Return the numbers of the items of a log, in ascending order, and their ids in its source."""
    items = log.items()
    ids = items["id"] if "id" in items.column_names else items["item"]
    return items["item"].to_numpy(), plain_values(_one_array(ids))


def _read(path: Path) -> pa.Table:
    if path.suffix not in FILE_SUFFIXES:
        raise RankfallError(
            f"items: found {path}, expected a prepared log or a file that ends in {', '.join(FILE_SUFFIXES)}"
        )
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise RankfallError(f"items: {path} is missing, damaged or cut off ({error})") from None


def _encode_columns(
    source: pa.Table, log: ImpressionLog, wanted: Iterable[Feature], where: Path
) -> tuple[pa.ChunkedArray, dict[str, NDArray[Any]]]:
    """Return the ids and the encoded features of items in raw columns."""
    columns = {
        feature.name: column_of(log.spec, feature.name, log.spec.features.item[feature.name]) for feature in wanted
    }
    for column in (log.spec.item, *columns.values()):
        if column not in source.column_names:
            raise RankfallError(
                f"items: {where} has no column {column!r}{did_you_mean(column, source.column_names)}; it has "
                f"{', '.join(source.column_names)}"
            )
    if source[log.spec.item].null_count:
        raise RankfallError(f"items: {where} has items without {log.spec.item}")
    encoding = Encoding.of_log(log)
    values = {}
    for name, column in columns.items():
        try:
            values[f"item.{name}"] = encoding.encode("item", name, pl.Series(column, pl.from_arrow(source[column])))
        except BadValueError as error:
            raise RankfallError(f"items: {where}: {error} (item {source[log.spec.item][error.position]})") from None
        except ValueError as error:
            raise RankfallError(f"items: {where}: {error}") from None
        except pl.exceptions.PolarsError:
            raise RankfallError(
                f"items: {where}: column {column!r}: found {source[column].type}, which cannot be read as item.{name}"
            ) from None
    return source[log.spec.item], values


def _limit_to_model(values: dict[str, NDArray[Any]], feature: Feature, where: Path) -> str | None:
    """Replace ids for which the model has no row by that of unseen values; return a note about their number."""
    name = f"item.{feature.name}"
    column = values[name]
    if feature.embedding is None:
        if not np.isfinite(column).all():
            raise RankfallError(f"items: {where}: {name} has values that are not finite numbers")
        size = column.shape[1] if column.ndim > 1 else 1
        if size != feature.size:
            raise RankfallError(f"items: {where}: {name} has {size} numbers, the model expects {feature.size}")
        return None
    if column.min() < 0:
        raise RankfallError(f"items: {where}: {name} has the id {column.min()}, expected ids from 0 on")
    unknown = column >= feature.rows
    if not unknown.any():
        return None
    values[name] = np.where(unknown, UNSEEN, column).astype(np.int32)
    return f"{int(unknown.sum()):,} items have a value of {name} that the model has no row for; it counts as unseen"


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def raw_requests(
    sample: RequestSample, rules: Rules, vocabularies: Mapping[str, pa.Array], count: int
) -> list[dict[str, Any]]:
    """Return the first `count` requests; an id whose value cannot be recovered is given as ``{"id": 7}``."""
    lookups = {table: Lookup(values) for table, values in vocabularies.items()}

    def parsed(features: Mapping[str, Any]) -> dict[str, Rule]:
        return {name: rule_from_json(rule, lookups) for name, rule in features.items()}

    groups = {
        group: parsed({name: rule for name, rule in rules[group].items() if not rule.get("of_request")})
        for group in ("user", "context")  # what is derived from the time follows from it
    }
    sequences = {name: parsed(rule["features"]) for name, rule in rules["sequences"].items()}
    arrays, requests = sample.requests.arrays, []
    for place in range(min(count, len(sample.requests))):
        request: dict[str, Any] = {}
        if rules["time"] is not None:
            moment = datetime.fromtimestamp(int(sample.times[place]) / 1000, UTC)
            request["time"] = moment.isoformat(timespec="milliseconds")
        for group, features in groups.items():
            if features:
                request[group] = {
                    name: raw_value(rule, arrays[f"{group}.{name}"][place]) for name, rule in features.items()
                }
        for name, features in sequences.items():
            length = int(arrays[f"sequence.{name}.{MASK}"][place].sum())
            request.setdefault("sequences", {})[name] = [
                {
                    feature: raw_value(rule, arrays[f"sequence.{name}.{feature}"][place, event])
                    for feature, rule in features.items()
                }
                for event in range(length)
            ]
        requests.append(request)
    return requests


def known_reactions(reactions: Reactions | None, count: int) -> list[dict[str, Any]]:
    """Return what the log knows about the items of the first `count` requests.

    Returns:
        ``relevant``, the ids of the ground truth, and ``feedback``, by name the pairs of id and value that are
        not 0; empty dictionaries if the log knows nothing.
    """
    if reactions is None:
        return [{} for _ in range(count)]
    first, last = np.searchsorted(reactions.request, [0, count])
    ids, request = reactions.ids.slice(first, last - first).to_pylist(), reactions.request[first:last]
    known: list[dict[str, Any]] = [{"relevant": [], "feedback": {}} for _ in range(count)]
    for at, one in enumerate(ids):
        of_request = known[request[at]]
        if reactions.share[first + at] > 0:
            of_request["relevant"].append(one)
        for name, values in reactions.feedback.items():
            if value := float(values[first + at]):
                of_request["feedback"].setdefault(name, []).append([one, value])
    return known


def raw_value(rule: Rule, value: Any) -> Any:
    """Return a value that is encoded as an id or number."""
    if isinstance(rule, Numbers):
        numbers, missing = np.atleast_1d(np.asarray(value, np.float64)), np.zeros(rule.size)
        if rule.indicator:
            numbers, missing = np.split(numbers, 2)
        raw = _raw_numbers(rule, numbers).tolist()
        values = [None if is_missing else number for number, is_missing in zip(raw, missing > 0, strict=True)]
        return values[0] if rule.size == 1 else values
    number = int(value)
    if number == MISSING:
        return {"id": MISSING} if isinstance(rule, Buckets) and not rule.numbers.indicator else None
    if number >= FIRST_KNOWN and isinstance(rule, NumberedIds):
        return number - FIRST_KNOWN
    if number >= FIRST_KNOWN and isinstance(rule, VocabularyIds):
        return rule.known.values[number - FIRST_KNOWN].as_py()
    return {"id": number}
