"""The figures of an impression log. Everything is a number, a word, a list or a mapping, so that it can become JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of so many lists; all 0 if there is none."""

    count: int
    min: int
    median: float
    mean: float
    max: int
    empty: int


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """The values of a feature: how many there are, miss (id 0, or no finite number), were never seen (id 1), and how
    many ids are no row of their table.
    """

    values: int = 0
    missing: int = 0
    unseen: int = 0
    outside: int = 0

    def __add__(self, other: ValueCounts) -> ValueCounts:
        """The counts of both."""
        return ValueCounts(
            self.values + other.values,
            self.missing + other.missing,
            self.unseen + other.unseen,
            self.outside + other.outside,
        )


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The items whose deepest stage this is. Depth -1 are items drawn at random."""

    name: str
    depth: int
    sample: int | None  # items that an impression should have
    items: int
    relevant: int
    empty: int  # impressions without any
    short: int  # impressions with fewer than the sample


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
    without_relevant: int  # impressions that have items, none of them relevant
    all_relevant: int  # impressions that have items, all of them relevant
    feedback: dict[str, float]  # the share of items with a feedback above 0
    features: dict[str, ValueCounts]  # by column
    sequences: dict[str, Lengths]
    repeated_requests: int  # impressions whose request stood earlier in the log
    uneven: int  # impressions whose lists have different lengths; no other figure counts them
    unsorted: int  # impressions that are earlier than the one before
    repeated_items: int  # items that stand earlier in the same impression
    unknown_items: int  # items that are not in the table of items
    wrong_depths: int  # items whose depth is no stage
    contradictions: int  # items whose relevance does not fit their depth, where relevance is a stage
    wrong_grades: int  # items graded no better than one of a shallower stage


@dataclass(frozen=True, slots=True)
class IdFigures:
    """A feature of ids, and how many different known ones occur."""

    column: str
    table: str
    known: int  # ids that are neither for missing nor for unseen values
    distinct: int
    hashed: bool
    counts: ValueCounts


@dataclass(frozen=True, slots=True)
class NumberFigures:
    """A feature of numbers, or of vectors; the figures leave out what is missing."""

    column: str
    size: int
    constant: int  # how many of its numbers never change
    min: float
    mean: float
    max: float
    deviation: float
    counts: ValueCounts


@dataclass(frozen=True, slots=True)
class SequenceFigures:
    """A behaviour sequence."""

    name: str
    max_length: int
    lengths: Lengths
    # by feature: of the impressions with events and relevant items, the share in which a relevant item has the id of
    # the newest event
    newest_is_relevant: dict[str, float]


@dataclass(frozen=True, slots=True)
class ItemFigures:
    """The table of items."""

    rows: int
    seen: int  # of them in an impression
    unsorted: int  # rows that are not above the one before
    features: dict[str, ValueCounts]


@dataclass(frozen=True, slots=True)
class Bin:
    """So many values from `low` up to `high`. Whole numbers include both, others leave out `high` but in the last bin;
    where both are one value, it is that.
    """

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class LogWarning:
    """What looks wrong; `check` is the name of the check that found it."""

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an impression log holds, and what looks wrong in it."""

    path: str
    zone: str
    timed: bool  # whether impressions have times of their own
    days: list[DayFigures]
    stages: list[StageFigures]  # of all days
    relevant_stage: str | None  # if relevance is having got there
    ids: list[IdFigures]
    numbers: list[NumberFigures]
    sequences: list[SequenceFigures]
    items: ItemFigures
    labels: dict[str, list[Bin]]  # histograms of relevance and grade
    warnings: list[LogWarning]

    @property
    def impressions(self) -> int:
        """Of all days."""
        return sum(day.impressions for day in self.days)

    def to_json(self) -> dict[str, Any]:
        """As `rankfall data --json` prints it."""
        return asdict(self)
