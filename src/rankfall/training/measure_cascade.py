"""Score and measure a cascade, on the device of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.training.all_items import AllItemsScorer
from rankfall.training.cascade_metrics import JOINT_VALUE, MeasuredFunnel, measure_lists
from rankfall.training.device import device_of, moved
from rankfall.training.distributed.group import ALONE
from rankfall.training.scored_batch import ScoredBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLoader
    from rankfall.data.impressions.loader import Impressions
    from rankfall.training.config.cascade_config import CascadeConfig
    from rankfall.training.distributed.group import Group
    from rankfall.training.scored_batch import ScoreBatch


def measure(
    cascade: Cascade,
    loader: ImpressionLoader,
    config: CascadeConfig,
    *,
    on_batch: Callable[[int], None] = lambda count: None,
    on_scored: Callable[[Impressions, ScoredBatch], None] = lambda loaded, scored: None,
    group: Group = ALONE,
) -> MeasuredFunnel:
    """Return the metrics of each impression in evaluation mode, with what their intervals and figures need.

    Args:
        cascade: The cascade.
        loader: Batches of impressions.
        config: Configuration with the quotas and metrics.
        on_batch: Called with the size of each batch.
        on_scored: Called with each batch that this process scores, as it was loaded and as it was scored.
        group: Processes that share the batches.
    """
    was_training = cascade.training
    cascade.eval()
    score = scorer_for(cascade, loader, config)

    def scored(loaded: Impressions) -> ScoredBatch:
        found = score(loaded)
        on_scored(loaded, found)
        return found

    try:
        return measure_lists(
            scored,
            loader,
            names=cascade.names,
            quotas=[stage.quota for stage in config.stages],
            relevant=config.relevant,
            further=config.stage_metrics,
            feedback=config.feedback,
            value=config.training.metric == JOINT_VALUE,
            on_batch=on_batch,
            group=group,
        )
    finally:
        cascade.train(was_training)


def scorer_of(cascade: Cascade) -> ScoreBatch:
    """Return a function that scores the lists of a batch by all stages, on the device of the weights."""
    device = device_of(cascade)

    @torch.no_grad()
    def score(batch: Impressions) -> ScoredBatch:
        return ScoredBatch.of_lists(batch, [stage.cpu() for stage in cascade(moved(batch, device))])

    return score


def scorer_for(
    cascade: Cascade, loader: ImpressionLoader, config: CascadeConfig, *, reach: int | None = None
) -> ScoreBatch:
    """Return a function that scores the batches of a loader: their own lists, or all items with ``data.length: all``.

    Args:
        cascade: The cascade, in evaluation mode.
        loader: The loader of the batches.
        config: Configuration with the quotas that are measured.
        reach: With ``data.length: all``, the number of best items of the first stage in the lists; at least its quota.
    """
    if loader.length != "all":
        return scorer_of(cascade)
    quota = config.stages[0].quota
    return AllItemsScorer(cascade, loader, reach=max(quota, reach or quota), device=device_of(cascade))


def means_of(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the means over the impressions on which a metric is defined."""
    return {name: float(value.nanmean()) for name, value in values.items()}
