"""Counters that blocks of a log are added to, in memory that does not grow with the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.arrays import Moments
from rankfall.data.impressions.encoding import hash_values
from rankfall.data.impressions.spec import FIRST_KNOWN, MISSING, UNSEEN, Categorical
from rankfall.data.inspect.inspection import Bin, IdFigures, ItemFigures, Lengths, NumberFigures, ValueCounts, flat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.data.impressions.spec import Feature, Spec
    from rankfall.data.inspect.inspection import ImpressionBlock

BINS = 20  # per histogram
VALUES_HELD = 1000  # different values that are counted individually
REQUESTS_AT_ONCE = 2**22  # request hashes in memory while searching for duplicates
ITEMS_AT_ONCE = 2**18


# --- features ---------------------------------------------------------------------------------------------------


class IdCounter:
    """Counts the ids of one column."""

    def __init__(self, column: str, feature: Feature, *, hashed: bool) -> None:
        self.column = column
        self.feature = feature
        self.hashed = hashed
        self._occurs = np.zeros(feature.rows, np.bool_)

    def add(self, ids: NDArray[np.int32]) -> ValueCounts:
        """Count some ids and return their counts only."""
        values = ids.size
        if values and (ids.min() < 0 or ids.max() >= self.feature.rows):
            ids = ids[(ids >= 0) & (ids < self.feature.rows)]
        if not self._occurs[FIRST_KNOWN:].all():  # small tables are soon complete
            self._occurs[ids] = True
        return ValueCounts(
            values,
            missing=int(np.count_nonzero(ids == MISSING)),
            unseen=int(np.count_nonzero(ids == UNSEEN)),
            outside=values - ids.size,
        )

    def figures(self, counts: ValueCounts) -> IdFigures:
        """Return the figures of all ids added, given their total counts."""
        return IdFigures(
            column=self.column,
            table=self.feature.embedding or "",
            known=self.feature.rows - FIRST_KNOWN,
            distinct=int(np.count_nonzero(self._occurs[FIRST_KNOWN:])),
            hashed=self.hashed,
            counts=counts,
        )


class NumberCounter:
    """Counts the numbers of one column, or the vectors of `size` numbers."""

    def __init__(self, column: str, size: int = 1) -> None:
        self.column = column
        self.size = size
        self._moments = Moments(0.0, np.zeros(size), np.zeros(size))
        self._low = np.full(size, np.inf)
        self._high = np.full(size, -np.inf)

    def add(self, numbers: NDArray[np.float32]) -> ValueCounts:
        """Count some numbers and return their counts only."""
        rows = numbers.reshape(-1, self.size)
        finite = np.isfinite(rows).all(axis=1)
        whole = rows if finite.all() else rows[finite]
        self._moments += Moments.of(whole)
        self._low = np.minimum(self._low, whole.min(axis=0, initial=np.inf))
        self._high = np.maximum(self._high, whole.max(axis=0, initial=-np.inf))
        return ValueCounts(len(rows), missing=len(rows) - len(whole))

    def figures(self, counts: ValueCounts) -> NumberFigures:
        """Return the figures of all numbers added, given their total counts; for vectors over all their numbers."""
        moments = self._moments
        rows = moments.rows or float("nan")  # no mean without numbers
        return NumberFigures(
            column=self.column,
            size=self.size,
            constant=int(np.count_nonzero(self._low == self._high)),
            min=float(self._low.min()),
            mean=float(moments.mean.mean() + 0 / rows),
            max=float(self._high.max()),
            # the variance of all numbers is the variance within each position of the vector plus that between positions
            deviation=float(np.sqrt(moments.squares.mean() / rows + moments.mean.var())),
            counts=counts,
        )


Counter = IdCounter | NumberCounter


def counters(log: ImpressionLog) -> dict[str, Counter]:
    """Return a counter for every feature of the impressions and of the events of sequences, by column."""
    counting: dict[str, Counter] = {}
    for feature in log.features.features:
        column = f"{feature.group}.{feature.name}"
        counting[column] = _counter(column, feature, log.spec)
    for sequence in log.features.sequences:
        for name in sequence.features:
            column = f"sequence.{sequence.name}.{name}"
            counting[column] = _counter(column, log.features.item(name), log.spec)
    counting["relevance"] = NumberCounter("relevance")
    for name in log.spec.feedback:
        counting[f"feedback.{name}"] = NumberCounter(f"feedback.{name}")
    return counting


def _counter(column: str, feature: Feature, spec: Spec) -> Counter:
    if feature.embedding is None:
        return NumberCounter(column, feature.size)
    config = getattr(spec.features, feature.group)[feature.name]
    hashed = isinstance(config, Categorical) and config.hash_bucket_size is not None
    return IdCounter(column, feature, hashed=hashed)


# --- lengths ----------------------------------------------------------------------------------------------------


class LengthCounter:
    """Counts lists by length."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count some lists."""
        self._counts = _sum(self._counts, np.bincount(lengths, minlength=1))

    def __add__(self, other: LengthCounter) -> LengthCounter:
        """Return the counter of the lists of both."""
        both = LengthCounter()
        both._counts = _sum(self._counts, other._counts)
        return both

    def figures(self) -> Lengths:
        """Return the figures of everything added."""
        count = int(self._counts.sum())
        if not count:
            return Lengths(0, 0, 0.0, 0.0, 0, 0)
        lengths = np.flatnonzero(self._counts)
        ends = np.cumsum(self._counts)
        # the middle list, or the two middle ones
        middle = np.searchsorted(ends, [(count - 1) // 2, count // 2], side="right")
        mean = float(np.arange(len(self._counts)) @ self._counts) / count
        return Lengths(count, int(lengths[0]), float(middle.mean()), mean, int(lengths[-1]), empty=int(self._counts[0]))


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    both = longer.copy()
    both[: len(shorter)] += shorter
    return both


# --- labels -----------------------------------------------------------------------------------------------------


class Histogram:
    """Counts the values of a column: individually if there are few different ones, otherwise in bins."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._counts: dict[float, int] = {}
        self._too_many = False  # different values; they are read again when the bins are known
        self._whole = False
        self._low, self._high = np.inf, -np.inf

    def add(self, values: NDArray[Any]) -> None:
        """Count some values, except those that are not finite."""
        self._whole = values.dtype.kind == "i"
        values = _finite(values)
        if not values.size:
            return
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        if not self._too_many:
            different, counts = np.unique(values, return_counts=True)
            self._too_many = len(self._counts) + len(different) > VALUES_HELD
            for value, count in zip(different[:VALUES_HELD].tolist(), counts.tolist(), strict=False):
                self._counts[value] = self._counts.get(value, 0) + count

    def bins(self, blocks: Iterable[ImpressionBlock]) -> list[Bin]:
        """Return the bins of all values added.

        Args:
            blocks: The same blocks once more, which are read if there are too many different values.
        """
        if not self._too_many and len(self._counts) <= BINS:
            return [Bin(value, value, self._counts[value]) for value in sorted(self._counts)]
        edges = self._edges()
        if self._too_many:
            binned = (np.histogram(_finite(block.values(self._column)), edges)[0] for block in blocks)
            counts = sum(binned, start=np.zeros(BINS, np.int64))
        else:
            counts = np.histogram(list(self._counts), edges, weights=list(self._counts.values()))[0].astype(np.int64)
        ends = edges[1:] - 1 if self._whole else edges[1:]
        found = zip(edges[:-1].tolist(), ends.tolist(), counts.tolist(), strict=True)
        return [Bin(start, end, count) for start, end, count in found if start <= self._high]

    def _edges(self) -> NDArray[np.float64]:
        if self._whole:
            width = np.ceil((self._high - self._low + 1) / BINS)
            return np.asarray(self._low + width * np.arange(BINS + 1))
        return np.linspace(self._low, self._high, BINS + 1)


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


# --- items ------------------------------------------------------------------------------------------------------


class ItemCounter:
    """Counts which items of the item table occur."""

    def __init__(self, log: ImpressionLog) -> None:
        self._log = log
        self._table = log.items()
        self._ids: NDArray[np.int32] = self._table["item"].to_numpy()
        self._unsorted = int(np.count_nonzero(np.diff(self._ids) <= 0))
        if self._unsorted:
            self._ids = np.unique(self._ids)
        # ids without large gaps are looked up by position, others by binary search
        self._first = int(self._ids[0]) if self._ids.size else 0
        span = int(self._ids[-1]) - self._first + 1 if self._ids.size else 0
        self._in_place = span <= 8 * self._ids.size
        self._known = np.zeros(span if self._in_place else 0, np.bool_)
        if self._in_place:
            self._known[self._ids - self._first] = True
        self._occurs = np.zeros(span if self._in_place else self._ids.size, np.bool_)

    def add(self, items: NDArray[np.int32]) -> int:
        """Count some items and return how many of them are not in the table."""
        if self._in_place:
            places = items.astype(np.int64) - self._first
            inside = (places >= 0) & (places < self._known.size)
            places = places if inside.all() else places[inside]
            places = places[self._known[places]]
        else:
            places = np.searchsorted(self._ids, items)
            places[places == self._ids.size] = 0
            places = places[self._ids[places] == items]
        self._occurs[places] = True
        return items.size - places.size

    def figures(self) -> ItemFigures:
        """Return the figures of the table and of the items that occur."""
        return ItemFigures(
            rows=len(self._table),
            seen=int(np.count_nonzero(self._occurs)),
            unsorted=self._unsorted,
            features={f"item.{feature.name}": self._count(feature) for feature in self._log.features.of("item")},
        )

    def _count(self, feature: Feature) -> ValueCounts:
        column = f"item.{feature.name}"
        counter = _counter(column, feature, self._log.spec)
        parts = self._table.select([column]).to_batches(max_chunksize=ITEMS_AT_ONCE)
        return sum((counter.add(flat(part[column])) for part in parts), start=ValueCounts())


# --- requests ---------------------------------------------------------------------------------------------------


def repeated_requests(days: list[Day]) -> list[int]:
    """Return for each day the number of impressions whose request occurs earlier in these days.

    Requests are compared by 64-bit hashes, one part of the hash space at a time.
    """
    parts = 1 + sum(len(day) for day in days) // REQUESTS_AT_ONCE
    repeated = np.zeros(len(days), np.int64)
    for part in range(parts):
        hashes = [_hashes(day, part, parts) for day in days]
        together = np.concatenate(hashes)
        of_day = np.repeat(np.arange(len(days)), [len(some) for some in hashes])
        order = np.argsort(together, kind="stable")  # of equal hashes the first is the earliest
        again = together[order[1:]] == together[order[:-1]]
        repeated += np.bincount(of_day[order[1:]][again], minlength=len(days))
    return [int(count) for count in repeated]


def _hashes(day: Day, part: int, parts: int) -> NDArray[np.uint64]:
    chosen = [np.zeros(0, np.uint64)]
    for chunk in day.table()["request"].chunks:
        hashes = hash_values(pl.Series(pl.from_arrow(chunk)))
        chosen.append(hashes[hashes % np.uint64(parts) == part])
    return np.concatenate(chosen)
