"""Every loss against its formula in plain loops, and against the properties all of them share.

One table holds the losses; a test of a property runs through it. Each formula below is written for one unpadded list
of Python numbers, with loops and no tricks.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch import Tensor

from rankfall import losses, metrics, ops
from rankfall.losses import _module as _pairs
from support.components import tables_of_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Numbers = list[float]


# --- formulas ---------------------------------------------------------------------------------------------------


def order_of(values: Numbers) -> list[int]:
    """Indices by descending value, ties by position."""
    return sorted(range(len(values)), key=lambda i: -values[i])


def ranks_of(values: Numbers) -> list[int]:
    ranks = [0] * len(values)
    for rank, item in enumerate(order_of(values), start=1):
        ranks[item] = rank
    return ranks


def best(y: Numbers, k: int, positive_only: bool = True) -> Numbers:
    """Membership of each item in the k best labels, the last places shared by ties."""
    eligible = [label for label in y if label > 0 or not positive_only]
    members = []
    for label in y:
        if label not in eligible:
            members.append(0.0)
            continue
        better = sum(other > label for other in eligible)
        tied = sum(other == label for other in eligible)
        members.append(min(1.0, max(0.0, (k - better) / tied)))
    return members


def log1pexp(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def discount(rank: float) -> float:
    return 1 / math.log2(1 + rank)


def ideal(gain: Numbers, k: int | None) -> float:
    return sum(g * discount(r) for r, g in enumerate(sorted(gain, reverse=True)[:k], start=1))


def exp_gains(y: Numbers) -> Numbers:
    return [2**label - 1 for label in y]


def weighted_gains(y: Numbers, w: Numbers) -> Numbers:
    return [weight * gain for weight, gain in zip(w, exp_gains(y), strict=True)]


def neural_rows(s: Numbers, tau: float) -> list[Numbers]:
    n = len(s)
    rows = []
    for i in range(1, n + 1):
        logits = [((n + 1 - 2 * i) * s[j] - sum(abs(s[j] - other) for other in s)) / tau for j in range(n)]
        top = max(logits)
        powers = [math.exp(z - top) for z in logits]
        rows.append([p / sum(powers) for p in powers])
    return rows


def no_positive_is_zero(formula: Callable[..., float]) -> Callable[..., float]:
    def checked(s: Numbers, y: Numbers, w: Numbers, **options: Any) -> float:
        return formula(s, y, w, **options) if max(y) > 0 else 0.0

    return checked


def mse(s: Numbers, y: Numbers, w: Numbers) -> float:
    return sum(w[i] * (s[i] - y[i]) ** 2 for i in range(len(s))) / len(s)


def bce(s: Numbers, y: Numbers, w: Numbers, threshold: float | None = 0.0) -> float:
    target = y if threshold is None else [float(label > threshold) for label in y]
    cost = [t * log1pexp(-x) + (1 - t) * log1pexp(x) for x, t in zip(s, target, strict=True)]
    return sum(w[i] * cost[i] for i in range(len(s))) / len(s)


SLOPES = [-1.0, 0.25, 0.5, 2.0]  # turns one score per item into the logits of grade_softmax_loss


def grade_softmax(s: Numbers, y: Numbers, w: Numbers) -> float:
    total = 0.0
    for i, score in enumerate(s):
        logits = [slope * score for slope in SLOPES]
        total += w[i] * (math.log(sum(math.exp(z) for z in logits)) - logits[int(y[i])])
    return total / len(s)


def softmax(s: Numbers, y: Numbers, w: Numbers) -> float:
    return -sum(w[i] * y[i] * (s[i] - math.log(sum(math.exp(x) for x in s))) for i in range(len(s)))


def listmle(s: Numbers, y: Numbers, w: Numbers) -> float:
    order = order_of(y)
    return sum(
        w[item] * (math.log(sum(math.exp(s[j]) for j in order[step:])) - s[item]) for step, item in enumerate(order)
    )


def pairs(y: Numbers) -> list[tuple[int, int]]:
    return [(i, j) for i in range(len(y)) for j in range(len(y)) if y[i] > y[j]]


def ranknet(s: Numbers, y: Numbers, w: Numbers, sigma: float = 1.0) -> float:
    cost = [w[i] * log1pexp(-sigma * (s[i] - s[j])) for i, j in pairs(y)]
    return sum(cost) / len(cost) if cost else 0.0


def delta_of(r: Sequence[int], i: int, j: int, k: int | None, version: str) -> float:
    distance = abs(r[i] - r[j])
    delta = abs(discount(distance) - discount(distance + 1))
    if k is None:
        return delta
    if version == "heuristic":
        return delta if r[i] <= k or r[j] <= k else 0.0
    return delta / (1 - discount(max(r[i], r[j]))) if r[i] > k or r[j] > k else delta


def swap_of(r: Sequence[int], i: int, j: int, k: int | None) -> float:
    first, second = (discount(r[x]) if k is None or r[x] <= k else 0.0 for x in (i, j))
    return abs(first - second)


def lambda_(
    s: Numbers,
    y: Numbers,
    w: Numbers,
    k: int | None = None,
    version: str = "sound",
    mix: float = 0.0,
    sigma: float = 1.0,
) -> float:
    gain, r = exp_gains(y), ranks_of(s)
    total = 0.0
    for i, j in pairs(y):
        by_rank = (1 - mix) * delta_of(r, i, j, k, version) + mix * swap_of(r, i, j, k)
        total += w[i] * abs(gain[i] - gain[j]) * by_rank * log1pexp(-sigma * (s[i] - s[j]))
    return total / ideal(gain, k)


def lambda_recall(
    s: Numbers, y: Numbers, w: Numbers, m: int, k: int, positive_only: bool = True, sigma: float = 1.0
) -> float:
    member, r = best(y, k, positive_only), ranks_of(s)
    total = 0.0
    for i, j in pairs(y):
        crosses = abs(float(r[i] <= m) - float(r[j] <= m))
        total += w[i] * abs(member[i] - member[j]) * crosses * log1pexp(-sigma * (s[i] - s[j]))
    return total / k


def approx_ndcg(s: Numbers, y: Numbers, w: Numbers, tau: float = 1.0) -> float:
    gain = weighted_gains(y, w)
    dcg = 0.0
    for i in range(len(s)):
        rank = 1 + sum(sigmoid((s[j] - s[i]) / tau) for j in range(len(s)) if j != i)
        dcg += gain[i] * discount(rank)
    return (ideal(gain, None) - dcg) / ideal(exp_gains(y), None)


def pirank_ndcg(s: Numbers, y: Numbers, w: Numbers, k: int | None = None, tau: float = 1.0) -> float:
    gain = weighted_gains(y, w)
    dcg = sum(
        discount(rank) * sum(p * g for p, g in zip(row, gain, strict=True))
        for rank, row in enumerate(neural_rows(s, tau)[:k], start=1)
    )
    return (ideal(gain, k) - dcg) / ideal(exp_gains(y), k)


def pirank_arp(
    s: Numbers, y: Numbers, w: Numbers, k: int | None = None, tau: float = 1.0, variant: str = "sound"
) -> float:
    relevance = [a * label for a, label in zip(w, y, strict=True)]
    total = sum(
        rank * sum(p * a for p, a in zip(row, relevance, strict=True))
        for rank, row in enumerate(neural_rows(s, tau)[:k], start=1)
    )
    counted = sum(y[:k] if variant == "published" else y)
    return total / counted if counted else 0.0


def tie_orders(y: Numbers) -> list[list[int]]:
    """All descending orders of the labels."""
    return [list(one) for one in itertools.permutations(range(len(y))) if [y[i] for i in one] == sorted(y)[::-1]]


def sort_cross_entropy(
    s: Numbers,
    y: Numbers,
    w: Numbers,
    tau: float = 1.0,
    label_tau: float | None = None,
    ties: str = "average",
    variant: str = "sound",
    scale: str = "mean",
) -> float:
    n = len(s)
    if variant == "published":
        label_tau, scale = tau, "sum"
    if label_tau is None:
        orders = tie_orders(y) if ties == "average" else [order_of(y)]
        target = [[sum(one[i] == j for one in orders) / len(orders) for j in range(n)] for i in range(n)]
    else:
        target = neural_rows(y, label_tau)
    rows = neural_rows(s, tau)
    total = -sum(w[j] * target[i][j] * math.log(rows[i][j]) for i in range(n) for j in range(n))
    return total / n if scale == "mean" else total


def relax(
    s: Numbers,
    y: Numbers,
    w: Numbers,
    m: int,
    k: int,
    tau: float = 1.0,
    positive_only: bool = True,
    label_tau: float | None = None,
    variant: str = "sound",
    scale: str = "mean",
) -> float:
    if variant == "published":
        label_tau, scale = tau, "sum"
    if label_tau is None:
        member = best(y, k, positive_only)
    else:
        of_labels = neural_rows(y, label_tau)[:k]
        member = [sum(row[j] for row in of_labels) * (y[j] > 0 or not positive_only) for j in range(len(y))]
    rows = neural_rows(s, tau)[:m]
    cost = [-math.log(sum(row[j] for row in rows) / m) for j in range(len(s))]
    total = sum(w[j] * member[j] * cost[j] for j in range(len(s)))
    return total / sum(member) if scale == "mean" else total


def binary_cross_entropy(p: Numbers, not_p: Numbers, truth: Numbers, w: Numbers) -> float:
    def log(x: float) -> float:
        return math.log(x) if x > 0 else -100.0  # torch's convention for log 0

    n = len(p)
    return -sum(w[j] * (truth[j] * log(p[j]) + (1 - truth[j]) * log(not_p[j])) for j in range(n)) / n


def topk_bce(
    s: Numbers,
    y: Numbers,
    w: Numbers,
    k: int,
    topk: Any = None,
    positive_only: bool = True,
    m: int | None = None,
    scale: str = "mean",
) -> float:
    n, kept = len(s), k if m is None else m
    if kept >= n:
        return 0.0  # all are included, whatever their scores
    if topk is None:
        descending = sorted(s, reverse=True)
        threshold = (descending[kept - 1] + descending[kept]) / 2
        included, left_out = ([sigmoid(sign * (x - threshold)) for x in s] for sign in (1, -1))
    else:
        rows = neural_rows(s, 0.5)
        columns = [sum(row[j] for row in rows) for j in range(n)]
        included = [sum(row[j] for row in rows[:kept]) / columns[j] for j in range(n)]
        left_out = [sum(row[j] for row in rows[kept:]) / columns[j] for j in range(n)]
    mean = binary_cross_entropy(included, left_out, best(y, k, positive_only), w)
    return mean if scale == "mean" else mean * n


# --- the table --------------------------------------------------------------------------------------------------

FORMULAS: dict[str, Callable[..., float]] = {
    "mse_loss": mse,
    "bce_loss": bce,
    "grade_softmax_loss": grade_softmax,
    "softmax_loss": no_positive_is_zero(softmax),
    "listmle_loss": no_positive_is_zero(listmle),
    "ranknet_loss": no_positive_is_zero(ranknet),
    "lambdarank_loss": no_positive_is_zero(partial(lambda_, mix=1.0)),
    "lambda_loss": no_positive_is_zero(lambda_),
    "lambda_recall_loss": no_positive_is_zero(lambda_recall),
    "approx_ndcg_loss": no_positive_is_zero(approx_ndcg),
    "pirank_ndcg_loss": no_positive_is_zero(pirank_ndcg),
    "pirank_arp_loss": no_positive_is_zero(pirank_arp),
    "sort_cross_entropy_loss": no_positive_is_zero(sort_cross_entropy),
    "relax_loss": no_positive_is_zero(relax),
    "topk_bce_loss": no_positive_is_zero(topk_bce),
}
FORMULAS |= tables_of_files(Path(__file__).parent, "FORMULAS")

# The slower tests use the first entry of a loss only.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "mse_loss": [{}],
    "bce_loss": [{}, {"threshold": 1.0}],
    "grade_softmax_loss": [{}],
    "softmax_loss": [{}],
    "listmle_loss": [{}],
    "ranknet_loss": [{}, {"sigma": 2.0}],
    "lambdarank_loss": [{"k": 3}, {}, {"sigma": 0.5, "k": 1}, {"k": 50}],
    "lambda_loss": [
        {"k": 3, "mix": 0.25},
        {},
        {"k": 2},
        {"k": 1, "sigma": 3.0},
        {"k": 2, "version": "heuristic"},
        {"k": 2, "version": "heuristic", "mix": 0.5},
        {"mix": 0.5},
        {"k": 50},
    ],
    "lambda_recall_loss": [{"m": 3, "k": 2}, {"m": 1, "k": 3, "sigma": 2.0}, {"m": 2, "k": 50}, {"m": 50, "k": 2}],
    "approx_ndcg_loss": [{"tau": 0.5}, {}],
    "pirank_ndcg_loss": [{"k": 3}, {}, {"tau": 0.5}, {"k": 50, "tau": 2.0}],
    "pirank_arp_loss": [{}, {"k": 3, "tau": 0.5}, {"k": 50}, {"k": 3, "variant": "published"}],
    "sort_cross_entropy_loss": [
        {},
        {"tau": 2.0, "scale": "sum"},
        {"label_tau": 0.5},
        {"ties": "position"},
        {"tau": 0.8, "variant": "published"},
    ],
    "relax_loss": [
        {"m": 3, "k": 2},
        {"m": 1, "k": 1, "tau": 2.0, "scale": "sum"},
        {"m": 2, "k": 50},
        {"m": 50, "k": 2},
        {"m": 3, "k": 2, "label_tau": 0.5},
        {"m": 3, "k": 2, "tau": 0.8, "variant": "published"},
    ],
    "topk_bce_loss": [
        {"k": 2},
        {"k": 3, "topk": ops.topk("neural_sort", tau=0.5)},
        {"k": 50},
        {"k": 2, "m": 3, "scale": "sum"},
        {"k": 1, "m": 2, "topk": ops.topk("neural_sort", tau=0.5)},
    ],
}
OPTIONS |= tables_of_files(Path(__file__).parent, "OPTIONS")

NAMES = list(OPTIONS)
POINTWISE = {"mse_loss", "bce_loss", "grade_softmax_loss", *tables_of_files(Path(__file__).parent, "POINTWISE")}


def positional(name: str, options: dict[str, Any]) -> bool:
    """Whether the loss orders equal labels by position."""
    return name == "listmle_loss" or options.get("ties") == "position"


CASES = [(name, options) for name, variants in OPTIONS.items() for options in variants]
IDS = [f"{name}-{','.join(f'{k}={v}' for k, v in o.items() if k != 'topk')}" for name, o in CASES]
every_loss = pytest.mark.parametrize("name", NAMES)
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)


def call(name: str, scores: Tensor, labels: Tensor, **options: Any) -> Tensor:
    """The loss of the table; grade_softmax_loss gets logits that are multiples of the scores."""
    if name == "grade_softmax_loss":
        scores = scores[..., None] * torch.tensor(SLOPES, dtype=scores.dtype, device=scores.device)
    value: Tensor = getattr(losses, name)(scores, labels, **options)
    return value


def value_and_gradient(name: str, scores: Tensor, labels: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    scores = scores.detach().clone().requires_grad_()
    value = call(name, scores, labels, **options)
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    return value.detach(), gradient


def random_lists(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, ties: bool = False
) -> tuple[Tensor, Tensor]:
    """Scores, and labels from 0 to 3 with at least one positive in each list."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, shape, generator=generator).double()
    labels[..., shape[-1] // 2] = 2.0
    return ((2 * scores).round() / 2 if ties else scores).to(dtype), labels.to(dtype)


def random_mask(*shape: int, seed: int = 0) -> Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[..., shape[-1] // 2] = True
    return mask


def test_the_table_holds_every_loss() -> None:
    public = {name for name in losses.__all__ if name.endswith("_loss")}
    assert public == set(OPTIONS) == set(FORMULAS)


# --- the formula ------------------------------------------------------------------------------------------------


@pytest.mark.witness("brute force")
@every_case
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_equals_the_formula(name: str, options: dict[str, Any], weighted: bool, ties: bool) -> None:
    scores, labels = random_lists(12, 7, seed=1, ties=ties)
    labels[3] = 0.0
    mask = random_mask(12, 7, seed=2)
    mask[4] = torch.arange(7) == 3
    weight = torch.rand(12, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.1
    values = call(name, scores, labels, mask=mask, weight=weight if weighted else None, reduction="none", **options)
    for i in range(12):
        real = mask[i]
        s, y = scores[i, real].tolist(), labels[i, real].tolist()
        w = weight[i, real].tolist() if weighted else [1.0] * len(s)
        assert values[i].item() == pytest.approx(FORMULAS[name](s, y, w, **options), rel=1e-9, abs=1e-12), i


@pytest.mark.witness("gradcheck")
@pytest.mark.parametrize(("name", "options"), [case for case in CASES if "topk" not in case[1]])
def test_gradient_is_that_of_the_value(name: str, options: dict[str, Any]) -> None:
    scores, labels = random_lists(3, 6, seed=4)
    mask = random_mask(3, 6, seed=5)
    weight = torch.rand(3, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64) + 0.1

    def loss(x: Tensor) -> Tensor:
        return call(name, x, labels, mask=mask, weight=weight, reduction="none", **options)

    assert torch.autograd.gradcheck(loss, (scores.requires_grad_(),), eps=1e-6, atol=1e-6)


@pytest.mark.witness("derivation", "topk_bce_loss")
@pytest.mark.parametrize("gradient", ["rows", "one_minus"])
def test_gradient_through_a_normalised_inclusion(gradient: Literal["rows", "one_minus"]) -> None:
    # p is the share of the first k rows in all rows, and the sum over all rows carries no gradient.
    scores, labels = random_lists(3, 6, seed=4)
    labels.fill_(0.0)[:, 1:3] = 1.0
    operator = ops.topk("neural_sort", tau=2.0, gradient=gradient)
    _, found = value_and_gradient("topk_bce_loss", scores, labels, k=2, topk=operator, reduction="sum")
    scores.requires_grad_()
    rows = ops.neural_sort(scores, tau=2.0)
    p = rows[:, :2].sum(-2) / rows.sum(-2).detach()
    not_p = rows[:, 2:].sum(-2) / rows.sum(-2).detach() if gradient == "rows" else 1 - p
    cross_entropy = -(labels * p.log() + (1 - labels) * not_p.log())
    (expected,) = torch.autograd.grad(cross_entropy.mean(-1).sum(), scores)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["lambda_recall_loss", "relax_loss", "topk_bce_loss"])
@pytest.mark.witness("brute force")
def test_ranks_as_labels_need_no_positive_ones(name: str) -> None:
    scores, _ = random_lists(5, 6, seed=7)
    labels = -torch.arange(6, dtype=torch.float64).expand(5, 6)
    options = {**OPTIONS[name][0], "positive_only": False}
    formulas: dict[str, Callable[..., float]] = {
        "lambda_recall_loss": lambda_recall,
        "relax_loss": relax,
        "topk_bce_loss": topk_bce,
    }
    values = call(name, scores, labels, reduction="none", **options)
    for i in range(5):
        expected = formulas[name](scores[i].tolist(), labels[i].tolist(), [1.0] * 6, **options)
        assert values[i].item() == pytest.approx(expected, rel=1e-9)
    assert (values > 0).all()


@pytest.mark.witness("brute force", "bce_loss")
def test_bce_takes_given_probabilities() -> None:
    scores, _ = random_lists(5, seed=8)
    labels = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    expected = bce(scores.tolist(), labels.tolist(), [1.0] * 5, threshold=None)
    assert losses.bce_loss(scores, labels, threshold=None).item() == pytest.approx(expected)


@pytest.mark.witness("hand", "expected_grade")
def test_expected_grade() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.log(2.0), 0.0]])
    assert losses.expected_grade(logits).tolist() == pytest.approx([1.0, 0.25 * 0 + 0.5 * 1 + 0.25 * 2])


# --- lists are separate, padding is nothing ---------------------------------------------------------------------


@pytest.mark.witness("mask equivalence")
@every_case
def test_a_padded_batch_equals_its_lists(name: str, options: dict[str, Any]) -> None:
    scores, labels = random_lists(8, 7, seed=9, ties=True)
    mask = random_mask(8, 7, seed=10)
    weight = torch.rand(8, 7, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    nothing = float("nan")
    padded = [x.masked_fill(~mask, nothing) for x in (scores, labels, weight)]
    values, gradient = value_and_gradient(
        name, padded[0], padded[1], mask=mask, weight=padded[2], reduction="none", **options
    )
    assert (gradient[~mask] == 0).all()
    for i in range(8):
        real = mask[i]
        value, expected = value_and_gradient(name, scores[i, real], labels[i, real], weight=weight[i, real], **options)
        torch.testing.assert_close(values[i], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient[i, real], expected, rtol=1e-10, atol=1e-12)


@every_loss
def test_no_list_influences_another(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(2, 6, seed=12)
    scores.requires_grad_()
    values = call(name, scores, labels, reduction="none", **options)
    (gradient,) = torch.autograd.grad(values[0], scores)
    assert (gradient[1] == 0).all()
    assert (gradient[0] != 0).any()
    other_scores, other_labels = scores.detach().clone(), labels.clone()
    other_scores[1] = 1e4 * torch.arange(6)
    other_labels[1] = 3 - torch.arange(6).clamp(max=3)
    again = call(name, other_scores, other_labels, reduction="none", **options)
    assert torch.equal(again[0], values[0])


@pytest.mark.witness("permutation")
@every_case
def test_the_order_of_rows_does_not_matter(name: str, options: dict[str, Any]) -> None:
    scores, labels = random_lists(4, 7, seed=13)
    if positional(name, options):
        labels = torch.arange(7, dtype=torch.float64).expand(4, 7)
    if name == "pirank_arp_loss" and options.get("variant") == "published":
        labels = torch.ones_like(labels)  # its denominator has the labels of the first items
    order = torch.randperm(7, generator=torch.Generator().manual_seed(14))
    value, gradient = value_and_gradient(name, scores, labels, reduction="none", **options)
    moved, moved_gradient = value_and_gradient(name, scores[:, order], labels[:, order], reduction="none", **options)
    torch.testing.assert_close(moved, value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(moved_gradient, gradient[:, order], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] not in POINTWISE])
def test_only_score_differences_matter(name: str, options: dict[str, Any]) -> None:
    scores, labels = random_lists(4, 7, seed=15)
    value = call(name, scores, labels, **options)
    torch.testing.assert_close(call(name, scores + 100.0, labels, **options), value, rtol=1e-9, atol=1e-9)


# --- shapes and types -------------------------------------------------------------------------------------------


@pytest.mark.witness("shapes and types")
@every_loss
def test_leading_dimensions_are_batch(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(2, 3, 2, 5, seed=16)
    values = call(name, scores, labels, reduction="none", **options)
    assert values.shape == (2, 3, 2)
    flat = call(name, scores.reshape(12, 5), labels.reshape(12, 5), reduction="none", **options)
    torch.testing.assert_close(values.reshape(12), flat, rtol=1e-12, atol=1e-12)
    one = call(name, scores[1, 2, 0], labels[1, 2, 0], reduction="none", **options)
    assert one.shape == ()
    torch.testing.assert_close(one, values[1, 2, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.witness("shapes and types")
@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_precisions_agree_with_float64(name: str, dtype: torch.dtype) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(4, 6, seed=17, ties=True)  # halves are exact in every type
    if name == "grade_softmax_loss":
        labels = labels.clamp(max=3)
    expected, slope = value_and_gradient(name, scores, labels, **options)
    value, gradient = value_and_gradient(name, scores.to(dtype), labels.to(dtype), **options)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(gradient.double(), slope, rtol=tolerance, atol=tolerance)


@every_loss
def test_integer_labels_are_labels(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(4, 6, seed=18)
    assert torch.equal(call(name, scores, labels.long(), **options), call(name, scores, labels, **options))


@every_loss
def test_boolean_labels(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(4, 6, seed=18)
    relevant = labels > 1
    assert torch.equal(call(name, scores, relevant, **options), call(name, scores, relevant.double(), **options))


@pytest.mark.witness("shapes and types")
@every_loss
def test_strides_do_not_matter(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(4, 6, seed=19)
    mask = random_mask(4, 6, seed=20)
    expected, slope = value_and_gradient(name, scores, labels, mask=mask, **options)
    strided = [x.t().contiguous().t() for x in (scores, labels, mask)]
    assert not strided[0].is_contiguous()
    scores_in = strided[0].requires_grad_()
    value = call(name, scores_in, strided[1], mask=strided[2], **options)
    (gradient,) = torch.autograd.grad(value, scores_in)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-12)


@pytest.mark.witness("shapes and types")
@every_loss
def test_expanded_tensors(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(6, seed=21)
    one, slope = value_and_gradient(name, scores, labels, **options)
    leaf = scores.clone().requires_grad_()
    values = call(name, leaf.expand(3, 6), labels.expand(3, 6), reduction="none", **options)
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    torch.testing.assert_close(values, one.expand(3), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, 3 * slope, rtol=1e-12, atol=1e-12)


@every_loss
def test_autocast_does_not_lower_the_precision(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(4, 30, seed=22, dtype=torch.float32)
    expected, slope = value_and_gradient(name, scores, labels, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, gradient = value_and_gradient(name, scores, labels, **options)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, slope)


@pytest.mark.slow
@pytest.mark.witness("compile")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised inside torch.compile
@every_loss
def test_compiles_in_one_graph(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(3, 8, seed=23)
    mask = random_mask(3, 8, seed=24)
    expected, slope = value_and_gradient(name, scores, labels, mask=mask, **options)
    torch._dynamo.reset()
    compiled = torch.compile(partial(call, name, **options), fullgraph=True, backend="aot_eager")
    scores.requires_grad_()
    value = compiled(scores, labels, mask=mask)
    (gradient,) = torch.autograd.grad(value, scores)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-10, atol=1e-12)


@pytest.mark.witness("meta device")
@every_loss
def test_runs_on_the_meta_device(name: str) -> None:
    scores = torch.empty(3, 8, device="meta", requires_grad=True)
    labels = torch.empty(3, 8, device="meta")
    mask = torch.empty(3, 8, device="meta", dtype=torch.bool)
    value = call(name, scores, labels, mask=mask, **OPTIONS[name][0])
    value.backward()
    assert value.shape == ()
    assert scores.grad is not None
    assert scores.grad.device.type == "meta"


@every_loss
def test_inputs_stay_as_they_are_and_backward_can_be_repeated(name: str) -> None:
    scores, labels = random_lists(3, 6, seed=25)
    mask = random_mask(3, 6, seed=26)
    weight = torch.ones(3, 6, dtype=torch.float64)
    inputs = (scores, labels, mask, weight)
    before = [x.clone() for x in inputs]
    scores.requires_grad_()
    value = call(name, scores, labels, mask=mask, weight=weight, **OPTIONS[name][0])
    (first,) = torch.autograd.grad(value, scores, retain_graph=True)
    (second,) = torch.autograd.grad(value, scores)
    assert torch.equal(first, second)
    assert all(torch.equal(x.detach(), y) for x, y in zip(inputs, before, strict=True))


@every_loss
def test_labels_and_weights_carry_no_gradient(name: str) -> None:
    scores, labels = random_lists(3, 6, seed=25)
    labels.requires_grad_()
    weight = torch.ones(3, 6, dtype=torch.float64, requires_grad=True)
    assert not call(name, scores, labels, weight=weight, **OPTIONS[name][0]).requires_grad


# --- reductions and weights -------------------------------------------------------------------------------------


@every_loss
def test_reductions(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(5, 6, seed=27)
    labels[2] = 0.0
    values = call(name, scores, labels, reduction="none", **options)
    torch.testing.assert_close(call(name, scores, labels, reduction="sum", **options), values.sum())
    torch.testing.assert_close(call(name, scores, labels, **options), values.sum() / 5)


@every_loss
def test_weights_of_lists(name: str) -> None:
    options = OPTIONS[name][0]
    scores, labels = random_lists(3, 6, seed=28)
    weight = torch.tensor([1.0, 0.0, 3.0])
    values = call(name, scores, labels, reduction="none", **options)
    weighted = call(name, scores, labels, weight=weight, reduction="none", **options)
    torch.testing.assert_close(weighted, values * weight)
    torch.testing.assert_close(call(name, scores, labels, weight=weight, reduction="sum", **options), weighted.sum())
    mean = call(name, scores, labels, weight=weight, **options)
    torch.testing.assert_close(mean, (values[0] + 3 * values[2]) / 4)
    assert call(name, scores, labels, weight=torch.zeros(3), **options) == 0


@every_case
def test_twice_the_item_weights_are_twice_the_loss(name: str, options: dict[str, Any]) -> None:
    """No loss divides by the weights, so that a list of valuable items has more influence than another one."""
    scores, labels = random_lists(3, 6, seed=29)
    weight = torch.rand(3, 6, generator=torch.Generator().manual_seed(30), dtype=torch.float64)
    once = value_and_gradient(name, scores, labels, weight=weight, **options)
    twice = value_and_gradient(name, scores, labels, weight=2 * weight, **options)
    torch.testing.assert_close(twice[0], 2 * once[0])
    torch.testing.assert_close(twice[1], 2 * once[1])


@every_case
def test_item_weights_of_one_change_nothing(name: str, options: dict[str, Any]) -> None:
    scores, labels = random_lists(4, 7, seed=31, dtype=torch.float32)
    labels[1] = 0.0
    mask = random_mask(4, 7, seed=32)
    plain = value_and_gradient(name, scores, labels, mask=mask, **options)
    weighted = value_and_gradient(name, scores, labels, mask=mask, weight=torch.ones(4, 7), **options)
    assert plain[0].equal(weighted[0])
    assert plain[1].equal(weighted[1])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"approx_ndcg_loss", "pirank_ndcg_loss"}])
def test_weights_may_be_negative(name: str) -> None:
    scores, labels = random_lists(3, 6, seed=29)
    value = call(name, scores, labels, weight=torch.full((3, 6), -1.0), **OPTIONS[name][0])
    torch.testing.assert_close(value, -call(name, scores, labels, **OPTIONS[name][0]))


@pytest.mark.parametrize("name", ["ranknet_loss", "lambda_loss"])
def test_a_second_derivative_is_refused(name: str) -> None:
    scores, labels = random_lists(3, 6, seed=29)
    scores.requires_grad_()
    (gradient,) = torch.autograd.grad(call(name, scores, labels), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        gradient.sum().backward()


@every_loss
def test_items_of_weight_zero_count_nothing(name: str) -> None:
    scores, labels = random_lists(3, 6, seed=29)
    value, gradient = value_and_gradient(name, scores, labels, weight=torch.zeros(3, 6), **OPTIONS[name][0])
    assert value == 0
    assert (gradient == 0).all()


# --- extremes ---------------------------------------------------------------------------------------------------

EXTREMES: dict[str, tuple[Numbers, Numbers]] = {
    "gaps of 1e4": ([1e4, -1e4, 0.0, 5e3], [0.0, 2.0, 1.0, 0.0]),
    "large and equal": ([1e4, 1e4, 1e4, 1e4], [0.0, 2.0, 1.0, 0.0]),
    "large and negative": ([-1e4, -1e4 + 1, -1e4, -1e4 + 2], [0.0, 2.0, 1.0, 0.0]),
    "all scores tied": ([0.0, 0.0, 0.0, 0.0], [0.0, 2.0, 1.0, 0.0]),
    "all labels tied": ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]),
    "no relevant item": ([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]),
    "one item": ([1.0], [1.0]),
    "one irrelevant item": ([1.0], [0.0]),
    "two items": ([1.0, 2.0], [1.0, 0.0]),
    "already perfect": ([4e3, 3e3, 2e3, 1e3], [3.0, 2.0, 1.0, 0.0]),
}


@pytest.mark.witness("extremes")
@every_case
def test_value_and_gradient_are_finite(name: str, options: dict[str, Any]) -> None:
    for extreme, dtype in itertools.product(EXTREMES, (torch.float32, torch.float64)):
        case = f"{extreme}, {dtype}"
        scores, labels = (torch.tensor(x, dtype=dtype) for x in EXTREMES[extreme])
        value, gradient = value_and_gradient(name, scores, labels, **options)
        assert value.isfinite(), case
        assert value >= -1e-6, case
        assert gradient.isfinite().all(), case
        if extreme.startswith(("no relevant", "one irrelevant")) and name not in POINTWISE:
            assert value == 0, case
            assert (gradient == 0).all(), case


@pytest.mark.witness("extremes")
@every_case
def test_a_list_of_padding_counts_nothing(name: str, options: dict[str, Any]) -> None:
    scores, labels = random_lists(3, 6, seed=30)
    scores[1], labels[1] = float("nan"), float("nan")
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1] = False
    values, gradient = value_and_gradient(name, scores, labels, mask=mask, reduction="none", **options)
    assert values[1] == 0
    assert (gradient[1] == 0).all()
    assert gradient.isfinite().all()
    alone = call(name, scores[[0, 2]], labels[[0, 2]], reduction="none", **options)
    torch.testing.assert_close(values[[0, 2]], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.witness("extremes")
@every_loss
def test_minus_zero_is_zero(name: str) -> None:
    labels = torch.tensor([0.0, 1.0, 2.0])
    options = OPTIONS[name][0]
    zero, gradient = value_and_gradient(name, torch.tensor([0.0, 0.0, 0.0]), labels, **options)
    minus, other = value_and_gradient(name, torch.tensor([-0.0, 0.0, -0.0]), labels, **options)
    torch.testing.assert_close(zero, minus)
    torch.testing.assert_close(gradient, other)


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in POINTWISE])
def test_grades_in_the_hundreds(name: str) -> None:
    scores, _ = random_lists(2, 300, seed=31, dtype=torch.float32)
    labels = torch.arange(300.0).expand(2, 300)
    value, gradient = value_and_gradient(name, scores, labels, **OPTIONS[name][0])
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert (gradient != 0).any()


@pytest.mark.witness("hand", "ranknet_loss")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [300.0, 1e4])
def test_a_pair_in_the_wrong_order_costs_its_gap(dtype: torch.dtype, gap: float) -> None:
    labels = torch.tensor([1.0, 0.0], dtype=dtype)
    wrong, slope = value_and_gradient("ranknet_loss", torch.tensor([0.0, gap], dtype=dtype), labels)
    assert wrong.item() == gap
    assert slope.tolist() == [-1.0, 1.0]
    right, slope = value_and_gradient("ranknet_loss", torch.tensor([gap, 0.0], dtype=dtype), labels)
    smallest = torch.finfo(dtype).tiny
    assert right.item() == pytest.approx(math.exp(-gap), abs=smallest)
    assert slope.abs().max().item() == pytest.approx(math.exp(-gap), abs=smallest)


@pytest.mark.witness("hand", "ranknet_loss")
def test_a_pair_in_the_right_order_keeps_its_digits() -> None:
    # log(1 + e^-30) = 9.4e-14 is lost if softplus is truncated or 1 + e^-30 is computed.
    value = losses.ranknet_loss(torch.tensor([30.0, 0.0]), torch.tensor([1.0, 0.0]))
    assert value.item() == pytest.approx(math.exp(-30), rel=1e-6, abs=0)


@pytest.mark.witness("hand", "listmle_loss")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_listmle_at_large_gaps(dtype: torch.dtype) -> None:
    # In the reverse order every step but the last loses to the last item: sums of gaps, and slopes of a softmax.
    scores = torch.tensor([0.0, 1e4, 2e4], dtype=dtype)
    labels = torch.tensor([2.0, 1.0, 0.0], dtype=dtype)
    value, gradient = value_and_gradient("listmle_loss", scores, labels)
    assert value.item() == 2e4 + 1e4
    spacing = 2e4 * torch.finfo(dtype).eps  # of numbers of the scores' size
    assert gradient.tolist() == pytest.approx([-1.0, -1.0, 2.0], rel=spacing)


@pytest.mark.witness("hand", "listmle_loss")
def test_listmle_keeps_its_digits_at_a_large_offset() -> None:
    labels = torch.tensor([2.0, 1.0, 0.0])
    scores = torch.tensor([0.0, 0.5, -0.25])
    near, slope = value_and_gradient("listmle_loss", scores, labels)
    far, other = value_and_gradient("listmle_loss", scores + 2**14, labels)
    assert torch.equal(near, far)
    assert torch.equal(slope, other)


# --- limits -----------------------------------------------------------------------------------------------------


def hard_ndcg(s: Numbers, y: Numbers, k: int | None) -> float:
    gain = exp_gains(y)
    return sum(gain[i] * discount(r) for r, i in enumerate(order_of(s)[:k], start=1)) / ideal(gain, k)


LIMITS: list[tuple[str, dict[str, Any], Callable[[Numbers, Numbers], float]]] = [
    ("approx_ndcg_loss", {"tau": 1e-4}, lambda s, y: 1 - hard_ndcg(s, y, None)),
    ("pirank_ndcg_loss", {"tau": 1e-4}, lambda s, y: 1 - hard_ndcg(s, y, None)),
    ("pirank_ndcg_loss", {"tau": 1e-4, "k": 3}, lambda s, y: 1 - hard_ndcg(s, y, 3)),
    ("pirank_ndcg_loss", {"tau": 1e-4, "k": 3, "sort": ops.soft_sort}, lambda s, y: 1 - hard_ndcg(s, y, 3)),
    (
        "pirank_arp_loss",
        {"tau": 1e-4},
        lambda s, y: sum(r * a for r, a in zip(ranks_of(s), y, strict=True)) / sum(y),
    ),
]


@pytest.mark.witness("limit")
@pytest.mark.parametrize(
    ("name", "options", "exact"), LIMITS, ids=[f"{name}-{len(options)}" for name, options, _ in LIMITS]
)
def test_low_temperature_limit_is_exact_metric(
    name: str, options: dict[str, Any], exact: Callable[[Numbers, Numbers], float]
) -> None:
    scores, labels = random_lists(10, 6, seed=32)
    values = call(name, scores, labels, reduction="none", **options)
    for i in range(10):
        assert values[i].item() == pytest.approx(exact(scores[i].tolist(), labels[i].tolist()), abs=1e-6)


@pytest.mark.witness("limit", "relax_loss")
def test_a_cold_relax_loss_counts_what_was_kept() -> None:
    # With a nearly hard permutation a kept item costs log m and a lost one far more.
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
    kept = losses.relax_loss(scores, torch.tensor([0.0, 1.0, 0.0, 0.0]), m=2, k=1, tau=0.01)
    lost = losses.relax_loss(scores, torch.tensor([0.0, 0.0, 1.0, 0.0]), m=2, k=1, tau=0.01)
    assert kept.item() == pytest.approx(math.log(2))
    assert lost.item() > 50


@pytest.mark.witness("limit", "sort_cross_entropy_loss")
def test_a_cold_label_permutation_is_the_hard_one() -> None:
    scores, _ = random_lists(4, 6, seed=33)
    labels = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    torch.testing.assert_close(
        losses.sort_cross_entropy_loss(scores, labels, label_tau=1e-3),
        losses.sort_cross_entropy_loss(scores, labels),
    )


def test_without_ties_both_orders_of_ties_are_the_same_numbers() -> None:
    scores, _ = random_lists(4, 9, seed=55, dtype=torch.float32)
    labels = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i)) for i in range(4)]).float()
    mask = random_mask(4, 9, seed=56)
    average, position = (
        value_and_gradient("sort_cross_entropy_loss", scores, labels, mask=mask, ties=ties)
        for ties in ("average", "position")
    )
    assert torch.equal(average[0], position[0])
    assert torch.equal(average[1], position[1])


@pytest.mark.witness("limit", "topk_bce_loss")
def test_a_cold_inclusion_costs_nothing_in_the_right_order() -> None:
    topk = ops.topk("dftopk", tau=1e-3)
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
    right = losses.topk_bce_loss(scores, torch.tensor([1.0, 1.0, 0.0, 0.0]), k=2, topk=topk)
    wrong = losses.topk_bce_loss(scores, torch.tensor([0.0, 1.0, 1.0, 0.0]), k=2, topk=topk)
    assert right.item() == pytest.approx(0.0, abs=1e-6)
    assert wrong.item() > 100


# --- operators as arguments -------------------------------------------------------------------------------------

SORTS: list[Any] = [ops.neural_sort, ops.soft_sort, ops.diff_sort, ops.pirank_sort]
OF_A_SORT: list[tuple[str, dict[str, Any]]] = [
    ("pirank_ndcg_loss", {"k": 3}),
    ("pirank_arp_loss", {}),
    ("sort_cross_entropy_loss", {}),
    ("relax_loss", {"m": 3, "k": 2}),
]


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.__name__)
@pytest.mark.parametrize(("name", "options"), OF_A_SORT, ids=[name for name, _ in OF_A_SORT])
def test_any_sort_serves(name: str, options: dict[str, Any], sort: Any) -> None:
    scores, labels = random_lists(4, 8, seed=34)
    mask = random_mask(4, 8, seed=35)
    value, gradient = value_and_gradient(name, scores, labels, mask=mask, sort=sort, **options)
    assert value > 0
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()
    step = call(name, scores - 1e-3 * gradient, labels, mask=mask, sort=sort, **options)
    assert step < value


@pytest.mark.parametrize("operator", ["dftopk", "lapsum_topk", "sigmoid_topk", "diff_sort"])
def test_any_topk_serves(operator: str) -> None:
    scores, labels = random_lists(4, 8, seed=36)
    topk = ops.topk(operator)
    value, gradient = value_and_gradient("topk_bce_loss", scores, labels, k=3, topk=topk)
    assert gradient.isfinite().all()
    assert losses.topk_bce_loss(scores - 1e-3 * gradient, labels, k=3, topk=topk) < value


def test_tau_may_be_trained() -> None:
    scores, labels = random_lists(4, 8, seed=37)
    tau = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    total = losses.pirank_ndcg_loss(scores, labels, tau=tau) + losses.approx_ndcg_loss(scores, labels, tau=tau)
    total.backward()
    assert tau.grad is not None
    assert tau.grad.isfinite()
    assert tau.grad != 0


@pytest.mark.witness("derivation", "pirank_ndcg_loss", "pirank_arp_loss")
@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.__name__)
@pytest.mark.parametrize("k", [None, 3, 50])
def test_straight_through_has_the_value_of_the_metric_and_the_gradient_of_the_soft_loss(
    k: int | None, sort: Any
) -> None:
    scores, labels = random_lists(5, 8, seed=60)
    scores = scores.round()  # with ties
    mask = random_mask(5, 8, seed=61)
    for name in ("pirank_ndcg_loss", "pirank_arp_loss"):
        options = {"k": k, "sort": sort}
        hard, of_hard = value_and_gradient(name, scores, labels, mask=mask, straight_through=True, **options)
        _, of_soft = value_and_gradient(name, scores, labels, mask=mask, **options)
        torch.testing.assert_close(of_hard, of_soft)
        if name == "pirank_ndcg_loss":
            expected = (1 - metrics.ndcg(scores, labels, k=k, mask=mask, empty=1.0)).mean()
        elif k != 3:
            expected = metrics.arp(scores, labels, mask=mask).mean()
        else:
            continue
        torch.testing.assert_close(hard, expected)


@pytest.mark.witness("hand", "pirank_arp_loss")
def test_the_published_denominator_has_the_first_labels() -> None:
    scores, labels = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([1.0, 2.0, 4.0])
    options: dict[str, Any] = {"k": 2, "tau": 1e-3}  # ranks 1 and 2 hold the labels 2 and 4: 1 * 2 + 2 * 4
    assert losses.pirank_arp_loss(scores, labels, **options).item() == pytest.approx(10 / 7)
    assert losses.pirank_arp_loss(scores, labels, variant="published", **options).item() == pytest.approx(10 / 3)
    mask = torch.tensor([False, True, True, True])
    padded = [torch.cat([torch.tensor([9.0]), values]) for values in (scores, labels)]
    value = losses.pirank_arp_loss(padded[0], padded[1], mask=mask, variant="published", **options)
    assert value.item() == pytest.approx(10 / 3)
    with pytest.raises(ValueError, match="variant"):
        losses.pirank_arp_loss(scores, labels, variant="printed")  # type: ignore[arg-type]


# --- Gumbel noise -----------------------------------------------------------------------------------------------


@pytest.mark.witness("derivation", "approx_ndcg_loss")
def test_gumbel_noise_swaps_a_pair_as_often_as_it_should() -> None:
    # The difference of two Gumbel variables is logistic, so at tau -> 0 a gap g is reversed with probability
    # sigmoid(-g / beta), and a reversed pair loses 1 - 1/log2(3).
    scores, labels = torch.tensor([0.7, 0.0], dtype=torch.float64), torch.tensor([1.0, 0.0])
    value = losses.approx_ndcg_loss(
        scores,
        labels,
        tau=1e-4,
        gumbel_samples=100_000,
        beta=0.5,
        generator=torch.Generator().manual_seed(0),
    )
    assert value.item() == pytest.approx(sigmoid(-0.7 / 0.5) * (1 - 1 / math.log2(3)), abs=2e-3)


def test_gumbel_noise_comes_from_the_generator() -> None:
    scores, labels = random_lists(3, 6, seed=38)
    mask = random_mask(3, 6, seed=39)

    def loss(seed: int, beta: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return losses.approx_ndcg_loss(
            scores, labels, mask=mask, gumbel_samples=5, beta=beta, generator=generator, reduction="none"
        )

    assert torch.equal(loss(0), loss(0))
    assert not torch.equal(loss(0), loss(1))
    assert loss(0).shape == (3,)
    plain = losses.approx_ndcg_loss(scores, labels, mask=mask, reduction="none")
    torch.testing.assert_close(loss(0, beta=1e-9), plain)


@pytest.mark.witness("gradcheck", "approx_ndcg_loss")
def test_gradient_through_gumbel_noise() -> None:
    scores, labels = random_lists(2, 5, seed=40)

    def loss(x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return losses.approx_ndcg_loss(x, labels, gumbel_samples=4, generator=generator)

    assert torch.autograd.gradcheck(loss, (scores.requires_grad_(),))


# --- LambdaLoss@K is a bound of NDCG@K --------------------------------------------------------------------------


@pytest.mark.witness("derivation", "lambda_loss")
@pytest.mark.parametrize("k", [1, 2, 4, 8, None])
def test_with_the_zero_one_loss_lambda_loss_is_the_cost_of_ndcg(k: int | None) -> None:
    """LLK 18-20: sum_i G_i sum_{j above i} delta_ij mu_ij = sum G - DCG@K.

    For a pair y_i > y_j the left side holds |G_i - G_j| if i stands below j, and G_j in either order; a pair of equal
    labels holds its gain once. The first part is the loss with [i below j] in the place of the logistic, which is what
    its slope at a winner becomes as sigma grows.
    """
    sigma = 1e7
    for seed in range(20):
        scores, labels = random_lists(8, seed=100 + seed)
        # Weight on one winner at a time: minus the slope at that winner, divided by sigma.
        winners = torch.eye(8, dtype=torch.float64)
        _, slopes = value_and_gradient(
            "lambda_loss",
            scores.expand(8, 8),
            labels.expand(8, 8),
            weight=winners,
            k=k,
            sigma=sigma,
            reduction="none",
        )
        y, r = labels.tolist(), ranks_of(scores.tolist())
        gain = exp_gains(y)
        total = -slopes.diagonal().sum().item() / sigma * ideal(gain, k)
        for i in range(8):
            for j in range(8):
                if y[i] > y[j] or (y[i] == y[j] and i < j):
                    total += gain[j] * delta_of(r, i, j, k, "sound")
        dcg = sum(gain[i] * discount(r[i]) for i in range(8) if k is None or r[i] <= k)
        assert total == pytest.approx(sum(gain) - dcg)


# --- long lists -------------------------------------------------------------------------------------------------

PAIRED: list[tuple[str, dict[str, Any]]] = [
    ("ranknet_loss", {}),
    ("lambdarank_loss", {"k": 5}),
    ("lambda_loss", {"k": 5}),
    ("lambda_loss", {"k": 5, "version": "heuristic", "mix": 0.5}),
    ("lambda_loss", {"mix": 0.5}),
    ("lambda_recall_loss", {"m": 7, "k": 5}),
    ("approx_ndcg_loss", {}),
]


@pytest.mark.parametrize(("name", "options"), PAIRED)
@pytest.mark.parametrize("kept", [0, 2**40], ids=["recomputed", "kept"])
@pytest.mark.parametrize("block", [1, 100])
def test_blocks_of_pairs_add_up(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], kept: int, block: int
) -> None:
    scores, labels = random_lists(2, 23, seed=41)
    mask = random_mask(2, 23, seed=42)
    weight = torch.rand(2, 23, generator=torch.Generator().manual_seed(43), dtype=torch.float64)
    arguments: dict[str, Any] = {"mask": mask, "weight": weight, "reduction": "none", **options}
    expected, slope = value_and_gradient(name, scores, labels, **arguments)
    monkeypatch.setattr(_pairs, "BLOCK", block)
    monkeypatch.setattr(_pairs, "KEPT", kept)
    value, gradient = value_and_gradient(name, scores, labels, **arguments)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, slope, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.witness("compile")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised inside torch.compile
@pytest.mark.parametrize("name", ["ranknet_loss", "lambda_loss", "approx_ndcg_loss"])
def test_blocks_of_pairs_compile(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(_pairs, "BLOCK", 200)
    monkeypatch.setattr(_pairs, "KEPT", 0)
    scores, labels = random_lists(2, 23, seed=44)
    expected, slope = value_and_gradient(name, scores, labels)
    torch._dynamo.reset()
    compiled = torch.compile(partial(call, name), fullgraph=True, backend="aot_eager")
    scores.requires_grad_()
    value = compiled(scores, labels)
    (gradient,) = torch.autograd.grad(value, scores)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, slope)


MEASURE = """
import json, resource, torch
from rankfall import losses
torch.set_num_threads(1)
torch.manual_seed(0)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
scores, labels = torch.randn(10_000, requires_grad=True), torch.randint(0, 5, (10_000,)).float()
losses.ranknet_loss(scores[:10], labels[:10]).backward()
before = peak()
losses.ranknet_loss(scores, labels).backward()
losses.lambda_loss(scores, labels, k=10).backward()
print(json.dumps({"megabytes": peak() - before, "finite": bool(scores.grad.isfinite().all())}))
"""


@pytest.mark.slow
def test_ten_thousand_items_need_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured["finite"]
    assert measured["megabytes"] < 200


def test_a_hundred_thousand_items() -> None:
    scores, labels = random_lists(100_000, seed=45, dtype=torch.float32)
    for name, options in [("softmax_loss", {}), ("listmle_loss", {}), ("lambdarank_loss", {"k": 10})]:
        value, gradient = value_and_gradient(name, scores, labels, **options)
        assert value.isfinite()
        assert gradient.isfinite().all()


# --- bad input --------------------------------------------------------------------------------------------------


BAD: list[tuple[str, Any]] = [
    ("labels", torch.ones(2, 4)),
    ("labels", [[1.0] * 5] * 2),
    ("labels", torch.full((2, 5), float("nan"))),
    ("labels", torch.full((2, 5), float("inf"))),
    ("mask", torch.ones(2, 5)),
    ("mask", torch.ones(5, dtype=torch.bool)),
    ("weight", torch.ones(5)),
    ("weight", 2.0),
    ("weight", torch.full((2, 5), float("nan"))),
    ("reduction", "average"),
]


@every_loss
def test_bad_input_is_named(name: str) -> None:
    for argument, value in BAD:
        inputs: dict[str, Any] = {"labels": torch.ones(2, 5), **OPTIONS[name][0], argument: value}
        with pytest.raises((ValueError, TypeError), match=f"^{argument} must"):
            call(name, torch.zeros(2, 5), **inputs)


@every_loss
@pytest.mark.parametrize(
    "scores",
    [torch.zeros(2, 5, dtype=torch.long), torch.full((2, 5), float("nan")), torch.full((2, 5), float("inf")), "x"],
    ids=["integers", "nan", "inf", "text"],
)
def test_bad_scores_are_named(name: str, scores: Any) -> None:
    first = next(iter(inspect.signature(getattr(losses, name)).parameters))
    if first == "logits" and isinstance(scores, Tensor):
        scores = scores[..., None].expand(2, 5, 4)
    with pytest.raises((ValueError, TypeError), match=f"^{first} must"):
        getattr(losses, name)(scores, torch.ones(2, 5), **OPTIONS[name][0])


BAD_OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("ranknet_loss", "sigma", {"sigma": 0.0}),
    ("lambdarank_loss", "k", {"k": 0}),
    ("lambda_loss", "k", {"k": 1.5}),
    ("lambda_loss", "version", {"version": "best"}),
    ("lambda_loss", "mix", {"mix": 1.5}),
    ("lambda_loss", "mix", {"mix": "half"}),
    ("lambda_recall_loss", "m", {"m": 0, "k": 1}),
    ("lambda_recall_loss", "k", {"m": 1, "k": 0}),
    ("approx_ndcg_loss", "tau", {"tau": 0.0}),
    ("approx_ndcg_loss", "tau", {"tau": -1.0}),
    ("approx_ndcg_loss", "beta", {"beta": 0.0}),
    ("approx_ndcg_loss", "gumbel_samples", {"gumbel_samples": -1}),
    ("approx_ndcg_loss", "gumbel_samples", {"gumbel_samples": 1.5}),
    ("pirank_ndcg_loss", "k", {"k": 0}),
    ("pirank_ndcg_loss", "tau", {"tau": 0.0}),
    ("pirank_arp_loss", "k", {"k": -3}),
    ("sort_cross_entropy_loss", "tau", {"tau": -1.0}),
    ("sort_cross_entropy_loss", "label_tau", {"label_tau": 0.0}),
    ("relax_loss", "m", {"m": 0, "k": 1}),
    ("relax_loss", "k", {"m": 1, "k": 0}),
    ("relax_loss", "tau", {"m": 1, "k": 1, "tau": 0.0}),
    ("topk_bce_loss", "k", {"k": 0}),
]


@pytest.mark.parametrize(("name", "argument", "options"), BAD_OPTIONS)
def test_bad_options_are_named(name: str, argument: str, options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{argument} must"):
        call(name, torch.zeros(2, 5), torch.ones(2, 5), **options)


@pytest.mark.parametrize("labels", [[-1.0, 0.0], [0.0, 4.0], [0.5, 1.0]])
def test_labels_that_are_no_grades(labels: Numbers) -> None:
    with pytest.raises(ValueError, match=r"^labels must"):
        losses.grade_softmax_loss(torch.zeros(2, 4), torch.tensor(labels))


def test_labels_that_are_no_probabilities() -> None:
    with pytest.raises(ValueError, match=r"^labels must"):
        losses.bce_loss(torch.zeros(2), torch.tensor([0.0, 2.0]), threshold=None)


@pytest.mark.parametrize("logits", [torch.zeros(4), torch.zeros(4, dtype=torch.long), [0.0]])
def test_logits_of_one_dimension(logits: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^logits must"):
        losses.expected_grade(logits)


# --- modules ----------------------------------------------------------------------------------------------------

MODULES = [getattr(losses, name) for name in losses.__all__ if hasattr(getattr(losses, name), "function")]
TWINS = {module.function.__name__: module for module in MODULES}


@every_loss
def test_a_module_is_its_function(name: str) -> None:
    function, options = getattr(losses, name), OPTIONS[name][0]
    scores, labels = random_lists(3, 6, seed=46)
    if name == "grade_softmax_loss":
        scores = scores[..., None] * torch.tensor(SLOPES)
    mask, weight = random_mask(3, 6, seed=47), torch.rand(3)
    module = TWINS[name](**options, reduction="sum")
    value = module(scores, labels, mask=mask, weight=weight)
    assert torch.equal(value, function(scores, labels, mask=mask, weight=weight, reduction="sum", **options))
    assert repr(module).startswith(f"{TWINS[name].__name__}(")
    assert "reduction='sum'" in repr(module)
    assert list(inspect.signature(TWINS[name]).parameters) == [
        p for p in inspect.signature(function).parameters if p not in {"scores", "logits", "labels", "mask", "weight"}
    ]


def test_a_module_checks_its_options() -> None:
    with pytest.raises(TypeError, match=r"LambdaLoss has no option 'cutoff'; its options are k, version, mix"):
        losses.LambdaLoss(cutoff=3)
    with pytest.raises(TypeError, match=r"RelaxLoss needs the option 'k'"):
        losses.RelaxLoss(m=3)
    with pytest.raises(ValueError, match="reduction"):
        losses.ARFLoss(m=3, k=2, reduction="average")  # type: ignore[arg-type]


ADAPTIVE: list[tuple[str, Any]] = [
    ("ARFLoss", lambda **o: losses.ARFLoss(m=3, k=2, tau=0.5, **o)),
    ("ARFv2Loss", lambda **o: losses.ARFv2Loss(k=2, tau=0.5, **o)),
]
adaptive = pytest.mark.parametrize(("name", "make"), ADAPTIVE, ids=[name for name, _ in ADAPTIVE])


@pytest.mark.witness("brute force")
@adaptive
def test_adaptive_losses_equal_their_formula(name: str, make: Any) -> None:
    scores, labels = random_lists(5, 6, seed=48)
    labels[1] = 0.0
    module = make(reduction="none")
    with torch.no_grad():
        module.alpha.fill_(-1.5)
    values = module(scores, labels)
    for i in (0, 2, 3, 4):
        s, y, w = scores[i].tolist(), labels[i].tolist(), [1.0] * 6
        recall = relax(s, y, w, 3, 2, 0.5) if name == "ARFLoss" else topk_bce(s, y, w, 2, topk="neural_sort")
        expected = recall + sort_cross_entropy(s, y, w, 0.5) / (2 * 1.5**2) + math.log(1.5)
        assert values[i].item() == pytest.approx(expected, rel=1e-6)
    assert values[1] == 0


@pytest.mark.witness("brute force", "ARFLoss")
def test_arf_as_printed_adds_up_soft_targets() -> None:
    """Equations 11 to 13 of ARF: the labels are softly sorted for both losses, which are sums."""
    scores, labels = random_lists(4, 6, seed=53)
    values = losses.ARFLoss(m=3, k=2, tau=0.5, variant="published", positive_only=False, reduction="none")(
        scores, labels
    )
    own_tau = losses.ARFLoss(m=3, k=2, tau=0.5, label_tau=2.0, variant="published", reduction="none")(scores, labels)
    for i in range(4):
        s, y, w = scores[i].tolist(), labels[i].tolist(), [1.0] * 6
        recall = relax(s, y, w, 3, 2, 0.5, positive_only=False, label_tau=0.5, scale="sum")
        expected = recall + sort_cross_entropy(s, y, w, 0.5, label_tau=0.5, scale="sum") / 2
        assert values[i].item() == pytest.approx(expected, rel=1e-9)
        recall = relax(s, y, w, 3, 2, 0.5, label_tau=2.0, scale="sum")
        expected = recall + sort_cross_entropy(s, y, w, 0.5, label_tau=2.0, scale="sum") / 2
        assert own_tau[i].item() == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="variant must be one of 'sound', 'published', got 'old'"):
        losses.ARFLoss(m=3, k=2, variant="old")  # type: ignore[arg-type]


@pytest.mark.witness("brute force")
@adaptive
@pytest.mark.parametrize("scale", ["mean", "sum", "mixed"])
def test_scales_of_adaptive_losses(name: str, make: Any, scale: str) -> None:
    scores, labels = random_lists(4, 6, seed=54)
    values = make(scale=scale, ties="position", reduction="none")(scores, labels)
    of_recall, of_order = {"mean": ("mean", "mean"), "sum": ("sum", "sum"), "mixed": ("sum", "mean")}[scale]
    for i in range(4):
        s, y, w = scores[i].tolist(), labels[i].tolist(), [1.0] * 6
        if name == "ARFLoss":
            recall = relax(s, y, w, 3, 2, 0.5, scale=of_recall)
        else:
            recall = topk_bce(s, y, w, 2, topk="neural_sort", scale=of_recall)
        expected = recall + sort_cross_entropy(s, y, w, 0.5, ties="position", scale=of_order) / 2
        assert values[i].item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="scale must be one of 'mean', 'sum', 'mixed', got 'max'"):
        make(scale="max")


@pytest.mark.witness("gradcheck")
@adaptive
def test_gradient_of_adaptive_losses(name: str, make: Any) -> None:
    scores, labels = random_lists(3, 5, seed=49)
    # NeuralSort's inclusion has a denominator without gradient
    module = (make() if name == "ARFLoss" else make(topk=ops.topk("sigmoid_topk"))).double()

    def loss(x: Tensor, alpha: Tensor) -> Tensor:
        value: Tensor = torch.func.functional_call(module, {"alpha": alpha}, (x, labels))
        return value

    alpha = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (scores.requires_grad_(), alpha))


@pytest.mark.witness("derivation")
@adaptive
def test_alpha_settles_where_the_terms_balance(name: str, make: Any) -> None:
    # d/d alpha of L / (2 alpha^2) + log alpha is 0 at alpha^2 = L.
    scores, labels = random_lists(4, 6, seed=50)
    module = make().double()
    assert module.alpha == 1
    order = losses.sort_cross_entropy_loss(scores, labels, tau=0.5)
    with torch.no_grad():
        module.alpha.copy_(order.sqrt())
    (slope,) = torch.autograd.grad(module(scores, labels), module.alpha)
    assert slope.item() == pytest.approx(0.0, abs=1e-9)


@adaptive
def test_adaptive_losses_mask_weigh_and_reduce(name: str, make: Any) -> None:
    scores, labels = random_lists(4, 6, seed=51)
    mask = random_mask(4, 6, seed=52)
    mask[2] = False
    scores[~mask] = float("nan")
    scores.requires_grad_()
    values = make(reduction="none")(scores, labels, mask=mask)
    assert values[2] == 0
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(make(reduction="sum")(scores, labels, mask=mask), values.sum())
    torch.testing.assert_close(make()(scores, labels, mask=mask, weight=weight), (values * weight).sum() / 10)
    assert "SortCrossEntropyLoss" in repr(make())
    assert [n for n, _ in make().named_parameters()] == ["alpha"]
    with pytest.raises(ValueError, match=r"^weight must"):
        make()(scores, labels, mask=mask, weight=torch.ones(6))


# --- labels below 0 ---------------------------------------------------------------------------------------------

OF_ORDER = {"listmle_loss", "ranknet_loss", "sort_cross_entropy_loss"}
OF_ORDER |= tables_of_files(Path(__file__).parent, "OF_ORDER").keys()
BY_NAME: dict[str, Any] = {name: getattr(losses, name) for name in NAMES}
BY_NAME |= {name: lambda s, y, mask, make=make, **o: make(**o)(s, y, mask=mask) for name, make in ADAPTIVE}
SHIFTED = [*CASES, *((name, {}) for name, _ in ADAPTIVE)]
SHIFTED += [
    (name, {**options, "positive_only": False})
    for name, options in SHIFTED
    if name in ("lambda_recall_loss", "relax_loss", "topk_bce_loss", "ARFLoss", "ARFv2Loss")
]


@pytest.mark.parametrize(("name", "options"), SHIFTED)
def test_a_shift_of_the_labels_changes_nothing_or_is_refused(name: str, options: dict[str, Any]) -> None:
    """Losses of the order depend on no zero point. All others say that they need one, instead of being 0."""
    scores, labels = random_lists(6, 7, seed=60)
    mask = random_mask(6, 7, seed=61)
    labels[:, 0], mask[:, 0] = 0.0, True  # so that every list has two different labels
    labels[~mask] = -5.0
    loss = partial(BY_NAME[name], mask=mask, reduction="none", **options)
    if name == "mse_loss":  # predicts the labels
        shifted = partial(loss, scores - 3)
    elif name == "bce_loss":  # has a threshold of its own
        shifted = partial(loss, scores, threshold=options.get("threshold", 0.0) - 3)
    elif name in OF_ORDER or options.get("positive_only") is False:
        shifted = partial(loss, scores)
    else:
        if name == "grade_softmax_loss":
            scores = scores[..., None].expand(6, 7, 4)
        loss(scores, labels)
        with pytest.raises(ValueError, match=r"^labels must not hold values (below 0|outside 0\.\.3)"):
            loss(scores, labels - 3)
        return
    torch.testing.assert_close(shifted(labels - 3), loss(scores, labels), rtol=1e-9, atol=1e-9)
    assert name not in OF_ORDER or (loss(scores, labels) > 0).all()


@pytest.mark.witness("brute force")
@pytest.mark.parametrize("name", sorted(OF_ORDER))
def test_labels_that_are_all_negative_have_the_loss_of_their_order(name: str) -> None:
    formulas: dict[str, Any] = {
        "listmle_loss": listmle,
        "ranknet_loss": ranknet,
        "sort_cross_entropy_loss": sort_cross_entropy,
    }
    scores, labels = random_lists(5, 6, seed=62)
    labels = -1 - labels
    labels[0] = torch.tensor([-1.0, -1.0, -2.0, 0.0, 0.0, -2.0])
    values, gradient = value_and_gradient(name, scores, labels, reduction="none")
    for i in range(5):
        expected = formulas[name](scores[i].tolist(), labels[i].tolist(), [1.0] * 6)
        assert values[i].item() == pytest.approx(expected, rel=1e-6)
    assert (gradient.abs().sum(-1) > 0).all()
    assert call(name, scores, torch.full_like(labels, -2.0)) == 0  # no order, no relevant item


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ranknet_loss", "lambda_loss", "approx_ndcg_loss", "softmax_loss"])
def test_one_graph_serves_lists_of_many_lengths(name: str) -> None:
    torch._dynamo.reset()
    compiled: Callable[..., Tensor] = torch.compile(getattr(losses, name), fullgraph=True, backend="aot_eager")
    for n in range(6, 18):  # more lengths than the compiler allows graphs
        scores, labels = random_lists(2, n, seed=n)
        torch.testing.assert_close(compiled(scores, labels), getattr(losses, name)(scores, labels))
