"""Metrics per list, with the values of a random scorer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from rankfall._results import Number, Result
from rankfall.metrics.named import parse
from rankfall.training.scoring import measure
from rankfall.training.stage_figures import ListFigures, StageFigures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data.lists.list_loader import Lists
    from rankfall.training.measured_lists import MeasuredLists


@dataclass(frozen=True)
class EvaluationSummary(Result):
    """Means over the lists on which a metric is defined, as ``rankfall evaluate --json`` prints them."""

    metrics: dict[str, Number]
    chance: dict[str, Number]
    impressions: int
    undefined: dict[str, int]
    """Number of lists on which a metric is undefined."""
    kept_whole: dict[str, int] | None = None
    """Cascades only: by stage, the number of impressions with no more items than the stage keeps."""
    intervals: dict[str, list[Number]] = field(default_factory=dict)
    """Lower and upper end of the 95 % bootstrap interval of each mean."""
    resampled: Literal["requests", "users"] = "requests"
    """What the bootstrap draws: requests, or users with all their requests where the log knows users."""
    funnel: list[StageFigures] | None = None
    """Cascades only: what each stage kept and lost."""
    lists: ListFigures | None = None
    """Cascades only: length of the measured lists."""
    production: list[StageFigures] | None = None
    """The same as `funnel` for the production system that wrote the log, where the log has its ranks."""
    production_note: str | None = None
    """How to read `production`."""
    warnings: list[str] = field(default_factory=list)
    """What a reader of the figures has to know."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Values of each metric per list.

    Attributes:
        qids: Id of each list or impression.
        values: One value per list for each metric. NaN where the metric is undefined.
        chance: The same for a random scorer.
        notes: Warnings about the data that were measured.
        lists: Cascades only: the lengths of the lists, and production's funnel on them.
    """

    qids: list[str]
    values: dict[str, Tensor]
    chance: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    lists: MeasuredLists | None = None

    def summary(self) -> EvaluationSummary:
        """Return means over the lists on which a metric is defined."""
        # a random scorer keeps every item of such an impression
        whole = {
            name.removesuffix("/recall"): int((values == 1).sum())
            for name, values in self.chance.items()
            if name.endswith("/recall")
        }
        return EvaluationSummary(
            metrics={name: _mean(values) for name, values in self.values.items()},
            chance={name: _mean(values) for name, values in self.chance.items()},
            impressions=len(self.qids),
            undefined={name: int(values.isnan().sum()) for name, values in self.values.items()},
            kept_whole=whole or None,
            lists=self.lists.figures() if self.lists else None,
            production=self.lists.production() if self.lists else None,
            production_note=self.lists.production_note() if self.lists else None,
            warnings=self.lists.warnings() if self.lists else [],
        )


def evaluate(scores: Tensor, lists: Lists, metrics: Sequence[str]) -> Evaluation:
    """Evaluate scores on lists.

    Args:
        scores: One score per document, ``(rows,)``.
        lists: The lists, with `rows` documents.
        metrics: Names of metrics, such as ``"ndcg@10"``.
    """
    parsed = [parse(name) for name in metrics]
    constant = torch.zeros(lists.rows)
    return Evaluation(lists.qids, measure(scores, lists, parsed), measure(constant, lists, parsed))


def _mean(values: Tensor) -> float:
    return float(values.double().nanmean())
