"""Operators as in the code published with DFTopK: against loops over single values, and that they are what is said."""

from __future__ import annotations

import math

import pytest
import torch

from rankfall import ops

SCORES = [0.3, -1.2, 2.1, 0.9, -0.4, 1.4, 0.0]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def network_without_exchange(s: list[float], steepness: float) -> list[list[float]]:
    """An odd-even network whose comparators all see the given scores: the product of its layers, by single rows."""
    n = len(s)
    matrix = [[float(i == j) for j in range(n)] for i in range(n)]  # row: a wire, column: an item
    for layer in range(n):
        for upper in range(layer % 2, n - 1, 2):
            lower = upper + 1
            keep = math.atan(steepness * (s[upper] - s[lower])) / math.pi + 0.5
            a, b = matrix[upper], matrix[lower]
            matrix[upper] = [keep * x + (1 - keep) * y for x, y in zip(a, b, strict=True)]
            matrix[lower] = [(1 - keep) * x + keep * y for x, y in zip(a, b, strict=True)]
    return matrix


def projection(s: list[float], k: int, tau: float) -> list[float]:
    """Sparse top-k by bisection of its threshold."""
    low, high = min(s) / tau - 2, max(s) / tau + 2
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(min(1.0, max(0.0, x / tau - middle)) for x in s)
        low, high = (middle, high) if total > k else (low, middle)
    return [min(1.0, max(0.0, x / tau - low)) for x in s]


def test_comparators_of_the_published_diffsort_see_the_given_scores() -> None:
    found = ops.diff_sort(torch.tensor(SCORES, dtype=torch.double), steepness=3.0, variant="published")
    expected = torch.tensor(network_without_exchange(SCORES, 3.0), dtype=torch.double)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(7, dtype=torch.double))
    torch.testing.assert_close(found.sum(-2), torch.ones(7, dtype=torch.double))


def test_the_published_diffsort_does_not_sort() -> None:
    scores = torch.randn(400, 40, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    best = ops.hard_topk(scores, 10)
    sound = ops.diff_sort(scores, k=10, steepness=80.0).sum(-2)
    published = ops.diff_sort(scores, k=10, steepness=80.0, variant="published").sum(-2)
    assert float((sound * best).sum(-1).mean() / 10) > 0.85
    assert float((published * best).sum(-1).mean() / 10) == pytest.approx(10 / 40, abs=0.03)  # what chance has


def test_the_published_sparse_topk_goes_through_a_sigmoid_twice() -> None:
    scores = torch.tensor(SCORES, dtype=torch.double)
    expected = [sigmoid(sigmoid(x)) for x in projection(SCORES, 3, 1.5)]
    found = ops.sparse_topk(scores, 3, tau=1.5, variant="published")
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double))
    log_p, log_not_p = ops.topk("sparse_topk", tau=1.5, variant="published").log(scores, 3)
    torch.testing.assert_close(log_p, found.log())
    torch.testing.assert_close(log_not_p, (1 - found).log())


@pytest.mark.parametrize("name", ["diff_sort", "sparse_topk"])
def test_gradients_are_those_of_the_values(name: str) -> None:
    keep = ops.topk(name, variant="published")
    scores = torch.tensor(SCORES, dtype=torch.double).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: keep(s, 3), scores)
    assert torch.autograd.gradcheck(lambda s: torch.stack(ops.log_inclusion(keep, s, 3)), scores)


@pytest.mark.parametrize("name", ["diff_sort", "sparse_topk"])
def test_padding_changes_nothing(name: str) -> None:
    keep = ops.topk(name, variant="published")
    scores = torch.tensor(SCORES, dtype=torch.double)
    padded = torch.cat([scores, torch.tensor([9.0, 9.0], dtype=torch.double)])
    mask = torch.arange(9) < 7
    for found in (keep(padded, 3, mask=mask), keep(padded.masked_fill(~mask, -torch.inf), 3)):
        torch.testing.assert_close(found[:7], keep(scores, 3))
        assert found[7:].tolist() == [0.0, 0.0]
    assert keep(padded, 8, mask=mask).tolist() == [1.0] * 7 + [0.0] * 2


@pytest.mark.parametrize("name", ["diff_sort", "sparse_topk"])
def test_the_sound_variant_is_the_default(name: str) -> None:
    scores = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ops.topk(name)(scores, 4), ops.topk(name, variant="sound")(scores, 4))
    assert not torch.allclose(ops.topk(name)(scores, 4), ops.topk(name, variant="published")(scores, 4))
    with pytest.raises(ValueError, match="variant must be one of 'sound', 'published'"):
        ops.topk(name, variant="sond")(scores, 4)
