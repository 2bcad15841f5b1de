"""Figures of the stages of a cascade with confidence intervals: what each stage kept, lost, and what chance would."""

from __future__ import annotations

from dataclasses import dataclass

from rankfall._results import Number, Result


@dataclass(frozen=True)
class Estimate(Result):
    """A figure and its 95 % bootstrap interval."""

    value: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class StageFigures(Result):
    """What a stage did with the ground truth, as means over requests.

    The product of `kept` over all stages is the joint recall. The sum of `lost` over all stages is 1 minus the joint
    recall, and the sum of `loss_share` is 1.
    """

    stage: str
    quota: int
    """Number of items that the stage keeps."""
    entered: Number
    """Mean number of items that arrived."""
    survived: Estimate
    """Share of the ground truth that is left after the stage."""
    kept: Estimate
    """Share that the stage kept of the ground truth that arrived."""
    chance: Number
    """What a random stage would keep of the ground truth that arrived."""
    lost: Estimate
    """Share of the whole ground truth that the stage dropped; lower is better."""
    loss_share: Estimate
    """Share of all losses that happened at this stage. NaN if nothing was lost."""
    alone: Estimate | None = None
    """Recall of the stage by itself, over the whole list. None if later stages did not score the whole list."""
    alone_chance: float | None = None
    """The same for a random stage."""


@dataclass(frozen=True)
class ListFigures(Result):
    """How long the measured lists were, beside the number of items that a service would rank."""

    mean_length: Number
    longest: int
    catalogue: int
    """Number of items that were in the log by the end of the last measured day."""
    all_items: bool
    """Whether every item of the catalogue was ranked (``data.length: all``)."""
