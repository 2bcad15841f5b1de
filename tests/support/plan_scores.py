"""Random scores of all stages, and a naive cascade, for tests of planning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.studies.evaluate import StageScores

if TYPE_CHECKING:
    from collections.abc import Sequence


def random_scores(
    requests: int,
    length: int,
    stages: int,
    *,
    seed: int = 0,
    relevant: int = 3,
    masked: bool = False,
    tied: bool = False,
) -> StageScores:
    """Return lists whose stages agree with each other and with the relevance, each with its own noise."""
    generator = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn(requests, length, generator=generator)

    base = noise()
    scores = [base + (1.5 - 0.3 * stage) * noise() for stage in range(stages)]
    if tied:
        scores = [(1.5 * stage).round() for stage in scores]
    lengths = torch.randint(1, length + 1, (requests, 1), generator=generator) if masked else length
    mask = (torch.arange(length) < lengths).expand(requests, length)
    truth = torch.zeros(requests, length).scatter_(1, (base + noise()).topk(relevant).indices, 1.0) * mask
    places = torch.arange(length).expand(requests, length)
    return StageScores(
        stages=[f"stage{number}" for number in range(stages)],
        requests=[str(number) for number in range(requests)],
        days=["2024-01-13"] * requests,
        rows=torch.arange(requests),
        scores=scores,
        mask=mask,
        truth=truth,
        relevance=truth * (1 + torch.rand(requests, length, generator=generator).mul(4).floor()),
        item=places,
        depth=torch.zeros_like(places),
        rank=places,
        ranked=mask.sum(-1),
        complete=True,
    )


def survivors(scores: StageScores, request: int, quotas: Sequence[int]) -> list[list[int]]:
    """Return the items that each stage keeps, by a loop."""
    alive = [item for item in range(scores.mask.shape[1]) if scores.mask[request, item]]
    kept = []
    for stage, quota in zip(scores.scores, quotas, strict=True):
        alive = sorted(alive, key=lambda item: -float(stage[request, item]))[:quota]
        kept.append(alive)
    return kept
