"""From the values of a log to what a model sees: ids of embedding rows, and numbers.

An :class:`Encoding` is a description of a log and everything that was fitted: the values that have ids, means and
deviations, the edges of buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.impressions.hashing import hash_values
from rankfall.data.impressions.spec import (
    FIRST_KNOWN,
    MISSING,
    PARTS,
    UNSEEN,
    Categorical,
    Dense,
    Features,
    Spec,
    Time,
    features_of,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import FeatureConfig, Group, Unit

    Ids = NDArray[np.int32]


class BadValueError(ValueError):
    """A value that a feature cannot take; `position` is its row."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Encoding:
    """How the values of each feature become ids or numbers.

    `vocabularies` holds the values with ids of each embedding table in the order of their ids, `scalings` mean and
    deviation of the features ``GROUP.NAME`` that are standardised, `edges` the inner edges of those that are
    bucketized.
    """

    spec: Spec
    vocabularies: Mapping[str, pl.Series] = field(default_factory=dict)
    scalings: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(default_factory=dict)
    edges: Mapping[str, list[float]] = field(default_factory=dict)

    @cached_property
    def features(self) -> Features:
        """What a model sees."""
        rows = {
            table_of(group, name, feature): FIRST_KNOWN + self._known(group, name, feature)
            for group, name, feature in self.spec.features
        }
        return features_of(self.spec, rows)

    def encode(self, group: Group, name: str, raw: pl.Series) -> NDArray[Any]:
        """The ids (n,) int32 of a feature's values, or its numbers, (n,) or (n, size) float32."""
        feature: FeatureConfig = getattr(self.spec.features, group)[name]
        if isinstance(feature, Categorical):
            return self._encode_categorical(group, name, feature, raw)
        if isinstance(feature, Time):
            return _encode_time(feature, raw, self.spec)
        return self._encode_dense(f"{group}.{name}", feature, raw)

    def _known(self, group: Group, name: str, feature: FeatureConfig) -> int:
        """How many different ids the known values have."""
        if isinstance(feature, Time):
            return PARTS[feature.part]
        if isinstance(feature, Dense):
            edges = self.edges.get(f"{group}.{name}", feature.bucketize)
            return len(edges) + 1 if isinstance(edges, list) else 0
        if feature.vocabulary is not None:
            return len(self.vocabularies[table_of(group, name, feature)])
        return feature.num_buckets or feature.hash_bucket_size or 0

    def _encode_categorical(self, group: Group, name: str, feature: Categorical, raw: pl.Series) -> Ids:
        if feature.num_buckets is not None:
            ids = _bucket_ids(raw, feature.num_buckets)
        elif feature.hash_bucket_size is not None:
            ids = FIRST_KNOWN + (hash_values(_filled(raw)) % np.uint64(feature.hash_bucket_size)).astype(np.int64)
        else:
            ids = _lookup(raw, self._vocabulary_frames[table_of(group, name, feature)])
        return np.where(raw.is_null().to_numpy(), MISSING, ids).astype(np.int32)

    @cached_property
    def _vocabulary_frames(self) -> dict[str, pl.DataFrame]:
        return {
            table: pl.DataFrame({"value": values, "id": np.arange(FIRST_KNOWN, FIRST_KNOWN + len(values))})
            for table, values in self.vocabularies.items()
        }

    def _encode_dense(self, key: str, feature: Dense, raw: pl.Series) -> NDArray[Any]:
        values = dense_values(feature, raw)
        if feature.bucketize is not None:
            edges = np.array(self.edges.get(key, feature.bucketize))
            return (FIRST_KNOWN + np.searchsorted(edges, values, side="right")).astype(np.int32)
        if feature.standardise:
            mean, deviation = self.scalings[key]
            values = (values - mean) / deviation
        return values.astype(np.float32)


def dense_values(feature: Dense, raw: pl.Series) -> NDArray[np.float64]:
    """The numbers (n,) or (n, size) of a feature after `log1p` and `missing`, before anything that is fitted."""
    values = _numbers(feature, raw)
    if feature.log1p:
        values = np.copysign(np.log1p(np.abs(values)), values)
    bad = ~np.isfinite(values)
    if bad.any():
        if feature.missing is None:
            position = int(np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))[0])
            found = raw.slice(position, 1).to_list()[0]
            shown = "nothing" if found is None else str(found)
            raise BadValueError(f"column {raw.name!r}: found {shown}, expected numbers (or give `missing`)", position)
        values = np.where(bad, feature.missing, values)
    return values


def to_times(raw: pl.Series, unit: Unit | None, zone: str) -> pl.Series:
    """Points in time as datetimes of the zone. Dates and times without a zone are taken as the zone's own."""
    where = f"column {raw.name!r}"
    if raw.dtype.is_integer():
        if unit is None:
            raise ValueError(f"{where}: found whole numbers, for which `unit` must say s, ms or us")
        return pl.from_epoch(raw, unit).dt.cast_time_unit("ms").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    if raw.dtype == pl.String:
        return _parsed_times(raw, zone)
    if raw.dtype == pl.Date:
        raw = raw.cast(pl.Datetime("ms"))
    kind = raw.dtype
    if not isinstance(kind, pl.Datetime):
        raise ValueError(f"{where}: found {kind}, expected times")
    times = raw.dt.cast_time_unit("ms").dt
    if kind.time_zone is None:
        return times.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    return times.convert_time_zone(zone)


_TIMES = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")  # in the zone of the log,
_ZONED_TIMES = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M%#z")  # or in one of their own


def _parsed_times(raw: pl.Series, zone: str) -> pl.Series:
    """Times written as ISO 8601 has it, each by itself: what others look like must not matter."""
    text = raw.str.strip_chars().str.replace(" ", "T", literal=True).str.replace("Z$", "+00:00")
    parsed = pl.Series(raw.name, [None] * len(raw), pl.Datetime("ms", zone))
    for form in _TIMES:
        local = text.str.to_datetime(form, time_unit="ms", strict=False)
        local = local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        parsed = parsed.zip_with(parsed.is_not_null(), local)
    for form in _ZONED_TIMES:
        own = text.str.to_datetime(form, time_unit="ms", strict=False, time_zone="UTC").dt.convert_time_zone(zone)
        parsed = parsed.zip_with(parsed.is_not_null(), own)
    bad = parsed.is_null() & raw.is_not_null()
    if bad.any():
        found = raw.filter(bad)[0]
        raise ValueError(
            f"column {raw.name!r}: found {found!r}, expected times such as 2024-01-13T08:30:00 that exist in {zone}"
        )
    return parsed


def _encode_time(feature: Time, raw: pl.Series, spec: Spec) -> Ids:
    unit = feature.unit if feature.column is not None else (spec.time.unit if spec.time else None)
    times = to_times(raw, unit, spec.zone).dt
    match feature.part:
        case "month":
            part = times.month() - 1
        case "weekday":
            part = times.weekday() - 1
        case "hour":
            part = times.hour()
        case "minute":
            part = times.minute()
    return (part.cast(pl.Int32) + FIRST_KNOWN).fill_null(MISSING).to_numpy()


def _bucket_ids(raw: pl.Series, buckets: int) -> NDArray[np.int64]:
    if raw.dtype == pl.Boolean:
        raw = raw.cast(pl.Int64)
    if not raw.dtype.is_integer() and raw.dtype != pl.Null:
        raise ValueError(f"column {raw.name!r}: found {raw.dtype}, expected whole numbers (num_buckets)")
    values = raw.cast(pl.Int64).fill_null(0).to_numpy()
    if (negative := np.flatnonzero(values < 0)).size:
        position = int(negative[0])
        raise BadValueError(
            f"column {raw.name!r}: found {values[position]}, expected whole numbers from 0 to {buckets - 1}", position
        )
    return np.where(values < buckets, values + FIRST_KNOWN, UNSEEN)


def _lookup(raw: pl.Series, known: pl.DataFrame) -> NDArray[np.int64]:
    if raw.dtype == pl.Null:
        return np.zeros(len(raw), np.int64)
    asked = pl.DataFrame({"value": raw.cast(known["value"].dtype)})
    found = asked.join(known, on="value", how="left", maintain_order="left")["id"]
    return found.fill_null(UNSEEN).to_numpy()


def _filled(raw: pl.Series) -> pl.Series:
    if raw.dtype == pl.Null:
        return pl.zeros(len(raw), pl.Int64, eager=True)
    return raw.fill_null("" if raw.dtype == pl.String else pl.lit(0, raw.dtype)) if raw.has_nulls() else raw


def _numbers(feature: Dense, raw: pl.Series) -> NDArray[np.float64]:
    try:
        if feature.size == 1:
            return raw.cast(pl.Float64).to_numpy().copy()
        vectors = raw.cast(pl.Array(pl.Float64, feature.size))
        if vectors.has_nulls():
            vectors = vectors.fill_null(pl.lit([None] * feature.size, vectors.dtype))
        flat = vectors.explode(empty_as_null=False, keep_nulls=True).to_numpy()
        return flat.reshape(len(raw), feature.size).copy()
    except pl.exceptions.PolarsError:
        expected = "numbers" if feature.size == 1 else f"lists of {feature.size} numbers"
        raise ValueError(f"column {raw.name!r}: found {raw.dtype}, expected {expected}") from None
