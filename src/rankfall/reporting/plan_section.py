"""The plan of a run on its page: the front of quotas, the choice and the costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.chart import Chart, Key, Panel, Strip
from rankfall.reporting.charts import Axes, Series, grid, lines
from rankfall.reporting.comparison_table import short
from rankfall.reporting.estimates import with_interval
from rankfall.reporting.page import Cell, Table, estimate_cell
from rankfall.reporting.plan_table import (
    COST_HEAD,
    conclusions,
    cost_note,
    cost_rows,
    front_note,
    headline,
    mark_of,
    shown_front,
)
from rankfall.reporting.svg import GRID, INK, Scale, circle, color, line, round_powers, text
from rankfall.studies.plan.plan_quotas import SECONDS, show_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.studies.plan.plan_result import FrontPoint, PlanResult

_HEIGHT, _BELOW = 220, 44  # pixels: the chart, and its labels below
_LAST = 93  # percent of the width, beyond which a label would be cut
_ROWS = 10  # of the front in the table
_QUOTAS, _CURRENT, _CHOSEN = color(0), color(1), color(2)


def plan_section(result: PlanResult) -> dict[str, Any]:
    """Return the parts of the section ``plan_section.html`` of a page."""
    return {
        "headline": headline(result),
        "conclusions": list(conclusions(result)),
        "warnings": result.warnings,
        "chart": front_chart(result),
        "front": _front_table(result),
        "costs": _costs_table(result),
        "overrides": " ".join(result.chosen.train_overrides),
        "export_options": " ".join(result.chosen.export_options),
    }


# --- tables -------------------------------------------------------------------------------------------------------


def _front_table(result: PlanResult) -> Table:
    body: list[list[str | Cell]] = []
    for point in shown_front(result, _ROWS):
        mark = mark_of(point, result)
        kind = "best" if mark.startswith("chosen") else ""
        quotas = [f"{quota:,}" for quota in point.quotas]
        value = estimate_cell(point.value, short, kind)
        body.append([*quotas, Cell(show_cost(point.cost, result.unit), kind, below=mark), value])
    head = [*result.stages, "cost", result.metric]
    below = f"Below each value its 95 % interval over {result.resampled}."
    return Table(head, body, caption=f"{front_note(result, _ROWS)} {below}")


def _costs_table(result: PlanResult) -> Table:
    body: list[list[str | Cell]] = [[stage, *map(_with_error_below, costs)] for stage, *costs in cost_rows(result)]
    return Table(COST_HEAD, body, caption=cost_note(result))


def _with_error_below(text: str) -> Cell:
    value, sign, error = text.partition("±")
    return Cell(value.strip(), below=f"{sign} {error}".strip())


# --- charts -------------------------------------------------------------------------------------------------------


def front_chart(result: PlanResult) -> Chart:
    """Return cost and value of all quotas, with the front, the current and the chosen quotas."""
    axes, factor, unit = _axes(
        [point.cost for point in result.points],
        [
            *(point.value for point in result.points),
            *(end for point in result.front for end in (point.value.low, point.value.high)),
        ],
        result.unit,
    )
    on_front = {tuple(point.quotas) for point in result.front}
    cloud = [
        circle(axes.x(point.cost / factor), axes.y(point.value), 1.8, GRID)
        for point in result.points
        if tuple(point.quotas) not in on_front
    ]
    current, chosen = result.current.point, result.chosen.point
    marks = [*_ring(current, axes, factor, _CURRENT, 7.0), *_ring(chosen, axes, factor, _CHOSEN, 4.5)]
    parts = [*cloud, *grid(axes), *lines([_series(result.front, factor, _QUOTAS)], axes), *marks]
    return Chart(
        title="Quotas by cost",
        label=(
            f"{result.metric} against the cost of a request for {len(result.points):,} choices of quotas. The front: "
            + "; ".join(
                f"{with_interval(point.value)} for {show_cost(point.cost, result.unit)}"
                for point in shown_front(result, _ROWS)
            )
        ),
        panels=[Panel([Strip([*parts, *_axis_name(unit)], _HEIGHT + _BELOW)])],
        legend=[
            Key("front", _QUOTAS, "line"),
            Key("other quotas", GRID),
            Key("current quotas", _CURRENT),
            Key("chosen quotas", _CHOSEN),
        ],
        caption=f"Up: {result.metric}, with its 95 % interval. Right: cost of a request.",
        rows=[point.to_json() for point in result.points],
    )


def _axes(costs: Sequence[float], values: Sequence[float], unit: str) -> tuple[Axes, float, str]:
    """Return the axes, the number by which costs are divided, and the unit of the result."""
    factor, name = 1.0, {"s": "s", "items": "scored items", "units": "cost"}[unit]
    if unit == "s":
        name, factor = next(((one, size) for one, size in SECONDS.items() if min(costs) >= size), ("ns", 1e-9))
    scaled = [cost / factor for cost in costs]
    log = min(scaled) > 0 and max(scaled) > 5 * min(scaled)
    along = Scale.around(scaled, edge=0.04, log=log)
    ticks = round_powers([along.low, along.high]) if log else along.ticks(6)
    ticks = [tick for tick in ticks if along(tick) < _LAST]
    return Axes(along, Scale.around(values), ticks, height=_HEIGHT), factor, name


def _series(front: Sequence[FrontPoint], factor: float, fill: str) -> Series:
    return Series(
        points=[(point.cost / factor, point.value.value) for point in front],
        color=fill,
        bands=[(point.cost / factor, point.value.low, point.value.high) for point in front],
    )


def _ring(point: FrontPoint, axes: Axes, factor: float, fill: str, radius: float) -> list[str]:
    """Return a dot with its interval."""
    x = axes.x(point.cost / factor)
    return [
        line(x, axes.y(point.value.low), x, axes.y(point.value.high), fill, 2),
        circle(x, axes.y(point.value.value), radius, fill),
    ]


def _axis_name(unit: str) -> list[str]:
    return [
        text(
            100,
            _HEIGHT + 38,
            f"cost of a request ({unit})" if unit != "cost" else "cost of a request",
            anchor="end",
            fill=INK,
        )
    ]
