"""``rankfall data``: show the content of prepared data and warnings about it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rankfall.commands.terminal import Folded, examples, progress, show, show_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from rankfall.data.inspect.figures import Bin, Inspection

EXAMPLES = examples(
    "rankfall data log",
    "rankfall data log --days 2024-01-13..2024-01-19",
    "rankfall data log --verify --json",
    "rankfall data mslr",
)
BAR = 40  # characters


def data(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="An impression log, or ranking data of 'prepare letor'.", show_default=False
        ),
    ],
    days: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DAY or FIRST..LAST", help="Only these days of a log (repeatable).", show_default="all days"
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare all files with their checksums first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Show the content of prepared data, and warn about common mistakes.

    For an impression log: days, stages, labels, features and behaviour sequences, then warnings with the days, features
    and figures concerned. Warnings do not change the exit code; data that cannot be read are an error. For ranking
    data: its splits.
    """
    from rankfall.data.impressions.log import is_log
    from rankfall.data.lists.ranking_data import is_prepared

    if is_log(path):
        _log(path, days, verify=verify, as_json=as_json)
    elif is_prepared(path):
        if days:
            raise typer.BadParameter(f"{path} is ranking data, which has no days", param_hint="--days")
        _ranking_data(path, verify=verify, as_json=as_json)
    else:
        raise ValueError(
            f"path: {path} {_described(path)}; expected an impression log (see 'rankfall prepare' and 'rankfall "
            "simulate') or ranking data (see 'rankfall prepare letor')"
        )


def _described(path: Path) -> str:
    if not path.is_dir():
        return "is a file" if path.exists() else "does not exist"
    if not (path / "manifest.json").exists():
        return "is an unfinished log" if (path / "days").is_dir() else "has no manifest.json"
    return "has a damaged manifest.json, or one of another format"


def _ranking_data(path: Path, *, verify: bool, as_json: bool) -> None:
    from rankfall.commands.prepare.letor import summary
    from rankfall.data.lists.ranking_data import RankingData

    manifest = RankingData.load(path, verify=verify).manifest
    if as_json:
        show_json(manifest)
    else:
        show(summary(manifest, path))


def _log(path: Path, days: list[str] | None, *, verify: bool, as_json: bool) -> None:
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.inspect import inspect

    log = ImpressionLog.load(path, verify=verify)
    chosen = log.choose(days) if days else list(log.days.values())
    with progress() as bar:
        task = bar.add_task("days", total=len(chosen))
        figures = inspect(log, days=chosen, on_day=lambda _: bar.advance(task))
    if as_json:
        show_json(figures.to_json())
    else:
        for part in _report(figures):
            show(Folded(part) if isinstance(part, Table) else part)


# --- tables -----------------------------------------------------------------------------------------------------


def _report(figures: Inspection) -> Iterator[RenderableType]:
    yield _headline(figures)
    yield _days(figures)
    yield _stages(figures)
    yield from (_histogram(label, bins) for label, bins in figures.labels.items())
    if any(day.feedback for day in figures.days):
        yield _feedback(figures)
    if figures.ids:
        yield _ids(figures)
    yield _numbers(figures)
    if figures.sequences:
        yield _sequences(figures)
    yield _warnings(figures)


def _table(title: str, left: list[str], right: list[str]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for heading in left:
        table.add_column(heading, style="cyan")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _headline(figures: Inspection) -> RenderableType:
    from rich.text import Text

    items = sum(day.items for day in figures.days)
    return Text.assemble(
        (figures.path, "bold"),
        f": {figures.impressions:,} impressions, {items:,} items "
        f"({figures.items.seen:,} different, {figures.items.rows:,} in the item table)",
    )


def _days(figures: Inspection) -> Table:
    headings = ["impressions", "items", "first", "last", "list length", "relevant", "without"]
    table = _table(f"days, times in {figures.zone}", ["day"], headings)
    for day in figures.days:
        lengths = day.lengths
        table.add_row(
            day.name,
            f"{day.impressions:,}",
            f"{day.items:,}",
            _time(day.first_time, figures),
            _time(day.last_time, figures),
            f"{lengths.min} to {lengths.max}, median {lengths.median:g}",
            f"{day.relevant / max(day.impressions, 1):.2f}",
            _share(day.without_relevant, day.impressions),
        )
    table.caption = "relevant: items per impression; without: impressions without a relevant item"
    return table


def _stages(figures: Inspection) -> Table:
    table = _table(
        "stages, first to last", ["stage"], ["items", "per impression", "sample", "fewer", "none", "relevant"]
    )
    for stage in figures.stages:
        table.add_row(
            stage.name,
            f"{stage.items:,}",
            f"{stage.items / max(figures.impressions, 1):.2f}",
            "all" if stage.sample is None else f"{stage.sample}",
            "-" if stage.sample is None else _share(stage.short, figures.impressions),
            _share(stage.empty, figures.impressions),
            _share(stage.relevant, stage.items),
        )
    table.caption = "fewer, none: impressions with fewer items than the sample size, or without items"
    return table


def _histogram(label: str, bins: list[Bin]) -> Table:
    table = _table(label, ["value"], ["items", "share"])
    table.add_column("")
    total, most = sum(one.count for one in bins), max((one.count for one in bins), default=1)
    for one in bins:
        value = f"{one.low:g}" if one.low == one.high else f"{one.low:g} to {one.high:g}"
        bar = "█" * round(BAR * one.count / most)
        table.add_row(value, f"{one.count:,}", _share(one.count, total), bar)
    return table


def _feedback(figures: Inspection) -> Table:
    table = _table("feedback", ["share of items"], list(figures.days[0].feedback))
    for day in figures.days:
        table.add_row(day.name, *(f"{share:.2%}" for share in day.feedback.values()))
    return table


def _ids(figures: Inspection) -> Table:
    headings = ["values", "different", "of", "missing", "never seen"]
    table = _table("ids", ["feature", "embedding"], headings)
    for ids in figures.ids:
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


def _numbers(figures: Inspection) -> Table:
    table = _table("numbers", ["feature"], ["values", "min", "mean", "max", "deviation", "missing"])
    for numbers in figures.numbers:
        table.add_row(
            numbers.column if numbers.size == 1 else f"{numbers.column} ({numbers.size} numbers)",
            f"{numbers.counts.values:,}",
            *(f"{value:.4g}" for value in (numbers.min, numbers.mean, numbers.max, numbers.deviation)),
            _share(numbers.counts.missing, numbers.counts.values),
        )
    return table


def _sequences(figures: Inspection) -> Table:
    table = _table("sequences", ["sequence"], ["shortest", "mean", "longest", "maximum", "empty"])
    for sequence in figures.sequences:
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


def _warnings(figures: Inspection) -> RenderableType:
    from rich.text import Text

    if not figures.warnings:
        return Text("No warnings.", style="green")
    lines = [
        Text.assemble(("warning: ", "yellow"), warning.message, (f" [{warning.check}]", "dim"))
        for warning in figures.warnings
    ]
    return Text("\n").join(lines)


def _time(milliseconds: int | None, figures: Inspection) -> str:
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo

    if milliseconds is None or not figures.timed:
        return "-"
    time = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(ZoneInfo(figures.zone))
    return f"{time:%Y-%m-%d %H:%M}"


def _share(count: int, of: int) -> str:
    """Format a percentage; it is 0 only for a count of 0."""
    share = f"{count / max(of, 1):.1%}"
    return "0" if not count else "<0.1%" if share == "0.0%" else share
