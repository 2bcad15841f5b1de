"""Encode the columns of a log as what models receive: ids of embedding rows, and numbers.

The rules are those of :mod:`rankfall.encoding`, which also encode requests. This module builds them from the
spec of a log and from what was fitted, and converts columns of any type to the arrays that they take.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall import encoding as rules
from rankfall._errors import RankfallError
from rankfall.data.impressions.spec import PARTS, Dense, Features, Spec, Time, features_of, is_dense, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import FeatureConfig, Group, Unit
    from rankfall.encoding import Rule

    Hashes = NDArray[np.uint64]
    Floats = NDArray[np.float64]


def hash_values(values: pl.Series, seed: int = 0) -> Hashes:
    """Return the 64-bit hashes of integers or strings without nulls."""
    return rules.hash_array(hashable(values), seed)


def hashable(values: pl.Series) -> NDArray[np.int64] | pa.Array:
    """Return integers and booleans as a numpy array, strings as an Arrow array; refuse other types."""
    if values.dtype.is_integer() or values.dtype == pl.Boolean:
        return values.cast(pl.Int64).to_numpy()
    if values.dtype == pl.String:
        return values.to_arrow()
    raise RankfallError(f"{values.name or 'values'}: found {values.dtype}, expected whole numbers or strings")


@dataclass(frozen=True)
class Encoding:
    """The rules by which the values of each feature of a log are encoded.

    Args:
        spec: The spec of the log.
        vocabularies: The values of each embedding table that have ids, in the order of their ids.
        scalings: Mean and deviation of each standardised feature ``GROUP.NAME``.
        edges: Inner edges of the buckets of each bucketized feature ``GROUP.NAME``.
        hashed: ``"text"`` or ``"numbers"`` for each hashed feature ``GROUP.NAME`` whose values are known.
    """

    spec: Spec
    vocabularies: Mapping[str, pl.Series] = field(default_factory=dict)
    scalings: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)
    edges: Mapping[str, list[float]] = field(default_factory=dict)
    hashed: Mapping[str, str] = field(default_factory=dict)
    _rules: dict[str, Rule] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lookups: dict[str, rules.Lookup] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of_log(cls, log: ImpressionLog) -> Encoding:
        """Return the encoding that a log was prepared with, from its manifest and its vocabularies."""
        about = log.manifest["about"]
        scalings = {
            key: (np.array(scaling["mean"]), np.array(scaling["deviation"]))
            for key, scaling in about.get("scalings", {}).items()
        }
        tables = log.manifest["vocabularies"]
        vocabularies = {table: pl.Series(pl.from_arrow(log.vocabulary(table))) for table in tables}
        return cls(log.spec, vocabularies, scalings, about.get("edges", {}), about.get("hashed", {}))

    @property
    def arrays(self) -> dict[str, pa.Array]:
        """The vocabularies as they are stored."""
        return {table: values.to_arrow() for table, values in self.vocabularies.items()}

    @cached_property
    def features(self) -> Features:
        """The features that models receive."""
        rows = {
            table_of(group, name, feature): self.rule(group, name).rows
            for group, name, feature in self.spec.features
            if not is_dense(feature)
        }
        return features_of(self.spec, rows)

    def encode(self, group: Group, name: str, raw: pl.Series) -> NDArray[Any]:
        """Encode a column of raw values.

        Returns:
            Ids (n,) int32, or numbers (n,) or (n, size) float32.

        Raises:
            BadValueError: The feature does not accept one of the values.
            ValueError: The feature does not accept the type of the column.
        """
        rule = self.rule(group, name)
        if isinstance(rule, rules.Numbers):
            with _naming_bad_numbers(raw):
                return rule.encode(_floats(raw, rule.size))
        if isinstance(rule, rules.Buckets):
            with _naming_bad_numbers(raw):
                return rule.ids(_floats(raw, 1)).astype(np.int32)
        if isinstance(rule, rules.TimePart):
            local = to_times(raw, rule.unit, rule.zone).dt.replace_time_zone(None).to_physical()
            return _with_missing(rule.ids(local.fill_null(0).to_numpy()), local)
        if raw.dtype == pl.Null:
            return np.full(len(raw), rules.MISSING, np.int32)
        if isinstance(rule, rules.NumberedIds):
            return _with_missing(_number_ids(rule, raw), raw)
        if isinstance(rule, rules.HashedIds):
            return _with_missing(rule.ids(hashable(_filled(raw))), raw)
        values = raw.cast(self.vocabularies[rule.table].dtype)
        return _with_missing(rule.ids(rules.plain_values(_filled(values).to_arrow())), raw)

    def rule(self, group: Group, name: str) -> Rule:
        """Return the rule of a feature.

        Raises:
            ValueError: The feature needs a fitted scaling or fitted edges, of which there are none.
        """
        key = f"{group}.{name}"
        if key not in self._rules:
            self._rules[key] = self._make_rule(group, name, getattr(self.spec.features, group)[name])
        return self._rules[key]

    def _make_rule(self, group: Group, name: str, feature: FeatureConfig) -> Rule:
        key = f"{group}.{name}"
        if isinstance(feature, Time):
            unit = feature.unit if feature.column is not None else (self.spec.time.unit if self.spec.time else None)
            rows = rules.FIRST_KNOWN + PARTS[feature.part]
            return rules.TimePart(rows, feature.part, unit, self.spec.zone, of_request=feature.column is None)
        if isinstance(feature, Dense):
            return self._dense_rule(key, feature)
        if feature.num_buckets is not None:
            return rules.NumberedIds(rules.FIRST_KNOWN + feature.num_buckets)
        if feature.hash_bucket_size is not None:
            hashed = self.hashed.get(key)  # not known while a log is prepared
            return rules.HashedIds(
                rules.FIRST_KNOWN + feature.hash_bucket_size, None if hashed is None else hashed == "text"
            )
        table = table_of(group, name, feature)
        known = self.lookup(table)
        return rules.VocabularyIds(rules.FIRST_KNOWN + len(known.values), table, known)

    def _dense_rule(self, key: str, feature: Dense) -> Rule:
        mean, deviation = self.scalings.get(key, (None, None)) if feature.standardise else (None, None)
        edges = self.edges.get(key, feature.bucketize)
        if (feature.standardise and mean is None) or isinstance(edges, int):
            raise RankfallError(f"{key}: found no fitted scaling or edges, which are needed to encode its values")
        numbers = rules.Numbers(
            feature.size, feature.log1p, feature.replacement, mean, deviation, indicator=feature.has_indicator
        )
        return numbers if edges is None else rules.Buckets(rules.FIRST_KNOWN + len(edges) + 1, numbers, edges)

    def lookup(self, table: str) -> rules.Lookup:
        """Return the vocabulary of an embedding table."""
        if table not in self._lookups:
            self._lookups[table] = rules.Lookup(rules.plain_values(self.vocabularies[table].to_arrow()))
        return self._lookups[table]


def dense_values(feature: Dense, raw: pl.Series) -> Floats:
    """Return the numbers of a feature, (n,) or (n, size), after `log1p` and `missing` but before anything fitted."""
    rule = rules.Numbers(feature.size, feature.log1p, feature.replacement)
    with _naming_bad_numbers(raw):
        return rule.filled(_floats(raw, rule.size))


def count_missing(feature: Dense, raw: pl.Series) -> int:
    """Return how many of the numbers, or vectors with at least one such number, are null, NaN or infinite."""
    missing = ~np.isfinite(_floats(raw, feature.size))
    return int(missing.reshape(len(raw), feature.size).any(axis=1).sum())


# --- columns as arrays --------------------------------------------------------------------------------------------


def to_times(raw: pl.Series, unit: Unit | None, zone: str) -> pl.Series:
    """Return a column of times as datetimes in a time zone.

    Args:
        raw: Dates, datetimes, ISO 8601 text or integers since 1970. Those without a zone are local times of `zone`.
        unit: Unit of integers.
        zone: Name of the time zone.

    Raises:
        ValueError: A value is no time, or does not exist because the clocks were put forward.
    """
    times = parse_times(raw, unit, zone)
    if raw.dtype == pl.String and (bad := times.is_null() & raw.is_not_null()).any():
        raise RankfallError(f"column {raw.name!r}: found {raw.filter(bad)[0]!r}, expected {expected_times(zone)}")
    return times


def expected_times(zone: str) -> str:
    """Return which text is a time, for messages."""
    return f"times such as 2024-01-13T08:30:00 that exist in {zone}"


def parse_times(raw: pl.Series, unit: Unit | None, zone: str) -> pl.Series:
    """Return a column of times as datetimes in a time zone, with null for text that is no time.

    Args:
        raw: Dates, datetimes, ISO 8601 text or integers since 1970. Those without a zone are local times of `zone`.
        unit: Unit of integers.
        zone: Name of the time zone.

    Raises:
        ValueError: The column has another type.
    """
    where = f"column {raw.name!r}"
    if raw.dtype.is_integer():
        if unit is None:
            raise RankfallError(f"{where}: found whole numbers, for which `unit` must be s, ms or us")
        return pl.from_epoch(raw, unit).dt.cast_time_unit("ms").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    if raw.dtype == pl.String:
        return _parse_text(raw, zone)
    if raw.dtype == pl.Date:
        raw = raw.cast(pl.Datetime("ms"))
    kind = raw.dtype
    if not isinstance(kind, pl.Datetime):
        raise RankfallError(f"{where}: found {kind}, expected times")
    times = raw.dt.cast_time_unit("ms").dt
    if kind.time_zone is None:
        return times.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    return times.convert_time_zone(zone)


_LOCAL_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_ZONED_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M%#z")


def _parse_text(raw: pl.Series, zone: str) -> pl.Series:
    """Parse ISO 8601 text, each value by itself: its result must not depend on the format of the others."""
    text = raw.str.strip_chars().str.replace(" ", "T", literal=True).str.replace("Z$", "+00:00")
    parsed = pl.Series(raw.name, [None] * len(raw), pl.Datetime("ms", zone))
    for form in _LOCAL_FORMATS:
        local = text.str.to_datetime(form, time_unit="ms", strict=False)
        local = local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        parsed = parsed.zip_with(parsed.is_not_null(), local)
    for form in _ZONED_FORMATS:
        zoned = text.str.to_datetime(form, time_unit="ms", strict=False, time_zone="UTC").dt.convert_time_zone(zone)
        parsed = parsed.zip_with(parsed.is_not_null(), zoned)
    return parsed


def _number_ids(rule: rules.NumberedIds, raw: pl.Series) -> NDArray[np.int64]:
    if not raw.dtype.is_integer() and raw.dtype != pl.Boolean:
        raise RankfallError(f"column {raw.name!r}: found {raw.dtype}, expected whole numbers (num_buckets)")
    try:
        return rule.ids(_filled(raw.cast(pl.Int64)).to_numpy())
    except rules.BadValueError as error:
        expected = f"whole numbers from 0 to {rule.rows - rules.FIRST_KNOWN - 1}"
        message = f"column {raw.name!r}: found {raw[error.position]}, expected {expected}"
        raise rules.BadValueError(message, error.position) from None


def _floats(raw: pl.Series, size: int) -> Floats:
    """Return numbers (n,) or vectors (n, size), NaN where there are none."""
    try:
        if size == 1:
            return raw.cast(pl.Float64).to_numpy()
        vectors = raw.cast(pl.Array(pl.Float64, size))
        if vectors.has_nulls():
            vectors = vectors.fill_null(pl.lit([None] * size, vectors.dtype))
        return vectors.explode(empty_as_null=False, keep_nulls=True).to_numpy().reshape(len(raw), size)
    except pl.exceptions.PolarsError:
        expected = "numbers" if size == 1 else f"lists of {size} numbers"
        raise RankfallError(f"column {raw.name!r}: found {raw.dtype}, expected {expected}") from None


def _filled(raw: pl.Series) -> pl.Series:
    """Fill nulls with any value, as rules take arrays without nulls."""
    return raw.fill_null("" if raw.dtype == pl.String else pl.lit(0, raw.dtype)) if raw.has_nulls() else raw


def _with_missing(ids: NDArray[np.int64], raw: pl.Series) -> NDArray[np.int32]:
    return (np.where(raw.is_null().to_numpy(), rules.MISSING, ids) if raw.has_nulls() else ids).astype(np.int32)


@contextmanager
def _naming_bad_numbers(raw: pl.Series) -> Iterator[None]:
    try:
        yield
    except rules.BadValueError as error:
        found = raw.slice(error.position, 1).to_list()[0]
        shown = "nothing" if found is None else str(found)
        message = f"column {raw.name!r}: found {shown}, expected numbers (or give `missing`)"
        raise rules.BadValueError(message, error.position) from None
