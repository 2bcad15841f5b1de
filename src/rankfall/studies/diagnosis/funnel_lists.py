"""Lists with the order of every stage, from which the funnel is computed for other quotas and other orders.

Sorting takes most of the time of a funnel. Here every stage is sorted once, so that a question such as "what if this
quota were twice as large?" costs a fraction of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankfall._lists import any_order, rank_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.studies.stage_scores import StageScores

SEED = 0  # of the order of equal scores


@dataclass(frozen=True, slots=True)
class FunnelLists:
    """The requests with a relevant item, and what each stage did with them.

    Attributes:
        stages: Names of the stages.
        quotas: Number of items that each stage keeps.
        rows: Places ``(R,)`` of these requests among all requests of the scores.
        scores: Scores ``(R, N)`` of each stage.
        mask: Real items ``(R, N)``.
        weight: Share ``(R, N)`` of each item in the ground truth of its request, float32; the sum of a request is 1.
        orders: Indices ``(R, N)`` of the items by descending score of each stage; equal scores are in random order.
        arrived: Items ``(R, N)`` that arrived at each stage, and after the last stage those that survived.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        complete: Whether the lists hold every item that the first stage ranked.
    """

    stages: list[str]
    quotas: list[int]
    rows: Tensor
    scores: list[Tensor]
    mask: Tensor
    weight: Tensor
    orders: list[Tensor]
    arrived: list[Tensor]
    ranked: Tensor
    complete: bool

    @classmethod
    def of_scores(cls, collected: StageScores, quotas: Sequence[int]) -> FunnelLists:
        """Sort the lists of all requests with a relevant item by every stage.

        Args:
            collected: Scores of all stages.
            quotas: Number of items that each stage keeps.

        Raises:
            ValueError: No request has a relevant item.
        """
        total = collected.truth.double().sum(-1, keepdim=True)
        rows = (total.squeeze(-1) > 0).nonzero().squeeze(-1)
        if not len(rows):
            raise ValueError("diagnosis: no request has a relevant item, so nothing can be lost")
        mask = collected.mask[rows]
        scores = [stage[rows] for stage in collected.scores]
        generator = torch.Generator().manual_seed(SEED)
        orders = [_random_order(stage, mask, generator) for stage in scores]
        return cls(
            stages=collected.stages,
            quotas=list(quotas),
            rows=rows,
            scores=scores,
            mask=mask,
            weight=(collected.truth[rows] / total[rows]).float(),
            orders=orders,
            arrived=survivors(orders, mask, quotas),
            ranked=collected.ranked[rows],
            complete=collected.complete,
        )

    def __len__(self) -> int:
        """The number of requests with a relevant item."""
        return len(self.rows)

    def recall(self, alive: Tensor) -> Tensor:
        """Return the share ``(R,)`` of the ground truth of each request that is among some items ``(R, N)``."""
        return (self.weight * alive).sum(-1).double()

    def with_quotas(self, quotas: Sequence[int]) -> Tensor:
        """Return the survivors ``(R, N)`` of the cascade with other quotas."""
        return survivors(self.orders, self.mask, quotas)[-1]

    def ranks(self, stage: int) -> Tensor:
        """Return the rank ``(R, N)`` of each item that arrived at a stage, from 1, among those; 0 for all others."""
        return ranks_among(self.orders[stage], self.arrived[stage])

    def would_survive(self, stage: int) -> Tensor:
        """Return which items ``(R, N)`` would survive all stages after this one if they alone were passed to them too.

        The items that pass the stage now are passed as well, so that an item that they displace may be relevant.
        """
        would = torch.ones_like(self.mask)
        for later in range(stage + 1, len(self.stages)):
            arrived, order = self.arrived[later], self.orders[later]
            before = arrived.gather(-1, order).cumsum(-1, dtype=torch.int32)
            better = torch.empty_like(before).scatter_(-1, order, before) - arrived.int()
            would &= better < self.quotas[later]
        return would & self.mask

    def perfect_order(self, stage: int) -> Tensor:
        """Return the order of a stage that puts the ground truth first, and leaves the order of all others."""
        order = self.orders[stage]
        return order.gather(-1, self.weight.gather(-1, order).argsort(dim=-1, descending=True, stable=True))


def survivors(orders: Sequence[Tensor], mask: Tensor, quotas: Sequence[int]) -> list[Tensor]:
    """Return the items ``(R, N)`` that arrive at each stage, and then those that survive the last one.

    Args:
        orders: Indices of the items by descending score of each stage, masked items last.
        mask: Real items.
        quotas: Number of items that each stage keeps.
    """
    alive = [mask]
    for order, quota in zip(orders, quotas, strict=True):
        alive.append((ranks_among(order, alive[-1]) <= quota) & alive[-1])
    return alive


def ranks_among(order: Tensor, alive: Tensor) -> Tensor:
    """Return the rank of each item that is alive among those, from 1, in int32; 0 for all others."""
    in_order = alive.gather(-1, order)
    ranks = in_order.cumsum(-1, dtype=torch.int32) * in_order
    return torch.empty_like(ranks).scatter_(-1, order, ranks)


def _random_order(scores: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
    """Return the indices of the items by descending score, equal scores in random order, masked items last."""
    shuffle = any_order(torch.rand(scores.shape, generator=generator))
    return shuffle.gather(-1, rank_order(scores.gather(-1, shuffle), mask.gather(-1, shuffle)))
