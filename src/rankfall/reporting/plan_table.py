"""A plan of quotas as tables for the terminal, and the words that its tables and its page share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankfall.reporting.estimates import with_interval
from rankfall.studies.plan.plan_quotas import DEFAULTS, show_cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from rankfall.studies.plan.plan_result import FrontPoint, PlanResult

ROWS = 20  # of the front in a table
COST_HEAD = ("stage", "fixed cost", "cost per item", "items now", "cost now")


def terminal_plan(result: PlanResult) -> RenderableType:
    """Return the costs, and the front with the current and the chosen quotas."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(f"{result.run}: {headline(result)}"),
        _costs_table(result),
        Text(front_note(result, ROWS)),
    ]
    parts.append(_front_table(result))
    parts += map(Text, conclusions(result))
    return Group(*parts)


# --- words --------------------------------------------------------------------------------------------------------


def headline(result: PlanResult) -> str:
    """Return what was planned on which requests."""
    undefined = f", {result.undefined:,} of them without a relevant item" if result.undefined else ""
    return (
        f"{len(result.points):,} choices of quotas, {result.metric} exact on {result.requests:,} requests of "
        f"{', '.join([result.split, *result.overrides])}{undefined}."
    )


def cost_note(result: PlanResult) -> str:
    """Return where the costs come from."""
    if result.cost_source == "measured":
        return (
            "CPU time of single requests, measured on the bundle; ± is the standard error of the line. The search of "
            f"{result.costs[0].stage} costs more the more items it returns."
        )
    if result.cost_source == "defaults":
        return f"No costs were given: {DEFAULTS}."
    return "Costs as given."


def front_note(result: PlanResult, most: int) -> str:
    """Return what a table of the front shows that has at most `most` of its points."""
    shown = sum(point in result.front for point in shown_front(result, most))
    some = "" if shown == len(result.front) else f", {shown} of them shown"
    return f"Quotas that no others beat in cost and {result.metric} at once: {len(result.front):,}{some}."


def conclusions(result: PlanResult) -> Iterator[str]:
    """Yield sentences about the current and the chosen quotas."""
    current, chosen = result.current, result.chosen
    if not current.dominated:
        yield "The current quotas are on the front."
    elif current.best_for_cost.value > current.point.value.value:
        best = current.best_for_cost
        yield (
            f"The current quotas are not on the front: {quotas_text(best.quotas)} have {result.metric} "
            f"{best.value:.4f} for {show_cost(best.cost, result.unit)}."
        )
    else:
        cheapest = current.cheapest_for_value
        yield (
            f"The current quotas are not on the front: {quotas_text(cheapest.quotas)} have the same {result.metric} "
            f"for {show_cost(cheapest.cost, result.unit)}."
        )
    if chosen.point.quotas == current.point.quotas:
        yield f"Chosen: the current quotas ({chosen.reason})."
        return
    yield (
        f"Chosen: {quotas_text(chosen.point.quotas)} ({chosen.reason}). Against the current quotas: {result.metric} "
        f"{with_interval(chosen.difference, '+.4f')}, {chosen.cost_ratio:.2f} times the cost."
    )


def shown_front(result: PlanResult, most: int) -> list[FrontPoint]:
    """Return at most `most` points of the front, evenly spread, and always the chosen and the current quotas."""
    places = np.linspace(0, len(result.front) - 1, min(len(result.front), most))
    front = [result.front[place] for place in sorted({round(place) for place in places})]
    front += [point for point in (result.chosen.point, result.current.point) if point not in front]
    return sorted(front, key=lambda point: (point.cost, point.value.value))


def mark_of(point: FrontPoint, result: PlanResult) -> str:
    """Return whether quotas are the chosen or the current ones."""
    marks = [
        *(["chosen"] if point.quotas == result.chosen.point.quotas else []),
        *(["current"] if point.quotas == result.current.point.quotas else []),
    ]
    return ", ".join(marks)


def cost_rows(result: PlanResult) -> list[list[str]]:
    """Return the rows of the table of costs, below `COST_HEAD`."""
    now = result.current.point
    rows = []
    for cost, items, total in zip(result.costs, now.entered, now.stage_costs, strict=True):
        slope = cost.per_kept or cost.per_item
        per_item = _cost_text(slope, cost.slope_error, result.unit)
        per_item += " per item returned" if cost.per_kept else ""
        fixed = _cost_text(cost.fixed, cost.fixed_error, result.unit)
        rows.append([cost.stage, fixed, per_item, f"{items:,.0f}", show_cost(total, result.unit)])
    return rows


def _cost_text(value: float, error: float | None, unit: str) -> str:
    """Return a cost with its standard error if it was measured."""
    if not value or unit == "items":
        return f"{value:g}"
    return show_cost(value, unit) + (f" ± {show_cost(error, unit)}" if error else "")


def quotas_text(quotas: list[int]) -> str:
    """Return quotas from the first stage to the last."""
    return " → ".join(f"{quota:,}" for quota in quotas)


# --- tables of the terminal ---------------------------------------------------------------------------------------


def _table(*columns: str, words: int = 1) -> Table:
    """Return a table whose first columns are words and whose others are numbers."""
    from rich.table import Table

    table = Table()
    for place, heading in enumerate(columns):
        table.add_column(heading, style="cyan" if place < words else None, justify="left" if place < words else "right")
    return table


def _costs_table(result: PlanResult) -> Table:
    table = _table(*COST_HEAD)
    for row in cost_rows(result):
        table.add_row(*row)
    table.caption = cost_note(result)
    table.caption_justify = "left"
    return table


def _front_table(result: PlanResult) -> Table:
    table = _table(*result.stages, "cost", f"{result.metric} (95 % interval)", "", words=0)
    for point in shown_front(result, ROWS):
        mark = mark_of(point, result)
        cells = [*(f"{quota:,}" for quota in point.quotas), show_cost(point.cost, result.unit)]
        table.add_row(*cells, with_interval(point.value), mark, style="bold" if mark else None)
    return table
