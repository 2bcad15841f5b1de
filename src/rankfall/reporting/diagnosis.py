"""The diagnosis of a run on its page: perfect stages, distance to the cut, segments, agreement, requests."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.reporting import charts
from rankfall.reporting.blocks import Cell, Table, estimate_cell, percent, percent_ends, percents, short, with_interval
from rankfall.reporting.charts import (
    GRID,
    INK,
    Axes,
    Chart,
    Key,
    Panel,
    Scale,
    Series,
    Strip,
    circle,
    color,
    grid,
    line,
    lines,
    round_powers,
    text,
)
from rankfall.studies.plan.plan_quotas import DEFAULTS, SECONDS, show_cost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table as RichTable

    from rankfall.reporting.blocks import Row
    from rankfall.studies.diagnosis.diagnosis_result import (
        Agreement,
        CutDistance,
        Diagnosis,
        Finding,
        LostRequest,
        Segment,
        ShownItem,
        StageDiagnosis,
    )
    from rankfall.studies.plan.plan_result import FrontPoint, PlanResult
    from rankfall.training.cascade_metrics import Estimate


SEGMENTS = 5  # of each stage


def terminal_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """Return the findings first, then the figures that they come from."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"diagnosis: {headline(diagnosis)}", style="bold")]
    parts += [
        Text.assemble(f"{number}. {one.text}", (f" {stake(one.at_stake)}", "dim") if one.at_stake else "")
        for number, one in enumerate(diagnosis.findings, 1)
    ]
    parts += [_stages(diagnosis.stages), *(_segments(stage) for stage in diagnosis.stages if shown(stage.segments))]
    if diagnosis.agreement:
        parts.append(_agreement(diagnosis.agreement))
    parts += [_requests(diagnosis.worst_requests), *(Text(f"note: {note}") for note in diagnosis.notes)]
    return Group(*parts)


# --- words --------------------------------------------------------------------------------------------------------


def headline(diagnosis: Diagnosis) -> str:
    """Return what was diagnosed."""
    lists = "over all items" if diagnosis.all_items else "lists of the log"
    return (
        f"joint recall {with_interval(diagnosis.joint_recall)} on {diagnosis.split}, {lists}, "
        f"n = {diagnosis.requests:,} requests with a relevant item"
    )


def stake(one: Estimate) -> str:
    """Return what a finding is worth."""
    return f"At stake: {with_interval(one, '+.4f')} joint recall"


def shown(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments that no other one explains."""
    return [one for one in segments if one.explained_by is None]


def segments_note(stage: StageDiagnosis, most: int) -> str:
    """Return how the segments of a table were chosen."""
    own, all_found = len(shown(stage.segments)), len(stage.segments)
    text = f"{min(own, most)} of {own} segments" if own > most else f"{own} segment{'s' * (own != 1)}"
    explained = f"; {all_found - own} more that these explain" if all_found > own else ""
    return (
        f"{text} that {stage.stage} keeps significantly less of, of {stage.tested:,} tested (false discovery rate "
        f"5 %){explained}. At stake: joint recall if {stage.stage} kept as much of them as of all other items."
    )


def rank_text(cut: CutDistance, quantile: str) -> str:
    """Return a quantile of the rank divided by the quota; a rank beyond the known ones is a lower bound."""
    value = cut.rank_over_quota[quantile]
    if math.isnan(value):
        return "-"
    beyond = cut.known_up_to is not None and value >= cut.known_up_to
    return f"{'> ' * beyond}{value:.2f}"


def larger_quota_texts(stage: StageDiagnosis) -> Iterator[tuple[str, str]]:
    """Yield each larger quota, and what it would recover."""
    for one in stage.cut.larger_quotas:
        gain = with_interval(one.gain, "+.4f")
        yield f"quota {one.quota:,}", f"{percent(one.passes.value)} of the lost items pass, joint recall {gain}"


# --- tables of the terminal ---------------------------------------------------------------------------------------


def _table(title: str, *headings: str, words: int = 1, caption: str = "") -> RichTable:
    """Return a table whose first columns are words and whose others are numbers."""
    from rich.table import Table as RichTable

    table = RichTable(title=title, title_justify="left", title_style="italic", caption=caption or None)
    table.caption_justify = "left"
    for place, heading in enumerate(headings):
        table.add_column(heading, style="cyan" if place == 0 else "", justify="left" if place < words else "right")
    return table


def _stages(stages: Sequence[StageDiagnosis]) -> RichTable:
    table = _table(
        "joint recall with perfect stages, and how far below the cut the lost items were",
        "stage",
        "if perfect ↑",
        "gain",
        "if all others were ↑",
        "rank/quota: 25 %",
        "50 %",
        "75 %",
        "pass later stages",
    )
    for stage in stages:
        table.add_row(
            stage.stage,
            f"{stage.oracle.perfect.value:.3f}",
            with_interval(stage.oracle.gain, "+.3f"),
            f"{stage.oracle.others_perfect.value:.3f}",
            *(rank_text(stage.cut, quantile) for quantile in ("25", "50", "75")),
            percent(stage.recoverable.value),
        )
    larger = [f"{stage.stage}, {quota}: {text}" for stage in stages for quota, text in larger_quota_texts(stage)]
    table.caption = "\n".join(larger)
    return table


def _segments(stage: StageDiagnosis) -> RichTable:
    headings = ["segment", "n", "kept ↑", "elsewhere", "of items", "of lost", "at stake"]
    table = _table(f"segments that suffer at {stage.stage}", *headings, caption=segments_note(stage, SEGMENTS))
    for one in shown(stage.segments)[:SEGMENTS]:
        table.add_row(
            f"{one.attribute} = {one.value}",
            f"{one.items:,}",
            percents(one.kept),
            percent(one.kept_elsewhere),
            percent(one.share_of_items),
            percent(one.share_of_lost),
            with_interval(one.at_stake, "+.4f"),
        )
    return table


def _agreement(agreement: Sequence[Agreement]) -> RichTable:
    headings = ["stages", "rank correlation", "same choice", "chance", "wanted items that pass", "chance"]
    table = _table("agreement of neighbouring stages", *headings)
    for one in agreement:
        table.add_row(
            " → ".join(one.stages),
            with_interval(one.correlation, ".3f"),
            percents(one.overlap),
            percent(one.overlap_chance),
            "-" if one.wanted is None else percents(one.wanted),
            "-" if one.wanted_chance is None else percent(one.wanted_chance),
        )
    return table


def _requests(requests: Sequence[LostRequest]) -> RichTable:
    headings = ["cause", "request", "recall", "lost", "ranks of the lost items"]
    table = _table(
        "requests that show each cause; their items are in diagnosis.json and on the page", *headings, words=2
    )
    for one in requests:
        ranks = ", ".join(f"{'> ' * item.at_least}{item.rank:,}" for item in one.lost)
        table.add_row(one.cause, one.request, f"{one.recall:.2f}", f"{one.lost_items} of {one.items}", ranks)
    return table


PAGE_SEGMENTS = 8  # of each stage


def diagnosis_section(result: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section ``diagnosis_section.html`` of a page."""
    return {
        "headline": f"Diagnosis of {headline(result)}.",
        "findings": [(one.text, stake(one.at_stake) if one.at_stake else "") for one in result.findings],
        "oracle": oracle_chart(result),
        "cuts": _cuts_table(result.stages),
        "quotas": _quotas_table(result.stages),
        "segments": [_segments_table(stage) for stage in result.stages if shown(stage.segments)],
        "agreement": _agreement_table(result.agreement) if result.agreement else None,
        "requests": [_request(one) for one in result.worst_requests],
        "notes": result.notes,
    }


def oracle_chart(result: Diagnosis) -> Chart:
    """Return the joint recall of the run, with each stage perfect, and with all others perfect."""

    def row(name: str, one: Estimate) -> tuple[str, float, float, float]:
        return name, one.low, one.value, one.high

    rows = [row("this run", result.joint_recall)]
    rows += [row(f"{stage.stage} perfect", stage.oracle.perfect) for stage in result.stages]
    if len(result.stages) > 1:
        rows += [row(f"all but {stage.stage} perfect", stage.oracle.others_perfect) for stage in result.stages]
    told = ", ".join(f"{name} {value:.3f}" for name, _, value, _ in rows)
    return charts.intervals(
        rows,
        label=f"Joint recall with perfect stages: {told}",
        caption="A perfect stage keeps the relevant items that arrive, and then what it keeps now. 95 % intervals.",
        title="Joint recall with perfect stages",
    )


# --- tables -------------------------------------------------------------------------------------------------------


def _number(one: Estimate) -> Cell:
    return estimate_cell(one, "{:.3f}".format)


def _difference(one: Estimate) -> Cell:
    return estimate_cell(one, "{:+.4f}".format)


def _share(one: Estimate) -> Cell:
    return Cell(percent(one.value), below=percent_ends(one))


def _cuts_table(stages: Sequence[StageDiagnosis]) -> Table:
    head = ["stage", "lost", "lost items", "rank / quota, 25 %", "50 %", "75 %", "score distance, 50 %"]
    head.append("would survive later stages")
    body: list[Row] = [
        [
            stage.stage,
            _number(stage.lost),
            f"{stage.cut.items:,}",
            *(rank_text(stage.cut, quantile) for quantile in ("25", "50", "75")),
            "none" if math.isnan(stage.cut.score_distance["50"]) else f"{stage.cut.score_distance['50']:.2f}",
            percent(stage.recoverable.value),
        ]
        for stage in stages
    ]
    caption = (
        "How far below the cut the lost items were: quantiles of their rank divided by the quota, and of the distance "
        "of their scores to that of the last kept item, in standard deviations of the list. The last column is the "
        "share of the lost items that would survive the later stages if they had passed."
    )
    return Table(head, body, caption=caption)


def _quotas_table(stages: Sequence[StageDiagnosis]) -> Table | None:
    """Return what larger quotas of single stages would recover."""
    body: list[Row] = [
        [stage.stage, f"{one.quota:,}", percent(one.passes.value), _difference(one.gain)]
        for stage in stages
        for one in stage.cut.larger_quotas
    ]
    if not body:
        return None
    head = ["stage", "larger quota", "lost items that pass", "joint recall"]
    return Table(head, body, caption="One stage has a larger quota, all others keep theirs: change of joint recall.")


def _segments_table(stage: StageDiagnosis) -> Table:
    head = [f"at {stage.stage}", "items", "kept", "elsewhere", "share of items", "share of lost", "at stake"]
    body = [_segment_row(one) for one in shown(stage.segments)[:PAGE_SEGMENTS]]
    return Table(head, body, caption=segments_note(stage, PAGE_SEGMENTS))


def _segment_row(one: Segment) -> list[str | Cell]:
    return [
        f"{one.attribute} = {one.value}",
        f"{one.items:,}",
        _share(one.kept),
        percent(one.kept_elsewhere),
        percent(one.share_of_items),
        percent(one.share_of_lost),
        _difference(one.at_stake),
    ]


def _agreement_table(agreement: Sequence[Agreement]) -> Table:
    body: list[Row] = [
        [
            " → ".join(one.stages),
            _number(one.correlation),
            _share(one.overlap),
            percent(one.overlap_chance),
            "not measured" if one.wanted is None else _share(one.wanted),
            "" if one.wanted_chance is None else percent(one.wanted_chance),
        ]
        for one in agreement
    ]
    caption = (
        "Rank correlation: of both scores over the items that pass the first stage. Same choice: share of what the "
        "second stage keeps that the first one would choose too. Wanted: share of what the second stage would keep of "
        "all items before the first stage that the first stage passes."
    )
    return Table(
        ["stages", "rank correlation", "same choice", "chance", "wanted items that pass", "chance "],
        body,
        caption=caption,
    )


# --- requests -----------------------------------------------------------------------------------------------------


def _request(one: LostRequest) -> dict[str, Any]:
    """Return the heading of a request, what is known about it, and a table of its items."""
    return {
        "cause": one.cause,
        "title": f"request {one.request} on {one.day}, recall {one.recall:.2f}, "
        f"{one.lost_items} of {one.items} relevant items lost by this cause",
        "about": _attributes(one.attributes),
        "table": _items_table(one),
    }


def _items_table(one: LostRequest) -> Table:
    """Return the lost items and those kept instead, with a column per attribute, which keeps rows low."""
    rows = [("lost", item) for item in one.lost] + [("kept instead", item) for item in one.kept_instead]
    names = list(dict.fromkeys(name for _, item in rows for name in item.attributes))
    body: list[Row] = [
        [item.item, role, _rank(item, one.quota), item.logged, *(item.attributes.get(name, "") for name in names)]
        for role, item in rows
    ]
    return Table(["item", "", f"rank at {one.stage}", "in production", *names], body)


def _rank(item: ShownItem, quota: int) -> str:
    return (
        f"{'> ' * item.at_least}{item.rank:,} of {quota:,}"
        if item.rank <= quota
        else f"{'> ' * item.at_least}{item.rank:,}"
    )


def _attributes(attributes: dict[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in attributes.items())


ROWS = 20  # of the front in a table
COST_HEAD = ("stage", "fixed cost", "cost per item", "items now", "cost now")


def terminal_plan(result: PlanResult) -> RenderableType:
    """Return the costs, and the front with the current and the chosen quotas."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(f"{result.run}: {plan_headline(result)}"),
        _costs_table(result),
        Text(front_note(result, ROWS)),
    ]
    parts.append(_front_table(result))
    parts += map(Text, conclusions(result))
    return Group(*parts)


# --- words --------------------------------------------------------------------------------------------------------


def plan_headline(result: PlanResult) -> str:
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


def _plan_table(*columns: str, words: int = 1) -> RichTable:
    """Return a table whose first columns are words and whose others are numbers."""
    from rich.table import Table as RichTable

    table = RichTable()
    for place, heading in enumerate(columns):
        table.add_column(heading, style="cyan" if place < words else None, justify="left" if place < words else "right")
    return table


def _costs_table(result: PlanResult) -> RichTable:
    table = _plan_table(*COST_HEAD)
    for row in cost_rows(result):
        table.add_row(*row)
    table.caption = cost_note(result)
    table.caption_justify = "left"
    return table


def _front_table(result: PlanResult) -> RichTable:
    table = _plan_table(*result.stages, "cost", f"{result.metric} (95 % interval)", "", words=0)
    for point in shown_front(result, ROWS):
        mark = mark_of(point, result)
        cells = [*(f"{quota:,}" for quota in point.quotas), show_cost(point.cost, result.unit)]
        table.add_row(*cells, with_interval(point.value), mark, style="bold" if mark else None)
    return table


_HEIGHT, _BELOW = 220, 44  # pixels: the chart, and its labels below
_LAST = 93  # percent of the width, beyond which a label would be cut
_ROWS = 10  # of the front in the table
_QUOTAS, _CURRENT, _CHOSEN = color(0), color(1), color(2)


def plan_section(result: PlanResult) -> dict[str, Any]:
    """Return the parts of the section ``plan_section.html`` of a page."""
    return {
        "headline": plan_headline(result),
        "conclusions": list(conclusions(result)),
        "warnings": result.warnings,
        "chart": front_chart(result),
        "front": _page_front(result),
        "costs": _page_costs(result),
        "overrides": " ".join(result.chosen.train_overrides),
        "export_options": " ".join(result.chosen.export_options),
    }


# --- tables -------------------------------------------------------------------------------------------------------


def _page_front(result: PlanResult) -> Table:
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


def _page_costs(result: PlanResult) -> Table:
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


FINDINGS = 5  # findings of a diagnosis, the ones with most recall at stake
CHEAPER = 0.95  # share of the current cost, below which other quotas of the same recall are worth a change


@dataclass(frozen=True)
class Advice:
    """Steps with what they are worth, and commands with what they are for.

    Attributes:
        steps: Text and worth of each step.
        commands: Purpose and text of each command.
        about: A sentence about the run, if the page shows several.
    """

    steps: Sequence[tuple[str, str]]
    commands: Sequence[tuple[str, str]]
    about: str = ""


def advise(run: str, diagnosis: Diagnosis | None, plan: PlanResult | None, overrides: Sequence[str] = ()) -> Advice:
    """Return what to do next about a run, and the commands that find out more.

    Args:
        run: Path of the run directory.
        diagnosis: Diagnosis of the run, if there is one.
        plan: Plan of its quotas, if there is one.
        overrides: What was measured differently from the configuration of the run.
    """
    measured = shlex.join([run, *overrides])
    steps = [(one.text, _stake(one)) for one in (diagnosis.findings[:FINDINGS] if diagnosis else ())]
    commands = []
    if diagnosis is None:
        commands.append(("Find out why each stage loses items:", f"rankfall evaluate {measured} --diagnose"))
    if plan is None:
        commands.append(("Find the quotas that keep most for their cost:", f"rankfall plan {measured}"))
    elif _is_no_better(plan):
        steps.append((f"Keep the quotas: {_why_keep(plan)}.", ""))
    else:
        steps.append((f"Set the quotas to {_quotas(plan, plan.chosen.point)} ({plan.chosen.reason}).", _gain(plan)))
        commands += _apply(run, plan)
    return Advice(steps, commands)


def _is_no_better(plan: PlanResult) -> bool:
    """Whether the chosen quotas cost as much as the current ones and are not distinguishable from them."""
    chosen = plan.chosen
    same = chosen.point.quotas == plan.current.point.quotas
    return same or (chosen.difference.low <= 0 and chosen.cost_ratio > CHEAPER)


def _why_keep(plan: PlanResult) -> str:
    chosen = plan.chosen
    if chosen.point.quotas == plan.current.point.quotas:
        return f"they are the choice of the plan ({chosen.reason})"
    others = f"{_quotas(plan, chosen.point)} ({chosen.reason})"
    difference = with_interval(chosen.difference, "+.3f")
    return f"{others} are not distinguishable from them, {difference} {plan.metric}{_with(plan)}"


def _quotas(plan: PlanResult, point: FrontPoint) -> str:
    return ", ".join(f"{stage} {quota:,}" for stage, quota in zip(plan.stages, point.quotas, strict=True))


def _stake(finding: Finding) -> str:
    one = finding.at_stake
    return "" if one is None else f"at stake: {with_interval(one, '+.3f')} joint recall"


def _gain(plan: PlanResult) -> str:
    difference = with_interval(plan.chosen.difference, "+.3f")
    return f"{difference} {plan.metric} for {plan.chosen.cost_ratio:.2f} of the cost{_with(plan)}"


def _with(plan: PlanResult) -> str:
    """Return what the plan measured differently from the run, since its figures are not those of the page."""
    return f", measured with {', '.join(plan.overrides)}" if plan.overrides else ""


def _apply(run: str, plan: PlanResult) -> list[tuple[str, str]]:
    chosen = plan.chosen
    measured = shlex.join([*chosen.train_overrides, *plan.overrides])
    return [
        ("Measure the planned quotas on this run:", f"rankfall evaluate {run} {measured}"),
        ("Serve them:", f"rankfall export {run} {' '.join(chosen.export_options)} --out BUNDLE"),
    ]
