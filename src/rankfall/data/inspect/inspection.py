"""The figures of an impression log, made of plain values that can be written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.items import check_no_nulls, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day
    from rankfall.data.impressions.spec import Spec


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of `count` lists; all 0 without lists."""

    count: int
    min: int
    median: float
    mean: float
    max: int
    empty: int


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Counts of the values of a feature: all, missing (id 0, or not finite), unseen (id 1) and outside of the table."""

    values: int = 0
    missing: int = 0
    unseen: int = 0
    outside: int = 0

    def __add__(self, other: ValueCounts) -> ValueCounts:
        """Return the sum of both counts."""
        return ValueCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The items whose deepest stage this is; depth -1 is for random negatives."""

    name: str
    depth: int
    sample: int | None  # the expected number of items per impression
    items: int
    relevant: int
    empty: int  # impressions without any
    short: int  # impressions with fewer than the sample

    def __add__(self, other: StageFigures) -> StageFigures:
        """Return the figures of this stage on the days of both."""
        counts = ("items", "relevant", "empty", "short")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in counts})


@dataclass(frozen=True, slots=True)
class DayFigures:
    """One day. Times are milliseconds since 1970 in UTC."""

    name: str
    impressions: int
    items: int
    first_time: int | None
    last_time: int | None
    lengths: Lengths
    stages: list[StageFigures]
    relevant: int  # items
    without_relevant: int  # impressions with items, none of them relevant
    all_relevant: int  # impressions with items, all of them relevant
    feedback: dict[str, float]  # the share of items with a feedback above 0
    features: dict[str, ValueCounts]  # by column
    sequences: dict[str, Lengths]
    repeated_requests: int  # impressions whose request occurs earlier in the log
    uneven: int  # impressions whose lists have different lengths; no other figure counts them
    unsorted: int  # impressions that are earlier than the one before
    repeated_items: int  # items that occur earlier in the same impression
    unknown_items: int  # items that are not in the item table
    wrong_depths: int  # items whose depth is not the index of a stage
    contradictions: int  # items whose relevance contradicts their depth, if relevance is defined by a stage
    wrong_grades: int  # items graded no better than one of a shallower stage
    one_grade: int  # impressions with several items that all have the same grade
    outranked: int  # impressions in which an irrelevant item has a better grade than a relevant one


@dataclass(frozen=True, slots=True)
class IdFigures:
    """A feature with ids, and the number of different known ids that occur."""

    column: str
    table: str
    known: int  # ids that are neither for missing nor for unseen values
    distinct: int
    hashed: bool
    counts: ValueCounts


@dataclass(frozen=True, slots=True)
class NumberFigures:
    """A feature of numbers or vectors; the figures exclude missing values."""

    column: str
    size: int
    constant: int  # the number of its components that never change
    min: float
    mean: float
    max: float
    deviation: float
    counts: ValueCounts
    replaced: float | None = None  # share of values that were missing when the log, with all its days, was prepared


@dataclass(frozen=True, slots=True)
class SequenceFigures:
    """A behaviour sequence."""

    name: str
    max_length: int
    lengths: Lengths
    # by feature: the share of impressions, among those with events and relevant items, in which a relevant item has the
    # id of the newest event
    newest_is_relevant: dict[str, float]


@dataclass(frozen=True, slots=True)
class ItemFigures:
    """The table of items."""

    rows: int
    seen: int  # items that occur in an impression
    unsorted: int  # rows that are not above the one before
    features: dict[str, ValueCounts]


@dataclass(frozen=True, slots=True)
class Bin:
    """The number of values from `low` to `high`.

    Bins of whole numbers include both ends; other bins exclude `high`, except the last. A bin with equal ends is one
    value.
    """

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class LogWarning:
    """A warning, and the name of the check that found it."""

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The figures of an impression log and the warnings about it."""

    path: str
    zone: str
    timed: bool  # whether impressions have times
    days: list[DayFigures]
    stages: list[StageFigures]  # of all days
    relevant_stage: str | None  # the stage that defines relevance, if one does
    relevant_column: str | None  # the column that defines relevance, if one does
    ids: list[IdFigures]
    numbers: list[NumberFigures]
    sequences: list[SequenceFigures]
    items: ItemFigures
    labels: dict[str, list[Bin]]  # histograms of relevance and grade
    warnings: list[LogWarning]
    skipped: dict[str, Any] | None = None  # the bad rows that were dropped while the log was prepared

    @property
    def impressions(self) -> int:
        """The number of impressions of all days."""
        return sum(day.impressions for day in self.days)

    def to_json(self) -> dict[str, Any]:
        """Return the form that `rankfall data --json` prints."""
        return asdict(self)


class ImpressionBlock:
    """Impressions with lists of consistent lengths, as arrays."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        """The number of impressions."""
        return len(self.batch)

    def values(self, column: str) -> NDArray[Any]:
        """Return the values of a column, flattened over lists; (n, size) for vectors."""
        return flat(self.batch[column])

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of each list of a column."""
        return _lengths(self.batch[column])

    @cached_property
    def item_counts(self) -> NDArray[np.int64]:
        """The number of items of each impression."""
        return self.lengths("item")

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The impression of each item."""
        return np.repeat(np.arange(len(self)), self.item_counts)

    @cached_property
    def relevant(self) -> NDArray[np.bool_]:
        """Which items are relevant."""
        above: NDArray[np.bool_] = self.values("relevance") > 0
        return above

    def per_impression(self, marked: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of marked items of each impression."""
        ends = np.cumsum(self.item_counts)
        sums = np.concatenate([[0], np.cumsum(marked)])
        counts: NDArray[np.int64] = sums[ends] - sums[ends - self.item_counts]
        return counts


def read_blocks(day: Day, spec: Spec) -> Iterator[tuple[ImpressionBlock, int]]:
    """Iterate over the blocks of a day.

    Yields:
        A block, and the number of impressions left out of it because their lists have different lengths.

    Raises:
        ValueError: If the file does not match the spec of the log, or is damaged.
    """
    table = day.table()
    check_schema(table.schema, spec, f"path: {day.file}")
    if len(table) != len(day):
        raise RankfallError(f"path: {day.file} has {len(table):,} impressions, its manifest states {len(day):,}")
    groups: dict[str, list[str]] = {}  # columns whose lists have equal lengths: those of items, and of each sequence
    for field in table.schema:
        if pa.types.is_list(field.type) and field.name != "left_out":  # its items are not the candidates
            of = field.name.split(".")[1] if field.name.startswith("sequence.") else ""
            groups.setdefault(of, []).append(field.name)
    for batch in table.to_batches():
        try:
            batch.validate(full=True)  # invalid offsets must not be dereferenced
        except pa.ArrowInvalid as error:
            raise RankfallError(f"path: {day.file} is damaged ({error})") from None
        check_no_nulls(batch, f"path: {day.file}")
        even = np.ones(len(batch), np.bool_)
        for first, *others in groups.values():
            for column in others:
                even &= _lengths(batch[column]) == _lengths(batch[first])
        uneven = len(batch) - int(np.count_nonzero(even))
        yield ImpressionBlock(batch.filter(pa.array(even)) if uneven else batch), uneven


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


def flat(values: pa.Array) -> NDArray[Any]:
    """Return the values of an Arrow array, flattened over lists; (n, size) for vectors."""
    if pa.types.is_list(values.type):
        values = values.flatten()
    if pa.types.is_fixed_size_list(values.type):
        return flat(values.flatten()).reshape(-1, values.type.list_size)
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    array: NDArray[Any] = values.to_numpy()
    return array
