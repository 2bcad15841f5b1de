"""Every public function refuses hostile values by name, or has a finite result with finite gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import rankfall as rf
from rankfall import losses, metrics, models, ops
from rankfall.metrics.significance import interval, resampled_sums
from rankfall.option_types import LARGEST, LARGEST_COUNT, LARGEST_SCALE, SMALLEST_SCALE
from support.batches import FEATURES
from support.fuzzing import cases
from support.hostile_calls import GOOD, Call, calls, outcome, targets

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = 100  # of each group
GROUPS = ("ops", "losses", "objectives", "metrics")

PAIR, LABELS = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])
HUGE = torch.tensor([3e38, -3e38])
EMPTY = torch.zeros(0, 2)


@pytest.mark.fuzz
@pytest.mark.parametrize("group", GROUPS)
def test_hostile_values_are_refused_by_name_or_give_finite_results(
    group: str, record_property: Callable[[str, object], None]
) -> None:
    names = sorted(name for name in targets() if name.startswith(f"{group}."))
    assert names

    count = 0

    @settings(cases(CASES), suppress_health_check=list(HealthCheck))
    @given(calls(names))
    def check(call: Call) -> None:
        nonlocal count
        count += 1
        found, about = outcome(call)
        assert found in GOOD, f"{found}: {about}"

    check()
    record_property("cases", count)


def test_hostile_values_are_tried_on_everything_public() -> None:
    tried = {target.function for target in targets().values()} | {rf.ops.topk, rf.ops.log_rows, rf.ops.log_inclusion}
    for module in (ops, losses, metrics, rf.objectives):
        for name in module.__all__:
            one = getattr(module, name)
            skipped = not callable(one) or one in (rf.objectives.Objective, metrics.FunnelResult, metrics.Row)
            assert skipped or one in tried or name in ("Operator", "SoftSort", "TopK", "TestResult"), name


# --- single findings ------------------------------------------------------------------------------------------------

Refused = tuple["Callable[[], Any]", str]

REFUSED: dict[str, Refused] = {
    "expected_grade": (lambda: losses.expected_grade(torch.full((2, 3), math.nan)), "logits must not hold NaN"),
    "expected_grade, inf": (lambda: losses.expected_grade(torch.full((2, 3), math.inf)), "logits must not hold"),
    "ranknet_loss": (lambda: losses.ranknet_loss(HUGE, LABELS), "scores must not hold .* beyond 1e"),
    "ranknet_loss, sigma": (lambda: losses.ranknet_loss(PAIR, LABELS, sigma=1e300), "sigma must be from 1e-10 to 1e"),
    "softmax_loss": (lambda: losses.softmax_loss(HUGE, LABELS), "scores must not hold"),
    "softmax_loss, labels": (lambda: losses.softmax_loss(PAIR, LABELS * 1e20), "labels must not hold"),
    "mse_loss": (lambda: losses.mse_loss(HUGE, LABELS), "scores must not hold"),
    "mse_loss, weight": (lambda: losses.mse_loss(PAIR, LABELS, weight=HUGE), "weight must not hold"),
    "pirank_arp_loss, k": (lambda: losses.pirank_arp_loss(EMPTY, EMPTY, k=2**63), "k must be at most 2147483647"),
    "pirank_arp_loss, labels": (lambda: losses.pirank_arp_loss(PAIR, -LABELS), "labels must not hold values below 0"),
    "arp, labels": (lambda: metrics.arp(PAIR, -LABELS), "labels must not hold values below 0"),
    "neural_sort, k": (lambda: ops.neural_sort(PAIR, k=10**30), "k must be at most 65536, got a number beyond"),
    "dftopk, tau": (lambda: ops.dftopk(PAIR, 1, tau=1e-30), "tau must be from 1e-10 to 1e"),
    "dftopk, tensor": (lambda: ops.dftopk(PAIR, 1, tau=torch.tensor(1e-30)), "tau must not hold values outside"),
    "dftopk, tau of items": (lambda: ops.dftopk(PAIR, 1, tau=torch.ones(2)), "tau must be .* one value per list"),
    "pirank_sort, k": (lambda: ops.pirank_sort(PAIR, k=None), "k must be a number of rows"),  # type: ignore[arg-type]
    "pirank_sort, depth": (lambda: ops.pirank_sort(PAIR, k=1, depth=30), "depth must give a tree of at most"),
    "approx_ndcg_loss": (
        lambda: losses.approx_ndcg_loss(PAIR, LABELS, gumbel_samples=10**9),
        "gumbel_samples must be at most",
    ),
    "bce_loss, threshold": (lambda: losses.bce_loss(PAIR, LABELS, threshold=math.nan), "threshold must be a finite"),
    "two_sample_test": (
        lambda: metrics.two_sample_test(torch.tensor([1e308, -1e308], dtype=torch.double), PAIR),
        "a must not hold inf or numbers beyond",
    ),
    "paired_test, samples": (lambda: metrics.paired_test(PAIR, LABELS, samples=10**12), "samples must be at most"),
    "holm": (lambda: metrics.holm("x"), "p_values must be a tensor or a sequence"),  # type: ignore[arg-type]
    "resampled_sums": (lambda: resampled_sums(torch.tensor([[1e30]])), "columns must not hold"),
    "interval": (lambda: interval(torch.ones(3, 1), level=2.0), "level must be in"),
    "stages": (lambda: rf.objectives.FSRankNet(stages=10**9), "stages must be at most 100"),
    "quotas": (lambda: rf.objectives.ICC(relevant=1, quotas=5), "quotas must be one number"),  # type: ignore[arg-type]
    "e2e_weight": (lambda: rf.objectives.LCRON(relevant=1, e2e_weight=1e300), "e2e_weight must be"),
    "Stage": (lambda: rf.Cascade([rf.Stage("a", nn.Identity(), 10**30)]), "quota of a must be at most"),
    "Linear": (lambda: models.Linear(10**30), "features must be at most"),
    "MLP, hidden": (lambda: models.MLP(3, [2**63]), "hidden must be at most"),
    "MLP, one number": (lambda: models.MLP(3, 5), "hidden must be a list"),  # type: ignore[arg-type]
    "MLP, dropout": (lambda: models.MLP(3, [2], dropout=math.nan), "dropout must be from 0 to less than 1"),
    "MLP, norm_momentum": (lambda: models.MLP(3, [2], norm_momentum=1e300), "norm_momentum must be"),
    "MLP, grades": (lambda: models.MLP(3, [2], grades=10**30), "grades must be at most"),
    "TwoTower, dim": (lambda: models.TwoTower(FEATURES, dim=10**30), "dim must be at most"),
    "TwoTower, std": (lambda: models.TwoTower(FEATURES, std=math.nan), "std must be from 0"),
    "TwoTower, hidden": (lambda: models.TwoTower(FEATURES, hidden=5), "hidden must be"),  # type: ignore[arg-type]
    "DIN, attention": (lambda: models.DIN(FEATURES, attention=10**30), "attention must be at most"),
    "FeatureScaling": (lambda: models.FeatureScaling(torch.zeros(1), torch.zeros(1)), "deviation must not hold"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gave_nan_or_filled_the_memory_or_did_not_end_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [name for name in targets() if name.startswith(("losses.", "objectives."))])
def test_the_largest_scores_and_weights_give_finite_losses(name: str, dtype: torch.dtype) -> None:
    """Each function at the bounds of the conventions, alternating in sign, where differences are largest."""
    target = targets()[name]
    scores = torch.full((2, 8), LARGEST, dtype=dtype)
    scores[:, ::2] *= -1
    labels = torch.arange(16).remainder(2).view(2, 8)
    if "rade" in name or "logits" in target.tensors:
        scores = torch.stack([scores, -scores], -1)
    given: dict[str, Any] = {"labels": labels, "weight": torch.full((2, 8), LARGEST, dtype=dtype)}
    needed = {"k": 3, "m": 4, "relevant": 3, "quotas": (4, 3), "loss": rf.losses.MSELoss(), "sigma": LARGEST_SCALE}
    if "objectives.icc" in name:
        needed["loss"] = "ranknet"
    options = {one: needed[one] for one in target.options if one in needed}
    if "tau" in target.options:
        options["tau"] = SMALLEST_SCALE
    scores.requires_grad_()
    given = {one: value for one, value in given.items() if one in target.tensors}
    first = [scores, scores] if name.startswith("objectives.") else scores
    call = Call(target, {target.tensors[0]: first} | given | options)
    assert outcome(call) == ("finite", "")


def test_counts_beyond_the_length_of_a_list_mean_the_whole_list() -> None:
    scores, labels = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 2.0])
    for loss in (partial(losses.pirank_ndcg_loss), partial(losses.pirank_arp_loss)):
        torch.testing.assert_close(loss(scores, labels, k=LARGEST_COUNT), loss(scores, labels))
    for name in ("neural_sort", "diff_sort", "dftopk"):
        assert ops.topk(name)(scores, LARGEST_COUNT).tolist() == [1.0, 1.0, 1.0]


def test_relevance_may_be_integers() -> None:
    objective = rf.objectives.FSRankNet()
    scores = [torch.tensor([2.0, 1.0, 0.0])] * 2
    labels, relevance = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([3, 1, 0])
    found = objective(scores, labels, relevance=relevance, mask=torch.tensor([True, True, False]))
    expected = objective(scores, labels, relevance=relevance.float(), mask=torch.tensor([True, True, False]))
    assert found == expected


def test_logarithms_of_rows_in_half_precision_are_finite() -> None:
    scores = torch.tensor([3.5, -1.0, 3.0], dtype=torch.float16, requires_grad=True)
    rows = ops.log_rows(ops.diff_sort, scores, k=5)
    assert rows.isfinite().all()
    rows.sum().backward()
    assert scores.grad is not None
    assert not scores.grad.isnan().any()
