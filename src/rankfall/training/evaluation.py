"""Metrics per list, with the values of a random scorer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from rankfall._results import Number, Result
from rankfall.metrics.named import parse
from rankfall.training.config.cascade_metric_names import with_both_names
from rankfall.training.scoring import measure
from rankfall.training.stage_figures import ListFigures, StageFigures, estimates, stage_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data.lists.list_loader import Lists
    from rankfall.training.cascade_metrics import MeasuredFunnel
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
        measured: Cascades only: what each stage did with each impression.
        lists: Cascades only: the lengths of the lists, and production's funnel on them.
    """

    qids: list[str]
    values: dict[str, Tensor]
    chance: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    measured: MeasuredFunnel | None = None
    lists: MeasuredLists | None = None

    @classmethod
    def of_cascade(
        cls, qids: list[str], measured: MeasuredFunnel, notes: Sequence[str] = (), lists: MeasuredLists | None = None
    ) -> Evaluation:
        """Return the evaluation of a cascade from what it did with each impression."""
        return cls(qids, measured.values, measured.chance, list(notes), measured, lists)

    def summary(self) -> EvaluationSummary:
        """Return means over the lists on which a metric is defined, with 95 % bootstrap intervals."""
        measured = self.measured
        values, chance = dict(self.values), dict(self.chance)
        if measured is not None:
            values, chance = _with_survived(measured)
        units = measured.users if measured else None
        found = estimates(values, measured.weights if measured else {}, units)
        return EvaluationSummary(
            metrics=with_both_names({name: one.value for name, one in found.items()}),
            chance=with_both_names({name: _mean(values) for name, values in chance.items()}),
            impressions=len(self.qids),
            undefined=with_both_names({name: int(one.isnan().sum()) for name, one in values.items()}),
            kept_whole=None if measured is None else _kept_whole(measured),
            intervals=with_both_names({name: [one.low, one.high] for name, one in found.items()}),
            resampled="requests" if units is None else "users",
            funnel=None if measured is None else funnel_of(measured),
            lists=self.lists.figures() if self.lists else None,
            production=self.lists.production(units) if self.lists else None,
            production_note=self.lists.production_note() if self.lists else None,
            warnings=self.lists.warnings() if self.lists else [],
        )


def funnel_of(measured: MeasuredFunnel) -> list[StageFigures]:
    """Return the figures of all stages of a cascade."""
    alone = {name: measured.values[f"{name}/recall"] for name in measured.stages if f"{name}/recall" in measured.values}
    return stage_figures(
        measured.stages, measured.quotas, measured.left, measured.ranked, alone=alone, units=measured.users
    )


def _with_survived(measured: MeasuredFunnel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the values of a cascade and of a random one, with what is left of the ground truth after each stage."""
    left = dict(zip(measured.stages, measured.left.unbind(-1), strict=True))
    values, chance = {}, {}
    remaining = torch.ones_like(measured.left[:, 0])
    for name, value in measured.values.items():
        values[name], chance[name] = value, measured.chance[name]
        stage, _, last = name.rpartition("/")
        if last == "lost":
            remaining = remaining - measured.chance[name]
            values[f"{stage}/survived"], chance[f"{stage}/survived"] = left[stage], remaining
    return values, chance


def _kept_whole(measured: MeasuredFunnel) -> dict[str, int]:
    """Return by stage the number of impressions, of those that count, with no more items than the stage keeps."""
    ranked = measured.ranked[~measured.left[:, 0].isnan()]
    return {stage: int((ranked <= quota).sum()) for stage, quota in zip(measured.stages, measured.quotas, strict=True)}


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
