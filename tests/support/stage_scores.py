"""Random scores of cascades, without a log, for tests of diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.studies.evaluate import StageScores

if TYPE_CHECKING:
    from collections.abc import Sequence


def random_scores(
    seed: int,
    *,
    requests: int = 12,
    items: int = 14,
    stages: Sequence[str] = ("first", "second", "third"),
    relevant: int = 3,
    signal: float = 1.0,
    longest_only: bool = False,
) -> StageScores:
    """Return lists of different lengths, with up to `relevant` items of the ground truth and better scores for these.

    One request has no relevant item.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(items // 2, items + 1, (requests,), generator=generator)
    lengths[0] = items
    if longest_only:
        lengths[:] = items
    mask = torch.arange(items) < lengths[:, None]
    truth = (
        torch.rand(requests, items, generator=generator).masked_fill(~mask, 2.0).argsort(-1).argsort(-1)
    ) < relevant
    truth = truth & mask
    truth[1] = False
    scores = [torch.randn(requests, items, generator=generator) + signal * truth for _ in stages]
    return StageScores(
        stages=list(stages),
        requests=[f"r{number}" for number in range(requests)],
        days=["2024-01-15"] * requests,
        rows=torch.arange(requests),
        scores=scores,
        mask=mask,
        truth=truth.float(),
        relevance=truth.float(),
        item=torch.where(mask, torch.arange(items), -1).int(),
        depth=torch.zeros(requests, items, dtype=torch.int32),
        rank=torch.full((requests, items), -1, dtype=torch.int32),
        ranked=lengths,
        complete=True,
    )


def pruned(scores: StageScores, reach: int) -> StageScores:
    """Return lists that hold the `reach` best items of the first stage and all relevant items; others are masked."""
    best = scores.scores[0].masked_fill(~scores.mask, -torch.inf).argsort(-1, descending=True).argsort(-1) < reach
    changed = {field: getattr(scores, field) for field in StageScores.__dataclass_fields__}
    return StageScores(**(changed | {"mask": scores.mask & (best | (scores.truth > 0)), "complete": False}))
