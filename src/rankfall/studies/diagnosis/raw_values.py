"""Encoded features of a log as the values of its source, for people to read."""

from __future__ import annotations

import calendar
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions.spec import FIRST_KNOWN, MISSING, UNSEEN, Categorical, Dense, Time, is_dense, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import FeatureConfig, Group

    Values = NDArray[Any]


_ROUNDING = 1e-6  # of encoded numbers, which are float32


class RawValues:
    """Decodes features. Ids that were hashed have no value to return to and are shown as ``hash 17``.

    Args:
        log: The log.
    """

    def __init__(self, log: ImpressionLog) -> None:
        self._log = log
        self._fitted: dict[str, Any] = log.manifest["about"]
        self._vocabularies: dict[str, pa.Array] = {}

    def texts(self, group: Group, name: str, encoded: Values) -> list[str]:
        """Return the values of a feature as text.

        Args:
            group: ``"user"``, ``"context"`` or ``"item"``.
            name: Name of the feature.
            encoded: Ids or numbers ``(n,)``, or vectors ``(n, size)``.
        """
        feature = getattr(self._log.spec.features, group)[name]
        if is_dense(feature):
            numbers = self.numbers(group, name, encoded)
            return [", ".join(map(_shown, row)) for row in numbers.reshape(len(numbers), -1)]
        shown = {int(one): self._id_text(group, name, feature, int(one)) for one in np.unique(encoded)}
        return [shown[one] for one in encoded.tolist()]

    def numbers(self, group: Group, name: str, encoded: Values) -> NDArray[np.float64]:
        """Return the numbers of a dense feature before scaling, as far as the log states the scaling.

        Missing numbers are NaN if the feature has an indicator of them.
        """
        feature = getattr(self._log.spec.features, group)[name]
        numbers = encoded.astype(np.float64)
        if feature.has_indicator:
            numbers, indicators = np.split(numbers, 2, axis=-1)
            numbers = np.where(indicators > 0, np.nan, numbers)
        scaling = self._fitted.get("scalings", {}).get(f"{group}.{name}")
        if feature.standardise and scaling is not None:
            mean, deviation = np.array(scaling["mean"]), np.array(scaling["deviation"])
            numbers = numbers * deviation + mean
            rounding = _ROUNDING * (np.abs(mean) + np.abs(deviation))
            numbers = np.where(np.abs(numbers) < rounding, 0.0, numbers)
        return _without_log(numbers) if feature.log1p else numbers

    def item(self, numbers: Values) -> list[str]:
        """Return the ids of items in the source of the log."""
        table = self._log.items()
        if "id" not in table.column_names:
            return [str(number) for number in numbers.tolist()]
        places = np.searchsorted(np.asarray(table["item"].combine_chunks()), numbers)
        return [str(value) for value in table["id"].take(pa.array(places)).to_pylist()]

    def _id_text(self, group: Group, name: str, feature: FeatureConfig, one: int) -> str:
        if one in (MISSING, UNSEEN):
            return "missing" if one == MISSING else "value without an id"
        place = one - FIRST_KNOWN
        if isinstance(feature, Dense):
            return self._range(f"{group}.{name}", feature, place)
        if isinstance(feature, Categorical) and feature.hash_bucket_size is not None:
            return f"hash {place}"
        if isinstance(feature, Categorical) and feature.vocabulary is not None:
            values = self._vocabulary(table_of(group, name, feature))
            return str(values[place]) if place < len(values) else f"id {one}"
        if isinstance(feature, Time) and feature.part in ("weekday", "month"):
            return str((calendar.day_name if feature.part == "weekday" else calendar.month_name[1:])[place])
        return str(place)

    def _range(self, key: str, feature: Dense, place: int) -> str:
        edges: Sequence[float] = self._fitted.get("edges", {}).get(key, feature.bucketize)
        numbers = np.array(edges, np.float64)
        texts = [number_text(edge) for edge in (_without_log(numbers) if feature.log1p else numbers)]
        if place == 0:
            return f"below {texts[0]}"
        return f"{texts[-1]} or more" if place == len(texts) else f"{texts[place - 1]} to below {texts[place]}"

    def _vocabulary(self, table: str) -> pa.Array:
        if table not in self._vocabularies:
            self._vocabularies[table] = self._log.vocabulary(table)
        return self._vocabularies[table]


def _shown(value: float) -> str:
    return "missing" if np.isnan(value) else number_text(value)


def number_text(value: float) -> str:
    """Return a number with at most four digits.

    >>> number_text(1234567.0), number_text(0.123456), number_text(3.0)
    ('1,235,000', '0.1235', '3')
    """
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if rounded.is_integer() else f"{rounded:g}"


def _without_log(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.copysign(np.expm1(np.abs(numbers)), numbers)
