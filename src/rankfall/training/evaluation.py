"""Metrics per list, with the values of a random scorer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from rankfall._config import Number, Result
from rankfall._tables import Tables
from rankfall.metrics.named import parse
from rankfall.training.cascade_metrics import ListFigures, Resampler, StageFigures, estimates, stage_figures
from rankfall.training.config.component_checks import JOINT_VALUE, alone_name, shown_name
from rankfall.training.measured_lists import measure_scores as measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from rankfall.data.lists.list_loader import Lists
    from rankfall.training.cascade_metrics import MeasuredFunnel
    from rankfall.training.measured_lists import MeasuredLists

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class EvaluationSummary(Tables, Result):
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

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `metrics`, one per metric, and of `stages`, one per stage of a cascade."""
        metrics = [
            {
                "metric": shown_name(name),
                "value": value,
                "low": self.intervals.get(name, [None, None])[0],
                "high": self.intervals.get(name, [None, None])[1],
                "chance": self.chance.get(name),
                "undefined": self.undefined.get(name),
            }
            for name, value in self.metrics.items()
        ]
        return {"metrics": metrics, "stages": [stage.row() for stage in self.funnel or ()]}


@dataclass(frozen=True)
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
        return self._summary

    @cached_property
    def _summary(self) -> EvaluationSummary:
        if self.measured is None:
            return EvaluationSummary(**_means(self.values, self.chance, {}, Resampler()), impressions=len(self.qids))
        measured, lists = self.measured, self.lists
        resampler = Resampler(measured.users)
        values, chance = _with_survived(measured)
        ranked = measured.ranked[~measured.left[:, 0].isnan()]  # of the impressions that count
        shown, shown_chance = lists.shown() if lists else ({}, {})
        figures = _means(values | shown, chance | shown_chance, measured.wholes, resampler)
        return EvaluationSummary(
            **{name: _with_last_stage(of, measured.stages[-1]) for name, of in figures.items()},
            impressions=len(self.qids),
            kept_whole={
                stage: int((ranked <= quota).sum())
                for stage, quota in zip(measured.stages, measured.quotas, strict=True)
            },
            resampled="requests" if measured.users is None else "users",
            funnel=funnel_of(measured, resampler),
            lists=lists.figures() if lists else None,
            production=lists.production(measured.users) if lists else None,
            production_note=lists.production_note() if lists else None,
            warnings=lists.warnings() if lists else [],
        )


def _means(
    values: Mapping[str, Tensor],
    chance: Mapping[str, Tensor],
    wholes: Mapping[str, Tensor],
    resampler: Resampler,
) -> dict[str, Any]:
    """Return the figures of each metric, by the name of their field in the summary."""
    found = estimates(values, wholes, resampler)
    return {
        "metrics": {name: one.value for name, one in found.items()},
        "chance": {name: float(one.double().nanmean()) for name, one in chance.items()},
        "undefined": {name: int(one.isnan().sum()) for name, one in values.items()},
        "intervals": {name: [one.low, one.high] for name, one in found.items()},
    }


def funnel_of(measured: MeasuredFunnel, resampler: Resampler | None = None) -> list[StageFigures]:
    """Return the figures of all stages of a cascade.

    Args:
        measured: What the cascade did with each impression.
        resampler: Sums over the impressions that other figures have drawn. Default: a new one.
    """
    recalls = {stage: measured.values.get(alone_name(stage, "recall")) for stage in measured.stages}
    return stage_figures(
        measured.stages,
        measured.quotas,
        measured.left,
        measured.ranked,
        alone={stage: recall for stage, recall in recalls.items() if recall is not None},
        resampler=resampler or Resampler(measured.users),
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


def _with_last_stage(figures: dict[str, T], last: str) -> dict[str, T]:
    """Return figures with what is left after the last stage, which is that of the whole cascade, for JSON."""
    of_last = {
        f"{last}/{'value' if name == JOINT_VALUE else name.removeprefix('joint/')}": figure
        for name, figure in figures.items()
        if name == JOINT_VALUE or name.startswith("joint/")
    }
    return {**figures, **of_last}


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
