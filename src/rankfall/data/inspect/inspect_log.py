"""Read a log, and count what its impressions have, in memory that does not grow with the log.

Counters add up blocks of impressions: ids, numbers, lengths of lists, histograms, items. :class:`LogCounter` has those
of all days, :class:`DayCounter` those of one day.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.arrays import Moments
from rankfall.data.impressions.encoding import hash_values
from rankfall.data.impressions.spec import FIRST_KNOWN, MISSING, UNSEEN, Categorical
from rankfall.data.inspect.checks import find_warnings
from rankfall.data.inspect.inspection import (
    Bin,
    DayFigures,
    IdFigures,
    Inspection,
    ItemFigures,
    Lengths,
    NumberFigures,
    SequenceFigures,
    StageFigures,
    ValueCounts,
    flat,
    read_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Sequence as Listed

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.data.impressions.spec import Feature, Sequence, Spec
    from rankfall.data.inspect.inspection import ImpressionBlock

BINS = 20  # per histogram
VALUES_HELD = 1000  # different values that are counted individually
REQUESTS_AT_ONCE = 2**22  # request hashes in memory while searching for duplicates
ITEMS_AT_ONCE = 2**18
NEGATIVES = -1  # the depth of random negatives


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


def counters(log: ImpressionLog) -> dict[str, IdCounter | NumberCounter]:
    """Return a counter for every feature of the impressions and of the events of sequences, by column."""
    counting: dict[str, IdCounter | NumberCounter] = {}
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


def _counter(column: str, feature: Feature, spec: Spec) -> IdCounter | NumberCounter:
    if feature.embedding is None:
        return NumberCounter(column, feature.size)
    config = getattr(spec.features, feature.group)[feature.name]
    hashed = isinstance(config, Categorical) and config.hash_bucket_size is not None
    return IdCounter(column, feature, hashed=hashed)


# --- lengths ----------------------------------------------------------------------------------------------------


class LengthCounter(Counter[int]):
    """The number of lists by length."""

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count some lists."""
        different, counts = np.unique(lengths, return_counts=True)
        self.update(dict(zip(different.tolist(), counts.tolist(), strict=True)))

    def figures(self) -> Lengths:
        """Return the figures of everything added."""
        count = self.total()
        if not count:
            return Lengths(0, 0, 0.0, 0.0, 0, 0)
        lengths = sorted(self)
        ends = np.cumsum([self[length] for length in lengths])
        # the middle list, or the two middle ones
        middle = np.array(lengths)[np.searchsorted(ends, [(count - 1) // 2, count // 2], side="right")]
        mean = sum(length * self[length] for length in lengths) / count
        return Lengths(count, lengths[0], float(middle.mean()), mean, lengths[-1], empty=self[0])


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
        if self._whole:
            edges = self._low + np.ceil((self._high - self._low + 1) / BINS) * np.arange(BINS + 1)
        else:
            edges = np.linspace(self._low, self._high, BINS + 1)
        if self._too_many:
            binned = (np.histogram(_finite(block.values(self._column)), edges)[0] for block in blocks)
            counts = sum(binned, start=np.zeros(BINS, np.int64))
        else:
            counts = np.histogram(list(self._counts), edges, weights=list(self._counts.values()))[0].astype(np.int64)
        ends = edges[1:] - 1 if self._whole else edges[1:]
        found = zip(edges[:-1].tolist(), ends.tolist(), counts.tolist(), strict=True)
        return [Bin(start, end, count) for start, end, count in found if start <= self._high]


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


# --- items ------------------------------------------------------------------------------------------------------


class ItemCounter:
    """Counts which items of the item table occur."""

    def __init__(self, log: ImpressionLog) -> None:
        self._log = log
        self._table = log.items()
        ids: NDArray[np.int32] = self._table["item"].to_numpy()
        self._unsorted = int(np.count_nonzero(np.diff(ids) <= 0))
        self._ids = np.unique(ids)
        self._occurs = np.zeros(len(self._ids), np.bool_)

    def add(self, items: NDArray[np.int32]) -> int:
        """Count some items and return how many of them are not in the table."""
        if not len(self._ids):
            return len(items)
        places = np.minimum(np.searchsorted(self._ids, items), len(self._ids) - 1)
        places = places[self._ids[places] == items]
        self._occurs[places] = True
        return len(items) - len(places)

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


# --- days and the log -------------------------------------------------------------------------------------------


class LogCounter:
    """The counters that cover all days."""

    def __init__(self, log: ImpressionLog) -> None:
        self.log = log
        self.features = counters(log)
        self.items = ItemCounter(log)
        self.labels = {column: Histogram(column) for column in ("relevance", "grade")}
        self.sequences = {sequence.name: SequenceCounter(sequence) for sequence in log.features.sequences}


class SequenceCounter:
    """Counts the lengths of a sequence, and how often its newest event is a relevant item of the request."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.lengths = LengthCounter()
        self._compared = 0
        self._same = dict.fromkeys(sequence.features, 0)

    def add(self, block: ImpressionBlock) -> None:
        """Compare the newest events of a block with its relevant items."""
        lengths = block.lengths(self._column(self.sequence.features[0]))
        compared = (lengths > 0) & (block.per_impression(block.relevant) > 0)
        self._compared += int(np.count_nonzero(compared))
        for feature in self.sequence.features:
            newest = np.zeros(len(block), np.int32)
            newest[lengths > 0] = block.values(self._column(feature))[np.cumsum(lengths)[lengths > 0] - 1]
            newest = newest[block.owner]
            same = block.relevant & (newest >= FIRST_KNOWN) & (newest == block.values(f"item.{feature}"))
            self._same[feature] += int(np.count_nonzero(block.per_impression(same)))

    def figures(self) -> SequenceFigures:
        """Return the figures of everything added."""
        return SequenceFigures(
            self.sequence.name,
            self.sequence.max_length,
            self.lengths.figures(),
            {feature: same / max(self._compared, 1) for feature, same in self._same.items()},
        )

    def _column(self, feature: str) -> str:
        return f"sequence.{self.sequence.name}.{feature}"


class DayCounter:
    """Counts the impressions of one day, and updates the counters of the log."""

    def __init__(self, whole: LogCounter) -> None:
        self._whole = whole
        self._spec = whole.log.spec
        stages = 1 + len(self._spec.stages)
        self._samples = np.array([self._spec.negatives] + [stage.sample or 0 for stage in self._spec.stages])
        self._of_stages = np.zeros((4, stages), np.int64)  # items, relevant ones, impressions without any or too few
        self._features = dict.fromkeys(whole.features, ValueCounts())
        self._sequences = {name: LengthCounter() for name in whole.sequences}
        self._lengths = LengthCounter()
        self._number: Counter[str] = Counter()
        self._feedback: Counter[str] = Counter()
        self._first: int | None = None
        self._last: int | None = None
        self._previous: int | None = None

    def add(self, block: ImpressionBlock, uneven: int) -> None:
        """Count a block; `uneven` impressions were left out of it."""
        self._number["uneven"] += uneven
        self._lengths.add(block.item_counts)
        self._add_times(block)
        self._add_items(block)
        self._add_stages(block)
        self._add_relevance(block)
        for column, histogram in self._whole.labels.items():
            histogram.add(block.values(column))
        for column, counter in self._whole.features.items():
            self._features[column] += counter.add(block.values(column))
        for name in self._spec.feedback:
            self._feedback[name] += int(np.count_nonzero(block.values(f"feedback.{name}") > 0))
        for name, sequence in self._whole.sequences.items():
            lengths = block.lengths(f"sequence.{name}.{sequence.sequence.features[0]}")
            self._sequences[name].add(lengths)
            sequence.lengths.add(lengths)
            sequence.add(block)

    def _add_times(self, block: ImpressionBlock) -> None:
        times = block.values("time")
        if not times.size:
            return
        before = times[0] if self._previous is None else self._previous
        self._number["unsorted"] += int(np.count_nonzero(np.diff(times, prepend=before) < 0))
        self._previous = int(times[-1])
        first, last = int(times.min()), int(times.max())
        self._first = first if self._first is None else min(self._first, first)
        self._last = last if self._last is None else max(self._last, last)

    def _add_items(self, block: ImpressionBlock) -> None:
        items = block.values("item")
        self._number["items"] += items.size
        self._number["unknown_items"] += self._whole.items.add(items)
        together = np.sort(block.owner << 32 | items.view(np.uint32))
        self._number["repeated_items"] += int(np.count_nonzero(together[1:] == together[:-1]))

    def _add_stages(self, block: ImpressionBlock) -> None:
        stages = len(self._samples)
        place = block.values("depth").astype(np.int64) - NEGATIVES
        owner, relevant = block.owner, block.relevant
        inside = (place >= 0) & (place < stages)
        if not inside.all():
            self._number["wrong_depths"] += int(np.count_nonzero(~inside))
            place, owner, relevant = place[inside], owner[inside], relevant[inside]
        counts = np.bincount(owner * stages + place, minlength=len(block) * stages).reshape(-1, stages)
        of_relevant = np.bincount(place[relevant], minlength=stages)
        empty, short = (counts == 0).sum(axis=0), (counts < self._samples).sum(axis=0)
        self._of_stages += np.stack([counts.sum(axis=0), of_relevant, empty, short])

    def _add_relevance(self, block: ImpressionBlock) -> None:
        relevant = block.per_impression(block.relevant)
        self._number["relevant"] += int(relevant.sum())
        self._number["without_relevant"] += int(np.count_nonzero((relevant == 0) & (block.item_counts > 0)))
        self._number["all_relevant"] += int(np.count_nonzero((relevant == block.item_counts) & (relevant > 0)))
        depth = block.values("depth")
        if (stage := self._spec.relevant.stage) is not None:
            deep = depth >= self._spec.stage_names.index(stage)
            self._number["contradictions"] += int(np.count_nonzero(deep != block.relevant))
        grade = block.values("grade")
        self._number["wrong_grades"] += _impressions_with_wrong_grades(block.owner, depth, grade)
        self._number["one_grade"] += _impressions_with_one_grade(block, grade)
        self._number["outranked"] += _impressions_with_outranked_items(block, grade)

    def figures(self, name: str, repeated_requests: int) -> DayFigures:
        """Return the figures of everything added."""
        whole = self._lengths.figures()
        names = ["random negatives", *self._spec.stage_names]
        samples = [self._spec.negatives or None, *(stage.sample for stage in self._spec.stages)]
        stages = zip(names, samples, self._of_stages.T.tolist(), strict=True)
        figures: dict[str, Any] = {
            "name": name,
            "impressions": whole.count,
            "first_time": self._first,
            "last_time": self._last,
            "lengths": whole,
            "stages": [StageFigures(of, i + NEGATIVES, size, *counts) for i, (of, size, counts) in enumerate(stages)],
            "feedback": {of: self._feedback[of] / max(self._number["items"], 1) for of in self._spec.feedback},
            "features": self._features,
            "sequences": {of: lengths.figures() for of, lengths in self._sequences.items()},
            "repeated_requests": repeated_requests,
        }
        figures |= {one.name: self._number[one.name] for one in fields(DayFigures) if one.name not in figures}
        return DayFigures(**figures)


def _impressions_with_one_grade(block: ImpressionBlock, grade: NDArray[np.int32]) -> int:
    """Return the number of impressions with several items that all have the same grade."""
    several = block.item_counts > 1
    differs = np.zeros(len(grade), np.bool_)
    differs[1:] = (grade[1:] != grade[:-1]) & (block.owner[1:] == block.owner[:-1])
    return int(np.count_nonzero(several & (block.per_impression(differs) == 0)))


def _impressions_with_outranked_items(block: ImpressionBlock, grade: NDArray[np.int32]) -> int:
    """Return the number of impressions in which an irrelevant item has a better grade than a relevant one."""
    best = np.full(len(block), np.iinfo(np.int32).min)
    worst = np.full(len(block), np.iinfo(np.int32).max)
    np.maximum.at(best, block.owner[~block.relevant], grade[~block.relevant])
    np.minimum.at(worst, block.owner[block.relevant], grade[block.relevant])
    return int(np.count_nonzero(best > worst))


def _impressions_with_wrong_grades(owner: NDArray[np.int64], depth: NDArray[np.int8], grade: NDArray[np.int32]) -> int:
    """Return the number of impressions in which an item is graded no better than one of a shallower stage."""
    stage = owner << 8 | (depth.astype(np.int64) + 128)
    # sorted by impression, depth and grade, comparing neighbours is enough: the worst item of a stage follows the best
    # of the stage before
    together = np.sort(stage << 32 | (grade.astype(np.int64) + 2**31))
    stage, grade_of = together >> 32, together & (2**32 - 1)
    deeper = (stage[1:] >> 8 == stage[:-1] >> 8) & (stage[1:] != stage[:-1])
    wrong = deeper & (grade_of[1:] <= grade_of[:-1])
    return len(np.unique(stage[1:][wrong] >> 8))


def inspect(
    log: ImpressionLog, *, days: Listed[Day] | None = None, on_day: Callable[[str], None] = lambda day: None
) -> Inspection:
    """Compute the figures of a log and the warnings of all checks, in memory that does not grow with impressions.

    Args:
        log: The impression log.
        days: The days to read; by default all.
        on_day: Receives the name of each finished day.
    """
    chosen = list(log.days.values()) if days is None else list(days)
    whole = LogCounter(log)
    repeated = repeated_requests(chosen)
    figures = []
    for day, repeats in zip(chosen, repeated, strict=True):
        counter = DayCounter(whole)
        for block, uneven in read_blocks(day, log.spec):
            counter.add(block, uneven)
        figures.append(counter.figures(day.name, repeats))
        on_day(day.name)
    inspection = _inspection(whole, chosen, figures)
    return replace(inspection, warnings=find_warnings(inspection))


def _inspection(whole: LogCounter, days: list[Day], figures: list[DayFigures]) -> Inspection:
    log = whole.log
    if not log.spec.negatives and not any(day.stages[0].items for day in figures):
        figures = [replace(day, stages=day.stages[1:]) for day in figures]  # without negatives there is no row for them
    counts = {column: sum((day.features[column] for day in figures), start=ValueCounts()) for column in whole.features}
    counting = whole.features.values()
    return Inspection(
        path=str(log.path),
        zone=log.spec.zone,
        timed=log.spec.time is not None,
        days=figures,
        stages=[reduce(add, stages) for stages in zip(*(day.stages for day in figures), strict=True)],
        relevant_stage=log.spec.relevant.stage,
        relevant_column=log.spec.relevant.column,
        ids=[one.figures(counts[one.column]) for one in counting if isinstance(one, IdCounter)],
        numbers=[
            replace(one.figures(counts[one.column]), replaced=_replaced(log, one.column))
            for one in counting
            if isinstance(one, NumberCounter)
        ],
        sequences=[sequence.figures() for sequence in whole.sequences.values()],
        items=whole.items.figures(),
        labels={
            column: histogram.bins(block for day in days for block, _ in read_blocks(day, log.spec))
            for column, histogram in whole.labels.items()
        },
        warnings=[],
        skipped=log.manifest.get("about", {}).get("skipped"),
    )


def _replaced(log: ImpressionLog, column: str) -> float | None:
    """Return the share of a feature's numbers that were missing when the log was prepared, if the log states it."""
    counts = log.manifest.get("about", {}).get("counts", {})
    values = counts.get("numbers", {}).get(column)
    return counts["missing_numbers"].get(column, 0) / values if values else None
