"""The exact pass over all quotas of a grid, against metrics.funnel and against a loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from rankfall.metrics import funnel
from rankfall.studies.plan.quota_search import search
from support.plan_scores import random_scores


def random_choices(stages: int, count: int, most: int) -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(stages).integers(1, most + 1, (count, stages))
    return [tuple(map(int, quotas)) for quotas in drawn]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_choice_of_quotas_is_that_of_the_funnel(stages: int, masked: bool, tied: bool) -> None:
    scores = random_scores(40, 12, stages, seed=stages, masked=masked, tied=tied)
    choices = [*random_choices(stages, 40, 15), (10**6,) * stages]  # quotas may exceed the lists, and the one before
    weight = scores.truth.double().numpy()
    single = search(scores, weight, choices, per_request=True)
    for quotas, values, kept in zip(choices, single.values, single.kept, strict=True):
        expected = funnel(scores.scores, scores.truth, quotas=quotas, mask=scores.mask)
        assert np.array_equal(values, (expected.survivors[:, -1] * scores.truth).sum(-1).numpy())
        assert np.array_equal(kept, expected.survivors.sum((0, 2)).numpy())
    summed = search(scores, weight, choices)
    assert np.allclose(summed.values, single.values.sum(1))
    assert np.array_equal(summed.kept, single.kept)


def test_blocks_do_not_change_the_outcome() -> None:
    scores = random_scores(50, 12, 3, masked=True)
    choices = random_choices(3, 20, 12)
    weight = np.random.default_rng(0).random((50, 12))
    whole, blocks = (search(scores, weight, choices, per_request=True, block=size) for size in (10**6, 84))
    assert np.array_equal(whole.values, blocks.values)
    assert np.array_equal(whole.kept, blocks.kept)


def test_pruned_lists_are_exact_up_to_their_reach() -> None:
    whole = random_scores(30, 40, 3)
    reach, truth = 15, whole.truth > 0
    first = whole.scores[0].argsort(dim=-1, descending=True).argsort(-1) < reach
    pruned = replace(whole, mask=first | truth, complete=False)
    choices = [quotas for quotas in product((1, 5, 10, 15), (1, 5, 10), (1, 4)) if quotas[0] >= quotas[1]]
    weight = whole.truth.double().numpy()
    expected, found = (search(one, weight, choices, per_request=True) for one in (whole, pruned))
    assert np.array_equal(expected.values, found.values)


def test_long_lists_are_counted_in_wider_numbers() -> None:
    length = 2**15 + 10
    scores = random_scores(2, length, 2)
    scores = replace(scores, scores=[torch.arange(length).float().expand(2, length)] * 2)
    weight = np.zeros((2, length))
    weight[:, 0] = 1.0  # the worst item
    found = search(scores, weight, [(length, length), (length - 1, length - 1), (10**9, 10**9)])
    assert found.values.tolist() == [2.0, 0.0, 2.0]
