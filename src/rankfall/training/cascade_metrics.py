"""Metrics of a cascade on impressions: recall, NDCG and lost items per stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall._lists import top_labels
from rankfall.metrics import funnel
from rankfall.training.config.cascade_metric_names import JOINT, higher_is_better, measures
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLoader
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.distributed.group import Group

__all__ = ["JOINT", "ground_truth", "higher_is_better", "measure_funnel", "measures"]

SEED = 0  # seed of the order of items with equal scores


def ground_truth(batch: Impressions, relevant: int) -> Tensor:
    """Return membership ``(B, N)`` in the ground truth: the items with the best grades among the relevant ones."""
    return top_labels((batch.grade.float() + 1) * (batch.relevance > 0), relevant, batch.mask)


def measure_funnel(
    score: Callable[[Impressions], Sequence[Tensor]],
    loader: ImpressionLoader,
    *,
    names: Sequence[str],
    quotas: Sequence[int],
    relevant: int,
    on_batch: Callable[[int], None] = lambda count: None,
    group: Group = ALONE,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Measure a cascade on all impressions of a loader.

    Metrics are ``joint_recall`` and, for each stage, ``NAME/recall`` and ``NAME/ndcg`` over the whole list and
    ``NAME/lost``, the share of the relevant items that the stage drops.

    Args:
        score: Returns the scores ``(B, N)`` of each stage for a batch.
        loader: Batches of impressions.
        names: Names of the stages.
        quotas: Number of items that each stage keeps.
        relevant: Number of relevant items per impression.
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
        for number, batch in enumerate(loader):
            if number % group.world == group.rank:
                generator = torch.Generator().manual_seed(SEED + number)
                truth = ground_truth(batch, relevant)
                values.append(_values(score(batch), truth, batch.mask, names, quotas, generator))
                flat = [torch.zeros_like(truth)] * len(names)
                chances.append(_chance(flat, truth, batch.mask, names, quotas, generator))
            else:
                zeros = dict.fromkeys(measures(names), torch.zeros(len(batch)))
                values.append(zeros)
                chances.append(zeros)
            on_batch(len(batch))
    return _joined(values, group), _joined(chances, group)


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


def _joined(parts: list[dict[str, Tensor]], group: Group) -> dict[str, Tensor]:
    return {name: group.total(torch.cat([part[name] for part in parts])) for name in parts[0]}
