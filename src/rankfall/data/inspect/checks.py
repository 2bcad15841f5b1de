"""What usually goes wrong in a log: one small function a check, which looks at the figures and says what it finds.

A new check is a function in `CHECKS`; docs/reference/log-checks.md says what each one means.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

from rankfall.data.inspect.figures import LogWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.data.inspect.figures import DayFigures, Inspection, StageFigures, ValueCounts

    Check = Callable[[Inspection], Iterator[str]]

NOTICEABLE = 0.01  # a share of impressions
SMALL_DAY = 0.25  # of the median day
SHORT_STAGE = 0.5  # of its sample
MANY_UNSEEN = 0.2
GROWTH = 0.05  # of the share of unseen ids from the first day to the last
FULL_TABLE = 0.8  # of hash buckets: then a value shares its bucket with 1.6 others on average
HUGE = 1e4
IDENTIFYING = 0.9  # different ids for each different item
LEAK = 0.2


def find_warnings(figures: Inspection) -> list[LogWarning]:
    """What every check has to say."""
    return [LogWarning(check.__name__, message) for check in CHECKS for message in check(figures)]


# --- damage -----------------------------------------------------------------------------------------------------


def uneven_lists(figures: Inspection) -> Iterator[str]:
    """Columns of one impression that disagree on its number of items."""
    for count, where in _found(figures, "uneven"):
        yield f"impressions with lists of different lengths, which no figure counts: {count:,} ({where})"


def ids_outside(figures: Inspection) -> Iterator[str]:
    """Ids that are no row of their embedding table."""
    for feature in figures.ids:
        if count := feature.counts.outside:
            days = [day for day in figures.days if day.features[feature.column].outside]
            yield (
                f"{feature.column}: {count:,} ids are no row of the embedding {feature.table!r}, which has "
                f"{feature.known + 2:,} ({_on(days, figures)})"
            )
    for column, counts in figures.items.features.items():
        if counts.outside:
            yield f"items.arrow, {column}: {counts.outside:,} ids are no row of their embedding"


def wrong_depths(figures: Inspection) -> Iterator[str]:
    """Depths that are no stage."""
    for count, where in _found(figures, "wrong_depths"):
        yield f"items with a depth that is none of the stages: {count:,} ({where})"


def unknown_items(figures: Inspection) -> Iterator[str]:
    """Items of impressions that the table of items lacks."""
    for count, where in _found(figures, "unknown_items"):
        yield f"items that are not in items.arrow: {count:,} ({where})"


def unsorted_items(figures: Inspection) -> Iterator[str]:
    """A table of items in which nothing can be looked up."""
    if figures.items.unsorted:
        yield f"items.arrow: {figures.items.unsorted:,} rows are not above the one before; it must be sorted by item"


def repeated_items(figures: Inspection) -> Iterator[str]:
    """Items twice in one impression."""
    for count, where in _found(figures, "repeated_items"):
        yield f"items that stand twice in their impression: {count:,} ({where})"


def repeated_requests(figures: Inspection) -> Iterator[str]:
    """Requests twice in the log: what is tested was trained on."""
    for count, where in _found(figures, "repeated_requests"):
        yield f"impressions whose request stands earlier in the log: {count:,} ({where})"


# --- labels and stages ------------------------------------------------------------------------------------------


def empty_impressions(figures: Inspection) -> Iterator[str]:
    """Impressions without items."""
    days = [day for day in figures.days if day.lengths.empty]
    if days:
        yield f"impressions without items: {sum(day.lengths.empty for day in days):,} ({_on(days, figures)})"


def no_relevant_items(figures: Inspection) -> Iterator[str]:
    """Days on which nothing is relevant."""
    days = [day for day in figures.days if day.items and not day.relevant]
    if days:
        yield f"no item is relevant ({_on(days, figures)})"


def impressions_without_relevant(figures: Inspection) -> Iterator[str]:
    """Impressions whose recall is not defined."""
    count = sum(day.without_relevant for day in figures.days if day.relevant)
    if count > NOTICEABLE * figures.impressions:
        share = _percent(count, figures.impressions)
        yield f"impressions without a relevant item, for which recall is not defined: {count:,}, {share} of all"


def everything_relevant(figures: Inspection) -> Iterator[str]:
    """Impressions in which there is nothing to tell apart."""
    count = sum(day.all_relevant for day in figures.days)
    if count > NOTICEABLE * figures.impressions:
        share = _percent(count, figures.impressions)
        yield f"impressions with nothing but relevant items, with nothing to tell apart: {count:,}, {share} of all"


def empty_stages(figures: Inspection) -> Iterator[str]:
    """Stages in which no item ended."""
    for place, stage in enumerate(figures.stages):
        days = [day for day in figures.days if day.impressions and not day.stages[place].items]
        if days:
            yield f"stage {stage.name!r} has no items ({_on(days, figures)})"


def short_stages(figures: Inspection) -> Iterator[str]:
    """Stages with far fewer items than their sample."""
    for place, stage in enumerate(figures.stages):
        days = [day for day in figures.days if _is_short(day.stages[place], day.impressions)]
        if days:
            items, short = (sum(getattr(day.stages[place], of) for day in days) for of in ("items", "short"))
            impressions = sum(day.impressions for day in days)
            yield (
                f"stage {stage.name!r} has {items / impressions:.1f} items an impression and a sample of "
                f"{stage.sample}, which {_percent(short, impressions)} of the impressions miss ({_on(days, figures)})"
            )


def _is_short(stage: StageFigures, impressions: int) -> bool:
    return stage.items > 0 and stage.items < SHORT_STAGE * (stage.sample or 0) * impressions


def contradicting_relevance(figures: Inspection) -> Iterator[str]:
    """Relevance that is said to be a stage, and is not."""
    for count, where in _found(figures, "contradictions"):
        rule = f"those from stage {figures.relevant_stage!r} on are relevant, and no others"
        yield f"items that contradict the rule that {rule}: {count:,} ({where})"


def contradicting_grades(figures: Inspection) -> Iterator[str]:
    """Grades that do not rise with the depth."""
    for count, where in _found(figures, "wrong_grades"):
        yield f"impressions that grade an item no better than one that was dropped earlier: {count:,} ({where})"


# --- days -------------------------------------------------------------------------------------------------------


def days_out_of_order(figures: Inspection) -> Iterator[str]:
    """Days that begin before an earlier one ends: the future leaks into training."""
    spans = [
        (day.name, day.first_time, day.last_time)
        for day in figures.days
        if figures.timed and day.first_time is not None and day.last_time is not None
    ]
    ends = accumulate((last for _, _, last in spans), max)
    for (previous, begin, _), end, (name, first, last) in zip(spans, ends, spans[1:], strict=False):
        if last < begin:
            yield f"day {name} comes after {previous} in the log, but all of it is earlier"
        elif first < end:
            yield f"day {name} begins before the days before it end"


def unsorted_days(figures: Inspection) -> Iterator[str]:
    """Days whose impressions do not come in the order of their times."""
    if figures.timed:
        for count, where in _found(figures, "unsorted"):
            yield f"impressions that are earlier than the one before: {count:,} ({where})"


def small_days(figures: Inspection) -> Iterator[str]:
    """Days of which much seems to be missing."""
    usual = median(day.impressions for day in figures.days)
    for day in figures.days:
        if day.impressions < SMALL_DAY * usual or not day.impressions:
            yield f"day {day.name} has {day.impressions:,} impressions, the median day {usual:,.0f}"


# --- features ---------------------------------------------------------------------------------------------------


def missing_features(figures: Inspection) -> Iterator[str]:
    """Features without any value."""
    for column in [ids.column for ids in figures.ids] + [numbers.column for numbers in figures.numbers]:
        days = [day for day in figures.days if _all_missing(day.features[column])]
        if days:
            yield f"{column} has no value ({_on(days, figures)})"


def _all_missing(counts: ValueCounts) -> bool:
    return counts.values > 0 and counts.missing == counts.values


def constant_features(figures: Inspection) -> Iterator[str]:
    """Features that say nothing."""
    for ids in figures.ids:
        counts = ids.counts
        different = ids.distinct + (counts.missing > 0) + (counts.unseen > 0)
        if different == 1 and counts.values > 1 and counts.missing < counts.values:
            yield f"{ids.column} is the same in all {counts.values:,} places"
    for numbers in figures.numbers:
        if numbers.constant and numbers.counts.values > 1 and numbers.column != "relevance":
            part = f"in {numbers.constant} of its {numbers.size} numbers " if numbers.size > 1 else ""
            yield f"{numbers.column} is {part}the same in all {numbers.counts.values:,} places"


def numbers_not_finite(figures: Inspection) -> Iterator[str]:
    """NaN and infinite numbers, which make every loss NaN."""
    for numbers in figures.numbers:
        count, of = numbers.counts.missing, numbers.counts.values
        if 0 < count < of:
            days = [day for day in figures.days if day.features[numbers.column].missing]
            yield f"{numbers.column}: {count:,} values are not finite, {_percent(count, of)} ({_on(days, figures)})"
    for column, counts in figures.items.features.items():
        if counts.missing and any(numbers.column == column for numbers in figures.numbers):
            yield f"items.arrow, {column}: {counts.missing:,} values are not finite"


def huge_numbers(figures: Inspection) -> Iterator[str]:
    """Numbers that no network takes as they are."""
    for numbers in figures.numbers:
        largest = max(abs(numbers.min), abs(numbers.max))
        if _is_input(numbers.column) and numbers.counts.missing < numbers.counts.values and largest > HUGE:
            yield (
                f"{numbers.column} goes from {numbers.min:g} to {numbers.max:g}: log1p, standardise or bucketize would "
                "tame it"
            )


def unseen_ids(figures: Inspection) -> Iterator[str]:
    """Features of which too much was not known when ids were given out."""
    for ids in figures.ids:
        if ids.counts.unseen > MANY_UNSEEN * ids.counts.values:
            yield f"{ids.column}: {_percent(ids.counts.unseen, ids.counts.values)} of the ids were never seen"


def growing_unseen_ids(figures: Inspection) -> Iterator[str]:
    """Features that are known less and less well from day to day."""
    for ids in figures.ids:
        days = [day for day in figures.days if day.features[ids.column].values]
        if len(days) < 2 or ids.counts.unseen > MANY_UNSEEN * ids.counts.values:
            continue
        first, last = (day.features[ids.column] for day in (days[0], days[-1]))
        if last.unseen / last.values - first.unseen / first.values > GROWTH:
            yield (
                f"{ids.column}: ids never seen grow from {_percent(first.unseen, first.values)} on {days[0].name} to "
                f"{_percent(last.unseen, last.values)} on {days[-1].name}"
            )


def full_hash_tables(figures: Inspection) -> Iterator[str]:
    """Features with too few hash buckets."""
    for ids in figures.ids:
        if ids.hashed and ids.distinct > FULL_TABLE * ids.known and not ids.column.startswith("sequence."):
            yield (
                f"{ids.column}: {ids.distinct:,} of {ids.known:,} hash buckets are in use, so many values share one; "
                "raise hash_bucket_size"
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
    """Sequences above their maximum length."""
    for sequence in figures.sequences:
        if sequence.lengths.max > sequence.max_length:
            longest = sequence.lengths.max
            yield f"sequence {sequence.name!r} has up to {longest:,} events, at most {sequence.max_length:,} fit"


def leaking_sequences(figures: Inspection) -> Iterator[str]:
    """Sequences that know what the request will lead to."""
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
                f"of the impressions ({feature}); the history may know the future"
            )


CHECKS: list[Check] = [
    uneven_lists,
    ids_outside,
    wrong_depths,
    unknown_items,
    unsorted_items,
    repeated_items,
    repeated_requests,
    empty_impressions,
    no_relevant_items,
    impressions_without_relevant,
    everything_relevant,
    empty_stages,
    short_stages,
    contradicting_relevance,
    contradicting_grades,
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


# --- words ------------------------------------------------------------------------------------------------------


def _found(figures: Inspection, figure: str) -> Iterator[tuple[int, str]]:
    """The sum of a figure over the days, and where it is above 0; nothing if it is 0 everywhere."""
    days = [day for day in figures.days if getattr(day, figure)]
    if days:
        yield sum(getattr(day, figure) for day in days), _on(days, figures)


def _is_input(column: str) -> bool:
    return column.split(".")[0] in ("user", "context", "item")


def _on(days: list[DayFigures], figures: Inspection) -> str:
    """On which days."""
    if len(days) == len(figures.days) > 1:
        return f"on all {len(days)} days"
    names = [day.name for day in days]
    return f"on {', '.join(names)}" if len(names) <= 3 else f"on {len(names)} days, {names[0]} to {names[-1]}"


def _percent(count: int, of: int) -> str:
    return f"{count / max(of, 1):.1%}"
