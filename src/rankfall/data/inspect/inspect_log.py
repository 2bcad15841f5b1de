"""Read a log and compute its figures and warnings."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from rankfall.data.inspect.checks import find_warnings
from rankfall.data.inspect.counters import IdCounter, NumberCounter, repeated_requests
from rankfall.data.inspect.day_counter import DayCounter, LogCounter
from rankfall.data.inspect.inspection import Inspection, StageFigures, ValueCounts, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall.data.impressions.log import Day, ImpressionLog
    from rankfall.data.inspect.inspection import DayFigures


def inspect(
    log: ImpressionLog, *, days: Sequence[Day] | None = None, on_day: Callable[[str], None] = lambda day: None
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
        stages=[reduce(_add, stages) for stages in zip(*(day.stages for day in figures), strict=True)],
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


def _add(one: StageFigures, other: StageFigures) -> StageFigures:
    return replace(
        one,
        items=one.items + other.items,
        relevant=one.relevant + other.relevant,
        empty=one.empty + other.empty,
        short=one.short + other.short,
    )
