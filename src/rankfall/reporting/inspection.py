"""Logs, examination curves and searches as blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from rankfall.reporting.blocks import Block, Cell, Row, Table, Text, flow, table_of, words
from rankfall.reporting.charts import GRID, Chart, Panel, Scale, Strip, circle, color, curves, on_axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.data.inspect.inspection import Bin, Inspection, LogWarning
    from rankfall.examination import ExaminationCurve
    from rankfall.studies.results import SearchResult, TrialResult

BAR = 40  # characters of the longest bar of a histogram
_STATES = ("complete", "pruned", "running", "failed")


# --- logs ---------------------------------------------------------------------------------------------------------


def inspection_blocks(inspection: Inspection) -> Iterator[Block]:
    """Yield the tables of an inspection, and its warnings."""
    items, impressions = sum(day.items for day in inspection.days), inspection.impressions
    yield Text(
        f"{inspection.path}: {impressions:,} impressions, {items:,} items ({inspection.items.seen:,} different, "
        f"{inspection.items.rows:,} in the item table)",
        style="bold",
    )
    yield table_of(
        inspection.days,
        {
            "day": lambda day: day.name,
            "impressions": lambda day: f"{day.impressions:,}",
            "items": lambda day: f"{day.items:,}",
            "first": lambda day: _time(day.first_time, inspection),
            "last": lambda day: _time(day.last_time, inspection),
            "list length": lambda day: f"{day.lengths.min} to {day.lengths.max}, median {day.lengths.median:g}",
            "relevant": lambda day: f"{day.relevant / max(day.impressions, 1):.2f}",
            "without": lambda day: _share(day.without_relevant, day.impressions),
        },
        title=f"days, times in {inspection.zone}",
        caption="relevant: items per impression; without: impressions without a relevant item",
    )
    yield table_of(
        inspection.stages,
        {
            "stage": lambda stage: stage.name,
            "items": lambda stage: f"{stage.items:,}",
            "per impression": lambda stage: f"{stage.items / max(impressions, 1):.2f}",
            "sample": lambda stage: "all" if stage.sample is None else f"{stage.sample}",
            "fewer": lambda stage: "-" if stage.sample is None else _share(stage.short, impressions),
            "none": lambda stage: _share(stage.empty, impressions),
            "relevant": lambda stage: _share(stage.relevant, stage.items),
        },
        title="stages, first to last",
        caption="fewer, none: impressions with fewer items than the sample size, or without items",
    )
    uses = _uses_of_labels(inspection)
    for label, bins in inspection.labels.items():
        yield _histogram(f"{label}: {uses[label]}", bins)
    if any(day.feedback for day in inspection.days):
        shares: list[Row] = [
            [day.name, *(f"{share:.2%}" for share in day.feedback.values())] for day in inspection.days
        ]
        yield Table(["share of items", *inspection.days[0].feedback], shares, title="feedback")
    if inspection.ids:
        yield table_of(
            inspection.ids,
            {
                "feature": lambda ids: ids.column,
                "embedding": lambda ids: words(ids.table),
                "values": lambda ids: f"{ids.counts.values:,}",
                "different": lambda ids: f"{ids.distinct:,}",
                "of": lambda ids: f"{ids.known:,}",
                "missing": lambda ids: _share(ids.counts.missing, ids.counts.values),
                "never seen": lambda ids: _share(ids.counts.unseen, ids.counts.values),
            },
            title="ids",
        )
    yield table_of(
        inspection.numbers,
        {
            "feature": lambda one: one.column if one.size == 1 else f"{one.column} ({one.size} numbers)",
            "values": lambda one: f"{one.counts.values:,}",
            "min": lambda one: f"{one.min:.4g}",
            "mean": lambda one: f"{one.mean:.4g}",
            "max": lambda one: f"{one.max:.4g}",
            "deviation": lambda one: f"{one.deviation:.4g}",
            "missing": lambda one: _share(one.counts.missing, one.counts.values),
            "replaced": lambda one: "-" if one.replaced is None else f"{one.replaced:.1%}" if one.replaced else "0",
        },
        title="numbers",
        caption="replaced: values that were missing when the log was prepared",
    )
    if inspection.sequences:
        yield table_of(
            inspection.sequences,
            {
                "sequence": lambda one: one.name,
                "shortest": lambda one: f"{one.lengths.min}",
                "mean": lambda one: f"{one.lengths.mean:.1f}",
                "longest": lambda one: f"{one.lengths.max}",
                "maximum": lambda one: f"{one.max_length}",
                "empty": lambda one: _share(one.lengths.empty, one.lengths.count),
            },
            title="sequences",
        )
    yield from warning_blocks(inspection.warnings)


def _uses_of_labels(inspection: Inspection) -> dict[str, str]:
    """Return where each label comes from, and what uses it."""
    column, stage = inspection.relevant_column, inspection.relevant_stage
    source = f"the column {column!r}" if column is not None else f"items that reached the stage {stage!r}"
    first = "stages" if max(stage.depth for stage in inspection.stages) > 0 else "relevance"
    return {
        "relevance": f"{source}. Metrics, and objectives such as lcron and bce, use it",
        "grade": f"the order of {first}, then ranks. Objectives such as per_stage and fs_lambda_loss train on it, or "
        "on relevance with data.labels=relevance",
    }


def _histogram(label: str, bins: list[Bin]) -> Table:
    total, most = sum(one.count for one in bins), max((one.count for one in bins), default=1)
    rows: list[Row] = []
    for one in bins:
        value = f"{one.low:g}" if one.low == one.high else f"{one.low:g} to {one.high:g}"
        rows.append([value, f"{one.count:,}", _share(one.count, total), words("█" * round(BAR * one.count / most))])
    return Table(["value", "items", "share", ""], rows, title=label)


def warning_blocks(warnings: Sequence[LogWarning]) -> list[Text]:
    """Return the warnings about data, one per line."""
    if not warnings:
        return [Text("No warnings.", style="green")]
    return [Text(f"warning: {one.message} [{one.check}]", style="yellow") for one in warnings]


def _time(milliseconds: int | None, inspection: Inspection) -> str:
    if milliseconds is None or not inspection.timed:
        return "-"
    time = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(inspection.zone))
    return f"{time:%Y-%m-%d %H:%M}"


def _share(count: int, of: int) -> str:
    """Return a percentage that is 0 only if the count is 0."""
    share = f"{count / max(of, 1):.1%}"
    return "0" if not count else "<0.1%" if share == "0.0%" else share


# --- examination --------------------------------------------------------------------------------------------------


def examination_blocks(curve: ExaminationCurve) -> list[Block]:
    """Return the positions with their shows, the naive and the estimated examination, and notes."""
    given = f" given {', '.join(curve.given)}" if curve.given else ""
    return [
        Text(f"{curve.log}: examination of positions, by {curve.feedback} of {curve.requests:,} requests"),
        table_of(
            curve.points,
            {
                "position": lambda point: str(point.position),
                "shows": lambda point: f"{point.shows:,}",
                "clicks": lambda point: f"{point.clicks:,}",
                "naive": lambda point: f"{point.naive:.3f}",
                "estimate": lambda point: f"{point.examination:.3f}",
                "95 % interval": lambda one: "" if one.position == 0 else f"{one.low:.3f} to {one.high:.3f}",
            },
        ),
        Text(
            f"Rates are relative to the first position. Estimated by {curve.method}{given}; intervals from "
            f"{curve.resamples} bootstrap samples of {curve.resampled}."
        ),
        *(Text(f"note: {note}") for note in curve.notes),
    ]


# --- searches -----------------------------------------------------------------------------------------------------


def search_blocks(result: SearchResult) -> list[Block]:
    """Return the trials: complete ones, the best first, then those that were pruned or failed."""
    sign = -1 if result.higher_is_better else 1
    rows: list[Row] = []
    for trial in sorted(result.trials, key=lambda one: (_STATES.index(one.state), sign * (one.value or 0.0))):
        is_best = result.best is not None and trial.trial == result.best.trial
        kind = "chosen" if is_best else "" if trial.state == "complete" else "failed" if trial.error else "soft"
        texts = [str(trial.trial), trial.state, trial_value(trial)]
        texts += [setting_text(trial.settings.get(key)) for key in result.search]
        cells = [Cell(text, kind) for text in texts]
        rows.append([*cells[:2], Cell(texts[2], "best" if is_best else kind), *cells[3:]])
    return [Table(["trial", "state", result.metric, *result.search], rows, framed=False)]


def search_points(trials: Sequence[TrialResult], *, higher_is_better: bool) -> list[tuple[TrialResult, str, float]]:
    """Return the trials with a value, with their kind and the best value until then; NaN before a complete trial."""
    sign = 1 if higher_is_better else -1
    best = max(
        (one for one in trials if one.state == "complete"), key=lambda one: sign * (one.value or 0), default=None
    )
    points, until = [], math.nan
    for one in trials:
        if one.value is not None:
            if one.state == "complete" and not sign * one.value <= sign * until:
                until = one.value
            kind = "best" if one is best else "ended early" if one.state == "pruned" else "complete"
            points.append((one, kind, until))
    return points


def search_chart(result: SearchResult, name: str) -> Chart | None:
    """Return the values of the trials one after the other and by each setting, or None if no trial has a value."""
    points = search_points(result.trials, higher_is_better=result.higher_is_better)
    if not points:
        return None
    fills = {"best so far": GRID, "complete": color(0), "ended early": color(5), "best": color(2)}

    def by_kind(places: Sequence[float]) -> dict[str, list[tuple[float, ...]]]:
        series: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in fills}
        for x, (one, kind, _) in zip(places, points, strict=True):
            series[kind].append((x, one.value or 0.0))
        return series

    panels = {"by trial": by_kind([one.trial for one, *_ in points])}
    panels["by trial"]["best so far"] = [(one.trial, best) for one, _, best in points if not math.isnan(best)]
    of_choices, up = [], Scale.around([one.value or 0.0 for one, *_ in points])
    for key in result.search:
        values: list[Any] = [one.settings.get(key) for one, *_ in points]
        if all(type(value) in (int, float) for value in values):
            panels[key] = by_kind(values)
            continue
        strips: dict[str, list[str]] = {}  # a row for each choice, as their names are long
        for value, (one, kind, _) in zip(values, points, strict=True):
            strips.setdefault(setting_text(value), []).append(circle(up(one.value or 0.0), 10, 4.2, fills[kind]))
        of_choices.append(Panel(on_axis([Strip(drawn, 20, name) for name, drawn in strips.items()], up), key))
    count, pruned = len(result.trials), sum(trial.state == "pruned" for trial in result.trials)
    chart = curves(
        panels,
        title=f"Search in {name}",
        label=f"Validation {result.metric} of each trial",
        caption=f"Validation {result.metric} of {count} trial{'s' * (count != 1)}, {pruned} of them pruned.",
        log_x=[key for key, values in result.search.items() if isinstance(values, dict) and values.get("log")],
        fills=fills,
        dots=("complete", "ended early", "best"),
    )
    return replace(chart, panels=[*chart.panels, *of_choices])


def trial_value(trial: TrialResult) -> str:
    """Return the value of a trial as text, empty if it has none."""
    return "" if trial.value is None else f"{trial.value:.4f}"


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as ``key=value`` words."""
    return " ".join(f"{key}={setting_text(value)}" for key, value in settings.items())


def setting_text(value: Any) -> str:
    """Return a setting as YAML, numbers with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else flow(value).removesuffix("\n...")
