"""Scores of all stages for all lists of some days: what diagnosis and planning read.

Both ask many questions of the same scores, such as the joint recall for hundreds of quotas. The models run once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import torch
from torch.nn import functional as F

from rankfall.training.cascade_metrics import ground_truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from rankfall.data import ImpressionLoader
    from rankfall.training.scored_batch import ScoreBatch, ScoredBatch


@dataclass(frozen=True, slots=True)
class StageScores:
    """Scores of all stages on R lists, padded to the longest one.

    Attributes:
        stages: Names of the stages.
        requests: Id of each request.
        days: Day of each request.
        rows: Row ``(R,)`` of each request in the file of its day.
        scores: Scores ``(R, N)`` of each stage.
        mask: Real items ``(R, N)``.
        truth: Membership ``(R, N)`` in the ground truth.
        relevance: Relevance ``(R, N)`` of each item.
        item: Item numbers ``(R, N)``, -1 in padding.
        depth: Deepest logged stage ``(R, N)`` of each item, -1 for items that were added to the list.
        rank: Logged rank ``(R, N)``, -1 for none.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        complete: Whether the lists hold every item that the first stage ranked; see
            :class:`~rankfall.training.scored_batch.ScoredBatch`.
    """

    stages: list[str]
    requests: list[str]
    days: list[str]
    rows: Tensor
    scores: list[Tensor]
    mask: Tensor
    truth: Tensor
    relevance: Tensor
    item: Tensor
    depth: Tensor
    rank: Tensor
    ranked: Tensor
    complete: bool

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.requests)


def collect_scores(
    score: ScoreBatch,
    loader: ImpressionLoader,
    *,
    stages: Sequence[str],
    relevant: int,
    on_batch: Callable[[int], None] = lambda count: None,
) -> StageScores:
    """Score all impressions of a loader.

    Args:
        score: Returns a batch with the scores of each stage.
        loader: Batches of impressions.
        stages: Names of the stages.
        relevant: Number of relevant items per impression.
        on_batch: Called with the size of each batch.
    """
    parts: list[ScoredBatch] = []
    requests: list[str] = []
    for loaded in loader:
        parts.append(score(loaded))
        requests += loader.requests(loaded).cast(pa.string()).to_pylist()
        on_batch(len(loaded))
    batches = [part.batch for part in parts]
    return StageScores(
        stages=list(stages),
        requests=requests,
        days=[batch.day for batch in batches for _ in range(len(batch))],
        rows=torch.cat([batch.rows for batch in batches]),
        scores=[_stack([part.scores[stage].float() for part in parts]) for stage in range(len(stages))],
        mask=_stack(batch.mask for batch in batches),
        truth=_stack(ground_truth(batch, relevant) for batch in batches),
        relevance=_stack(batch.relevance for batch in batches),
        item=_stack((batch.item for batch in batches), padding=-1),
        depth=_stack((batch.depth for batch in batches), padding=-1),
        rank=_stack((batch.rank for batch in batches), padding=-1),
        ranked=torch.cat([part.ranked for part in parts]),
        complete=all(part.complete for part in parts),
    )


def _stack(parts: Iterable[Tensor], padding: int = 0) -> Tensor:
    """Return the rows of all parts in one tensor, padded to the same length."""
    parts = list(parts)
    width = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[-1]), value=padding) for part in parts])
