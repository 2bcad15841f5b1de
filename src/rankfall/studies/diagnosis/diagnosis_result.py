"""The diagnosis of a run, ``diagnosis.json``.

All shares are of the ground truth, with the same weight for every request, so that they add up to the joint recall:
an item of a request with three relevant items weighs one third. All intervals are 95 % bootstrap intervals over
requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rankfall._config import Number, Result
from rankfall._tables import Tables
from rankfall.training.cascade_metrics import Estimate  # noqa: TC001  # pydantic reads the annotations

DIAGNOSIS = "diagnosis.json"  # in a run directory


@dataclass(frozen=True)
class Finding(Result):
    """A cause of lost recall in one sentence, or two with what to do."""

    kind: Literal["negatives", "stage", "quota", "segment", "agreement"]
    stage: str
    text: str
    at_stake: Estimate | None = None
    """Joint recall that could be gained at most if the cause were removed. None if it was not measured."""


@dataclass(frozen=True)
class LargerQuota(Result):
    """What a larger quota of one stage would recover, with the quotas of all other stages unchanged."""

    factor: float
    quota: int
    """The larger quota, at most that of the stage before."""
    passes: Estimate
    """Share of what the stage lost that would pass it."""
    joint_recall: Estimate
    """Joint recall of the cascade with this quota."""
    gain: Estimate
    """The same minus the joint recall with the quota of the run, on the same draws."""


@dataclass(frozen=True)
class CutDistance(Result):
    """How far below the cut of a stage the items of the ground truth were that it lost."""

    items: int
    """Number of lost items."""
    requests: int
    """Number of requests with a lost item."""
    rank_over_quota: dict[str, Number]
    """Quantiles ("10", "25", "50", "75", "90" percent) of the rank divided by the quota; just below the cut: 1."""
    known_up_to: float | None
    """Lists over all items hold the best items only: ranks beyond this multiple of the quota are counted as this
    multiple. None if all ranks are known."""
    score_distance: dict[str, Number]
    """Quantiles of the distance to the score of the last kept item, in standard deviations of the scores that arrived
    in the list."""
    larger_quotas: list[LargerQuota]


@dataclass(frozen=True)
class Segment(Result):
    """Items of the ground truth with something in common, and how many of them a stage kept."""

    attribute: str
    """What the items have in common, such as ``item.category`` or ``user activity``."""
    value: str
    """The value of the attribute, decoded, such as ``shoes`` or ``3 to 7 requests``."""
    items: int
    """Number of items of the ground truth that arrived."""
    requests: int
    """Number of requests with such an item."""
    kept: Estimate
    """Share that the stage kept of them."""
    kept_elsewhere: Number
    """The same for all other items of the ground truth that arrived."""
    share_of_items: Number
    """Share of the ground truth that arrived."""
    share_of_lost: Number
    """Share of what the stage lost."""
    at_stake: Estimate
    """Joint recall that would be gained if the stage kept as much of the segment as of all other items. An item that
    it lost counts only if it would survive all later stages. Negative for segments that it keeps more of."""
    p_value: Number
    """Probability of such a difference by chance, corrected for the number of segments (Benjamini, Hochberg)."""
    explained_by: str | None = None
    """A segment above it in the list, ``ATTRIBUTE = VALUE``, if without the items of the segments above it little or
    nothing is left of the difference."""


@dataclass(frozen=True)
class Oracle(Result):
    """Joint recall with perfect stages, which keep the ground truth first and then what they keep now."""

    perfect: Estimate
    """Joint recall if this stage were perfect."""
    gain: Estimate
    """The same minus the joint recall of the run, on the same draws."""
    others_perfect: Estimate
    """Joint recall if all other stages were perfect, so that only this stage loses items."""


@dataclass(frozen=True)
class StageDiagnosis(Result):
    """What a stage loses, and why."""

    stage: str
    quota: int
    arrived: Estimate
    """Share of the ground truth that arrived."""
    lost: Estimate
    """Share of the ground truth that the stage lost."""
    recoverable: Estimate
    """Share of what the stage lost that would survive all later stages if it had passed, one item at a time."""
    cut: CutDistance
    oracle: Oracle
    segments: list[Segment]
    """Segments that the stage keeps significantly less of than of all others, by `at_stake`."""
    tested: int
    """Number of segments with enough items to be compared."""
    best_segments: list[Segment] = field(default_factory=list)
    """Segments that the stage keeps significantly more of, the largest gain first."""


@dataclass(frozen=True)
class Agreement(Result):
    """Whether a stage and the next one want the same items."""

    stages: tuple[str, str]
    quotas: tuple[int, int]
    correlation: Estimate
    """Mean rank correlation (Spearman) of both scores over the items that pass the first of them. Chance: 0."""
    overlap: Estimate
    """Of the items that pass both stages, the share that the first stage alone would also choose from those."""
    overlap_chance: Number
    wanted: Estimate | None = None
    """Of the items that the second stage would keep if nothing were dropped before it, the share that the first stage
    passes. None if the second stage did not score all items."""
    wanted_chance: float | None = None


@dataclass(frozen=True)
class ShownItem(Result):
    """An item of a request."""

    item: str
    relevance: Number
    rank: int
    """Rank at the stage among the items that arrived, from 1."""
    logged: str
    """Deepest stage that the item reached in production; empty if unknown."""
    attributes: dict[str, str]
    """Decoded features, popularity and age."""
    at_least: bool = False
    """Whether the rank is a lower bound, since the list does not hold all items."""


@dataclass(frozen=True)
class LostRequest(Result):
    """A request that shows a cause of lost recall."""

    cause: str
    """Such as "retrieval, far below the cut"."""
    request: str
    day: str
    stage: str
    quota: int
    recall: Number
    """Joint recall of the request."""
    items: int
    """Number of items of its ground truth."""
    attributes: dict[str, str]
    """Decoded features of the user and the context."""
    lost_items: int
    """Number of items of its ground truth that were lost by this cause."""
    lost: list[ShownItem]
    """Some of these items, the best ranked first."""
    kept_instead: list[ShownItem]
    """Items that the stage kept and that are not in the ground truth, the best ranked first."""


@dataclass(frozen=True, repr=False)
class Diagnosis(Tables, Result):
    """Where and why a cascade loses relevant items."""

    split: str
    requests: int
    """Number of requests with a relevant item."""
    all_items: bool
    """Whether the lists were measured over all items of the catalogue."""
    joint_recall: Estimate
    findings: list[Finding]
    """What to do, by recall at stake; those without a measured stake come last."""
    stages: list[StageDiagnosis]
    agreement: list[Agreement]
    worst_requests: list[LostRequest]
    notes: list[str] = field(default_factory=list)
    """What could not be measured, and why."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `findings`, `stages` and `segments`."""
        return {
            "findings": [
                {"kind": one.kind, "stage": one.stage, "text": one.text, **_columns(one.at_stake, "at_stake")}
                for one in self.findings
            ],
            "stages": [
                {
                    "stage": one.stage,
                    "quota": one.quota,
                    **one.arrived.columns("arrived"),
                    **one.lost.columns("lost"),
                    **one.recoverable.columns("recoverable"),
                    **one.oracle.gain.columns("gain_if_perfect"),
                }
                for one in self.stages
            ],
            "segments": [
                {
                    "stage": stage.stage,
                    "attribute": one.attribute,
                    "value": one.value,
                    "items": one.items,
                    **one.kept.columns("kept"),
                    "kept_elsewhere": one.kept_elsewhere,
                    **one.at_stake.columns("at_stake"),
                    "p_value": one.p_value,
                }
                for stage in self.stages
                for one in (*stage.segments, *stage.best_segments)
            ],
        }


def _columns(estimate: Estimate | None, name: str) -> dict[str, Any]:
    return estimate.columns(name) if estimate else dict.fromkeys((name, f"{name}_low", f"{name}_high"))
