"""The inspection of a log as tables for the terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from rich.table import Table as RichTable
from rich.text import Text

from rankfall.reporting.terminal import FoldedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from rankfall.data.inspect.inspection import Bin, Inspection, LogWarning
    from rankfall.examination import ExaminationCurve
    from rankfall.reporting.figures import SearchHistory
    from rankfall.studies.results import SearchResult, TrialResult


BAR = 40  # characters of the longest bar of a histogram


def terminal_inspection(inspection: Inspection) -> Iterator[RenderableType]:
    """Yield the tables of an inspection, folded to the width of the terminal, and its warnings."""
    for part in _parts(inspection):
        yield FoldedTable(part) if isinstance(part, RichTable) else part


def _parts(inspection: Inspection) -> Iterator[RenderableType]:
    yield _headline(inspection)
    yield _days(inspection)
    yield _stages(inspection)
    uses = _uses_of_labels(inspection)
    yield from (_histogram(f"{label}: {uses[label]}", bins) for label, bins in inspection.labels.items())
    if any(day.feedback for day in inspection.days):
        yield _feedback(inspection)
    if inspection.ids:
        yield _ids(inspection)
    yield _numbers(inspection)
    if inspection.sequences:
        yield _sequences(inspection)
    yield terminal_warnings(inspection.warnings)


def _table(title: str, left: list[str], right: list[str]) -> RichTable:
    table = RichTable(title=title, title_justify="left", caption_justify="left")
    for heading in left:
        table.add_column(heading, style="cyan")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _headline(inspection: Inspection) -> RenderableType:
    items = sum(day.items for day in inspection.days)
    return Text.assemble(
        (inspection.path, "bold"),
        f": {inspection.impressions:,} impressions, {items:,} items "
        f"({inspection.items.seen:,} different, {inspection.items.rows:,} in the item table)",
    )


def _days(inspection: Inspection) -> RichTable:
    headings = ["impressions", "items", "first", "last", "list length", "relevant", "without"]
    table = _table(f"days, times in {inspection.zone}", ["day"], headings)
    for day in inspection.days:
        lengths = day.lengths
        table.add_row(
            day.name,
            f"{day.impressions:,}",
            f"{day.items:,}",
            _time(day.first_time, inspection),
            _time(day.last_time, inspection),
            f"{lengths.min} to {lengths.max}, median {lengths.median:g}",
            f"{day.relevant / max(day.impressions, 1):.2f}",
            _share(day.without_relevant, day.impressions),
        )
    table.caption = "relevant: items per impression; without: impressions without a relevant item"
    return table


def _stages(inspection: Inspection) -> RichTable:
    table = _table(
        "stages, first to last", ["stage"], ["items", "per impression", "sample", "fewer", "none", "relevant"]
    )
    for stage in inspection.stages:
        table.add_row(
            stage.name,
            f"{stage.items:,}",
            f"{stage.items / max(inspection.impressions, 1):.2f}",
            "all" if stage.sample is None else f"{stage.sample}",
            "-" if stage.sample is None else _share(stage.short, inspection.impressions),
            _share(stage.empty, inspection.impressions),
            _share(stage.relevant, stage.items),
        )
    table.caption = "fewer, none: impressions with fewer items than the sample size, or without items"
    return table


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


def _histogram(label: str, bins: list[Bin]) -> RichTable:
    table = _table(label, ["value"], ["items", "share"])
    table.add_column("")
    total, most = sum(one.count for one in bins), max((one.count for one in bins), default=1)
    for one in bins:
        value = f"{one.low:g}" if one.low == one.high else f"{one.low:g} to {one.high:g}"
        bar = "█" * round(BAR * one.count / most)
        table.add_row(value, f"{one.count:,}", _share(one.count, total), bar)
    return table


def _feedback(inspection: Inspection) -> RichTable:
    table = _table("feedback", ["share of items"], list(inspection.days[0].feedback))
    for day in inspection.days:
        table.add_row(day.name, *(f"{share:.2%}" for share in day.feedback.values()))
    return table


def _ids(inspection: Inspection) -> RichTable:
    headings = ["values", "different", "of", "missing", "never seen"]
    table = _table("ids", ["feature", "embedding"], headings)
    for ids in inspection.ids:
        counts = ids.counts
        table.add_row(
            ids.column,
            ids.table,
            f"{counts.values:,}",
            f"{ids.distinct:,}",
            f"{ids.known:,}",
            _share(counts.missing, counts.values),
            _share(counts.unseen, counts.values),
        )
    return table


def _numbers(inspection: Inspection) -> RichTable:
    table = _table("numbers", ["feature"], ["values", "min", "mean", "max", "deviation", "missing", "replaced"])
    for numbers in inspection.numbers:
        table.add_row(
            numbers.column if numbers.size == 1 else f"{numbers.column} ({numbers.size} numbers)",
            f"{numbers.counts.values:,}",
            *(f"{value:.4g}" for value in (numbers.min, numbers.mean, numbers.max, numbers.deviation)),
            _share(numbers.counts.missing, numbers.counts.values),
            "-" if numbers.replaced is None else f"{numbers.replaced:.1%}" if numbers.replaced else "0",
        )
    table.caption = "replaced: values that were missing when the log was prepared"
    return table


def _sequences(inspection: Inspection) -> RichTable:
    table = _table("sequences", ["sequence"], ["shortest", "mean", "longest", "maximum", "empty"])
    for sequence in inspection.sequences:
        lengths = sequence.lengths
        table.add_row(
            sequence.name,
            f"{lengths.min}",
            f"{lengths.mean:.1f}",
            f"{lengths.max}",
            f"{sequence.max_length}",
            _share(lengths.empty, lengths.count),
        )
    return table


def terminal_warnings(warnings: Sequence[LogWarning]) -> RenderableType:
    """Return the warnings about data, one per line."""
    if not warnings:
        return Text("No warnings.", style="green")
    lines = [
        Text.assemble(("warning: ", "yellow"), warning.message, (f" [{warning.check}]", "dim")) for warning in warnings
    ]
    return Text("\n").join(lines)


def _time(milliseconds: int | None, inspection: Inspection) -> str:
    if milliseconds is None or not inspection.timed:
        return "-"
    time = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(inspection.zone))
    return f"{time:%Y-%m-%d %H:%M}"


def _share(count: int, of: int) -> str:
    """Return a percentage that is 0 only if the count is 0."""
    share = f"{count / max(of, 1):.1%}"
    return "0" if not count else "<0.1%" if share == "0.0%" else share


def terminal_examination(curve: ExaminationCurve) -> RenderableType:
    """Return the positions with their shows, the naive and the estimated examination, and notes."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("position", "shows", "clicks", "naive", "estimate", "95 % interval"):
        table.add_column(heading, justify="right", style="cyan" if heading == "position" else None)
    for point in curve.points:
        table.add_row(
            str(point.position),
            f"{point.shows:,}",
            f"{point.clicks:,}",
            f"{point.naive:.3f}",
            f"{point.examination:.3f}",
            "" if point.position == 0 else f"{point.low:.3f} to {point.high:.3f}",
        )
    given = f" given {', '.join(curve.given)}" if curve.given else ""
    lines = [
        f"Rates are relative to the first position. Estimated by {curve.method}{given}; intervals from "
        f"{curve.resamples} bootstrap samples of {curve.resampled}.",
        *(f"note: {note}" for note in curve.notes),
    ]
    headline = Text(f"{curve.log}: examination of positions, by {curve.feedback} of {curve.requests:,} requests")
    return Group(headline, table, *map(Text, lines))


_STATES = ("complete", "pruned", "running", "failed")


def terminal_search(result: SearchResult) -> RenderableType:
    """Return the trials: complete ones, the best first, then those that were pruned or failed."""
    from rich.text import Text

    from rankfall.reporting.terminal import FoldedTable, plain_table

    table = plain_table(gap=2)
    keys = list(result.search)
    for column in ("trial", "state", result.metric, *keys):
        table.add_column(column)
    for trial in _ordered(result):
        is_best = result.best is not None and trial.trial == result.best.trial
        value = trial_value(trial) + (" <" if is_best else "")
        settings = [setting_text(trial.settings.get(key)) for key in keys]
        style = "bold" if is_best else "" if trial.state == "complete" else "red" if trial.error else "dim"
        table.add_row(*(Text(cell) for cell in (str(trial.trial), trial.state, value, *settings)), style=style)
    return FoldedTable(table)


def search_figure(result: SearchResult, name: str) -> SearchHistory | None:
    """Return the figure of a search, or None if no trial has a value."""
    from rankfall.reporting.figures import SearchHistory

    if all(trial.value is None for trial in result.trials):
        return None
    count, pruned = len(result.trials), sum(trial.state == "pruned" for trial in result.trials)
    return SearchHistory(
        rows=[trial.to_json() for trial in result.trials],
        title=f"Search in {name}",
        subtitle=f"{count} trial{'s' * (count != 1)}, {pruned} of them pruned",
        metric=f"validation {result.metric}",
        higher_is_better=result.higher_is_better,
        logarithmic=[key for key, values in result.search.items() if isinstance(values, dict) and values.get("log")],
    )


def trial_value(trial: TrialResult) -> str:
    """Return the value of a trial as text, empty if it has none."""
    return "" if trial.value is None else f"{trial.value:.4f}"


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as ``key=value`` words."""
    return " ".join(f"{key}={setting_text(value)}" for key, value in settings.items())


def setting_text(value: Any) -> str:
    """Return a setting as YAML, numbers with four digits."""
    from rankfall.reporting.blocks import flow

    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else flow(value).removesuffix("\n...")


def _ordered(result: SearchResult) -> list[TrialResult]:
    sign = -1 if result.higher_is_better else 1
    return sorted(result.trials, key=lambda trial: (_STATES.index(trial.state), sign * (trial.value or 0.0)))
