"""Checks for common mistakes in a log: one small function per check, which reads the figures and yields warnings.

To add a check, write a function and add it to `CHECKS`; docs/reference/impression-log.md documents each check.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rankfall.data.inspect.inspection import LogWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.data.inspect.inspection import DayFigures, Inspection
    from rankfall.data.lists.ranking_data import RankingData, RankingSplit

    Check = Callable[[Inspection], Iterator[str]]
    ListCheck = Callable[[RankingSplit], Iterator[str]]

NOTICEABLE = 0.01  # a share of impressions
SMALL_DAY = 0.25  # of the median day
SHORT_STAGE = 0.5  # of its sample
MANY_UNSEEN = 0.2
GROWTH = 0.05  # of the share of unseen ids from the first day to the last
FULL_TABLE = 0.8  # of hash buckets: a value then shares its bucket with 1.6 others on average
HUGE = 1e4
IDENTIFYING = 0.9  # different ids per different item
LEAK = 0.2


def find_warnings(figures: Inspection) -> list[LogWarning]:
    """Run all checks and return their warnings."""
    return [LogWarning(check.__name__, message) for check in CHECKS for message in check(figures)]


# --- damage -----------------------------------------------------------------------------------------------------


def ids_outside(figures: Inspection) -> Iterator[str]:
    """Ids that are outside of their embedding table."""
    for feature in figures.ids:
        if count := feature.counts.outside:
            days = [day for day in figures.days if day.features[feature.column].outside]
            yield (
                f"{feature.column}: {count:,} ids are outside of the embedding {feature.table!r}, which has "
                f"{feature.known + 2:,} rows ({_on(days, figures)})"
            )
    for column, counts in figures.items.features.items():
        if counts.outside:
            yield f"items.arrow, {column}: {counts.outside:,} ids are outside of their embedding"


def unsorted_items(figures: Inspection) -> Iterator[str]:
    """An item table that is not sorted, which lookups need."""
    if figures.items.unsorted:
        yield f"items.arrow: {figures.items.unsorted:,} rows are not above the row before; it must be sorted by item"


# --- labels and stages ------------------------------------------------------------------------------------------


def empty_impressions(figures: Inspection) -> Iterator[str]:
    """Impressions without items."""
    days = [day for day in figures.days if day.lengths.empty]
    if days:
        yield f"impressions without items: {sum(day.lengths.empty for day in days):,} ({_on(days, figures)})"


def no_relevant_items(figures: Inspection) -> Iterator[str]:
    """Days without any relevant item."""
    days = [day for day in figures.days if day.items and not day.relevant]
    if days:
        yield f"no item is relevant ({_on(days, figures)})"


def impressions_without_relevant(figures: Inspection) -> Iterator[str]:
    """Impressions without a relevant item, whose recall is not defined."""
    count = sum(day.without_relevant for day in figures.days if day.relevant)
    if count > NOTICEABLE * figures.impressions:
        share = _percent(count, figures.impressions)
        yield f"impressions without a relevant item, for which recall is not defined: {count:,}, {share} of all"


def everything_relevant(figures: Inspection) -> Iterator[str]:
    """Impressions with relevant items only, in which there is nothing to rank."""
    count = sum(day.all_relevant for day in figures.days)
    if count > NOTICEABLE * figures.impressions:
        share = _percent(count, figures.impressions)
        yield f"impressions with relevant items only, which cannot be ranked better or worse: {count:,}, {share} of all"


def empty_stages(figures: Inspection) -> Iterator[str]:
    """Stages without items."""
    for place, stage in enumerate(figures.stages):
        days = [day for day in figures.days if day.impressions and not day.stages[place].items]
        if days:
            yield f"stage {stage.name!r} has no items ({_on(days, figures)})"


def short_stages(figures: Inspection) -> Iterator[str]:
    """Stages with far fewer items than their sample size."""
    for place, stage in enumerate(figures.stages):
        least = SHORT_STAGE * (stage.sample or 0)  # items per impression
        days = [day for day in figures.days if 0 < day.stages[place].items < least * day.impressions]
        if days:
            items, short = (sum(getattr(day.stages[place], of) for day in days) for of in ("items", "short"))
            impressions = sum(day.impressions for day in days)
            yield (
                f"stage {stage.name!r} has {items / impressions:.1f} items per impression and a sample size of "
                f"{stage.sample}, which {_percent(short, impressions)} of the impressions do not reach "
                f"({_on(days, figures)})"
            )


def contradicting_relevance(figures: Inspection) -> Iterator[str]:
    """Relevance that contradicts the stage that defines it."""
    for count, where in _found(figures, "contradictions"):
        rule = f"exactly those that reached stage {figures.relevant_stage!r} are relevant"
        yield f"items that contradict the rule that {rule}: {count:,} ({where})"


def degenerate_grades(figures: Inspection) -> Iterator[str]:
    """Impressions whose items all have the same grade, from which objectives that compare grades learn nothing."""
    count = sum(day.one_grade for day in figures.days)
    if count > NOTICEABLE * figures.impressions:
        share = _percent(count, figures.impressions)
        yield (
            f"impressions whose items all have the same grade: {count:,}, {share} of all; objectives that compare "
            "grades learn nothing from them. Prepare the log with its stages or ranks, or train with "
            "data.labels=relevance"
        )


def grades_of_production(figures: Inspection) -> Iterator[str]:
    """Grades that follow the order of production although relevance is feedback."""
    count = sum(day.outranked for day in figures.days)
    if figures.relevant_column is not None and count > NOTICEABLE * figures.impressions:
        share = _percent(count, figures.impressions)
        yield (
            f"relevance is the column {figures.relevant_column!r}, but grades follow the stages and ranks of the log: "
            f"in {count:,} impressions, {share} of all, an irrelevant item has a better grade than a relevant one. "
            "Objectives that train on grades imitate production; data.labels=relevance trains on relevance"
        )


# --- days -------------------------------------------------------------------------------------------------------


def days_out_of_order(figures: Inspection) -> Iterator[str]:
    """Days that begin before an earlier one ends, so that training uses data from the future."""
    spans = [
        (day.name, day.first_time, day.last_time)
        for day in figures.days
        if figures.timed and day.first_time is not None and day.last_time is not None
    ]
    ends = accumulate((last for _, _, last in spans), max)
    for (previous, begin, _), end, (name, first, last) in zip(spans, ends, spans[1:], strict=False):
        if last < begin:
            yield f"day {name} follows {previous} in the log, but all of its times are earlier"
        elif first < end:
            yield f"day {name} begins before an earlier day ends"


def unsorted_days(figures: Inspection) -> Iterator[str]:
    """Days whose impressions are not sorted by time."""
    if figures.timed:
        for count, where in _found(figures, "unsorted"):
            yield f"impressions with an earlier time than the one before: {count:,} ({where})"


def small_days(figures: Inspection) -> Iterator[str]:
    """Days with far fewer impressions than the median day."""
    usual = median(day.impressions for day in figures.days)
    for day in figures.days:
        if day.impressions < SMALL_DAY * usual or not day.impressions:
            yield f"day {day.name} has {day.impressions:,} impressions, the median day {usual:,.0f}"


# --- features ---------------------------------------------------------------------------------------------------


def missing_features(figures: Inspection) -> Iterator[str]:
    """Features without any value."""
    for column in [ids.column for ids in figures.ids] + [numbers.column for numbers in figures.numbers]:
        of_day = [(day, day.features[column]) for day in figures.days]
        days = [day for day, counts in of_day if 0 < counts.values == counts.missing]
        if days:
            yield f"{column} has no value ({_on(days, figures)})"


def constant_features(figures: Inspection) -> Iterator[str]:
    """Features with a single value."""
    for ids in figures.ids:
        counts = ids.counts
        different = ids.distinct + (counts.missing > 0) + (counts.unseen > 0)
        if different == 1 and counts.values > 1 and counts.missing < counts.values:
            yield f"{ids.column} has the same value in all {counts.values:,} places"
    for numbers in figures.numbers:
        if numbers.constant and numbers.counts.values > 1 and numbers.column != "relevance":
            part = f" in {numbers.constant} of its {numbers.size} components" if numbers.size > 1 else ""
            yield f"{numbers.column} has the same value{part} in all {numbers.counts.values:,} places"


def numbers_not_finite(figures: Inspection) -> Iterator[str]:
    """NaN and infinite numbers, which make losses NaN."""
    for numbers in figures.numbers:
        count, of = numbers.counts.missing, numbers.counts.values
        if 0 < count < of:
            days = [day for day in figures.days if day.features[numbers.column].missing]
            yield f"{numbers.column}: {count:,} values are not finite, {_percent(count, of)} ({_on(days, figures)})"
    for column, counts in figures.items.features.items():
        if counts.missing and any(numbers.column == column for numbers in figures.numbers):
            yield f"items.arrow, {column}: {counts.missing:,} values are not finite"


def huge_numbers(figures: Inspection) -> Iterator[str]:
    """Numbers that are too large for the input of a network."""
    for numbers in figures.numbers:
        largest = max(abs(numbers.min), abs(numbers.max))
        is_input = numbers.column.startswith(("user.", "context.", "item."))
        if is_input and numbers.counts.missing < numbers.counts.values and largest > HUGE:
            yield (
                f"{numbers.column} ranges from {numbers.min:g} to {numbers.max:g}; consider log1p, standardise or "
                "bucketize"
            )


def unseen_ids(figures: Inspection) -> Iterator[str]:
    """Features with a large share of values that were not fitted."""
    for ids in figures.ids:
        if ids.counts.unseen > MANY_UNSEEN * ids.counts.values:
            yield f"{ids.column}: {_percent(ids.counts.unseen, ids.counts.values)} of the ids were never seen"


def growing_unseen_ids(figures: Inspection) -> Iterator[str]:
    """Features whose share of unseen values grows from the first day to the last."""
    for ids in figures.ids:
        days = [day for day in figures.days if day.features[ids.column].values]
        if len(days) < 2 or ids.counts.unseen > MANY_UNSEEN * ids.counts.values:
            continue
        first, last = (day.features[ids.column] for day in (days[0], days[-1]))
        if last.unseen / last.values - first.unseen / first.values > GROWTH:
            yield (
                f"{ids.column}: the share of ids never seen grows from {_percent(first.unseen, first.values)} on "
                f"{days[0].name} to {_percent(last.unseen, last.values)} on {days[-1].name}"
            )


def full_hash_tables(figures: Inspection) -> Iterator[str]:
    """Features with too few hash buckets."""
    for ids in figures.ids:
        if ids.hashed and ids.distinct > FULL_TABLE * ids.known and not ids.column.startswith("sequence."):
            yield (
                f"{ids.column}: {ids.distinct:,} of {ids.known:,} hash buckets are used, so values share buckets; "
                "increase hash_bucket_size"
            )


# --- sequences --------------------------------------------------------------------------------------------------


def empty_sequences(figures: Inspection) -> Iterator[str]:
    """Sequences without any event."""
    for sequence in figures.sequences:
        days = [day for day in figures.days if day.impressions and not day.sequences[sequence.name].max]
        if len(days) < len(figures.days):
            days = [day for day in days if day is not figures.days[0]]  # histories may begin with the log
        if days:
            yield f"sequence {sequence.name!r} is empty ({_on(days, figures)})"


def long_sequences(figures: Inspection) -> Iterator[str]:
    """Sequences that are longer than their maximum length."""
    for sequence in figures.sequences:
        if sequence.lengths.max > sequence.max_length:
            longest = sequence.lengths.max
            yield f"sequence {sequence.name!r} has up to {longest:,} events, expected at most {sequence.max_length:,}"


def leaking_sequences(figures: Inspection) -> Iterator[str]:
    """Sequences that contain the outcome of their request."""
    distinct = {ids.column: ids.distinct for ids in figures.ids}
    for sequence in figures.sequences:
        shares = {
            feature: share
            for feature, share in sequence.newest_is_relevant.items()
            if distinct[f"item.{feature}"] >= IDENTIFYING * figures.items.seen
        }
        if shares and max(shares.values()) > LEAK:
            feature, share = max(shares.items(), key=lambda entry: entry[1])
            yield (
                f"sequence {sequence.name!r}: the newest event is a relevant item of the same request in {share:.1%} "
                f"of the impressions ({feature}); the sequence may contain events after the request"
            )


def _counted(name: str, figure: str, what: str) -> Check:
    """Return the check that counts a figure of all days."""

    def check(figures: Inspection) -> Iterator[str]:
        for count, where in _found(figures, figure):
            yield f"{what}: {count:,} ({where})"

    check.__name__ = name
    return check


CHECKS: list[Check] = [
    _counted("uneven_lists", "uneven", "impressions with lists of different lengths, which all figures leave out"),
    ids_outside,
    _counted("wrong_depths", "wrong_depths", "items with a depth that is not the index of a stage"),
    _counted("unknown_items", "unknown_items", "items that are not in items.arrow"),
    unsorted_items,
    _counted("repeated_items", "repeated_items", "items that occur twice in their impression"),
    _counted("repeated_requests", "repeated_requests", "impressions whose request occurs earlier in the log"),
    empty_impressions,
    no_relevant_items,
    impressions_without_relevant,
    everything_relevant,
    empty_stages,
    short_stages,
    contradicting_relevance,
    _counted(
        "contradicting_grades",
        "wrong_grades",
        "impressions with an item graded no better than one that was dropped earlier",
    ),
    degenerate_grades,
    grades_of_production,
    days_out_of_order,
    unsorted_days,
    small_days,
    missing_features,
    constant_features,
    numbers_not_finite,
    huge_numbers,
    unseen_ids,
    growing_unseen_ids,
    full_hash_tables,
    empty_sequences,
    long_sequences,
    leaking_sequences,
]


# --- formatting ------------------------------------------------------------------------------------------------


def _found(figures: Inspection, figure: str) -> Iterator[tuple[int, str]]:
    """Yield the sum of a figure over the days and the days where it is above 0; nothing if it is 0."""
    days = [day for day in figures.days if getattr(day, figure)]
    if days:
        yield sum(getattr(day, figure) for day in days), _on(days, figures)


def _on(days: list[DayFigures], figures: Inspection) -> str:
    """Return the days as text."""
    if len(days) == len(figures.days) > 1:
        return f"on all {len(days)} days"
    names = [day.name for day in days]
    return f"on {', '.join(names)}" if len(names) <= 3 else f"on {len(names)} days, {names[0]} to {names[-1]}"


def _percent(count: int, of: int) -> str:
    return f"{count / max(of, 1):.1%}"


# a share of lists


def find_list_warnings(data: RankingData) -> list[LogWarning]:
    """Run all checks on every split and return their warnings."""
    return [
        LogWarning(check.__name__, message)
        for check in LIST_CHECKS
        for split in data.splits.values()
        for message in check(split)
    ]


def lists_without_relevant(split: RankingSplit) -> Iterator[str]:
    """Lists without a relevant document, on which recall and NDCG are not defined."""
    count = int(np.count_nonzero(_per_list(np.maximum, split) <= 0))
    if count > NOTICEABLE * len(split):
        share = f"{count / len(split):.1%}"
        yield (
            f"split {split.name!r}: {count:,} of {len(split):,} lists, {share}, have no relevant document; metrics are "
            "not defined for them, and means leave them out"
        )


def lists_of_one_label(split: RankingSplit) -> Iterator[str]:
    """Lists whose documents all have the same label, above 0, in which there is nothing to rank."""
    best, worst = _per_list(np.maximum, split), _per_list(np.minimum, split)
    count = int(np.count_nonzero((best == worst) & (best > 0)))
    if count > NOTICEABLE * len(split):
        share = f"{count / len(split):.1%}"
        yield (
            f"split {split.name!r}: {count:,} of {len(split):,} lists, {share}, have documents of one label only; "
            "they cannot be ranked better or worse"
        )


LIST_CHECKS: list[ListCheck] = [lists_without_relevant, lists_of_one_label]


def _per_list(reduce: np.ufunc, split: RankingSplit) -> np.ndarray:
    """Reduce the labels of each list to one value. Prepared lists are never empty."""
    found: np.ndarray = reduce.reduceat(np.asarray(split.labels), split.offsets[:-1])
    return found
