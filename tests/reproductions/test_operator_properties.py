"""Reproductions on operators alone: conflict and temperature against finite differences, a small run of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from rankfall import ops
from rankfall.losses import topk_bce_loss
from rankfall.reproductions import operator_properties as temperature_effect
from rankfall.reproductions.catalogue import find_reproduction, run
from rankfall.reproductions.costs import BOTH, CASES, FORWARD
from rankfall.reproductions.data import DataSource
from rankfall.reproductions.operator_properties import (
    BOUNDARY,
    BOUNDARY_BCE,
    CANCELLED,
    LOWERED,
    ROW_CONFLICT,
    ROW_LOWERED,
    WRONG,
    make_lists,
    of_rows,
)
from rankfall.reproductions.operator_properties import CONFLICTS as MEASURES
from rankfall.reproductions.operator_properties import measure_conflict as measure
from rankfall.reproductions.paper_schema import GradientConflict, SyntheticLists, TemperatureEffect, TopkRuntime
from rankfall.reproductions.task import Report, Size, Task
from support.reproductions import check_figures, check_report, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

NOTHING = DataSource("no data", "none", {})
SMALL = SyntheticLists(lists=15, items=9, relevant=3)
FEW = Size(tune=False, points=4, longest=10)


def small_run(name: str, out: Path) -> Report:
    return run(find_reproduction(name), Task(out=out, source=NOTHING, size=FEW, jobs=1))


# --- naive operators of one list, and numerical derivatives --------------------------------------------------------


def soft_permutation(s: Vector, tau: float) -> Vector:
    """NeuralSort, entry by entry."""
    n = len(s)
    spread = [sum(abs(a - b) for b in s) for a in s]
    logits = np.array([[((n + 1 - 2 * i) * s[j] - spread[j]) / tau for j in range(n)] for i in range(1, n + 1)])
    shares = np.exp(logits - logits.max(1, keepdims=True))
    found: Vector = shares / shares.sum(1, keepdims=True)
    return found


def midpoint_sigmoid(s: Vector, k: int, tau: float) -> Vector:
    ordered = sorted(s, reverse=True)
    found: Vector = 1 / (1 + np.exp(-(s - (ordered[k - 1] + ordered[k]) / 2) / tau))
    return found


def exact_sigmoid(s: Vector, k: int, tau: float) -> Vector:
    low, high = min(s) - 50 * tau, max(s) + 50 * tau
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-(s - middle) / tau))).sum() > k else (low, middle)
    found: Vector = 1 / (1 + np.exp(-(s - low) / tau))
    return found


def slope(f: Callable[[Vector], float], s: Vector) -> Vector:
    steps = 1e-5 * np.eye(len(s))
    return np.array([(f(s + step) - f(s - step)) / 2e-5 for step in steps])


def inclusion(name: str, s: Vector, k: int) -> Callable[[Vector], Vector]:
    """The inclusions as a function of the scores; LCRON's code keeps the sum of all rows constant."""
    if name == "dftopk":
        return lambda x: midpoint_sigmoid(x, k, 1.0)
    if name == "sigmoid_topk":
        return lambda x: exact_sigmoid(x, k, 1.0)
    total = soft_permutation(s, 5.0).sum(0)
    if name == "neural_sort, rows":
        return lambda x: soft_permutation(x, 5.0)[:k].sum(0) / total
    return lambda x: soft_permutation(x, 5.0)[:k].sum(0) / soft_permutation(x, 5.0).sum(0)


OPTIONS = {
    "dftopk": {"name": "dftopk", "tau": 1.0},
    "sigmoid_topk": {"name": "sigmoid_topk", "tau": 1.0},
    "neural_sort, rows": {"name": "neural_sort", "tau": 5.0, "gradient": "rows"},
    "neural_sort, exact": {"name": "neural_sort", "tau": 5.0, "gradient": "exact"},
}


@pytest.mark.parametrize("name", list(OPTIONS))
@pytest.mark.parametrize("k", [3, 6])
def test_conflict_is_what_finite_differences_show(name: str, k: int) -> None:
    scores, relevant = make_lists(SMALL, seed=4)
    lowered, on_boundary, total = [], 0.0, 0.0
    for s, chosen in zip(scores.numpy(), relevant.numpy(), strict=True):
        p = inclusion(name, s, k)
        gradient = slope(lambda x, p=p, chosen=chosen: -np.log(p(x))[chosen].sum(), s)  # type: ignore[misc]
        lowered += list(gradient[chosen] > 1e-7)
        boundary = np.argsort(-s)[k - 1 : k + 1]
        on_boundary, total = on_boundary + abs(gradient[boundary]).sum(), total + abs(gradient).sum()
    found = measure(OPTIONS[name], scores, relevant, k)
    assert found[LOWERED] == pytest.approx(np.mean(lowered))
    assert found[BOUNDARY] == pytest.approx(on_boundary / total, rel=1e-4)


def test_the_cross_entropy_is_measured_where_as_many_items_are_relevant() -> None:
    scores, relevant = make_lists(SMALL, seed=4)
    wrong, on_boundary, total = [], 0.0, 0.0
    for s, chosen in zip(scores.numpy(), relevant.numpy(), strict=True):

        def loss(x: Vector, chosen: Vector = chosen) -> float:
            p = midpoint_sigmoid(x, 3, 1.0)
            return float(-np.log(np.where(chosen, p, 1 - p)).sum())

        gradient = slope(loss, s)
        wrong += list(np.where(chosen, gradient > 1e-7, gradient < -1e-7))
        boundary = np.argsort(-s)[2:4]
        on_boundary, total = on_boundary + abs(gradient[boundary]).sum(), total + abs(gradient).sum()
    found = measure(OPTIONS["dftopk"], scores, relevant, 3)
    assert found[WRONG] == pytest.approx(np.mean(wrong))
    assert found[BOUNDARY_BCE] == pytest.approx(on_boundary / total, rel=1e-4)
    assert WRONG not in measure(OPTIONS["dftopk"], scores, relevant, 6)


def test_rows_have_opposite_gradients_as_finite_differences_show() -> None:
    scores, relevant = make_lists(SMALL, seed=4)
    k, lowered, parts, sums = 4, [], 0.0, 0.0
    for s, chosen in zip(scores.numpy(), relevant.numpy(), strict=True):
        rows = np.array(
            [
                slope(lambda x, i=i, chosen=chosen: -soft_permutation(x, 5.0)[i, chosen].sum(), s)[chosen]  # type: ignore[misc]
                for i in range(k)
            ]
        )
        lowered += list((rows > 1e-7).flatten())
        parts, sums = parts + abs(rows).sum(), sums + abs(rows.sum(0)).sum()
    found = measure(OPTIONS["neural_sort, exact"], scores, relevant, k)
    assert found[ROW_LOWERED] == pytest.approx(np.mean(lowered))
    assert found[CANCELLED] == pytest.approx(1 - sums / parts, abs=1e-4)
    assert CANCELLED not in measure(OPTIONS["dftopk"], scores, relevant, k)


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


def test_relevant_items_have_higher_scores_at_random_places() -> None:
    scores, relevant = make_lists(SyntheticLists(lists=400, items=20, relevant=5, shift=1.0), seed=0)
    assert (relevant.sum(-1) == 5).all()
    assert float(scores[relevant].mean()) == pytest.approx(1.0, abs=0.1)
    assert float(scores[~relevant].mean()) == pytest.approx(0.0, abs=0.1)
    assert relevant.double().mean(0).max() < 0.4


def test_the_conflict_of_neuralsort_comes_from_its_constant_normaliser() -> None:
    """The figures of dftopk-figure2 that its notes state."""
    conflict = load(GradientConflict, "dftopk-figure2")
    scores, relevant = make_lists(conflict.lists.model_copy(update={"lists": 300}), seed=0)
    shares = {
        name: [measure(options, scores, relevant, k)[LOWERED] for k in (10, 20, 30)]
        for name, options in conflict.operators.items()
        if name in ("NeuralSort, gradient of LCRON's code", "NeuralSort, exact gradient", "exact sigmoid", "DFTopK")
    }
    assert shares["NeuralSort, gradient of LCRON's code"] == pytest.approx([0.197, 0.372, 0.53], abs=0.02)
    assert shares["NeuralSort, exact gradient"] == pytest.approx([0.0, 0.0, 0.0], abs=0.001)
    assert shares["exact sigmoid"] == pytest.approx([0.0, 0.0, 0.0], abs=0.001)
    assert shares["DFTopK"] == pytest.approx([0.07, 0.04, 0.02], abs=0.015)


# --- DFTopK, appendix A ---------------------------------------------------------------------------------------------


def test_the_gradient_of_appendix_a() -> None:
    """The derivative of L_TopK is (sigma - y) / N, and half of minus the sum of all goes to each boundary item."""
    s = torch.tensor([0.4, -1.0, 2.2, 1.3, 0.1, -0.3], dtype=torch.double).requires_grad_()
    y = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.double)
    k, n = 2, 6
    (found,) = torch.autograd.grad(topk_bce_loss(s, y, k=k), s)
    sigma = ops.dftopk(s.detach(), k)
    expected = (sigma - y) / n
    boundary = s.detach().topk(k + 1).indices[k - 1 :]
    expected[boundary] -= (sigma - y).sum() / (2 * n)
    torch.testing.assert_close(found, expected)
    printed = -(y * (1 - sigma) + (1 - y) * sigma)  # first line of the printed equation
    away = torch.ones(n, dtype=torch.bool).index_fill(0, boundary, False)
    assert (printed[away & (y == 0)] < 0).all()  # it contradicts its own second line, sigma > 0
    torch.testing.assert_close(found[away & (y == 1)] * n, printed[away & (y == 1)])


# --- temperature ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.01, 1.0, 100.0])
def test_the_effect_of_the_temperature_is_what_finite_differences_show(tau: float) -> None:
    scores, relevant = make_lists(SMALL, seed=2)
    distances, excess, sizes = [], [], []
    for s, chosen in zip(scores.numpy(), relevant.numpy(), strict=True):

        def loss(x: Vector, chosen: Vector = chosen) -> float:
            ordered = sorted(x, reverse=True)
            z = (x - (ordered[2] + ordered[3]) / 2) / tau
            return float(np.logaddexp(0, np.where(chosen, -z, z)).mean())

        p = midpoint_sigmoid(s, 3, tau)
        hard = np.isin(np.arange(9), np.argsort(-s)[:3])
        distances.append(abs(p - hard).mean())
        excess.append(abs(p.sum() - 3) / 3)
        sizes.append(abs(slope(loss, s)).mean())
    found = temperature_effect.measure_temperature("dftopk", scores, relevant, 3, tau)
    assert found[temperature_effect.DISTANCE] == pytest.approx(np.mean(distances))
    assert found[temperature_effect.EXCESS] == pytest.approx(np.mean(excess))
    assert found[temperature_effect.GRADIENT] == pytest.approx(np.mean(sizes), rel=1e-4)
    assert found[temperature_effect.SCALED] == pytest.approx(np.mean(sizes) * tau, rel=1e-4)


def test_a_higher_temperature_is_softer_and_reaches_more_items(tmp_path: Path) -> None:
    report = small_run("dftopk-figure3", tmp_path)
    values = list(report.results["values"].values())
    for name in (temperature_effect.DISTANCE, temperature_effect.SCALED, temperature_effect.REACHED):
        curve = [found[name] for found in values]
        assert curve == sorted(curve)
    raw = [found[temperature_effect.GRADIENT] for found in values]
    assert raw == sorted(raw, reverse=True)  # with respect to the scores themselves
    check_report(report, "dftopk-figure3")
    assert [row[0] for row in report.sheets[0].rows] == [f"{tau:g}" for tau in (1e-4, 1e-2, 1, 100, 10000)]
    assert len(load(TemperatureEffect, "dftopk-figure3").taus) == 9


# --- a small run of each --------------------------------------------------------------------------------------------


def test_runtimes_are_measured_and_shown_beside_the_published_ones(tmp_path: Path) -> None:
    report = small_run("dftopk-table4", tmp_path)
    table = load(TopkRuntime, "dftopk-table4")
    check_report(report, "dftopk-table4")
    times = report.results["milliseconds"]
    assert report.results["lengths"] == [5, 10]
    assert set(times) == {f"{code}, {what}" for code in CASES for what in (FORWARD, BOTH)}
    for by_operator in times.values():
        assert set(by_operator) == set(table.operators)
        assert all(len(curve) == 2 and min(curve.values()) > 0 for curve in by_operator.values())
    both, forward = report.sheets
    assert len(both.rows) == 3 * 6 + 2
    assert len(forward.rows) == 2 * 6 + 1
    assert both.rows[-1] == ["DFTopK, published, Xeon Platinum 8352Y", "1.86", "2.78"]
    assert "fastest in print at 2 of 2 lengths" in report.notes[0]
    check_figures(report, tmp_path)


def test_gradient_conflict_is_shown_for_every_operator(tmp_path: Path) -> None:
    conflict = load(GradientConflict, "dftopk-figure2")
    conflict = conflict.model_copy(update={"lists": conflict.lists.model_copy(update={"lists": 5}), "ks": [2, 10]})
    report, operators = run(conflict, Task(out=tmp_path, source=NOTHING, size=FEW, jobs=1)), conflict.operators
    check_report(report, "dftopk-figure2")
    assert [sheet.title for sheet in report.sheets] == [f"percent: {measure}" for measure in MEASURES]
    assert [row[0] for row in report.sheets[0].rows] == list(operators)
    sorts = [name for name, options in operators.items() if options["name"].endswith("_sort")]
    assert [row[0] for row in report.sheets[-1].rows] == sorts
    check_figures(report, tmp_path)


def test_the_online_table_is_shown(tmp_path: Path) -> None:
    report = small_run("dftopk-table3", tmp_path)
    assert report.sheets[0].rows[1] == ["DFTopK", "0.57", "0.9", "127", "-15.3"]
    assert json.dumps(report.results)
