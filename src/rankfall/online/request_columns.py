"""Columns of a log from the bodies of requests.

A value is converted as the service does it, so that a body that a service accepted is refused only where it has an id
of an embedding instead of a value, or something else in a feature that no model reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.log import map_table
from rankfall.data.impressions.spec import Categorical, Dense, Time, column_of, is_dense
from rankfall.data.sources.rows.raw_log import time_units
from rankfall.data.sources.rows.row_files import TIME
from rankfall.encoding import BadValueError, Numbers
from rankfall.serving.bundle import Bundle
from rankfall.serving.bundle_files import is_bundle, read_manifest
from rankfall.serving.request_encoder import RequestError, last_events
from rankfall.serving.service.bundle_slots import model_name
from rankfall.serving.service.settings import ITEM_LENGTH
from rankfall.serving.value_encoders import (
    NumberEncoder,
    Times,
    bad_value,
    finite_numbers,
    integers,
    integers_or_their_text,
    is_integer,
    texts,
)
from rankfall.storage.disk import open_new
from rankfall.storage.files import parse_json
from rankfall.storage.manifests import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import FeatureConfig, Spec
    from rankfall.online.day_rows import RequestColumn, RowLayout, SequenceColumn

    Refused = dict[int, str]  # reasons by the place of requests
    ServedItems = Callable[[pl.DataFrame, Any, list[Any]], list[Any]]
    KindOf = Callable[[pl.DataFrame, Sequence[Sequence[str]]], Any]  # samples, features in rules of bundles -> a type
    ItemValues = Callable[[str, Sequence[Any]], list[Any]]  # a column and ids of items -> the values of the items
    Hashes = NDArray[np.uint64]


class BodyColumns:
    """Makes columns from bodies.

    Args:
        layout: The columns.
        item_values: Returns values of items for events that leave them out, None for unknown items.
        served_items: Returns the ids of items as the bundles have them that answered, from samples, places of samples
            and ids that clients sent. None: the bundle lacked the item, so that the service could not look it up.
        kind_of: Returns the type of ids in the log that the bundles of samples were trained on, None if unknown.
    """

    def __init__(self, layout: RowLayout, item_values: ItemValues, served_items: ServedItems, kind_of: KindOf) -> None:
        self._layout = layout
        self._item_values = item_values
        self._served_items = served_items
        self._kind_of = kind_of
        self._derived = [
            (group, name)
            for group, name, feature in layout.spec.features
            if isinstance(feature, Time) and feature.column is None
        ]

    def make(self, samples: pl.DataFrame) -> tuple[dict[str, pl.Series], Refused]:
        """Return columns of requests by name, and why requests cannot be logged.

        Args:
            samples: The samples of requests.
        """
        slices = np.cumsum(samples["body"].str.len_bytes().fill_null(0).to_numpy()) // _PARSED_BYTES
        starts = [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist()]
        made = [self._make(samples[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]
        refused = {start + at: why for start, (_, of) in zip(starts, made, strict=True) for at, why in of.items()}
        whole = pl.concat([pl.DataFrame(columns) for columns, _ in made], how="vertical_relaxed")
        return {name: whole[name] for name in whole.columns}, refused

    def _make(self, samples: pl.DataFrame) -> tuple[dict[str, pl.Series], Refused]:
        refused: Refused = {}
        time = samples["time"]
        parsed = [_parse(place, body, refused) for place, body in enumerate(samples["body"].to_list())]
        for place, body in enumerate(parsed):
            for given in self._derived:
                if _given(body, [given]) is not None:
                    refused[place] = f"{'.'.join(given)}: derived from `time`, but the request has a value"
        columns: dict[str, pl.Series] = {}
        for column in self._layout.requests:
            if column.fields:
                kind = column.kind or self._kind_of(samples, column.fields)
                columns[column.name] = self._feature(replace(column, kind=kind), parsed, refused)
            elif (of_log := self._layout.spec.time) is not None and column.name == of_log.column:
                as_numbers = column.kind == pl.Int64 if column.kind is not None else of_log.unit is not None
                columns[column.name] = _in_unit(time, of_log.unit) if as_numbers else time.cast(TIME)
            else:
                local = time.dt.convert_time_zone(self._layout.spec.zone)
                columns[column.name] = local.dt.strftime("%Y-%m-%d")
        sequences: dict[str, list[SequenceColumn]] = {}
        for of_sequence in self._layout.sequences:
            sequences.setdefault(of_sequence.sequence, []).append(of_sequence)
        for name, of in sequences.items():
            columns |= self._sequence(name, of, parsed, refused, samples)
        return {name: values.alias(name) for name, values in columns.items()}, refused

    # --- features of requests -----------------------------------------------------------------------------------------

    def _feature(self, column: RequestColumn, parsed: Sequence[Mapping[str, Any]], refused: Refused) -> pl.Series:
        values = [_given(body, column.fields) for body in parsed]
        assert column.feature is not None
        spec, scalings = self._layout.spec, self._layout.scalings
        encoders = [
            NumberEncoder(Numbers(one.size, one.log1p, one.replacement, *scalings.get(f"{group}.{name}", ())))
            for group, name in column.fields
            if is_dense(one := getattr(spec.features, group)[name])
        ]
        target = _Target(column.feature, column.kind, spec, ".".join(column.fields[0]), encoders)
        return target.convert(values, refused, range(len(values)))

    # --- sequences ----------------------------------------------------------------------------------------------------

    def _sequence(
        self,
        name: str,
        columns: Sequence[SequenceColumn],
        parsed: Sequence[Mapping[str, Any]],
        refused: Refused,
        samples: pl.DataFrame,
    ) -> dict[str, pl.Series]:
        spec = self._layout.spec
        length = spec.sequences[name].max_length
        features = [column.feature for column in columns]
        item = next((one for one in features if column_of(spec, one, spec.features.item[one]) == spec.item), None)
        lengths = np.zeros(len(parsed), np.int64)
        flat: dict[str, list[Any]] = {feature: [] for feature in features}
        lacking: dict[str, list[int]] = {feature: [] for feature in features}
        for place, body in enumerate(parsed):
            events = _mapping(body.get("sequences")).get(name)
            if events is None:
                continue
            try:
                found = last_events(events, features, length, features, lambda names: None, f"sequences.{name}", place)
            except RequestError as error:
                refused.setdefault(place, str(error))
                continue
            lengths[place] = min(length, found[0])
            for key, left in found[2].items():
                lacking[key] += [len(flat[key]) + at for at in left]
            for key, values in zip(features, found[1], strict=True):
                flat[key] += values
        edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        owners = np.repeat(np.arange(len(parsed)), lengths)
        made = {}
        for column in columns:
            feature = spec.features.item[column.feature]
            values = flat[column.feature]
            if item is not None and column.feature != item and (left := lacking[column.feature]):  # as a service does
                ids = self._served_items(samples, owners[left], [flat[item][at] for at in left])
                of_items = self._item_values(column_of(spec, column.feature, feature), ids)
                for at, value in zip(left, of_items, strict=True):
                    values[at] = value
            rule = "sequences", name, "features", column.feature
            inner: Any = column.kind.inner if isinstance(column.kind, pl.List) else self._kind_of(samples, [rule])
            target = _Target(feature, inner, spec, f"sequences.{name}.{column.feature}")
            series = target.convert(values, refused, owners)
            lists = pa.ListArray.from_arrays(pa.array(edges), series.rechunk().to_arrow(compat_level=_OLDEST))
            made[column.name] = pl.Series(pl.from_arrow(lists))
        return made


_OLDEST = pl.CompatLevel.oldest()
_PARSED_BYTES = 2**24  # of bodies that are in memory as Python objects, which take twenty times as much


def _parse(place: int, body: str | None, refused: Refused) -> Mapping[str, Any]:
    try:
        content = parse_json(body or "")
    except ValueError as error:
        refused[place] = f"body: not JSON ({error})"
        return {}
    return _mapping(content)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _given(body: Mapping[str, Any], fields: Sequence[tuple[str, str]]) -> Any:
    """Return the value of the first of some features that a body has."""
    for group, name in fields:
        value = _mapping(body.get(group)).get(name)
        if value is not None:
            return value
    return None


# --- values -------------------------------------------------------------------------------------------------------


_PLACEHOLDER = type("_Placeholder", (), {})()  # of a value whose request is left out
_BLOCK = 256  # values that are converted together to find all wrong ones


@dataclass(frozen=True, slots=True)
class _Target:
    """A column that values are converted to.

    Attributes:
        feature: The feature.
        kind: The type of the column, None if it is not known yet.
        spec: The spec of the log.
        where: The place of the values in a body.
        encoders: Those of the log, which bound numbers as the service does. A bundle may scale or ignore them.
    """

    feature: FeatureConfig
    kind: pl.DataType | None
    spec: Spec
    where: str
    encoders: Sequence[NumberEncoder] = ()

    def convert(self, values: list[Any], refused: Refused, owners: Sequence[int] | Any) -> pl.Series:
        """Convert values. Those that cannot be converted become missing, and their requests are refused.

        Args:
            values: The values, in which those that cannot be converted are replaced.
            refused: Receives the reasons by the place of requests.
            owners: The place of the request of each value.
        """
        while True:
            kind = self._kind_of(values)
            try:
                return self._convert(values, kind)
            except BadValueError:
                wrong = list(self._wrong(values, kind))
                if not wrong:  # no block has an error that the whole has
                    raise
            for place, reason in wrong:
                refused.setdefault(int(owners[place]), f"{self.where}: {reason}")
                values[place] = _PLACEHOLDER

    def _kind_of(self, values: list[Any]) -> pl.DataType | None:
        """Return the type of the column; that of ids in a new log depends on all of them."""
        if self.kind is not None or not isinstance(self.feature, Categorical):
            return self.kind
        is_whole = all(is_integer(value) for value in values if value is not None and value is not _PLACEHOLDER)
        return pl.Int64() if is_whole else pl.String()

    def _wrong(self, values: list[Any], kind: pl.DataType | None) -> Iterator[tuple[int, str]]:
        """Yield the places of values that cannot be converted, and why.

        An error names the first of them only. Blocks bound the cost of finding the others: it grows linearly with the
        number of values, even if most of them are wrong.
        """
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK]
            while True:
                try:
                    self._convert(block, kind)
                except BadValueError as error:
                    yield start + error.position, str(error)
                    block[error.position] = _PLACEHOLDER
                else:
                    break

    def _convert(self, values: list[Any], kind: pl.DataType | None) -> pl.Series:
        places = [place for place, value in enumerate(values) if value is not None and value is not _PLACEHOLDER]
        if isinstance(self.feature, Dense) and self.feature.missing is None and len(places) < len(values):
            lacking = next((place for place, value in enumerate(values) if value is None), None)
            if lacking is not None:
                raise BadValueError("found nothing, expected a value", lacking)
        given = [values[place] for place in places]
        try:
            found = _plain(self.feature, kind, self.spec, given)
            for encoder in self.encoders:
                encoder.encode(given)
        except BadValueError as error:
            raise BadValueError(str(error), places[error.position]) from None
        if len(places) == len(values):
            return found
        at = pl.Series([None] * len(values), dtype=pl.Int64).scatter(places, np.arange(len(places)))
        return found.gather(at)  # null where the place is null


def _plain(feature: FeatureConfig, kind: pl.DataType | None, spec: Spec, values: list[Any]) -> pl.Series:
    """Convert values of which none is missing."""
    if isinstance(feature, Time):
        unit = time_units(spec).get(feature.column or "")
        reader = Times(unit, spec.zone)
        times = pl.Series(reader.milliseconds(values), dtype=pl.Int64).cast(TIME)
        local = times.dt.convert_time_zone(spec.zone).dt.replace_time_zone(None).to_physical().to_numpy()
        if (differs := local != reader.local_milliseconds(values)).any():  # summers after 2100
            position = int(differs.argmax())
            raise bad_value(position, values[position], "a time whose local time the log computes like the service")
        return _in_unit(times, unit) if kind == pl.Int64 else times
    if isinstance(feature, Categorical):
        return _ids(feature, kind, values)
    if feature.size > 1:
        expected = f"a list of {feature.size} finite numbers"
        return pl.Series(finite_numbers(values, expected, size=feature.size).tolist(), dtype=pl.List(pl.Float64))
    return pl.Series(finite_numbers(values, "a finite number", size=1), dtype=pl.Float64)


def _ids(feature: Categorical, kind: pl.DataType | None, values: list[Any]) -> pl.Series:
    if feature.num_buckets is not None:
        numbers = integers(values, "a whole number from 0 on")
        if (negative := numbers < 0).any():
            position = int(negative.argmax())
            raise bad_value(position, values[position], "a whole number from 0 on")
        return pl.Series(numbers, dtype=pl.Int64)
    if kind == pl.Int64:
        return pl.Series(integers_or_their_text(values, "a whole number"), dtype=pl.Int64)
    found = pl.Series(pl.from_arrow(texts(values, "a whole number or text")), dtype=pl.String)
    if feature.vocabulary is not None and (is_long := found.str.len_chars() > ITEM_LENGTH).any():
        position = int(is_long.arg_max() or 0)
        raise bad_value(position, values[position], f"text of at most {ITEM_LENGTH:,} characters")
    return found


def _in_unit(times: pl.Series, unit: str | None) -> pl.Series:
    return times.dt.epoch(unit or "ms")  # type: ignore[arg-type]  # one of the units of polars


HASH, DAY = "\1hash", "\1day"
_SCHEMA = pa.schema([("hash", pa.uint64()), ("day", pa.int32()), ("sampled", pa.bool_())])


class Found(NamedTuple):
    """For each request that was looked up: whether it was served, its day, and whether it was sampled."""

    served: NDArray[np.bool_]
    day: NDArray[np.int32]
    sampled: NDArray[np.bool_]


class ServedRequests:
    """Requests that were received before the current day was closed, by the hashes of their ids.

    Args:
        files: The files that :func:`write_served` wrote, oldest first.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._tables = [map_table(path) for path in reversed(files)]

    def find(self, hashes: Hashes) -> Found:
        """Look requests up; those of the latest files are found first."""
        found = Found(np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.int32), np.zeros(len(hashes), np.bool_))
        for table in self._tables:
            left = np.flatnonzero(~found.served)
            if not len(left):
                break
            known = table["hash"].combine_chunks().to_numpy()
            places = np.searchsorted(known, hashes[left])
            inside = places < len(known)
            hit = np.zeros(len(left), np.bool_)
            hit[inside] = known[places[inside]] == hashes[left][inside]
            rows = places[hit]
            found.served[left[hit]] = True
            found.day[left[hit]] = table["day"].take(rows).to_numpy()
            found.sampled[left[hit]] = table["sampled"].take(rows).to_numpy()
        return found


def write_served(path: Path, parts: Sequence[pl.DataFrame]) -> None:
    """Write the requests of a window.

    Args:
        path: The file.
        parts: Frames with `HASH`, `DAY` and ``sampled``, sorted by `HASH` one after the other.
    """
    columns = pl.concat(parts).select(pl.col(HASH).alias("hash"), pl.col(DAY).alias("day"), "sampled").rechunk()
    table = columns.to_arrow().cast(_SCHEMA)
    with open_new(path) as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        writer.write_table(table)


_MOST_LOADED = 2
_DEEPEST = 4  # directories below the one that is searched


class BundleFinder:
    """Loads bundles by the names of their models.

    Args:
        directory: Where bundles are searched that are not at their place any more.

    Attributes:
        find: Returns the bundle of a model, from its name and the path of the bundle when it answered; ValueError if it
            is not there any more.
    """

    def __init__(self, directory: Path | None) -> None:
        self.find = lru_cache(maxsize=_MOST_LOADED)(partial(_find_bundle, directory))
        self._absent: set[str] = set()

    def if_present(self, model: str, path: str) -> Bundle | None:
        """Return the bundle of a model, None if it is not there any more."""
        if model in self._absent:
            return None
        try:
            return self.find(model, path)
        except ValueError:
            self._absent.add(model)
            return None


def _find_bundle(directory: Path | None, model: str, path: str) -> Bundle:
    place = Path(path)
    if _is_model(place, model):
        return Bundle.load(place)
    for name, folders, files in os.walk(directory) if directory is not None else ():
        place = Path(name)
        if len(place.relative_to(directory or place).parts) >= _DEEPEST:
            folders.clear()
        if MANIFEST in files and _is_model(place, model):
            return Bundle.load(place)
    searched = "" if directory is None else f", nor in {directory}"
    raise RankfallError(
        f"parity: the bundle of model {model} is not at {path} any more{searched}; keep bundles until their days "
        "are joined, name their directory with --bundles, or skip the check with --parity 0"
    )


def _is_model(path: Path, model: str) -> bool:
    return is_bundle(path) and model_name(read_manifest(path)) == model
