"""Logs, examination curves and searches as blocks."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from rankfall.reporting.blocks import Block, Cell, Row, Table, Text, flow, words
from rankfall.reporting.charts import (
    GRID,
    Axes,
    Chart,
    Key,
    Panel,
    Scale,
    Strip,
    circle,
    color,
    grid,
    line,
    on_axis,
    round_powers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.data.inspect.inspection import Bin, Inspection, LogWarning
    from rankfall.examination import ExaminationCurve
    from rankfall.studies.results import SearchResult, TrialResult

BAR = 40  # characters of the longest bar of a histogram
_BELOW = 26  # pixels: labels below a chart
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
    yield Table(
        ["day", "impressions", "items", "first", "last", "list length", "relevant", "without"],
        [
            [
                day.name,
                f"{day.impressions:,}",
                f"{day.items:,}",
                _time(day.first_time, inspection),
                _time(day.last_time, inspection),
                f"{day.lengths.min} to {day.lengths.max}, median {day.lengths.median:g}",
                f"{day.relevant / max(day.impressions, 1):.2f}",
                _share(day.without_relevant, day.impressions),
            ]
            for day in inspection.days
        ],
        title=f"days, times in {inspection.zone}",
        caption="relevant: items per impression; without: impressions without a relevant item",
    )
    yield Table(
        ["stage", "items", "per impression", "sample", "fewer", "none", "relevant"],
        [
            [
                stage.name,
                f"{stage.items:,}",
                f"{stage.items / max(impressions, 1):.2f}",
                "all" if stage.sample is None else f"{stage.sample}",
                "-" if stage.sample is None else _share(stage.short, impressions),
                _share(stage.empty, impressions),
                _share(stage.relevant, stage.items),
            ]
            for stage in inspection.stages
        ],
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
        yield Table(
            ["feature", "embedding", "values", "different", "of", "missing", "never seen"],
            [
                [
                    ids.column,
                    words(ids.table),
                    f"{ids.counts.values:,}",
                    f"{ids.distinct:,}",
                    f"{ids.known:,}",
                    _share(ids.counts.missing, ids.counts.values),
                    _share(ids.counts.unseen, ids.counts.values),
                ]
                for ids in inspection.ids
            ],
            title="ids",
        )
    yield Table(
        ["feature", "values", "min", "mean", "max", "deviation", "missing", "replaced"],
        [
            [
                numbers.column if numbers.size == 1 else f"{numbers.column} ({numbers.size} numbers)",
                f"{numbers.counts.values:,}",
                *(f"{value:.4g}" for value in (numbers.min, numbers.mean, numbers.max, numbers.deviation)),
                _share(numbers.counts.missing, numbers.counts.values),
                "-" if numbers.replaced is None else f"{numbers.replaced:.1%}" if numbers.replaced else "0",
            ]
            for numbers in inspection.numbers
        ],
        title="numbers",
        caption="replaced: values that were missing when the log was prepared",
    )
    if inspection.sequences:
        yield Table(
            ["sequence", "shortest", "mean", "longest", "maximum", "empty"],
            [
                [
                    one.name,
                    f"{one.lengths.min}",
                    f"{one.lengths.mean:.1f}",
                    f"{one.lengths.max}",
                    f"{one.max_length}",
                    _share(one.lengths.empty, one.lengths.count),
                ]
                for one in inspection.sequences
            ],
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
        Table(
            ["position", "shows", "clicks", "naive", "estimate", "95 % interval"],
            [
                [
                    str(point.position),
                    f"{point.shows:,}",
                    f"{point.clicks:,}",
                    f"{point.naive:.3f}",
                    f"{point.examination:.3f}",
                    "" if point.position == 0 else f"{point.low:.3f} to {point.high:.3f}",
                ]
                for point in curve.points
            ],
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
    up = Scale.around([one.value or 0.0 for one, *_ in points])
    fills = {"complete": color(0), "ended early": color(5), "best": color(2)}

    def dots(places: Sequence[float], axes: Axes) -> list[str]:
        placed = sorted(zip(places, points, strict=True), key=lambda pair: pair[1][1] == "best")  # drawn last
        drawn = [circle(axes.x(x), axes.y(one.value or 0.0), 4.2, fills[kind]) for x, (one, kind, _) in placed]
        return [*grid(axes), *drawn]

    numbers = [float(one.trial) for one, *_ in points]
    along = Scale.around(numbers, edge=0.03)
    axes = Axes(along, up, [tick for tick in along.ticks(8) if tick == int(tick) and tick >= 0])
    steps = []
    for (one, _, best), (other, _, after) in pairwise(point for point in points if not math.isnan(point[2])):
        x, next_x = axes.x(one.trial), axes.x(other.trial)
        steps.append(line(x, axes.y(best), next_x, axes.y(best), GRID, 2))
        steps.append(line(next_x, axes.y(best), next_x, axes.y(after), GRID, 2))
    panels = [Panel([Strip([*steps, *dots(numbers, axes)], axes.height + _BELOW)], "by trial")]
    for key, space in result.search.items():
        values: list[Any] = [one.settings.get(key) for one, *_ in points]
        if all(type(value) in (int, float) for value in values):
            log = isinstance(space, dict) and bool(space.get("log"))
            along = Scale.around(values, log=log)
            axes = Axes(along, up, round_powers(values) if log else along.ticks(3))
            panels.append(Panel([Strip(dots(values, axes), axes.height + _BELOW)], key))
            continue
        strips = []  # a row for each choice, whose names are long
        for choice in dict.fromkeys(map(setting_text, values)):
            chosen = [point for point, value in zip(points, values, strict=True) if setting_text(value) == choice]
            drawn = [circle(up(one.value or 0.0), 10, 4.2, fills[kind]) for one, kind, _ in chosen]
            strips.append(Strip(drawn, 20, choice))
        panels.append(Panel(on_axis(strips, up), key))
    count, pruned = len(result.trials), sum(trial.state == "pruned" for trial in result.trials)
    return Chart(
        title=f"Search in {name}",
        label=f"Validation {result.metric} of each trial",
        panels=panels,
        legend=[Key(kind, fill) for kind, fill in fills.items()],
        caption=f"Validation {result.metric} of {count} trial{'s' * (count != 1)}, {pruned} of them pruned.",
        least=240,
    )


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
