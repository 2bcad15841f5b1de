"""The findings of a diagnosis as sentences, by the recall that is at stake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.studies.diagnosis.diagnosis_result import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.studies.diagnosis.diagnosis_result import Agreement, Segment, StageDiagnosis
    from rankfall.training.stage_figures import Estimate

SEGMENTS = 3  # of each stage
LEAST_STAKE = 0.001  # joint recall
USEFUL = 0.5  # share of lost items that would survive later stages below which these limit what a stage can gain
DISAGREES = 0.8  # share of wanted items that pass below which stages disagree


def find(joint_recall: Estimate, stages: Sequence[StageDiagnosis], agreement: Sequence[Agreement]) -> list[Finding]:
    """Return the findings, those with the largest stake first and those without a measured one last.

    Args:
        joint_recall: Joint recall of the run.
        stages: What each stage loses, and why.
        agreement: Agreement of neighbouring stages.
    """
    found = [
        *(
            finding
            for number, stage in enumerate(stages)
            for finding in _of_stage(joint_recall, number, stage, last=number == len(stages) - 1)
        ),
        *(finding for one in agreement for finding in _of_agreement(one)),
    ]
    return sorted(found, key=lambda finding: -1.0 if finding.at_stake is None else finding.at_stake.value, reverse=True)


def _of_stage(joint_recall: Estimate, number: int, stage: StageDiagnosis, *, last: bool) -> Iterator[Finding]:
    gain = stage.oracle.gain
    if gain.value >= LEAST_STAKE:
        yield Finding(
            kind="stage",
            stage=stage.stage,
            text=f"{stage.stage} loses {_percent(stage.lost.value)} of the relevant items. If it were perfect and "
            f"nothing else changed, joint recall would be {stage.oracle.perfect.value:.3f} instead of "
            f"{joint_recall.value:.3f}. If all other stages were perfect, it would be "
            f"{stage.oracle.others_perfect.value:.3f}. {_shallow(stage)}.{_later(stage)}",
            at_stake=gain,
        )
    helpful = [one for one in stage.cut.larger_quotas if one.gain.low > 0 and one.gain.value >= LEAST_STAKE]
    selecting = [one for one in helpful if one.passes.value < 1]  # a quota that drops nothing makes the stage useless
    if selecting:
        best = max(selecting, key=lambda one: one.gain.value)
        yield Finding(
            kind="quota",
            stage=stage.stage,
            text=f"{_percent(best.passes.value)} of what {stage.stage} loses is ranked from {stage.quota + 1} to "
            f"{best.quota}. With a quota of {best.quota} instead of {stage.quota}, joint recall would be "
            f"{best.joint_recall.value:.3f}: stages.{number}.quota={best.quota}."
            + (" It is the last stage, so more items would be returned." if last else ""),
            at_stake=best.gain,
        )
    for segment in [one for one in stage.segments if one.explained_by is None][:SEGMENTS]:
        if segment.at_stake.value >= LEAST_STAKE:
            yield Finding("segment", stage.stage, _segment(stage, segment), segment.at_stake)


def _shallow(stage: StageDiagnosis) -> str:
    """Return how far below the cut the lost items were."""
    cut = stage.cut
    median = cut.rank_over_quota["50"]
    if cut.known_up_to is not None and median >= cut.known_up_to:
        return f"Half of the lost items are ranked beyond {cut.known_up_to:g} times its quota"
    return f"Half of the lost items are ranked within {_times(median)} times its quota"


def _later(stage: StageDiagnosis) -> str:
    """Return how little of the lost items would survive later stages, if it is little."""
    share = stage.recoverable.value
    return "" if share >= USEFUL else f" Only {_percent(share)} of them would survive the later stages."


def _segment(stage: StageDiagnosis, segment: Segment) -> str:
    return (
        f"{stage.stage} keeps {_percent(segment.kept.value)} ({_percent(segment.kept.low)} to "
        f"{_percent(segment.kept.high)}) of the relevant items with {segment.attribute} = {segment.value}, and "
        f"{_percent(segment.kept_elsewhere)} of all others. They are {_percent(segment.share_of_items)} of the "
        f"relevant items that arrive (n = {segment.items:,}) and {_percent(segment.share_of_lost)} of what it loses."
    )


def _of_agreement(agreement: Agreement) -> Iterator[Finding]:
    if agreement.wanted is None or agreement.wanted_chance is None or agreement.wanted.high >= DISAGREES:
        return
    first, second = agreement.stages
    yield Finding(
        kind="agreement",
        stage=first,
        text=f"Of the {agreement.quotas[1]} items that {second} would keep of all that arrive at {first}, {first} "
        f"passes {_percent(agreement.wanted.value)}; a random stage would pass {_percent(agreement.wanted_chance)}. "
        f"An objective that trains both stages together, or {second} as a teacher of {first}, aligns them.",
    )


def _times(factor: float) -> str:
    """Return two digits of a factor, never as a power of ten.

    >>> _times(1.23), _times(123.4)
    ('1.2', '123')
    """
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"
