"""The derivation of LambdaLoss@K (LLK, eq. 18-20): the weights of the items ranked before add up to NDCGCost@K."""

from __future__ import annotations

from itertools import permutations
from math import log2

import pytest
import torch

from rankfall.losses import lambda_loss


def discount(rank: int) -> float:
    return 1 / log2(1 + rank)


def delta(first: int, second: int, k: int) -> float:
    """Eq. 13, 16 and 17, from the ranks of two items."""
    distance = abs(first - second)
    value = discount(distance) - discount(distance + 1)
    last = max(first, second)
    return value / (1 - discount(last)) if last > k else value


def cost(rank: int, k: int) -> float:
    """Eq. 18, for a gain of 1."""
    return 1 - discount(rank) if rank <= k else 1.0


@pytest.mark.parametrize("k", range(1, 9))
def test_weights_of_the_items_before_add_up_to_the_cost(k: int) -> None:
    for rank in range(1, 8):
        assert sum(delta(rank, before, k) for before in range(1, rank)) == pytest.approx(cost(rank, k))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_loss_of_one_relevant_item_is_its_cost_in_steep_orders(k: int) -> None:
    """With one relevant item and scores far apart, the logistic loss of a pair is its score difference or 0."""
    n, gap = 5, 100.0
    for order in permutations(range(n)):
        scores = torch.tensor([gap * rank for rank in order], dtype=torch.float64)
        labels = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)
        rank = n - order[0]  # the highest score has rank 1
        expected = sum(delta(rank, before, k) * gap * (rank - before) for before in range(1, rank))
        assert float(lambda_loss(scores, labels, k=k)) == pytest.approx(expected, abs=1e-9)
        assert (expected == 0) == (rank == 1)
