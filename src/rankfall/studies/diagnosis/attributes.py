"""What is known about the requests and items of a diagnosis: features, activity of users, popularity and age of items.

Activity and popularity are counted on the days that the cascade was trained on, since it can only have learned from
those.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions import spec
from rankfall.data.impressions.items import from_arrow
from rankfall.data.impressions.loader import ItemFirstSeen
from rankfall.data.impressions.loader.window import DayBlocks
from rankfall.training.cascade_metrics import user_feature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.studies.diagnosis.segments import FunnelLists

    Values = NDArray[Any]
    Ints = NDArray[np.int64]

_ROUNDING = 1e-6  # of encoded numbers, which are float32


class RawValues:
    """Decodes features. Ids that were hashed have no value to return to and are shown as ``hash 17``.

    Args:
        log: The log.
    """

    def __init__(self, log: ImpressionLog) -> None:
        self._log = log
        self._fitted: dict[str, Any] = log.manifest["about"]
        self._vocabulary = cache(log.vocabulary)

    def texts(self, group: spec.Group, name: str, encoded: Values) -> list[str]:
        """Return the values of a feature as text.

        Args:
            group: ``"user"``, ``"context"`` or ``"item"``.
            name: Name of the feature.
            encoded: Ids or numbers ``(n,)``, or vectors ``(n, size)``.
        """
        feature = getattr(self._log.spec.features, group)[name]
        if spec.is_dense(feature):
            numbers = self.numbers(group, name, encoded)
            return [", ".join(map(_shown, row)) for row in numbers.reshape(len(numbers), -1)]
        shown = {int(one): self._id_text(group, name, feature, int(one)) for one in np.unique(encoded)}
        return [shown[one] for one in encoded.tolist()]

    def numbers(self, group: spec.Group, name: str, encoded: Values) -> NDArray[np.float64]:
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

    def _id_text(self, group: spec.Group, name: str, feature: spec.FeatureConfig, one: int) -> str:
        if one in (spec.MISSING, spec.UNSEEN):
            return "missing" if one == spec.MISSING else "value without an id"
        place = one - spec.FIRST_KNOWN
        if isinstance(feature, spec.Dense):
            return self._range(f"{group}.{name}", feature, place)
        if isinstance(feature, spec.Categorical) and feature.hash_bucket_size is not None:
            return f"hash {place}"
        if isinstance(feature, spec.Categorical) and feature.vocabulary is not None:
            values = self._vocabulary(spec.table_of(group, name, feature))
            return str(values[place]) if place < len(values) else f"id {one}"
        if isinstance(feature, spec.Time) and feature.part in ("weekday", "month"):
            return str((calendar.day_name if feature.part == "weekday" else calendar.month_name[1:])[place])
        return str(place)

    def _range(self, key: str, feature: spec.Dense, place: int) -> str:
        edges: Sequence[float] = self._fitted.get("edges", {}).get(key, feature.bucketize)
        numbers = np.array(edges, np.float64)
        texts = [number_text(edge) for edge in (_without_log(numbers) if feature.log1p else numbers)]
        if place == 0:
            return f"below {texts[0]}"
        return f"{texts[-1]} or more" if place == len(texts) else f"{texts[place - 1]} to below {texts[place]}"


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


ACTIVITY, POPULARITY, AGE = "user activity", "item popularity", "item age"
LENGTH, RELEVANT, RELEVANCE = "list length", "relevant items", "relevance"
MOST_VALUES = 200  # of a feature that become segments
RANGES = 5  # of numbers
FEW_NUMBERS = 8  # up to this number of different numbers each one is a segment


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the items of the ground truth.

    Attributes:
        name: Name of the attribute.
        codes: Number ``(M,)`` of the value of each item, -1 for rare values.
        labels: Values by number.
    """

    name: str
    codes: Ints
    labels: list[str]


class LogAttributes:
    """Reads attributes of the requests and items of some lists from their log.

    Args:
        log: The log.
        lists: The lists that are diagnosed.
        train: Days that the cascade was trained on.
    """

    def __init__(self, log: ImpressionLog, lists: FunnelLists, train: Sequence[Day]) -> None:
        self.log, self.lists, self.scores = log, lists, lists.scores
        self.raw = RawValues(log)
        self._train = train
        self._user = user_feature(log.spec)
        self._items = log.items()
        self._numbers: Values = np.asarray(self._items["item"].combine_chunks())
        days, rows = np.array(self.scores.days), self.scores.rows.numpy()
        requests = {day: np.flatnonzero(days == day) for day in np.unique(days).tolist()}
        self._places = {day: (of_day, rows[of_day]) for day, of_day in requests.items()}  # with rows in the file

    # --- values -------------------------------------------------------------------------------------------------

    def of_requests(self, column: str) -> Values:
        """Return the values ``(R,)`` of a column of single values, encoded."""
        parts = [
            from_arrow(self.log.days[day].table()[column].take(pa.array(rows)))
            for day, (_, rows) in self._places.items()
        ]
        return _in_order([requests for requests, _ in self._places.values()], parts)

    def items(self, request: Ints, place: Ints) -> Values:
        """Return the item numbers at places of lists."""
        found: Values = self.scores.item.numpy()[request, place]
        return found

    def _rows_of(self, request: Ints, place: Ints) -> Ints:
        """Return the rows of items in the item table."""
        return np.searchsorted(self._numbers, self.items(request, place))

    def of_items(self, name: str, request: Ints, place: Ints) -> Values:
        """Return a feature of the items at places of lists, encoded."""
        column, versions = f"item.{name}", self.log.item_versions() is not None
        from_lists = column in self.log.per_request and self.scores.complete  # the file has the items in this order
        rows_of_items = self._rows_of(request, place)
        if not from_lists and not versions:
            return np.array(from_arrow(self._items[column].take(pa.array(rows_of_items))))
        where, parts = [], []
        for day, (requests, rows) in self._places.items():
            of_day = np.flatnonzero(np.isin(request, requests))
            if from_lists:
                table = self.log.days[day].table()[column].combine_chunks()
                starts = table.offsets.to_numpy().astype(np.int64)[rows[np.searchsorted(requests, request[of_day])]]
                values = table.values.take(pa.array(starts + place[of_day]))
            else:
                values = self.log.items_on(day)[column].take(pa.array(rows_of_items[of_day]))
            where.append(of_day)
            parts.append(from_arrow(values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])))
        return _in_order(where, parts)

    # --- counts on training days --------------------------------------------------------------------------------

    @cached_property
    def users(self) -> Values | None:
        """The encoded id ``(R,)`` of the user of each request; None if the log does not have it."""
        return None if self._user is None else self.of_requests(f"user.{self._user}")

    @cached_property
    def activity(self) -> Ints | None:
        """Number of requests of each request's user on the training days."""
        if self.users is None:
            return None
        column = f"user.{self._user}"
        counts = np.zeros(int(self.users.max()) + 1, np.int64)
        for day in self._train:
            ids = from_arrow(day.table()[column])
            counts += np.bincount(ids[ids < len(counts)], minlength=len(counts))
        counts[: spec.FIRST_KNOWN] = 0  # of users without an id nothing is known
        found: Ints = counts[self.users]
        return found

    @cached_property
    def _occurrences(self) -> Ints:
        """Number of lists on the training days that each item of the item table is in."""
        counts = np.zeros(len(self._numbers), np.int64)
        for day in self._train:
            numbers = DayBlocks(self.log, day).items().to_numpy()
            counts += np.bincount(np.searchsorted(self._numbers, numbers), minlength=len(counts))
        return counts

    def popularity(self, request: Ints, place: Ints) -> Ints:
        """Return the number of lists on the training days that items are in."""
        found: Ints = self._occurrences[self._rows_of(request, place)]
        return found

    @cached_property
    def _first_days(self) -> tuple[Ints, Ints]:
        """Index in the log of the day of each request, and of the first day of each item of the item table."""
        order = list(self.log.days)
        days = np.array([order.index(day) for day in self.scores.days])
        seen = ItemFirstSeen().numbers(self.log, order[: int(days.max()) + 1], self._numbers.astype(np.int32))
        return days, seen.astype(np.int64)

    def age(self, request: Ints, place: Ints) -> Ints:
        """Return the number of days of the log since items were first in it."""
        days, first = self._first_days
        found: Ints = days[request] - first[self._rows_of(request, place)]
        return found

    # --- attributes of the ground truth -------------------------------------------------------------------------

    def attributes(self) -> Iterator[Attribute]:
        """Yield every attribute of the ground truth that has more than one value."""
        for attribute in self._attributes(self.lists.truth.request, self.lists.truth.place):
            if len(np.unique(attribute.codes[attribute.codes >= 0])) > 1:
                yield attribute

    def _attributes(self, request: Ints, place: Ints) -> Iterator[Attribute]:
        if self.activity is not None:
            yield _ranges(ACTIVITY, self.activity[request], "request in training", "requests in training")
        yield _ranges(POPULARITY, self.popularity(request, place), "list in training", "lists in training")
        yield _ranges(AGE, self.age(request, place), "day", "days")
        yield _ranges(LENGTH, self.scores.ranked.numpy()[request], "item", "items")
        yield _ranges(RELEVANT, np.bincount(request)[request], "item", "items")
        yield _ranges(RELEVANCE, self.scores.relevance.numpy()[request, place])
        groups: list[spec.Group] = ["user", "context", "item"]
        sizes = {(group, one.name): one.size for group in groups for one in self.log.features.of(group)}
        for group, name, feature in self.log.spec.features:
            if spec.is_dense(feature) and sizes[group, name] > 1:
                continue
            if group == "item":
                encoded = self.of_items(name, request, place)
            else:
                encoded = self.of_requests(f"{group}.{name}")[request]
            if spec.is_dense(feature):
                yield _ranges(f"{group}.{name}", self.raw.numbers(group, name, encoded))
            else:
                yield _values(f"{group}.{name}", encoded, partial(self.raw.texts, group, name))

    # --- texts --------------------------------------------------------------------------------------------------

    def describe_items(self, request: Ints, place: Ints) -> list[dict[str, str]]:
        """Return the features, the popularity and the age of items as text."""
        seen, ages = self.popularity(request, place).tolist(), self.age(request, place).tolist()
        columns = {
            POPULARITY: [_counted(count, "list in training", "lists in training") for count in seen],
            AGE: [_counted(days, "day", "days") for days in ages],
        }
        for name, feature in self.log.spec.features.item.items():
            if (
                spec.column_of(self.log.spec, name, feature) != self.log.spec.item
            ):  # the id is shown beside the attributes
                columns[name] = self.raw.texts("item", name, self.of_items(name, request, place))
        return _rows(columns, len(request))

    def describe_requests(self, requests: Ints) -> list[dict[str, str]]:
        """Return the features of users and contexts as text."""
        groups: list[spec.Group] = ["user", "context"]
        columns = {
            name: self.raw.texts(group, name, self.of_requests(f"{group}.{name}")[requests])
            for group in groups
            for name in getattr(self.log.spec.features, group)
        }
        if self.activity is not None:
            counts = self.activity[requests].tolist()
            columns[ACTIVITY] = [_counted(count, "request in training", "requests in training") for count in counts]
        return _rows(columns, len(requests))


def _in_order(where: Sequence[Ints], parts: Sequence[Values]) -> Values:
    """Return the values of all parts at their places."""
    values: Values = np.concatenate(parts)[np.concatenate(where).argsort()]
    return values


def _rows(columns: dict[str, list[str]], count: int) -> list[dict[str, str]]:
    return [{name: values[row] for name, values in columns.items()} for row in range(count)]


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


# --- values as segments -----------------------------------------------------------------------------------------


def _values(name: str, encoded: Values, texts: Callable[[Values], list[str]]) -> Attribute:
    """Return an attribute whose values are the ids of a feature; rare ones have no code."""
    ids, codes, counts = np.unique(encoded, return_inverse=True, return_counts=True)
    if len(ids) <= MOST_VALUES:
        return Attribute(name, codes.astype(np.int64), texts(ids))
    common = np.sort(np.argsort(-counts, kind="stable")[:MOST_VALUES])
    codes_of = np.full(len(ids), -1, np.int64)
    codes_of[common] = np.arange(len(common))
    return Attribute(name, codes_of[codes], texts(ids[common]))


def _ranges(name: str, numbers: Values, one: str = "", several: str = "") -> Attribute:
    """Return an attribute whose values are ranges of numbers with about the same number of items; 0 is a value."""
    distinct = np.unique(numbers)
    if len(distinct) <= FEW_NUMBERS:
        edges = distinct[1:]
    else:
        positive = numbers[numbers != 0] if (numbers == 0).any() and (numbers >= 0).all() else numbers
        inner = np.quantile(positive, np.arange(1, RANGES) / RANGES, method="higher")
        edges = np.unique([*inner, positive.min()] if len(positive) < len(numbers) else inner)
    codes = np.searchsorted(edges, numbers, side="right").astype(np.int64)
    labels = []
    for code in range(len(edges) + 1):
        inside = numbers[codes == code]
        low, high = (number_text(edge(inside)) if len(inside) else "none" for edge in (np.min, np.max))
        shown, unit = (low if low == high else f"{low} to {high}"), (one if high == "1" else several)
        labels.append(" ".join(filter(None, (shown, unit))))
    return Attribute(name, codes, labels)
