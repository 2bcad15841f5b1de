"""The page of a stream, and its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting import charts
from rankfall.reporting.comparison_page import failure_table, method_funnels, method_sections
from rankfall.reporting.comparison_table import short
from rankfall.reporting.figures import Lines
from rankfall.reporting.funnel_chart import stages_in
from rankfall.reporting.page import Cell, Table, metric_cell, render, sentences
from rankfall.reporting.stream_table import chance_curve, curves, day_rows
from rankfall.reporting.svg import whole_ticks
from rankfall.reporting.verdicts import caption, main_metric, makes_claims
from rankfall.training.config.component_checks import higher_is_better, shown_name

if TYPE_CHECKING:
    from rankfall.reporting.chart import Chart
    from rankfall.reporting.figures import Record
    from rankfall.studies.results import DayResult, StreamResult

SHOWN = 14  # days of the table, the last ones; earlier days are folded


def stream_page(result: StreamResult, *, title: str, config: str = "", command: str = "") -> str:
    """Return the page of a stream as HTML; `command` repeats the stream."""
    return render("stream.html", title, config=config, command=command, advice=None, **stream_content(result))


def stream_content(result: StreamResult) -> dict[str, Any]:
    """Return the parts of the page of a stream that show its result, for the template."""
    days, earlier = _day_tables(result)
    metric = main_metric(result)
    return {
        **method_sections(result, metric),
        "about": _about(result),
        "funnels": _funnels(result, metric),
        "warnings": sentences(result.warnings),
        "settings": None,
        "curves": _curves(result),
        "days": days,
        "earlier_days": earlier,
        "refused": failure_table(result.refused),
    }


def stream_figure(result: StreamResult) -> Lines:
    """Return the stream's metric on each day, with bands of one standard deviation, and the lead over the first."""
    metric, seeds, days = result.metric, len(result.seeds), result.learned
    first = result.methods[0].name if len(result.methods) > 1 else None
    rows: list[Record] = []
    for entry in result.days:
        number = days.index(entry.day) + 1
        rows += _points(entry, number, metric, seeds)
        rows += _leads(entry, number, metric, first) if first else []
    rows += [{"series": "chance", "x": number, "y": level, "panel": metric} for number, level in chance_curve(result)]
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


def _funnels(result: StreamResult, metric: str) -> Chart | None:
    """Return the funnels of the last day that was measured."""
    measured = [entry for entry in result.days if entry.methods]
    if not measured:
        return None
    last = measured[-1]
    about = f"The last measured day, {last.day}, before it was trained on: means over {last.impressions:,} impressions."
    return method_funnels(last.methods, metric, caption=about)


def _curves(result: StreamResult) -> Chart | None:
    """Return the metric of the stream and what each stage lost, day by day."""
    found = curves(result)
    if not found:
        return None
    stages = stages_in(result.metrics)
    metric = shown_name(result.metric)
    panels = {metric: {**found, "chance": chance_curve(result)}} | {
        f"lost at {stage}": curves(result, f"{stage}/lost") for stage in stages
    }
    ends = ", ".join(f"{name} from {short(points[0][1])} to {short(points[-1][1])}" for name, points in found.items())
    label = f"{metric} of each day, with the weights before it: {ends}"
    arrow = "higher" if higher_is_better(result.metric) else "lower"
    caption = f"By number of the day; the first, {result.learned[0]}, is not measured. {metric}: {arrow} is better"
    caption += "; lost, as a share of the relevant items: lower is better." if stages else "."
    return charts.curve_panels(panels, label=label, caption=caption, title="Day by day")


def _day_tables(result: StreamResult) -> tuple[Table | None, Table | None]:
    """Return the tables of the last days and of the days before them."""
    names = list(curves(result))
    body: list[list[str | Cell]] = [
        [day, *(metric_cell(cells[name]) if name in cells else "none" for name in names), chance]
        for day, cells, chance in day_rows(result)
    ]
    head = ["day", *names, "chance"]
    marks = f" {caption(result, best='Bold: best mean', unit='impressions')}." if makes_claims(result) else ""
    below = f"{shown_name(result.metric)}, mean over impressions.{marks}"
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
