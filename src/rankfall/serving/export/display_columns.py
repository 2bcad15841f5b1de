"""Attributes of items that are shown to people: raw columns of a file, or decoded values of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.spec import Categorical, Dense, column_of
from rankfall.encoding import FIRST_KNOWN, NumberedIds, Numbers, VocabularyIds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.encoding import Rule

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
        names = _default_names(source, log)
    encoding = Encoding.of_log(log)
    columns: dict[str, pa.Array] = {}
    problems: list[str] = []
    for name in names:
        try:
            columns[name] = _column(source, log, encoding, name)
        except ValueError as error:
            problems.append(f"display: {where}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    return columns


def _default_names(source: pa.Table, log: ImpressionLog) -> list[str]:
    """Return the first categorical features whose values are known, without the id of the item."""
    found = []
    for name, config in log.spec.features.item.items():
        column = column_of(log.spec, name, config)
        is_decodable = isinstance(config, Categorical) and config.hash_bucket_size is None
        is_present = f"item.{name}" in source.column_names or column in source.column_names
        if is_decodable and is_present and column != log.spec.item:
            found.append(name)
    return found[:BY_DEFAULT]


def _column(source: pa.Table, log: ImpressionLog, encoding: Encoding, name: str) -> pa.Array:
    features = log.spec.features.item
    if name in source.column_names and not name.startswith("item.") and name not in ("item", "id"):
        return _shown(source[name].combine_chunks(), name)
    feature = name.removeprefix("item.")
    if feature not in features:
        known = [*(one for one in source.column_names if "." not in one and one not in ("item", "id")), *features]
        known = list(dict.fromkeys(known))
        raise ValueError(f"found {name!r}{did_you_mean(name, known)}; allowed are {', '.join(known) or 'none'}")
    raw = column_of(log.spec, feature, features[feature])
    if raw in source.column_names:
        return _shown(source[raw].combine_chunks(), name)
    if f"item.{feature}" not in source.column_names:
        raise ValueError(f"found {name!r}, but there is neither a column {raw!r} nor a column 'item.{feature}'")
    if not isinstance(features[feature], Categorical | Dense):
        raise ValueError(f"{name} is a part of a time, whose value is not known")
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
    raise ValueError(f"column {name!r}: found {kind}, expected text or numbers")


def _decoded(values: pa.Array, rule: Rule, name: str) -> pa.Array:
    """Return the values that were encoded as ids or numbers, null for missing and unseen ones."""
    if isinstance(rule, Numbers):
        if rule.size > 1:
            raise ValueError(f"{name} is a vector of {rule.size} numbers, expected single numbers or text")
        if not rule.indicator:
            return pa.array(_raw_numbers(rule, np.asarray(values, np.float64)))
        numbers, indicators = np.asarray(values.flatten(), np.float64).reshape(-1, 2).T
        return pa.array(_raw_numbers(rule, numbers), mask=indicators > 0)
    if not isinstance(rule, NumberedIds | VocabularyIds):
        raise ValueError(
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
