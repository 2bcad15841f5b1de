"""The tables of a stream, for the terminal and as Markdown: all days together, a curve per method, day by day."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rankfall.reporting.comparison_table import (
    Cell,
    caption_style,
    cell,
    markdown_caption,
    markdown_cell,
    markdown_lines,
    markdown_table,
    short,
    terminal_cell,
    terminal_table,
)
from rankfall.reporting.verdicts import caption

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from rankfall.studies.results import StreamResult

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 60  # characters of a curve, at most
SHOWN = 60  # days of a table, the last ones


def curves(result: StreamResult, metric: str | None = None) -> dict[str, list[tuple[int, float]]]:
    """Return the mean of a metric, by default that of the stream, by the number of the day, for each method."""
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    points: dict[str, list[tuple[int, float]]] = {}
    for entry in result.days:
        for method in entry.methods:
            mean = method.metrics[metric or result.metric].mean
            points.setdefault(method.name, []).append((numbers[entry.day], mean))
    return points


def chance_curve(result: StreamResult) -> list[tuple[int, float]]:
    """Return the chance level of the metric of the stream by the number of the day."""
    numbers = {day: number for number, day in enumerate(result.learned, 1)}
    measured = [entry for entry in result.days if entry.methods]
    return [(numbers[entry.day], entry.methods[0].metrics[result.metric].chance) for entry in measured]


def day_rows(result: StreamResult) -> Iterator[tuple[str, dict[str, Cell], str]]:
    """Yield the name of each day, a cell for each measured method, and the chance level."""
    metric = result.metric
    for entry in result.days:
        verdicts = {verdict.method: verdict for verdict in entry.verdicts if verdict.metric == metric}
        summaries = {method.name: method.metrics[metric] for method in entry.methods}
        cells = {name: cell(summary, verdicts.get(name), few_queries=False) for name, summary in summaries.items()}
        yield entry.day, cells, short(next(iter(summaries.values())).chance) if summaries else ""


def markdown_tables(result: StreamResult) -> str:
    """Return the table of all days together, then that of the single days."""
    names = _measured_methods(result)
    if not names:
        return markdown_table(result)
    lines = [["day", *names, "chance"], ["---"] * (2 + len(names))]
    for day, cells, chance in day_rows(result):
        texts = [markdown_cell(cells[name]) if name in cells else "" for name in names]
        lines.append([day, *texts, chance])
    below = f"{_day_title(result)}. {markdown_caption(result, 'impressions')}"
    warnings = "".join(f"\nWarning: {text}.\n" for text in result.warnings)
    return f"{markdown_table(result)}\n{markdown_lines(lines)}\n\n{below}\n{warnings}"


# --- the terminal -------------------------------------------------------------------------------------------------


def terminal_stream(result: StreamResult) -> RenderableType:
    """Return the table of all days together, the curves, and the table of the single days."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if result.methods and result.unit == "days":
        parts += [terminal_table(result), Text()]
    if curves(result):  # days with too few relevant items are not measured
        parts += [_terminal_curves(result), Text(), _terminal_days(result)]
    return Group(*parts)


def _terminal_curves(result: StreamResult) -> RenderableType:
    """Return a line per method, all on one scale."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.folding import plain_table

    found = {**curves(result), "chance": chance_curve(result)}
    values = [value for points in found.values() for _, value in points]
    low, high = min(values), max(values)
    table = plain_table()
    for heading in ("method", "", "first", "last"):
        table.add_column(heading, no_wrap=True, style="cyan" if heading == "method" else None)
    for name, points in found.items():
        by_day = dict(points)
        curve = [by_day.get(number) for number in range(2, len(result.learned) + 1)]
        table.add_row(name, sparkline(curve, low, high), short(points[0][1]), short(points[-1][1]))
    title = f"{result.metric} day by day, from {short(low)} (lowest) to {short(high)} (highest)"
    return Group(Text(title, style="italic"), table)


def sparkline(values: Sequence[float | None], low: float, high: float, *, width: int = CURVE) -> str:
    """Return one character per value, or per mean of neighbours if there are too many.

    >>> sparkline([0.1, 0.5, None, 0.9], 0.1, 0.9)
    '▁▅ █'
    """
    size = -(-len(values) // width) or 1
    groups = [[one for one in values[i : i + size] if one is not None] for i in range(0, len(values), size)]
    spread = (high - low) or 1.0
    return "".join(
        BLOCKS[min(int((sum(group) / len(group) - low) / spread * len(BLOCKS)), len(BLOCKS) - 1)] if group else " "
        for group in groups
    )


def _terminal_days(result: StreamResult) -> RenderableType:
    """Return one row per day and one column per method, folded to the width of the terminal."""
    from rich.console import Group
    from rich.text import Text

    from rankfall.reporting.folding import FoldedTable, plain_table

    days, names = list(day_rows(result)), _measured_methods(result)
    left_out = len(days) - SHOWN
    title = _day_title(result) + (f"; {left_out} earlier days are in stream.json" if left_out > 0 else "")
    table = plain_table()
    table.add_column("day", no_wrap=True, style="cyan")
    for name in names:
        table.add_column(_wrapped(name, [cells[name].number for _, cells, _ in days if name in cells]))
    table.add_column("chance", style="dim")
    for day, cells, chance in days[-SHOWN:]:
        texts = (terminal_cell(cells[name]) if name in cells else "" for name in names)
        table.add_row(day, *texts, chance)
    marks = Text(caption(result, best="< best mean", unit="impressions"), style=caption_style(result))
    return Group(Text(title, style="italic"), FoldedTable(table), marks)


def _wrapped(name: str, numbers: Sequence[str]) -> str:
    """Return a heading that is not wider than its column, if its words allow."""
    width = max([*map(len, name.split()), *(len(number) + 2 for number in numbers)])
    return textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False)


def _day_title(result: StreamResult) -> str:
    return f"{result.metric} of each day, with the weights before it"


def _measured_methods(result: StreamResult) -> list[str]:
    """Return the methods that were measured on any day, in the order of the stream."""
    measured = {method.name for entry in result.days for method in entry.methods}
    return [name for name in dict.fromkeys(run.method for run in result.runs) if name in measured]
