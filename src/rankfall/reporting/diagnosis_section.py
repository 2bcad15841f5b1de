"""The diagnosis of a run on its page: perfect stages, distance to the cut, segments, agreement, requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rankfall.reporting import charts
from rankfall.reporting.diagnosis_table import headline, rank_text, segments_note, shown, stake
from rankfall.reporting.estimates import percent, percent_ends
from rankfall.reporting.page import Cell, Table, estimate_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.reporting.chart import Chart
    from rankfall.reporting.page import Row
    from rankfall.studies.diagnosis.diagnosis_result import (
        Agreement,
        Diagnosis,
        LostRequest,
        Segment,
        ShownItem,
        StageDiagnosis,
    )
    from rankfall.training.cascade_metrics import Estimate

SEGMENTS = 8  # of each stage


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
    body = [_segment_row(one) for one in shown(stage.segments)[:SEGMENTS]]
    return Table(head, body, caption=segments_note(stage, SEGMENTS))


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
