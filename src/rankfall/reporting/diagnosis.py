"""What to do about a run: its diagnosis, the plan of its quotas, and the advice that follows, as blocks."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rankfall.reporting import charts
from rankfall.reporting.blocks import (
    Block,
    Cell,
    Code,
    Columns,
    Details,
    Row,
    Steps,
    Table,
    Text,
    estimate_cell,
    percent,
    share_cell,
    table_of,
    warned,
    with_interval,
    words,
)
from rankfall.reporting.charts import GRID, Chart, color, curves
from rankfall.studies.plan.plan_quotas import DEFAULTS, SECONDS, show_cost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.studies.diagnosis.diagnosis_result import (
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

SEGMENTS = 8  # of each stage
ROWS = 20  # of the front in a table
FINDINGS = 5  # findings of a diagnosis, the ones with most recall at stake
CHEAPER = 0.95  # share of the current cost, below which other quotas of the same recall are worth a change


# --- the diagnosis ------------------------------------------------------------------------------------------------


def diagnosis_blocks(result: Diagnosis) -> list[Block]:
    """Return the findings, and the figures that they come from."""
    lists = "over all items" if result.all_items else "lists of the log"
    headline = (
        f"Diagnosis: joint recall {with_interval(result.joint_recall)} on {result.split}, {lists}, "
        f"n = {result.requests:,} requests with a relevant item."
    )
    findings = Steps(
        [
            (one.text, f"At stake: {with_interval(one.at_stake, '+.4f')} joint recall" if one.at_stake else "")
            for one in result.findings
        ]
    )
    return [
        Text(headline, style="bold"),
        *(Text(f"{note}.", "soft") for note in result.notes),
        Details("All findings", [findings], printed=True),
        _oracle_chart(result),
        *_stage_tables(result.stages),
        *(_segments_table(stage) for stage in result.stages if _unexplained(stage.segments)),
        *_agreement_table(result),
        *_request_blocks(result.worst_requests),
    ]


def _oracle_chart(result: Diagnosis) -> Chart:
    """Return the joint recall of the run, with each stage perfect, and with all others perfect."""
    found = {"this run": result.joint_recall}
    found |= {f"{stage.stage} perfect": stage.oracle.perfect for stage in result.stages}
    if len(result.stages) > 1:
        found |= {f"all but {stage.stage} perfect": stage.oracle.others_perfect for stage in result.stages}
    told = ", ".join(f"{name} {one.value:.3f}" for name, one in found.items())
    return charts.dots(
        {"": {name: (one.value, one.low, one.high) for name, one in found.items()}},
        numbers=True,
        label=f"Joint recall with perfect stages: {told}",
        caption="A perfect stage keeps the relevant items that arrive, and then what it keeps now. 95 % intervals.",
        title="Joint recall with perfect stages",
    )


def _number(one: Estimate) -> Cell:
    return estimate_cell(one, "{:.3f}".format)


def _difference(one: Estimate) -> Cell:
    return estimate_cell(one, "{:+.4f}".format)


def _stage_tables(stages: Sequence[StageDiagnosis]) -> Iterator[Table]:
    """Yield what a stage could gain, how far below the cut its lost items were, and what larger quotas recover."""
    yield table_of(
        stages,
        {
            "stage": lambda one: one.stage,
            "lost": lambda one: _number(one.lost),
            "if perfect": lambda one: f"{one.oracle.perfect.value:.3f}",
            "gain": lambda one: estimate_cell(one.oracle.gain, "{:+.3f}".format),
            "if all others were": lambda one: f"{one.oracle.others_perfect.value:.3f}",
            "lost items": lambda one: f"{one.cut.items:,}",
            "rank / quota, 25 %": lambda one: _rank_over_quota(one.cut, "25"),
            "50 %": lambda one: _rank_over_quota(one.cut, "50"),
            "75 %": lambda one: _rank_over_quota(one.cut, "75"),
            "score distance, 50 %": lambda one: _known(one.cut.score_distance["50"], "none"),
            "would survive later stages": lambda one: percent(one.recoverable.value),
        },
        title="Perfect stages, and how far below the cut the lost items were",
        caption="Joint recall if the stage were perfect, or all others. Rank / quota: quantiles over the lost items. "
        "Score distance: to the last kept item, in standard deviations of the list. The last column is the share of "
        "the lost items that would survive the later stages if they had passed.",
        better={"if perfect": "up", "if all others were": "up", "lost": "down"},
        page_only=["lost", "lost items", "score distance, 50 %"],
    )
    larger: list[Row] = [
        [stage.stage, f"{one.quota:,}", percent(one.passes.value), _difference(one.gain)]
        for stage in stages
        for one in stage.cut.larger_quotas
    ]
    if larger:
        head = ["stage", "larger quota", "lost items that pass", "joint recall"]
        caption = "One stage has a larger quota, all others keep theirs: change of joint recall."
        yield Table(head, larger, title="What larger quotas would recover", caption=caption)


def _rank_over_quota(cut: CutDistance, quantile: str) -> str:
    """Return a quantile of the rank divided by the quota; a rank beyond the known ones is a lower bound."""
    value = cut.rank_over_quota[quantile]
    beyond = cut.known_up_to is not None and value >= cut.known_up_to
    return f"{'> ' * beyond}{_known(value, '-')}"


def _known(value: float, unknown: str) -> str:
    return unknown if math.isnan(value) else f"{value:.2f}"


def _unexplained(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments that no other one explains."""
    return [one for one in segments if one.explained_by is None]


def _segments_table(stage: StageDiagnosis) -> Table:
    found = _unexplained(stage.segments)
    own, all_found = len(found), len(stage.segments)
    some = f"{SEGMENTS} of {own} segments" if own > SEGMENTS else f"{own} segment{'s' * (own != 1)}"
    explained = f"; {all_found - own} more that these explain" if all_found > own else ""
    return table_of(
        found[:SEGMENTS],
        {
            "segment": lambda one: f"{one.attribute} = {one.value}",
            "items": lambda one: f"{one.items:,}",
            "kept": lambda one: share_cell(one.kept),
            "elsewhere": lambda one: percent(one.kept_elsewhere),
            "of items": lambda one: percent(one.share_of_items),
            "of lost": lambda one: percent(one.share_of_lost),
            "at stake": lambda one: _difference(one.at_stake),
        },
        title=f"Segments that suffer at {stage.stage}",
        caption=f"{some} that {stage.stage} keeps significantly less of, of {stage.tested:,} tested (false discovery "
        f"rate 5 %){explained}. At stake: joint recall if {stage.stage} kept as much of them as of all other items.",
        better={"kept": "up"},
    )


def _agreement_table(result: Diagnosis) -> list[Table]:
    if not result.agreement:
        return []
    caption = (
        "Rank correlation: of both scores over the items that pass the first stage. Same choice: share of what the "
        "second stage keeps that the first one would choose too. Wanted: share of what the second stage would keep of "
        "all items before the first stage that the first stage passes."
    )
    table = table_of(
        result.agreement,
        {
            "stages": lambda one: " → ".join(one.stages),
            "rank correlation": lambda one: _number(one.correlation),
            "same choice": lambda one: share_cell(one.overlap),
            "chance": lambda one: percent(one.overlap_chance),
            "wanted items that pass": lambda one: "-" if one.wanted is None else share_cell(one.wanted),
            "chance ": lambda one: "-" if one.wanted_chance is None else percent(one.wanted_chance),
        },
        title="Agreement of neighbouring stages",
        caption=caption,
    )
    return [table]


def _request_blocks(requests: Sequence[LostRequest]) -> Iterator[Block]:
    """Yield a table of the requests that show each cause, and for pages a table of the items of each request."""
    rows: list[Row] = []
    folded: list[Block] = []
    for one in requests:
        ranks = ", ".join(f"{'at least ' * item.at_least}{item.rank:,}" for item in one.lost)
        rows.append([one.cause, words(one.request), f"{one.recall:.2f}", f"{one.lost_items} of {one.items}", ranks])
        title = (
            f"{one.cause}: request {one.request} on {one.day}, recall {one.recall:.2f}, {one.lost_items} of "
            f"{one.items} relevant items lost by this cause"
        )
        about = ", ".join(f"{name}: {value}" for name, value in one.attributes.items())
        folded.append(Details(title, [*([Text(about, "soft")] if about else []), _items_table(one)]))
    if rows:
        head = ["cause", "request", "recall", "lost", "ranks of the lost items"]
        yield Table(head, rows, title="Requests that show each cause", only="terminal")
        yield Text("The items of these requests are in diagnosis.json and on the page.", only="terminal")
        yield Details("Requests that show each cause", folded)


def _items_table(one: LostRequest) -> Table:
    """Return the lost items and those kept instead, with a column per attribute, which keeps rows low."""

    def rank(item: ShownItem) -> str:
        text = f"{'at least ' * item.at_least}{item.rank:,}"
        return f"{text} of {one.quota:,}" if item.rank <= one.quota else text

    found = [("lost", item) for item in one.lost] + [("kept instead", item) for item in one.kept_instead]
    names = list(dict.fromkeys(name for _, item in found for name in item.attributes))
    rows: list[Row] = [
        [item.item, role, rank(item), item.logged, *(item.attributes.get(name, "") for name in names)]
        for role, item in found
    ]
    return Table(["item", "", f"rank at {one.stage}", "in production", *names], rows)


# --- the plan -----------------------------------------------------------------------------------------------------


def plan_blocks(result: PlanResult, told: Sequence[str] = ()) -> list[Block]:
    """Return the costs, the front with the current and the chosen quotas, and what to set; `told`: known warnings."""
    undefined = f", {result.undefined:,} of them without a relevant item" if result.undefined else ""
    headline = (
        f"{len(result.points):,} choices of quotas, {result.metric} exact on {result.requests:,} requests of "
        f"{', '.join([result.split, *result.overrides])}{undefined}."
    )
    options = f"{' '.join(result.chosen.train_overrides)}\n{' '.join(result.chosen.export_options)}"
    about = "The chosen quotas for rankfall evaluate and train, and for rankfall export:"
    return [
        Text(" ".join([headline, *conclusions(result)])),
        *warned(text for text in result.warnings if text not in told),
        Columns([[front_chart(result), Code(options, about), _costs_table(result)], [_front_table(result)]]),
    ]


def conclusions(result: PlanResult) -> Iterator[str]:
    """Yield sentences about the current and the chosen quotas."""
    current, chosen = result.current, result.chosen
    if not current.dominated:
        yield "The current quotas are on the front."
    elif current.best_for_cost.value > current.point.value.value:
        best = current.best_for_cost
        yield (
            f"The current quotas are not on the front: {_quotas_text(best.quotas)} have {result.metric} "
            f"{best.value:.4f} for {show_cost(best.cost, result.unit)}."
        )
    else:
        cheapest = current.cheapest_for_value
        yield (
            f"The current quotas are not on the front: {_quotas_text(cheapest.quotas)} have the same {result.metric} "
            f"for {show_cost(cheapest.cost, result.unit)}."
        )
    if chosen.point.quotas == current.point.quotas:
        yield f"Chosen: the current quotas ({chosen.reason})."
        return
    yield (
        f"Chosen: {_quotas_text(chosen.point.quotas)} ({chosen.reason}). Against the current quotas: {result.metric} "
        f"{with_interval(chosen.difference, '+.4f')}, {chosen.cost_ratio:.2f} times the cost."
    )


def shown_front(result: PlanResult, most: int) -> list[FrontPoint]:
    """Return at most `most` points of the front, evenly spread, and always the chosen and the current quotas."""
    places = np.linspace(0, len(result.front) - 1, min(len(result.front), most))
    front = [result.front[place] for place in sorted({round(place) for place in places})]
    front += [point for point in (result.chosen.point, result.current.point) if point not in front]
    return sorted(front, key=lambda point: (point.cost, point.value.value))


def _mark_of(point: FrontPoint, result: PlanResult) -> str:
    """Return whether quotas are the chosen or the current ones."""
    named = {"chosen": result.chosen.point, "current": result.current.point}
    return ", ".join(name for name, one in named.items() if one.quotas == point.quotas)


def _costs_table(result: PlanResult) -> Table:
    """Return the costs of each stage, with standard errors if they were measured, and where they come from."""

    def cost_cell(value: float, error: float | None, after: str = "") -> Cell:
        if not value or result.unit == "items":
            return Cell(f"{value:g}{after}")
        spread = f" ± {show_cost(error, result.unit)}" if error else ""
        return Cell(show_cost(value, result.unit), spread=f"{spread}{after}")

    now = result.current.point
    rows: list[Row] = [
        [
            cost.stage,
            cost_cell(cost.fixed, cost.fixed_error),
            cost_cell(cost.per_kept or cost.per_item, cost.slope_error, " per item returned" if cost.per_kept else ""),
            f"{items:,.0f}",
            show_cost(total, result.unit),
        ]
        for cost, items, total in zip(result.costs, now.entered, now.stage_costs, strict=True)
    ]
    notes = {
        "measured": "CPU time of single requests, measured on the bundle; ± is the standard error of the line. The "
        f"search of {result.costs[0].stage} costs more the more items it returns.",
        "defaults": f"No costs were given: {DEFAULTS}.",
    }
    head = ["stage", "fixed cost", "cost per item", "items now", "cost now"]
    return Table(head, rows, caption=notes.get(result.cost_source, "Costs as given."))


def _front_table(result: PlanResult) -> Table:
    points = shown_front(result, ROWS)
    rows: list[Row] = []
    for point in points:
        mark = _mark_of(point, result)
        kind = "chosen" if mark else ""
        quotas = [Cell(f"{quota:,}", kind) for quota in point.quotas]
        cost = Cell(show_cost(point.cost, result.unit), kind)
        rows.append([*quotas, cost, estimate_cell(point.value, "{:.4f}".format, kind), Cell(mark, kind)])
    shown = sum(point in result.front for point in points)
    some = "" if shown == len(result.front) else f", {shown} of them shown"
    caption = f"Quotas that no others beat in cost and {result.metric} at once: {len(result.front):,}{some}."
    caption += f" With 95 % intervals over {result.resampled}."
    return Table([*result.stages, "cost", result.metric, ""], rows, caption=caption)


def _quotas_text(quotas: list[int]) -> str:
    """Return quotas from the first stage to the last."""
    return " → ".join(f"{quota:,}" for quota in quotas)


def front_chart(result: PlanResult) -> Chart:
    """Return cost and value of all quotas, with the front, the current and the chosen quotas."""
    factor, unit = 1.0, {"s": "s", "items": "scored items", "units": ""}[result.unit]
    costs = [point.cost for point in result.points]
    if result.unit == "s":
        unit, factor = next(((name, size) for name, size in SECONDS.items() if min(costs) >= size), ("ns", 1e-9))

    def with_ends(*points: FrontPoint) -> list[tuple[float, ...]]:
        return [(one.cost / factor, one.value.value, one.value.low, one.value.high) for one in points]

    on_front = {tuple(point.quotas) for point in result.front}
    others = [point for point in result.points if tuple(point.quotas) not in on_front]
    marked = {"current quotas": result.current.point, "chosen quotas": result.chosen.point}
    told = (
        f"{with_interval(point.value)} for {show_cost(point.cost, result.unit)}" for point in shown_front(result, ROWS)
    )
    return curves(
        {
            "": {
                "other quotas": [(point.cost / factor, point.value) for point in others],
                "front": with_ends(*result.front),
                **{name: with_ends(point) for name, point in marked.items()},
            }
        },
        title="Quotas by cost",
        label=f"{result.metric} against the cost of a request for {len(result.points):,} choices of quotas. The front: "
        + "; ".join(told),
        caption=f"Up: {result.metric}, with its 95 % interval. Right: cost of a request.",
        x=f"cost of a request ({unit})" if unit else "cost of a request",
        log_x=max(costs) > 5 * min(costs),
        fills={"front": color(0), "current quotas": color(1), "chosen quotas": color(2), "other quotas": GRID},
        dots=("other quotas", *marked),
    )


# --- advice -------------------------------------------------------------------------------------------------------


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


def advice_blocks(advice: Advice) -> list[Block]:
    """Return what to do next as blocks."""
    about: list[Block] = [Text(advice.about)] if advice.about else []
    steps: list[Block] = [Steps(advice.steps)] if advice.steps else []
    return [*about, *steps, *(Code(command, purpose) for purpose, command in advice.commands)]
