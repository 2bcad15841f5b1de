"""The examination curve of a log: how often each position is examined, relative to the first one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rankfall._results import Number, Result

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ExaminationPoint(Result):
    """One position of a curve. All rates are relative to those of the first position."""

    position: int  # from 0 for the first
    shows: int
    clicks: int
    naive: Number  # click rate, whatever was shown there
    naive_low: Number
    naive_high: Number
    examination: Number  # estimated examination
    low: Number  # 95 % bootstrap interval
    high: Number


@dataclass(frozen=True)
class ExaminationCurve(Result):
    """Estimated examination of positions, and how it was estimated."""

    log: str
    feedback: str  # what counts as a click
    method: str
    given: list[str]  # what relevance was described by
    days: list[str]
    requests: int
    resampled: str  # "users" or "requests"
    resamples: int
    points: list[ExaminationPoint]
    notes: list[str] = field(default_factory=list)

    def propensities(self, position: Tensor) -> Tensor:
        """Return the examination of positions; those below the last point of the curve have its value.

        Args:
            position: Tensor of positions, at least 0.
        """
        values = torch.tensor([point.examination for point in self.points]).to(position.device, non_blocking=True)
        return values[position.long().clamp(max=len(values) - 1)]
