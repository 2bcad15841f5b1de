"""The page of a stream, and its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reporting import charts
from rankfall.reporting.comparison_page import failure_table, method_sections
from rankfall.reporting.comparison_table import short
from rankfall.reporting.figures import Lines
from rankfall.reporting.page import Cell, Table, metric_cell, render
from rankfall.reporting.stream_table import curves, day_rows
from rankfall.reporting.svg import whole_ticks
from rankfall.reporting.verdicts import caption

if TYPE_CHECKING:
    from markupsafe import Markup

    from rankfall.reporting.figures import Record
    from rankfall.studies.results import DayResult, StreamResult

SHOWN = 14  # days of the table, the last ones; earlier days are folded


def stream_page(result: StreamResult, *, title: str, config: str = "", command: str = "") -> str:
    """Return the page of a stream as HTML; `command` repeats the stream."""
    days, earlier = _day_tables(result)
    content = method_sections(result, result.metric if result.metric in result.metrics else result.metrics[0])
    content |= {
        "about": _about(result),
        "curves": _curves(result),
        "days": days,
        "earlier_days": earlier,
        "refused": failure_table(result.refused),
    }
    return render("stream.html", title, config=config, command=command, **content)


def stream_figure(result: StreamResult) -> Lines:
    """Return the stream's metric on each day, with bands of one standard deviation, and the lead over the first."""
    metric, seeds, days = result.metric, len(result.seeds), result.learned
    first = result.methods[0].name if len(result.methods) > 1 else None
    rows: list[Record] = []
    for entry in result.days:
        number = days.index(entry.day) + 1
        rows += _points(entry, number, metric, seeds)
        rows += _leads(entry, number, metric, first) if first else []
    bands = f", bands of one standard deviation over {seeds} seeds" if seeds > 1 else ""
    return Lines(
        rows=sorted(rows, key=lambda row: row["panel"] != metric),
        title=f"{metric} of each day, with the weights before it",
        subtitle=f"{len(days)} days, first {days[0]}{bands}",
        x="day",
        y=metric,
        series="method",
        ticks=whole_ticks([row["x"] for row in rows]),
    )


def _about(result: StreamResult) -> str:
    days = result.learned
    if len(days) == 1:
        return f"One day, {days[0]}, has been trained on. Later days are measured before they are trained on."
    span = f"{len(days)} days, {days[0]} to {days[-1]}"
    return f"{span}. Each day was measured with the weights before it, then trained on once."


def _curves(result: StreamResult) -> Markup | None:
    found = curves(result)
    if not found:
        return None
    ends = ", ".join(f"{name} from {short(points[0][1])} to {short(points[-1][1])}" for name, points in found.items())
    label = f"{result.metric} of each day, with the weights before it: {ends}"
    first = result.learned[0]
    return charts.curves(found, label=label, caption=f"By number of the day; the first, {first}, is not measured.")


def _day_tables(result: StreamResult) -> tuple[Table | None, Table | None]:
    """Return the tables of the last days and of the days before them."""
    names = list(curves(result))
    body: list[list[str | Cell]] = [
        [day, *(metric_cell(cells[name]) if name in cells else "none" for name in names), chance]
        for day, cells, chance in day_rows(result)
    ]
    head = ["day", *names, "chance"]
    below = f"{result.metric}, mean over impressions. {caption(result, best='Bold: best mean', unit='impressions')}"
    last, earlier = body[-SHOWN:], body[:-SHOWN]
    return Table(head, last, caption=below) if last else None, Table(head, earlier) if earlier else None


def _points(entry: DayResult, number: int, metric: str, seeds: int) -> list[Record]:
    points: list[Record] = []
    for method in entry.methods:
        summary = method.metrics[metric]
        point = {"series": method.name, "x": number, "y": summary.mean, "panel": metric}
        ends = {"low": summary.mean - summary.std, "high": summary.mean + summary.std} if seeds > 1 else {}
        points.append(point | ends)
    return points


def _leads(entry: DayResult, number: int, metric: str, first: str) -> list[Record]:
    """Return how far methods are ahead of the first on a day."""
    means = {method.name: method.metrics[metric].mean for method in entry.methods}
    if first not in means:
        return []
    panel = f"ahead of {first}"
    return [{"series": name, "x": number, "y": mean - means[first], "panel": panel} for name, mean in means.items()]
