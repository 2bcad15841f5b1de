"""Tests of `rankfall bench ops` and `losses`: textbook code equals the library; measurements are correct."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from benchmarks import claims
from benchmarks import textbook as textbook_losses
from benchmarks.claims import at_least, at_most
from rankfall import losses, ops
from rankfall.benchmarks import operators
from rankfall.benchmarks.timing import (
    Case,
    Clock,
    CostLimit,
    Row,
    Shape,
    growth,
    growth_exponent,
    measure_cases,
    peak_bytes,
    time_in_turns,
)
from rankfall.reproductions import textbook

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LISTS, N, K = 3, 16, 5

OPERATORS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "neural_sort": (lambda s: ops.neural_sort(s, tau=2.0), lambda s: textbook.neural_sort(s, 2.0)),
    "neural_sort, k rows": (
        lambda s: ops.neural_sort(s, tau=2.0, k=K),
        lambda s: textbook.neural_sort(s, 2.0)[..., :K, :],
    ),
    "soft_sort": (lambda s: ops.soft_sort(s, tau=0.5), lambda s: textbook.soft_sort(s, 0.5)),
    "soft_sort, power 2": (
        lambda s: ops.soft_sort(s, tau=0.5, power=2),
        lambda s: textbook.soft_sort(s, 0.5, 2),
    ),
    "diff_sort": (lambda s: ops.diff_sort(s, steepness=3.0), lambda s: textbook.diff_sort(s, 3.0)),
    "diff_sort, bitonic": (
        lambda s: ops.diff_sort(s, steepness=3.0, network="bitonic"),
        lambda s: textbook.diff_sort(s, 3.0, "bitonic"),
    ),
    "pirank_sort, depth 1": (
        lambda s: ops.pirank_sort(s, k=K, tau=2.0, depth=1),
        lambda s: textbook.neural_sort(s, 2.0)[..., :K, :],
    ),
    "dftopk": (lambda s: ops.dftopk(s, K, tau=0.3), lambda s: textbook.dftopk(s, K, 0.3)),
    "lapsum_topk": (lambda s: ops.lapsum_topk(s, K, tau=0.3), lambda s: textbook.lapsum_topk(s, K, 0.3)),
    "lapsum_topk, k=1": (lambda s: ops.lapsum_topk(s, 1, tau=2.0), lambda s: textbook.lapsum_topk(s, 1, 2.0)),
    "lapsum_topk, k=n-1": (
        lambda s: ops.lapsum_topk(s, N - 1, tau=2.0),
        lambda s: textbook.lapsum_topk(s, N - 1, 2.0),
    ),
    "sigmoid_topk": (lambda s: ops.sigmoid_topk(s, K, tau=0.3), lambda s: textbook.sigmoid_topk(s, K, 0.3)),
    "sparse_topk": (lambda s: ops.sparse_topk(s, K, tau=0.9), lambda s: textbook.sparse_topk(s, K, 0.9)),
    "sparse_topk, p=4/3": (
        lambda s: ops.sparse_topk(s, K, tau=0.9, p=4 / 3),
        lambda s: textbook.sparse_topk(s, K, 0.9, 4 / 3),
    ),
}

LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "mse_loss": (lambda s, y: losses.mse_loss(s, y, reduction="none"), textbook_losses.mse_loss),
    "bce_loss": (lambda s, y: losses.bce_loss(s, y, reduction="none"), textbook_losses.bce_loss),
    "softmax_loss": (lambda s, y: losses.softmax_loss(s, y, reduction="none"), textbook_losses.softmax_loss),
    "listmle_loss": (lambda s, y: losses.listmle_loss(s, y, reduction="none"), textbook_losses.listmle_loss),
    "ranknet_loss": (lambda s, y: losses.ranknet_loss(s, y, reduction="none"), textbook_losses.ranknet_loss),
    "lambdarank_loss": (
        lambda s, y: losses.lambdarank_loss(s, y, reduction="none"),
        textbook_losses.lambdarank_loss,
    ),
    "lambda_loss": (
        lambda s, y: losses.lambda_loss(s, y, k=K, reduction="none"),
        lambda s, y: textbook_losses.lambda_loss(s, y, K),
    ),
    "lambda_recall_loss": (
        lambda s, y: losses.lambda_recall_loss(s, y, m=K + 2, k=K, reduction="none"),
        lambda s, y: textbook_losses.lambda_recall_loss(s, y, K + 2, K),
    ),
    "approx_ndcg_loss": (
        lambda s, y: losses.approx_ndcg_loss(s, y, tau=0.5, reduction="none"),
        lambda s, y: textbook_losses.approx_ndcg_loss(s, y, 0.5),
    ),
    "pirank_ndcg_loss": (
        lambda s, y: losses.pirank_ndcg_loss(s, y, k=K, tau=2.0, reduction="none"),
        lambda s, y: textbook.pirank_ndcg_loss(s, y, K, 2.0),
    ),
    "sort_cross_entropy_loss": (
        lambda s, y: losses.sort_cross_entropy_loss(s, y, tau=5.0, reduction="none"),
        lambda s, y: textbook_losses.sort_cross_entropy_loss(s, y, 5.0),
    ),
    "relax_loss": (
        lambda s, y: losses.relax_loss(s, y, m=K + 2, k=K, tau=5.0, reduction="none"),
        lambda s, y: textbook_losses.relax_loss(s, y, K + 2, K, 5.0),
    ),
    "topk_bce_loss": (
        lambda s, y: losses.topk_bce_loss(s, y, k=K, reduction="none"),
        lambda s, y: textbook_losses.topk_bce_loss(s, y, K),
    ),
}


def _scores(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LISTS, N, generator=generator, dtype=torch.float64).requires_grad_()


def _distinct_labels(seed: int) -> Tensor:
    """Return labels of which half are positive and distinct, because textbook code does not handle ties."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(LISTS, N, generator=generator).argsort(-1)
    return (order - N // 2).clamp(min=0).double() / 2


def _assert_same(ours: Tensor, textbook: Tensor, scores: Tensor) -> None:
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(ours, scores, direction)
    (expected,) = torch.autograd.grad(textbook, scores, direction)
    torch.testing.assert_close(ours, textbook, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.witness("brute force")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_equal_the_textbook(name: str, seed: int) -> None:
    scores = _scores(seed)
    ours, expected = OPERATORS[name]
    _assert_same(ours(scores), expected(scores), scores)


@pytest.mark.witness("brute force")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_the_textbook(name: str, seed: int) -> None:
    scores, labels = _scores(seed), _distinct_labels(seed)
    ours, expected = LOSSES[name]
    _assert_same(ours(scores, labels), expected(scores, labels), scores)


CASES: dict[str, dict[str, Case]] = claims.TABLES | {"losses textbook": textbook_losses.LOSSES}


@pytest.mark.parametrize("table", CASES)
def test_every_case_runs(table: str) -> None:
    for name, case in CASES[table].items():
        shape = Shape(lists=2, n=32, k=5)
        case.step(shape)()
        assert case.bytes(shape) > 0, name


def test_every_operator_and_loss_is_measured() -> None:
    measured = {name.split()[0] for name in (*operators.OPERATORS, *operators.LOSSES)}
    public = {name for name in (*ops.__all__, *losses.__all__) if name.endswith(("_sort", "topk", "_loss"))}
    # topk() wraps any operator; the other two combine cross entropy or a soft sort, which are measured
    assert public - measured == {"topk", "grade_softmax_loss", "pirank_arp_loss"}


def test_textbook_cases_that_need_too_much_memory_exceed_the_limit() -> None:
    case = textbook.CASES["neural_sort"]
    assert case.bytes(Shape(1, 100_000, 10)) > 4 * 2**30
    assert case.bytes(Shape(128, 1000, 10)) < 4 * 2**30


def test_a_floor_is_never_skipped() -> None:
    # one slow turn on a busy machine must not be taken for a cost that grows to minutes
    limit = CostLimit()
    for floor in operators.FLOORS:
        limit.note(floor, Shape(128, 20, 10), seconds=1e6)
    cases = operators.FLOORS | operators.OPERATORS
    rows = measure_cases(cases, Shape(2, 30, 5), 0.0, limit, floors=operators.FLOORS, prepare=None)
    assert all(set(row.ratios) == set(operators.FLOORS) for row in rows)


def test_turns_alternate_between_steps() -> None:
    calls: list[str] = []
    # long enough that MAX_TURNS ends the measurement, not the time, which depends on other processes
    clocks = time_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=60.0)
    assert "".join(calls[-4:]) == "abab"
    assert set(clocks) == {"a", "b"}


def test_warm_up_calls_are_not_recorded() -> None:
    calls: list[int] = []
    clocks = time_in_turns({"step": lambda: calls.append(1)}, seconds=1e-3)
    assert len(calls) == len(clocks["step"].cpu) + 3


def test_a_slow_step_gets_few_turns() -> None:
    assert not Clock(cpu=[30.0], wall=[30.0]).wants_more(1.0)
    assert Clock(cpu=[1.5], wall=[1.5]).wants_more(1.0)
    assert not Clock(cpu=[0.06] * 20, wall=[0.06] * 20).wants_more(1.0)


def test_time_in_turns_restores_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    time_in_turns({"nothing": lambda: None}, seconds=0.0, threads=before + 1)
    assert torch.get_num_threads() == before


def test_growth_exponent_of_a_cubic() -> None:
    assert growth_exponent([10, 20, 40], [5e3, 4e4, 3.2e5]) == pytest.approx(3.0)


@pytest.mark.slow
def test_peak_memory_of_a_known_allocation() -> None:
    # the step is numpy.ones(count), which a fresh process can import by name
    peak = peak_bytes(partial, small=(np.ones, 10), full=(np.ones, 8 * 2**20)) / 2**20
    assert 60 < peak < 75


def test_growth_is_measured_per_list() -> None:
    rows = [Row("f", lists=100, n=1000, k=10, cpu_ms=5.0), Row("f", lists=10, n=10_000, k=10, cpu_ms=5.0)]
    assert growth(rows) == {"f": {"k = 10": pytest.approx(1.0)}}


def test_sweep_measures_every_function_at_every_shape() -> None:
    reports: list[str] = []
    rows = operators.sweep("ops", (20, 30), 0.0, quick=True, report=reports.append)
    assert len(reports) == len(operators.shapes((20, 30), quick=True)) == 2
    assert {row.name for row in rows} == {*operators.FLOORS, *operators.OPERATORS}
    assert all(row.cpu_ms is not None and row.ratios for row in rows)


def test_functions_are_compared_with_their_textbook_forms() -> None:
    rows = textbook_losses.measure(textbook_losses.Settings(sizes=(20,), seconds=0.0, memory=False))
    assert {row["own"]["name"] for row in rows} == {*textbook.CASES, *textbook_losses.LOSSES}
    for row in rows:
        assert row["faster"] == row["textbook"]["cpu_ms"] / row["own"]["cpu_ms"]
        assert (row["own"]["n"], row["own"]["k"]) == (row["textbook"]["n"], row["textbook"]["k"])


def test_claims_compare_in_the_right_direction() -> None:
    assert at_most("cost", 2, 1.9).met
    assert not at_most("cost", 2, 2.1).met
    assert at_least("speed", 100, 120).met
    assert not at_least("speed", 100, 99).met
