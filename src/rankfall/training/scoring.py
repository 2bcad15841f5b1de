"""Scores of all documents of lists, and metrics of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.data.lists.list_loader import Lists
from rankfall.training.device import device_of, moved
from rankfall.training.distributed.group import ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.data.lists.ranking_data import RankingSplit
    from rankfall.metrics.named import NamedMetric
    from rankfall.training.build_ranker import Ranker
    from rankfall.training.distributed.group import Group

CHUNK_ROWS = 1 << 14  # documents scored at once


def score(model: Ranker, split: RankingSplit | Lists, group: Group = ALONE) -> Tensor:
    """Score every document in evaluation mode, on the device of the weights.

    Args:
        model: The ranker.
        split: Lists to score.
        group: Processes that share the work.

    Returns:
        Scores ``(rows,)`` in the order of the split, on the CPU.
    """
    lists = split if isinstance(split, Lists) else Lists([split])
    was_training, device = model.training, device_of(model)
    model.eval()
    try:
        with torch.no_grad():
            scores = [
                model.score(moved(chunk, device)).cpu()
                if number % group.world == group.rank
                else torch.zeros(len(chunk))
                for number, chunk in enumerate(lists.chunks(CHUNK_ROWS))
            ]
            return group.total(torch.cat(scores))
    finally:
        model.train(was_training)


def measure(scores: Tensor, split: RankingSplit | Lists, metrics: Sequence[NamedMetric]) -> dict[str, Tensor]:
    """Return one value per list for each metric of the scores ``(rows,)``. NaN where a metric is undefined."""
    lists = split if isinstance(split, Lists) else Lists([split])
    if scores.shape != (lists.rows,):
        raise ValueError(f"scores must be one for each of the {lists.rows} documents, got {tuple(scores.shape)}")
    values = {metric.name: torch.empty(len(lists)) for metric in metrics}
    for batch in lists.by_length():
        padded = batch.pad(scores[torch.from_numpy(batch.rows)])
        for metric in metrics:
            values[metric.name][torch.from_numpy(batch.lists)] = metric(padded, batch.labels, batch.mask).float()
    return values
