"""Metrics of a cascade on impressions: recall, value, feedback and lost items per stage, and metrics of lists.

The ground truth of an impression is the best `relevant` of its relevant items, by relevance, then by grade. No metric
depends on how a configuration labels items for training: metrics use relevance, the full-stage grades of the log and
the logged stages only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankfall._lists import relevant_order, top_labels
from rankfall.data.impressions.spec import FIRST_KNOWN, Categorical, column_of
from rankfall.metrics import funnel
from rankfall.metrics.named import parse
from rankfall.training.config.cascade_metric_names import (
    JOINT,
    JOINT_VALUE,
    PUBLISHED_NDCG,
    VALUE_NDCG,
    alone_name,
    higher_is_better,
    list_metric,
    measures,
    shown_name,
)
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLoader
    from rankfall.data.impressions.loader import Impressions
    from rankfall.data.impressions.spec import Spec
    from rankfall.metrics import FunnelResult
    from rankfall.training.distributed.group import Group
    from rankfall.training.scored_batch import ScoreBatch, ScoredBatch

__all__ = ["JOINT", "JOINT_VALUE", "ground_truth", "higher_is_better", "measure_lists", "measures", "shown_name"]

SEED = 0  # seed of the order of items with equal scores
BEST_PUBLISHED, WORST_PUBLISHED = 27.0, 5.0  # gains of the best item and of items of the first logged stage


# --- ground truth -------------------------------------------------------------------------------------------------


def ground_truth(batch: Impressions, relevant: int) -> Tensor:
    """Return membership ``(B, N)`` in the ground truth: the best of the relevant items, by relevance, then by grade.

    Items that tie at the last place share it, so memberships are between 0 and 1.
    """
    return top_labels(_order(batch), relevant, batch.mask & (batch.relevance > 0)).float()


def _order(batch: Impressions) -> Tensor:
    """Return numbers ``(B, N)`` that order the relevant items of a list: by relevance, then by grade."""
    return relevant_order(batch.relevance, batch.grade.double(), batch.mask)


def graded_truth(batch: Impressions, truth: Tensor) -> Tensor:
    """Return labels ``(B, N)``: the order of the ground truth, from 1 for its worst item on; 0 for all other items.

    Args:
        batch: The impressions.
        truth: Membership in the ground truth, see :func:`ground_truth`.
    """
    return _count_of_worse(batch, truth) + (truth > 0)


def published_gains(batch: Impressions, truth: Tensor) -> Tensor:
    """Return the gains ``(B, N)`` of the published code of LCRON: 28 minus the label of table 1 in the paper.

    Relevant items have 27, 26, ... in their order. All other items have a gain too: 5 for the first logged stage, 6 for
    the second and so on. Therefore a random scorer gets about .43 on lists of 4 x 10 items.

    Args:
        batch: The impressions.
        truth: Membership in the ground truth, see :func:`ground_truth`.
    """
    order = _count_of_worse(batch, truth)
    of_relevant = BEST_PUBLISHED - (order.amax(-1, keepdim=True) - order)
    return torch.where(truth > 0, of_relevant, WORST_PUBLISHED + batch.depth).masked_fill(~batch.mask, 0.0)


def relevance_gains(batch: Impressions, truth: Tensor) -> Tensor:
    """Return the gains ``(B, N)`` of ``ndcg_value``: the relevance of all relevant items.

    Args:
        batch: The impressions.
        truth: Membership in the ground truth, which does not matter here.
    """
    del truth
    return batch.relevance.clamp(min=0.0)


def _count_of_worse(batch: Impressions, truth: Tensor) -> Tensor:
    """Return for each item of the ground truth how many others of it are worse; 0 for all other items."""
    order = _order(batch).masked_fill(truth == 0, torch.inf)
    return torch.searchsorted(order.sort(-1).values, order).masked_fill(truth == 0, 0).float()


# --- measuring ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredFunnel:
    """What a cascade did with R impressions, in the order of a loader.

    Attributes:
        values: One value ``(R,)`` per impression for each metric. NaN where a metric is undefined.
        chance: The same for a random cascade.
        wholes: For metrics that are pooled over impressions, what the values ``(R,)`` are parts of. Both are divided
            by the mean of the wholes, so that the mean of the values is the pooled share.
        stages: Names of the T stages.
        quotas: Number of items that each stage keeps.
        left: Share ``(R, T)`` of the ground truth that is left after each stage. NaN without a relevant item.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        users: Number of the user ``(R,)`` of each impression, where the log knows it. Impressions of users that were
            never seen have numbers of their own.
    """

    values: dict[str, Tensor]
    chance: dict[str, Tensor]
    wholes: dict[str, Tensor]
    stages: list[str]
    quotas: list[int]
    left: Tensor
    ranked: Tensor
    users: Tensor | None


def measure_lists(
    score: ScoreBatch,
    loader: ImpressionLoader,
    *,
    names: Sequence[str],
    quotas: Sequence[int],
    relevant: int,
    further: Sequence[str] = (),
    feedback: Mapping[str, str] | None = None,
    value: bool = False,
    on_batch: Callable[[int], None] = lambda count: None,
    group: Group = ALONE,
) -> MeasuredFunnel:
    """Measure a cascade on all impressions of a loader.

    Metrics are ``joint_recall`` and, for each stage, ``NAME/alone/recall`` and ``NAME/alone/ndcg`` of the stage by
    itself over the whole list and ``NAME/lost``, the share of the ground truth that the stage drops. `further` metrics
    ``NAME/alone/METRIC`` are those of lists, of the stage by itself, with the labels of :func:`graded_truth`;
    ``ndcg_published`` has the gains of :func:`published_gains`, ``ndcg_value`` those of :func:`relevance_gains`.

    If relevant items of a list differ in relevance, ``joint_value`` and ``NAME/value`` are the shares of the relevance
    of the ground truth that are left at the end and after each stage but the last. ``joint/FEEDBACK`` and
    ``NAME/FEEDBACK`` are the same shares of a feedback, of all items of an impression.

    Lists over all items of a log do not hold all of them. Then only the first stage has a recall by itself.

    Args:
        score: Returns a batch with the scores of each stage.
        loader: Batches of impressions.
        names: Names of the stages.
        quotas: Number of items that each stage keeps.
        relevant: Number of relevant items per impression.
        further: Names of further metrics of each stage.
        feedback: Feedback whose survival is measured: ``"rate"`` for the mean over impressions that have some,
            ``"sum"`` for the share of the sum over all impressions. Values of ``"sum"`` are scaled so that their mean
            is that share.
        value: Measure ``joint_value`` also if all relevant items of every list have the same relevance.
        on_batch: Called with the size of each batch.
        group: Processes that share the batches. Each batch is measured as a whole by one process, so that the values
            do not depend on the number of processes.
    """
    meter = _Meter(loader, names, quotas, relevant, further, feedback or {})
    parts: list[dict[_Column, Tensor]] = []
    with torch.no_grad():
        for number, loaded in enumerate(loader):
            if number % group.world == group.rank:
                parts.append(meter.columns(score(loaded), torch.Generator().manual_seed(SEED + number)))
            else:
                parts.append(dict.fromkeys(meter.names, torch.zeros(len(loaded))))
            on_batch(len(loaded))
    columns = {name: group.total(torch.cat([part[name] for part in parts])) for name in meter.names}
    return meter.result(columns, value=value)


_Column = tuple[str, str]  # what a column is, and the name of its metric, stage or feedback


class _Meter:
    """Measures batches as columns with one number per impression, and makes the result of all of them.

    Args:
        loader: Loader of the batches.
        stages: Names of the stages.
        quotas: Number of items that each stage keeps.
        relevant: Number of relevant items per impression.
        further: Names of further metrics of each stage.
        feedback: ``"sum"`` or ``"rate"`` by feedback.
    """

    def __init__(
        self,
        loader: ImpressionLoader,
        stages: Sequence[str],
        quotas: Sequence[int],
        relevant: int,
        further: Sequence[str],
        feedback: Mapping[str, str],
    ) -> None:
        self.stages, self.quotas, self.relevant, self.feedback = list(stages), list(quotas), relevant, feedback
        self.user = user_feature(loader.log.spec)
        self.complete = loader.length != "all"
        self.further = list(further) if self.complete else []
        self.measured = measures(stages, self.further, feedback, complete=self.complete)
        of_stages = [f"{stage}/{name}" for stage in self.stages for name in feedback]
        plain = [name for name in self.measured if name.rpartition("/")[-1] not in feedback]
        self.names: list[_Column] = [
            *((kind, name) for kind in ("value", "chance") for name in plain),
            *((kind, stage) for kind in ("left", "worth", "expected") for stage in self.stages),
            *(("feedback", name) for name in feedback),
            *(("kept", name) for name in of_stages),
            *((kind, "") for kind in ("sizes", "ranked", "user")),
        ]

    def columns(self, scored: ScoredBatch, generator: torch.Generator) -> dict[_Column, Tensor]:
        """Return the columns of a batch."""
        batch = scored.batch
        truth = ground_truth(batch, self.relevant)
        scores = [stage.float() for stage in scored.scores]
        result = funnel(scores, truth, quotas=self.quotas, mask=batch.mask, generator=generator)
        expected = self._expected(scored.ranked)
        values = self._values(result) | self._further_values(scores, batch, truth)
        chance = self._chance(batch, truth, expected, scored.ranked)
        undefined = ~result.defined
        columns: dict[_Column, Tensor] = {
            (kind, name): value.masked_fill(undefined, torch.nan)
            for kind, found in (("value", values), ("chance", chance))
            for name, value in found.items()
        }
        worth = batch.relevance * truth
        for t, stage in enumerate(self.stages):
            columns["left", stage] = result.survived[..., t].masked_fill(undefined, torch.nan)
            columns["worth", stage] = _share(worth, result.survivors[..., t, :]).masked_fill(undefined, torch.nan)
            columns["expected", stage] = expected[..., t].float()
        for name in self.feedback:
            given = _check_feedback(name, batch).double()
            columns["feedback", name] = given.sum(-1)
            for t, stage in enumerate(self.stages):
                columns["kept", f"{stage}/{name}"] = (given * result.survivors[..., t, :]).sum(-1)
        columns["sizes", ""] = _has_sizes(batch.relevance, truth).float()
        columns["ranked", ""] = scored.ranked.double()
        columns["user", ""] = batch.user[self.user].double() if self.user else torch.zeros(len(batch)).double()
        return columns

    def _expected(self, ranked: Tensor) -> Tensor:
        """Return the share ``(B, T)`` of any items that a random cascade keeps up to each stage."""
        alone = torch.stack([(quota / ranked.double()).clamp(max=1.0) for quota in self.quotas], -1)
        return alone.cummin(-1).values

    def _values(self, result: FunnelResult) -> dict[str, Tensor]:
        values = {JOINT: result.joint_recall}
        for t, stage in enumerate(self.stages):
            values[alone_name(stage, "recall")] = result.stage_recall[..., t]
            values[alone_name(stage, "ndcg")] = result.stage_ndcg[..., t]
            values[f"{stage}/lost"] = result.lost[..., t]
        return {name: value for name, value in values.items() if name in self.measured}

    def _chance(self, batch: Impressions, truth: Tensor, expected: Tensor, ranked: Tensor) -> dict[str, Tensor]:
        """Return the expected values of a random cascade."""
        flat = torch.zeros_like(truth)
        values = {JOINT: expected[..., -1].float()}
        before = torch.ones_like(expected[..., 0])
        for t, (stage, quota) in enumerate(zip(self.stages, self.quotas, strict=True)):
            values[alone_name(stage, "recall")] = (quota / ranked).clamp(max=1.0)
            values[f"{stage}/lost"] = (before - expected[..., t]).float()
            before = expected[..., t]
        if self.complete:
            quality = parse("ndcg_linear")(flat, truth, batch.mask)
            values |= {alone_name(stage, "ndcg"): quality for stage in self.stages}
        values |= self._further_values([flat] * len(self.stages), batch, truth)
        return {name: value for name, value in values.items() if name in self.measured}

    def _further_values(self, scores: Sequence[Tensor], batch: Impressions, truth: Tensor) -> dict[str, Tensor]:
        """Return the metrics of lists for each stage by itself."""
        values = {}
        for metric in self.further:
            measured = parse(list_metric(metric))
            labels = _LABELS.get(metric.partition("@")[0], graded_truth)(batch, truth)
            for stage, of_stage in zip(self.stages, scores, strict=True):
                values[alone_name(stage, metric)] = measured(of_stage, labels, batch.mask)
        return values

    def result(self, columns: Mapping[_Column, Tensor], *, value: bool) -> MeasuredFunnel:
        """Return the result of the columns of all impressions."""
        values, chance, wholes = {}, {}, {}
        for name in self.measured:
            stage, _, last = name.rpartition("/")
            if last in self.feedback:
                stage = self.stages[-1] if stage == "joint" else stage
                total = columns["feedback", last]
                given = torch.where(total > 0, total, torch.nan)
                by = given if self.feedback[last] == "rate" else given.nanmean()
                values[name] = torch.where(total > 0, columns["kept", f"{stage}/{last}"], torch.nan) / by
                chance[name] = columns["expected", stage] * given / by
                if self.feedback[last] == "sum":
                    wholes[name] = given / by
            else:
                values[name], chance[name] = columns["value", name], columns["chance", name]
            if name == JOINT and (value or bool(columns["sizes", ""].any())):
                values[JOINT_VALUE], chance[JOINT_VALUE] = columns["worth", self.stages[-1]], chance[JOINT]
            if last == "lost" and stage != self.stages[-1] and JOINT_VALUE in values:
                worth = columns["worth", stage]
                values[f"{stage}/value"] = worth
                chance[f"{stage}/value"] = columns["expected", stage].masked_fill(worth.isnan(), torch.nan)
        return MeasuredFunnel(
            values,
            chance,
            wholes,
            self.stages,
            self.quotas,
            torch.stack([columns["left", stage] for stage in self.stages], -1),
            columns["ranked", ""].long(),
            user_numbers(columns["user", ""].long()) if self.user else None,
        )


_LABELS: dict[str, Callable[[Impressions, Tensor], Tensor]] = {
    PUBLISHED_NDCG: published_gains,
    VALUE_NDCG: relevance_gains,
}


def _share(worth: Tensor, survivors: Tensor) -> Tensor:
    """Return the share ``(B,)`` of the worth of the items that survives; 0 without any worth."""
    total = worth.double().sum(-1)
    return ((worth * survivors).double().sum(-1) / total.where(total > 0, 1.0)).float()


def _has_sizes(relevance: Tensor, truth: Tensor) -> Tensor:
    """Return the lists ``(B,)`` whose ground truth has items of different relevance."""
    most = relevance.masked_fill(truth == 0, -torch.inf).amax(-1)
    least = relevance.masked_fill(truth == 0, torch.inf).amin(-1)
    return most > least


def _check_feedback(name: str, batch: Impressions) -> Tensor:
    """Return a feedback of the items ``(B, N)``. A share of it has no meaning if values are negative."""
    given = batch.feedback[name]
    if bool((given < 0).any()):
        raise ValueError(
            f"feedback: {name} is {float(given.min()):g} for an item of {batch.day}, expected values of at least 0, of "
            "which a share can survive"
        )
    return given


# --- users --------------------------------------------------------------------------------------------------------


def user_feature(spec: Spec) -> str | None:
    """Return the feature of users that identifies them: one with ids of the log's user column. None without one."""
    for name, feature in spec.features.user.items():
        if isinstance(feature, Categorical) and column_of(spec, name, feature) == spec.user:
            return name
    return None


def user_numbers(ids: Tensor) -> Tensor:
    """Return one number per user; impressions without a known user have numbers of their own."""
    own = -1 - torch.arange(len(ids))
    return torch.where(ids >= FIRST_KNOWN, ids, own)
