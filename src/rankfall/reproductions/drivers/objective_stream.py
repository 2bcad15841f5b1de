"""Objectives of a cascade in a stream: every day is tested with the models of the days before, then trained on."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import Lines
from rankfall.reporting.files import write_stream
from rankfall.reproductions.protocols import CASCADE_RATES, cascade_deviations, method_sections, stream_config
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet, few_seeds_note
from rankfall.studies.stream.run_stream import STREAM_CONFIG, stream_methods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankfall.reproductions.log_data import LogData
    from rankfall.reproductions.paper_schema import ObjectiveStream
    from rankfall.reproductions.task import Task
    from rankfall.studies.results import StreamResult
    from rankfall.studies.stream.stream_config import StreamConfig

    Curves = Mapping[str, Sequence[float]]  # a value per tested day, by method


def run(reproduction: ObjectiveStream, task: Task) -> Report:
    """Stream every objective, without tuning, over the days of the log."""
    protocol = reproduction.protocol
    data = task.log(protocol.platform)
    sections = method_sections(reproduction.methods, CASCADE_RATES, tune=False)
    seeds = task.cascade_seeds[: reproduction.seeds]
    config = stream_config(protocol, data, sections, seeds=seeds, lists=reproduction.lists)
    directory = f"stream-{len(data.train) + 2}x{data.train_impressions}-{task.seed}"
    result = _stream(task, config, task.out / directory)
    curves = curves_of(result)
    days = next(iter(curves.values()), ())
    early = first_phase(len(days), reproduction.phases)
    return Report(
        sheets=[_phases(reproduction, curves, early), _days(reproduction, result, curves)] if curves else [],
        plots={reproduction.id: _figure(reproduction, data, result)} if curves else {},
        results={
            "comparison": result.to_json(),
            "phases": {"days": [early, len(days) - early], "published_days": reproduction.phases},
            "ahead": ahead(curves, reproduction.leader),
            "data": {**data.summary(), "about": _description(data)},
        },
        notes=[*few_seeds_note(seeds), *cascade_deviations(protocol, data), *reproduction.notes],
    )


def _description(data: LogData) -> str:
    days = len(data.train) + 2
    impressions = round(days * data.train_impressions / len(data.train))
    return (
        f"{data.name}: about {impressions:,} impressions of {days} days, lists of {data.items:.4g} items. Every day "
        "but the first is tested with models that were trained on the days before."
    )


def _stream(task: Task, config: StreamConfig, out: Path) -> StreamResult:
    """Train the missing days in a directory."""
    runs, done = len(config.methods) * len(config.seeds), 0

    def on_run(run: Any) -> None:
        nonlocal done
        done += 1
        task.progress(f"{run.method}, seed {run.seed}", done, runs)

    begun = (out / STREAM_CONFIG).is_file()
    result = stream_methods(config, out, resume=begun, jobs=task.jobs, on_run=on_run, on_notice=task.on_notice)
    write_stream(result, out)
    return result


# --- curves -------------------------------------------------------------------------------------------------------


def curves_of(result: StreamResult) -> dict[str, list[float]]:
    """Return the metric of the stream on every tested day, for the methods that were tested on all of them."""
    names = [method.name for method in result.methods]
    by_day = [{method.name: method.metrics[result.metric].mean for method in day.methods} for day in result.days]
    return {name: [means[name] for means in by_day if means] for name in names}


def first_phase(days: int, phases: Sequence[int]) -> int:
    """Return the length of the first phase of a stream, in the published proportion; each phase has a day.

    >>> first_phase(21, (10, 12)), first_phase(4, (10, 12)), first_phase(1, (10, 12))
    (10, 2, 1)
    """
    return max(1, min(days - 1, round(days * phases[0] / sum(phases))))


def ahead(curves: Curves, leader: str) -> list[float]:
    """Return by how much the leader is ahead of the best other method on each day; negative: it is behind."""
    others = [curve for name, curve in curves.items() if name != leader]
    if leader not in curves or not others:
        return []
    return [value - max(others_of_day) for value, *others_of_day in zip(curves[leader], *others, strict=True)]


# --- the report ---------------------------------------------------------------------------------------------------


def _phases(reproduction: ObjectiveStream, curves: Curves, early: int) -> Sheet:
    """Means of both phases, and the lead of the paper's method in them."""
    days = len(next(iter(curves.values())))

    def row(name: str, values: Sequence[float], form: str) -> list[str]:
        parts = (values[:early], values[early:], values[-1:])
        means = [fmean(part) if part else math.nan for part in parts]
        return [name, *(format_value(mean, 4) if form == "level" else f"{mean:+.4f}" for mean in means)]

    rows = [row(name, curve, "level") for name, curve in curves.items()]
    gap = ahead(curves, reproduction.leader)
    if gap:
        rows += [[], row(f"{reproduction.leader} - best other of the day", gap, "difference")]
    first, later = reproduction.phases
    return Sheet(
        f"{reproduction.title}: mean {reproduction.metric} of the first {early} and of the later {days - early} tested "
        f"days (in the paper {first} and {later})",
        ["method", "first days", "later days", "last day"],
        rows,
    )


def _days(reproduction: ObjectiveStream, result: StreamResult, curves: Curves) -> Sheet:
    days = [day.day for day in result.days if day.methods]
    rows = [[day, *(format_value(curve[number], 4) for curve in curves.values())] for number, day in enumerate(days)]
    return Sheet(f"{reproduction.title}: {result.metric} by day", ["day", *curves], rows)


def _figure(reproduction: ObjectiveStream, data: LogData, result: StreamResult) -> Lines:
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    rows = [
        {
            "series": method.name,
            "x": numbers[day.day],
            "y": method.metrics[result.metric].mean,
            "low": method.metrics[result.metric].low,
            "high": method.metrics[result.metric].high,
        }
        for day in result.days
        for method in day.methods
    ]
    return Lines(
        rows,
        title=f"{reproduction.title}: {result.metric} of every day, trained on the days before",
        subtitle=f"{data.name}; band: 95 % confidence interval over impressions",
        x="day",
        y=result.metric,
        series="",
    )
