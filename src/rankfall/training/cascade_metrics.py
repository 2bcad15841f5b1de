"""Metrics of a cascade on impressions: recall, NDCG and lost items per stage, and metrics of lists for each stage.

The ground truth of an impression is the best `relevant` of its relevant items. No metric depends on how a
configuration labels items for training: metrics use the order of the relevant items and the logged stages only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall._lists import top_labels
from rankfall.metrics import funnel
from rankfall.metrics.named import parse
from rankfall.training.config.cascade_metric_names import (
    JOINT,
    PUBLISHED_NDCG,
    higher_is_better,
    list_metric,
    measures,
)
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLoader
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.distributed.group import Group
    from rankfall.training.scored_batch import ScoreBatch

__all__ = ["JOINT", "ground_truth", "higher_is_better", "measure_funnel", "measures"]

SEED = 0  # seed of the order of items with equal scores
BEST_PUBLISHED, WORST_PUBLISHED = 27.0, 5.0  # gains of the best item and of items of the first logged stage


def ground_truth(batch: Impressions, relevant: int) -> Tensor:
    """Return membership ``(B, N)`` in the ground truth: the items with the best grades among the relevant ones."""
    return top_labels((batch.grade.float() + 1) * (batch.relevance > 0), relevant, batch.mask)


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


def _count_of_worse(batch: Impressions, truth: Tensor) -> Tensor:
    """Return for each item of the ground truth how many others of it have a lower grade; 0 for all other items."""
    grade = batch.grade.float().masked_fill(truth == 0, torch.inf)
    return torch.searchsorted(grade.sort(-1).values, grade).masked_fill(truth == 0, 0).float()


def measure_funnel(
    score: ScoreBatch,
    loader: ImpressionLoader,
    *,
    names: Sequence[str],
    quotas: Sequence[int],
    relevant: int,
    further: Sequence[str] = (),
    on_batch: Callable[[int], None] = lambda count: None,
    group: Group = ALONE,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Measure a cascade on all impressions of a loader.

    Metrics are ``joint_recall`` and, for each stage, ``NAME/recall`` and ``NAME/ndcg`` over the whole list and
    ``NAME/lost``, the share of the relevant items that the stage drops. `further` metrics ``NAME/METRIC`` are those of
    lists, over the whole list, with the labels of :func:`graded_truth`; ``ndcg_published`` has the gains of
    :func:`published_gains`.

    Args:
        score: Returns a batch with the scores of each stage.
        loader: Batches of impressions.
        names: Names of the stages.
        quotas: Number of items that each stage keeps.
        relevant: Number of relevant items per impression.
        further: Names of further metrics of each stage.
        on_batch: Called with the size of each batch.
        group: Processes that share the batches. Each batch is measured as a whole by one process, so that the values
            do not depend on the number of processes.

    Returns:
        One value per impression for each metric, in the order of the loader, and the same for a random cascade. NaN
        for impressions without a relevant item.
    """
    values: list[dict[str, Tensor]] = []
    chances: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for number, loaded in enumerate(loader):
            if number % group.world == group.rank:
                generator = torch.Generator().manual_seed(SEED + number)
                scored = score(loaded)
                batch, scores = scored.batch, scored.scores
                truth = ground_truth(batch, relevant)
                flat = [torch.zeros_like(truth)] * len(names)
                values.append(
                    _values(scores, truth, batch.mask, names, quotas, generator)
                    | _further_values(scores, batch, truth, names, further)
                )
                chances.append(
                    _chance(flat, truth, batch.mask, names, quotas, generator)
                    | _further_values(flat, batch, truth, names, further)
                )
            else:
                zeros = dict.fromkeys(measures(names, further), torch.zeros(len(loaded)))
                values.append(zeros)
                chances.append(zeros)
            on_batch(len(loaded))
    wanted = measures(names, further)
    return _joined(values, wanted, group), _joined(chances, wanted, group)


def _values(
    scores: Sequence[Tensor],
    truth: Tensor,
    mask: Tensor,
    names: Sequence[str],
    quotas: Sequence[int],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    result = funnel([stage.float() for stage in scores], truth, quotas=quotas, mask=mask, generator=generator)
    values = {JOINT: result.joint_recall}
    for stage, name in enumerate(names):
        values[f"{name}/recall"] = result.stage_recall[..., stage]
        values[f"{name}/ndcg"] = result.stage_ndcg[..., stage]
        values[f"{name}/lost"] = result.lost[..., stage]
    return {name: value.masked_fill(~result.defined, torch.nan) for name, value in values.items()}


def _chance(
    flat: Sequence[Tensor],
    truth: Tensor,
    mask: Tensor,
    names: Sequence[str],
    quotas: Sequence[int],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return the values of a random cascade, in expectation where there is a formula."""
    values = _values(flat, truth, mask, names, quotas, generator)
    result = funnel(flat, truth, quotas=quotas, mask=mask, generator=generator)
    values[JOINT] = result.chance.masked_fill(~result.defined, torch.nan)
    count = mask.sum(-1)
    left = torch.ones_like(values[JOINT])
    for name, quota in zip(names, quotas, strict=True):
        kept = (quota / count).clamp(max=1.0).masked_fill(~result.defined, torch.nan)
        values[f"{name}/recall"] = kept
        values[f"{name}/lost"] = left - torch.minimum(left, kept)
        left = torch.minimum(left, kept)
    return values


def _further_values(
    scores: Sequence[Tensor], batch: Impressions, truth: Tensor, names: Sequence[str], further: Sequence[str]
) -> dict[str, Tensor]:
    """Return the metrics of lists for each stage, NaN for impressions without a relevant item."""
    undefined = truth.sum(-1) == 0
    values = {}
    for metric in further:
        measured = parse(list_metric(metric))
        labels = (published_gains if metric.startswith(PUBLISHED_NDCG) else graded_truth)(batch, truth)
        for name, stage in zip(names, scores, strict=True):
            values[f"{name}/{metric}"] = measured(stage.float(), labels, batch.mask).masked_fill(undefined, torch.nan)
    return values


def _joined(parts: list[dict[str, Tensor]], names: Sequence[str], group: Group) -> dict[str, Tensor]:
    return {name: group.total(torch.cat([part[name] for part in parts])) for name in names}
