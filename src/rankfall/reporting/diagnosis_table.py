"""A diagnosis as tables for the terminal, and the words that its tables and its page share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rankfall.reporting.estimates import percent, percents, with_interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from rankfall.studies.diagnosis.diagnosis_result import (
        Agreement,
        CutDistance,
        Diagnosis,
        LostRequest,
        Segment,
        StageDiagnosis,
    )
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


def _table(title: str, *headings: str, words: int = 1, caption: str = "") -> Table:
    """Return a table whose first columns are words and whose others are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="italic", caption=caption or None)
    table.caption_justify = "left"
    for place, heading in enumerate(headings):
        table.add_column(heading, style="cyan" if place == 0 else "", justify="left" if place < words else "right")
    return table


def _stages(stages: Sequence[StageDiagnosis]) -> Table:
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


def _segments(stage: StageDiagnosis) -> Table:
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


def _agreement(agreement: Sequence[Agreement]) -> Table:
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


def _requests(requests: Sequence[LostRequest]) -> Table:
    headings = ["cause", "request", "recall", "lost", "ranks of the lost items"]
    table = _table(
        "requests that show each cause; their items are in diagnosis.json and on the page", *headings, words=2
    )
    for one in requests:
        ranks = ", ".join(f"{'> ' * item.at_least}{item.rank:,}" for item in one.lost)
        table.add_row(one.cause, one.request, f"{one.recall:.2f}", f"{one.lost_items} of {one.items}", ranks)
    return table
