"""The survival bound and the gradient conflict on the scores of a run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rankfall import ops
from rankfall.metrics.cascade_survival import CLAIMS, survival_of
from rankfall.studies.diagnosis import operator_conflict, survival_bound
from rankfall.studies.diagnosis.funnel_lists import FunnelLists
from rankfall.studies.diagnosis.operator_conflict import (
    BOUNDARY,
    CANCELLED,
    LOWERED,
    OPERATORS,
    ROW_CONFLICT,
    ROW_LOWERED,
    SOFTNESS,
    conflicts_of_run,
    measure,
    of_rows,
)
from support.stage_scores import random_scores

DFTOPK: dict[str, Any] = {"name": "dftopk", "tau": 0.7}


def lists_of(seed: int = 0, quotas: tuple[int, ...] = (8, 4)) -> FunnelLists:
    stages = ("first", "second", "third")[: len(quotas)]
    return FunnelLists.of_scores(random_scores(seed, requests=40, items=16, stages=stages), list(quotas))


# --- survival -------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_product_of_inclusions_of_each_list_alone() -> None:
    lists = lists_of()
    found = survival_bound.survival_bound(lists, DFTOPK)
    operator, bounds, gaps = ops.topk(**DFTOPK), [], []
    for request in range(len(lists)):
        real = lists.mask[request]
        p, r = (
            operator(lists.scores[stage][request][real].double(), quota) for stage, quota in enumerate(lists.quotas)
        )
        weight = lists.weight[request][real].double()
        bounds.append(float((weight * p * r).sum()))
        gaps.append(float((weight * r * (r.sum() / (p * r).sum() - 1)).sum()))
    assert found.bound.value == pytest.approx(np.mean(bounds), rel=1e-6)
    assert found.gap_bound == pytest.approx(np.mean(gaps), rel=1e-6)
    assert found.survived.value == pytest.approx(float(lists.recall(lists.arrived[-1]).mean()), rel=1e-6)
    assert (found.operator, found.own, found.requests) == ("dftopk, tau = 0.7", True, len(lists))


def test_the_bound_of_the_gap_is_that_of_the_enumeration() -> None:
    p, r = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    torch.testing.assert_close(survival_bound.gap_bound(p, r), survival_of(p, r, 3).gap_bound)


def test_calibration_counts_every_relevant_item_once() -> None:
    lists = lists_of()
    found = survival_bound.survival_bound(lists, DFTOPK)
    assert sum(one.items for one in found.calibration) == int((lists.weight > 0).sum())
    for one in found.calibration:
        assert one.low <= one.bound <= one.high
    product = torch.tensor([[0.05, 0.2, 0.25, 0.95]])
    alive, weight = torch.tensor([[False, False, True, True]]), torch.tensor([[0.25, 0.25, 0.5, 0.0]])
    low, middle = survival_bound.calibration(product, alive, weight)
    assert (low.items, low.survived, middle.items) == (1, 0.0, 2)
    assert middle.survived == pytest.approx(0.5 / 0.75)
    assert middle.bound == pytest.approx((0.25 * 0.2 + 0.5 * 0.25) / 0.75)


def test_claims_are_checked_on_lists_of_the_run() -> None:
    found = survival_bound.survival_bound(lists_of(quotas=(10, 6, 3)), {"name": "sigmoid_topk", "tau": 0.5})
    assert [one.claim for one in found.claims] == list(CLAIMS)
    assert found.short_lists > 0
    assert {one.items for one in found.claims} == {found.short_lists * found.short_length}
    by_claim = {one.claim: one.failures for one in found.claims}
    assert by_claim["P_CS >= E(pi) P_M2 (eq. 8, line 2)"] == 0  # holds for any inclusions
    assert by_claim["E(pi) = P_M1 (section 4.3)"] > 0
    assert np.isnan(found.gap_bound)  # equation 14 is for two stages


def test_a_run_without_a_soft_top_k_is_compared_with_that_of_the_paper() -> None:
    found = survival_bound.survival_bound(lists_of(), None)
    assert (found.operator, found.own) == ("neural_sort, tau = 50", False)


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(OPERATORS))
def test_padding_changes_no_share(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(10, 12, generator=generator, dtype=torch.double)
    relevant = torch.rand(10, 12, generator=generator).argsort(-1) < 4
    options = {**OPERATORS[name], "tau": 0.8}
    padded = torch.cat([scores, 5 * torch.ones(10, 3, dtype=torch.double)], -1)
    nothing = torch.zeros(10, 3, dtype=torch.bool)
    mask = torch.cat([torch.ones(10, 12, dtype=torch.bool), nothing], -1)
    for k in (4, 7):
        expected = measure(options, scores, relevant, k)
        found = measure(options, padded, torch.cat([relevant, nothing], -1), k, mask)
        assert found == pytest.approx(expected, abs=1e-9)


def soft_sort(s: np.ndarray, tau: float) -> np.ndarray:
    """SoftSort, entry by entry."""
    logits = np.array([[-abs(a - b) / tau for b in s] for a in sorted(s, reverse=True)])
    shares = np.exp(logits)
    return np.asarray(shares / shares.sum(1, keepdims=True))


def test_rows_conflict_as_finite_differences_show() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(12, 9, generator=generator, dtype=torch.double)
    relevant = torch.rand(12, 9, generator=generator).argsort(-1) < 3
    conflicts, lowered, parts, sums = [], [], 0.0, 0.0
    for s, chosen in zip(scores.numpy(), relevant.numpy(), strict=True):
        rows = []
        for row in range(5):
            gradient = []
            for item in np.flatnonzero(chosen):
                step = np.zeros(9)
                step[item] = 1e-6
                ends = [-soft_sort(s + sign * step, 0.8)[row, chosen].sum() for sign in (1, -1)]
                gradient.append((ends[0] - ends[1]) / 2e-6)
            rows.append(gradient)
            conflicts.append(max(gradient) > 1e-8 and min(gradient) < -1e-8)
            lowered += [value > 1e-8 for value in gradient]
        parts, sums = parts + np.abs(rows).sum(), sums + np.abs(np.sum(rows, 0)).sum()
    found = of_rows({"name": "soft_sort", "tau": 0.8, "gradient": "rows"}, scores, relevant, 5)
    assert found[ROW_CONFLICT] == pytest.approx(np.mean(conflicts))
    assert found[ROW_LOWERED] == pytest.approx(np.mean(lowered))
    assert found[CANCELLED] == pytest.approx(1 - sums / parts, abs=1e-4)


def test_some_rows_represent_all() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(40, 60, generator=generator, dtype=torch.double)
    relevant = torch.rand(40, 60, generator=generator).argsort(-1) < 8
    options = {"name": "neural_sort", "tau": 20.0}
    all_rows, some = of_rows(options, scores, relevant, 40), of_rows(options, scores, relevant, 40, most=10)
    for name, value in some.items():
        assert value == pytest.approx(all_rows[name], abs=0.05)
    assert of_rows(options, scores, relevant, 6, most=10) == of_rows(options, scores, relevant, 6)


def test_every_operator_is_measured_on_the_same_lists() -> None:
    lists = lists_of(quotas=(8, 4))
    for stage, quota in enumerate(lists.quotas):
        found = conflicts_of_run(lists, stage, DFTOPK)
        assert [(one.operator, one.softness) for one in found] == [
            ("dftopk, tau = 0.7", None),
            *((name, softness) for softness, name in itertools.product(SOFTNESS, OPERATORS)),
        ]
        assert {(one.lists, one.k, one.stage) for one in found} == {(found[0].lists, quota, lists.stages[stage])}
        assert [one.own for one in found] == [True] + [False] * (len(found) - 1)
        for one in found:
            assert (ROW_CONFLICT in one.shares) == ("Sort" in one.operator)
            assert one.lowered.value == pytest.approx(one.shares[LOWERED])
            assert 0 <= one.lowered.low <= one.lowered.value <= one.lowered.high <= 1
            if one.operator == "DFTopK":  # its threshold consists of the two items at the cut alone
                assert one.shares[BOUNDARY] == pytest.approx(0.5, abs=0.15)


def test_the_own_operator_is_measured_with_its_own_temperature() -> None:
    lists = lists_of()
    (own, *_) = conflicts_of_run(lists, 0, DFTOPK)
    long = lists.mask.sum(-1) > 8
    chosen = long.nonzero().squeeze(-1)
    assert own.lists == len(chosen)
    expected = measure(DFTOPK, lists.scores[0][chosen].double(), lists.weight[chosen] > 0, 8, lists.mask[chosen])
    assert own.shares == pytest.approx(expected)


def test_lists_within_the_quota_have_no_conflict() -> None:
    assert conflicts_of_run(lists_of(quotas=(16, 4)), 0, None) == []


def long_lists(lengths: list[int], quota: int) -> FunnelLists:
    """Lists of these lengths with five relevant items, whose scores are higher on average."""
    generator = torch.Generator().manual_seed(4)
    collected = random_scores(0, requests=len(lengths), items=max(lengths), stages=("only",))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    truth = (torch.rand(mask.shape, generator=generator).masked_fill(~mask, 2.0).argsort(-1).argsort(-1) < 5).float()
    scores = torch.randn(mask.shape, generator=generator) + 2 * truth
    collected = replace(collected, mask=mask, truth=truth, scores=[scores], complete=True)
    return FunnelLists.of_scores(collected, [quota])


def test_a_sample_of_long_lists_has_about_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = long_lists([200] * 40, 30)
    whole = conflicts_of_run(lists, 0, None)
    monkeypatch.setattr(operator_conflict, "MOST_ITEMS", 100)
    sampled = conflicts_of_run(lists, 0, None)
    assert [(one.k, one.lists) for one in sampled] == [(15, 40)] * len(whole)
    for one, other in zip(sampled, whole, strict=True):
        # in a shorter list, an item is a larger part of those that compete for a place, so that fewer are lowered
        close = 0.2 if one.operator.endswith("LCRON's code") else 0.06
        assert one.lowered.value == pytest.approx(other.lowered.value, abs=close), one.operator
        for measured, close in ((ROW_LOWERED, 0.15), (ROW_CONFLICT, 0.06), (CANCELLED, 0.06)):
            assert one.shares.get(measured) == pytest.approx(other.shares.get(measured), abs=close), one.operator
        if one.operator == "DFTopK":
            assert one.shares[BOUNDARY] == pytest.approx(other.shares[BOUNDARY], abs=0.02)


def test_a_sample_keeps_relevant_items_and_the_selected_share_of_each_list() -> None:
    lists = long_lists([1000, 500, 60, 12], 10)
    relevant = lists.weight > 0
    places, mask = operator_conflict._sample(lists.mask, relevant, 0.1, 2, torch.Generator().manual_seed(0))
    assert mask.sum(-1).tolist() == [100, 50, 6, 5]  # relevant items are more than a tenth of the last list
    assert (relevant.gather(-1, places) & mask).sum(-1).tolist() == [5] * 4
    assert lists.mask.gather(-1, places)[mask].all()
    for row, real in zip(places, mask, strict=True):
        assert len(row[real].unique()) == real.sum()


def test_lists_up_to_the_limit_are_measured_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = lists_of()
    whole = conflicts_of_run(lists, 0, DFTOPK)
    monkeypatch.setattr(operator_conflict, "MOST_ITEMS", lists.mask.shape[-1])
    monkeypatch.setattr(operator_conflict, "_sample", None)
    assert conflicts_of_run(lists, 0, DFTOPK) == whole


def test_equal_scores_do_not_divide_by_zero() -> None:
    lists = lists_of()
    lists.scores[0].zero_()
    for one in conflicts_of_run(lists, 0, None):
        assert 0 <= one.shares[LOWERED] <= 1


def test_names_of_operators() -> None:
    text = operator_conflict.operator_text({"name": "neural_sort", "tau": 50.0, "gradient": "exact"})
    assert text == "neural_sort, tau = 50, gradient = exact"
