"""Operators against brute force and against the properties that define them."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from rankfall import ops, registry
from support.native_code import compiled_quickly

if TYPE_CHECKING:
    from collections.abc import Callable

INF = float("inf")

# Every operator in the settings that run different code; "at" is a k that makes sense for a list of six or seven items.
SORTS: dict[str, dict[str, Any]] = {
    "neural_sort": {"tau": 0.7},
    "soft_sort": {"tau": 0.7},
    "soft_sort/square": {"tau": 0.7, "power": 2},
    "diff_sort": {},
    "diff_sort/logistic": {"swap": "logistic", "steepness": 1.5},
    "diff_sort/reciprocal": {"swap": "reciprocal", "steepness": 3.0},
    "diff_sort/optimal": {"swap": "optimal", "steepness": 0.6},
    "diff_sort/bitonic": {"network": "bitonic", "steepness": 2.0},
    "pirank_sort": {"tau": 0.7, "depth": 2},
    "pirank_sort/deep": {"tau": 0.7, "depth": 3},
    "pirank_sort/flat": {"tau": 0.7, "depth": 1},
    "pirank_sort/free": {"tau": 0.7, "branches": [2, 5, 4], "tau_shares": [0.3, 0.5]},
}
TOPKS: dict[str, dict[str, Any]] = {
    "dftopk": {"tau": 0.7},
    "lapsum_topk": {"tau": 0.7},
    "sparse_topk": {"tau": 1.3},
    "sparse_topk/cube": {"tau": 1.3, "p": 4 / 3},
    "sigmoid_topk": {"tau": 0.7},
}
INCLUSIONS: dict[str, dict[str, Any]] = {
    "topk/neural_sort": {"tau": 0.7},
    "topk/soft_sort": {"tau": 0.7},
    "topk/diff_sort": {"steepness": 2.0},
    "topk/pirank_sort": {"tau": 0.7, "depth": 2},
    "topk/dftopk": {"tau": 0.7},
    "topk/sparse_topk": {"tau": 0.7},
}
# An operator without an entry of its own is tested with its default options.
SORTS |= {name: {} for name in registry.SORTS if name not in SORTS}
TOPKS |= {name: {} for name in registry.builtins("operator") if name not in {*SORTS, *TOPKS, "hard_topk"}}
SOFT_TOPKS = {**TOPKS, **INCLUSIONS}
ALL = {**SORTS, **SOFT_TOPKS, "hard_topk": {}}

# The probabilities of these operators sum to k.
EXACT = ["lapsum_topk", "sparse_topk", "sparse_topk/cube", "sigmoid_topk", "hard_topk"]


def apply(name: str, scores: Tensor, *, k: int = 2, mask: Tensor | None = None, **changes: Any) -> Tensor:
    options = {**ALL[name], **changes}
    function, _, variant = name.partition("/")
    if function == "topk":
        return ops.topk(variant, **options)(scores, k, mask=mask)
    options = {"k": k, **options} if name in SORTS else options
    call: Callable[..., Tensor] = getattr(ops, function)
    return call(scores, mask=mask, **options) if name in SORTS else call(scores, k, mask=mask, **options)


def lists(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def masks(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.7


# --- brute force -----------------------------------------------------------------------------------------------------


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    exps = [math.exp(v - top) for v in values]
    return [e / sum(exps) for e in exps]


def loop_neural_sort(s: list[float], k: int, tau: float) -> list[list[float]]:
    n = len(s)
    spread = [sum(abs(a - b) for b in s) for a in s]
    return [softmax([((n + 1 - 2 * i) * s[j] - spread[j]) / tau for j in range(n)]) for i in range(1, min(k, n) + 1)]


def loop_soft_sort(s: list[float], k: int, tau: float, power: int = 1) -> list[list[float]]:
    return [softmax([-(abs(v - x) ** power) / tau for x in s]) for v in sorted(s, reverse=True)[:k]]


SWAPS: dict[str, Callable[[float], float]] = {
    "logistic": lambda z: 1 / (1 + math.exp(-z)),
    "cauchy": lambda z: math.atan(z) / math.pi + 0.5,
    "reciprocal": lambda z: (z / (2 + abs(z)) + 1) / 2,
    "optimal": lambda z: z + 0.5 if abs(z) <= 0.25 else (1 - 1 / (16 * z) if z > 0 else -1 / (16 * z)),
}


def loop_diff_sort(
    s: list[float], k: int, steepness: float | None = None, network: str = "odd_even", swap: str = "cauchy"
) -> list[list[float]]:
    """Dense layer matrices, multiplied."""
    n = len(s)
    beta = 2 * n if steepness is None else steepness
    size = n
    if network == "bitonic":
        while size & (size - 1):
            size += 1
    value: list[float] = list(s) + [-INF] * (size - n)
    product = np.eye(size)
    for comparators in odd_even(n) if network == "odd_even" else bitonic(size):
        layer = np.eye(size)
        for high, low in comparators:  # the larger value goes to wire `high`
            a, b = value[high], value[low]
            alpha = (1.0 if a >= b else 0.0) if -INF in (a, b) else SWAPS[swap](beta * (a - b))
            layer[high, high] = layer[low, low] = alpha
            layer[high, low] = layer[low, high] = 1 - alpha
        value = [sum(w * v for w, v in zip(row, value, strict=True) if w > 0) for row in layer]
        product = layer @ product
    return [list(row[:n]) for row in product[: min(k, n)]]


def odd_even(n: int) -> list[list[tuple[int, int]]]:
    return [[(i, i + 1) for i in range(t % 2, n - 1, 2)] for t in range(n)]


def bitonic(n: int) -> list[list[tuple[int, int]]]:
    """The textbook loop over run length and distance."""
    layers = []
    run = 2
    while run <= n:
        distance = run // 2
        while distance:
            layer = []
            for i in range(n):
                j = i ^ distance
                if j > i:
                    layer.append((i, j) if i & run == 0 else (j, i))
            layers.append(layer)
            distance //= 2
        run *= 2
    return layers


def loop_pirank_sort(
    s: list[float],
    k: int,
    tau: float,
    depth: int | None = None,
    branches: list[int] | None = None,
    tau_shares: list[float] | None = None,
) -> list[list[float]]:
    n = len(s)
    if branches is None:
        assert depth is not None
        branches = [next(b for b in itertools.count(1) if b**depth >= n)] * depth
    taus = [tau * share for share in [*(tau_shares or [1.0] * (len(branches) - 1)), 1.0]]

    def node(items: list[int], level: int) -> tuple[list[float], list[dict[int, float]]]:
        if level == 0:
            return [s[i] for i in items], [{i: 1.0} for i in items]
        size = math.prod(branches[: level - 1])
        values, rows = [], []
        for start in range(0, len(items), size):
            v, r = node(items[start : start + size], level - 1)
            values += v
            rows += r
        kept = loop_neural_sort(values, k, taus[level - 1])
        new_rows = []
        for q in kept:
            row = dict.fromkeys(items, 0.0)
            for weight, below in zip(q, rows, strict=True):
                for i, p in below.items():
                    row[i] += weight * p
            new_rows.append(row)
        return [sum(a * b for a, b in zip(q, values, strict=True)) for q in kept], new_rows

    return [[row[i] for i in range(n)] for row in node(list(range(n)), len(branches))[1]]


def published_tree(
    s: list[float], k: int, branches: list[int], kept: list[int], taus: list[float]
) -> np.ndarray[Any, Any]:
    """PiRank, eq. 13 to 17, index by index, for a list as long as the product of the branches; kept includes k_d."""
    depth = len(branches)
    sizes = [1, *kept]
    leaf = [math.prod(branches[:j]) for j in range(depth)]
    values = {
        (0, *place): s[sum(i * step for i, step in zip(place, leaf, strict=True))]
        for place in itertools.product(*map(range, branches))
    }
    rows = dict.fromkeys(values, 1.0)  # by position in the node's values and by leaf
    for j in range(depth):
        below = list(itertools.product(range(sizes[j]), range(branches[j])))
        q: dict[tuple[int, ...], float] = {}
        above: dict[tuple[int, ...], float] = {}
        for node in itertools.product(*map(range, branches[j + 1 :])):
            inside = {place: values[(*place, *node)] for place in below}
            spread = {place: sum(abs(value - other) for other in inside.values()) for place, value in inside.items()}
            for rank in range(sizes[j + 1]):
                logits = [
                    ((sizes[j] * branches[j] - 1 - 2 * rank) * inside[place] - spread[place]) / taus[j]
                    for place in below
                ]
                for place, p in zip(below, softmax(logits), strict=True):
                    q[(rank, *place, *node)] = p
                above[(rank, *node)] = sum(q[(rank, *place, *node)] * inside[place] for place in below)
        rows = {
            (rank, *place): sum(q[(rank, m, *place[j:])] * rows[(m, *place)] for m in range(sizes[j]))
            for rank in range(sizes[j + 1])
            for place in itertools.product(*map(range, branches))
        }
        values = above
    result = np.zeros((sizes[-1], len(s)))
    for (rank, *node_path), p in rows.items():
        result[rank, sum(i * step for i, step in zip(node_path, leaf, strict=True))] = p
    return result


def bisect(phi: Callable[[float], float], s: list[float], k: int, tau: float) -> list[float]:
    low, high = min(s) / tau - 800, max(s) / tau + 800
    for _ in range(200):
        b = (low + high) / 2
        if sum(phi(x / tau - b) for x in s) > k:
            low = b
        else:
            high = b
    return [phi(x / tau - (low + high) / 2) for x in s]


def logistic(u: float) -> float:
    return 1 / (1 + math.exp(-u)) if u > 0 else math.exp(u) / (1 + math.exp(u))


def laplace(u: float) -> float:
    return math.exp(u) / 2 if u < 0 else 1 - math.exp(-u) / 2


def loop_topk(name: str, s: list[float], k: int, tau: float, p: float = 2) -> list[float]:
    if k >= len(s):
        return [1.0] * len(s)
    if name == "dftopk":
        ordered = sorted(s, reverse=True)
        theta = (ordered[k - 1] + ordered[k]) / 2
        return [logistic((x - theta) / tau) for x in s]
    power = round(1 / (p - 1))
    phi = {"lapsum_topk": laplace, "sigmoid_topk": logistic}.get(name, lambda u: min(max(u, 0.0), 1.0) ** power)
    return bisect(phi, s, k, tau)


def loop_operator(name: str, s: list[float], k: int, options: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Any operator of the table on one list without padding, written out."""
    function, _, variant = name.partition("/")
    options = {"k": k, **options}
    k = options.pop("k")
    if function == "topk" and variant in ("neural_sort", "soft_sort"):
        loop: Callable[..., list[list[float]]] = loop_neural_sort if variant == "neural_sort" else loop_soft_sort
        rows = np.array(loop(s, len(s), **options))
        return np.asarray(rows[:k].sum(0) / rows.sum(0))
    if function == "topk" and variant == "diff_sort":
        return np.asarray(np.array(loop_diff_sort(s, k, **options)).sum(0))
    if function == "topk" and variant == "pirank_sort":
        total = np.array(loop_pirank_sort(s, k, **options)).sum(0)
        return np.asarray(total / np.maximum(total, 1)) if k < len(s) else np.ones(len(s))
    if function == "topk":
        return np.array(loop_topk(variant, s, k, **options))
    if name in TOPKS:
        return np.array(loop_topk(function, s, k, **options))
    if function == "hard_topk":
        order = sorted(range(len(s)), key=lambda i: (-s[i], i))[:k]
        return np.array([float(i in order) for i in range(len(s))])
    if function == "pirank_sort" and options.get("depth") == 1:
        return np.array(loop_neural_sort(s, k, options["tau"]))
    loops: dict[str, Callable[..., list[list[float]]]] = {
        "neural_sort": loop_neural_sort,
        "soft_sort": loop_soft_sort,
        "diff_sort": loop_diff_sort,
        "pirank_sort": loop_pirank_sort,
    }
    return np.array(loops[function](s, k, **options))


@pytest.mark.witness("brute force")
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ALL)
def test_equals_the_formula_written_as_loops(name: str, k: int, ties: bool) -> None:
    scores, mask = lists(k, 5, 7), masks(k + 1, 5, 7)
    scores = scores.round() if ties else scores
    mask[:, 3] = True
    result = apply(name, scores, k=k, mask=mask)
    for row, real, got in zip(scores, mask, result, strict=True):
        expected = torch.from_numpy(loop_operator(name, row[real].tolist(), k, ALL[name]))
        got_real = got[..., real]
        if name in SORTS:
            assert (got_real[expected.shape[0] :] == 0).all()
            got_real = got_real[: expected.shape[0]]
        torch.testing.assert_close(got_real, expected, rtol=1e-6, atol=1e-9)
        assert (got[..., ~real] == 0).all()


@pytest.mark.witness("bisection")
@pytest.mark.parametrize("tau", [1e-3, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("kind", ["normal", "cauchy", "clusters", "ties", "constant"])
@pytest.mark.parametrize("name", ["lapsum_topk", "sparse_topk", "sparse_topk/cube", "sigmoid_topk"])
def test_solver_finds_the_threshold_that_bisection_finds(name: str, kind: str, tau: float) -> None:
    noise = lists(3, 4, 40)
    scores = {
        "normal": noise,
        "cauchy": noise / lists(4, 4, 40).abs().clamp(min=1e-3),
        "clusters": (3 * noise).round() * 10 + 0.01 * lists(5, 4, 40),
        "ties": noise.round(),
        "constant": torch.zeros(4, 40, dtype=torch.float64),
    }[kind]
    options = {key: value for key, value in TOPKS[name].items() if key != "tau"}
    for k in (1, 7, 20, 39):
        got = apply(name, scores, k=k, tau=tau)
        expected = torch.tensor([loop_topk(name.split("/")[0], row, k, tau, **options) for row in scores.tolist()])
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7, check_dtype=False)
        torch.testing.assert_close(got.sum(-1), torch.full((4,), float(k), dtype=torch.float64), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["lapsum_topk", "sparse_topk", "sparse_topk/cube", "sigmoid_topk"])
def test_two_clusters_far_apart_still_sum_to_k(name: str, dtype: torch.dtype) -> None:
    # Only part of the list is near the threshold: the mean of p carries little information about the direction.
    for high, low, gap in itertools.product((1, 10, 1000), (1, 10, 10_000), (1, 20, 50, 1000)):
        scores = torch.cat([torch.zeros(high), torch.full((low,), -float(gap))]).to(dtype)
        for k in {1, high - 1, high, high + 1, high + low - 1} - {0, high + low}:
            total = apply(name, scores, k=k, tau=1.0).double().sum().item()
            assert total == pytest.approx(k, rel=2e-6)


@pytest.mark.witness("quadratic program", "sparse_topk")
@pytest.mark.parametrize("p", [2, 4 / 3])
def test_sparse_topk_solves_its_optimisation_problem(p: float) -> None:
    scores, k, tau = lists(0, 6), 2, 0.8
    s = scores.numpy() / tau

    def objective(x: np.ndarray[Any, Any]) -> float:
        return float(-s @ x + (np.abs(x) ** p).sum() / p)

    answer = minimize(
        objective,
        np.full(6, k / 6),
        bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda x: x.sum() - k},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    torch.testing.assert_close(ops.sparse_topk(scores, k, tau=tau, p=p), torch.from_numpy(answer.x), rtol=0, atol=2e-5)


@pytest.mark.witness("hand", "lapsum_topk")
def test_lapsum_of_two_scores_by_hand() -> None:
    # k = 1 of two scores: b is their midpoint, so p = 1 - e^{-d/2}/2 and e^{-d/2}/2 with d = 2 log 2 apart
    p = ops.lapsum_topk(torch.tensor([2 * math.log(2), 0.0]), 1)
    torch.testing.assert_close(p, torch.tensor([0.75, 0.25]))


@pytest.mark.witness("hand", "dftopk")
def test_threshold_of_dftopk_sends_half_its_gradient_to_each_edge() -> None:
    scores = torch.tensor([3.0, 1.0, 0.0, -4.0], dtype=torch.float64, requires_grad=True)
    ops.dftopk(scores, 2)[0].backward()  # theta = 1/2, so p_0 = logistic(2.5)
    slope = logistic(2.5) * logistic(-2.5)
    torch.testing.assert_close(scores.grad, slope * torch.tensor([1.0, -0.5, -0.5, 0.0], dtype=torch.float64))


@pytest.mark.witness("hand", "dftopk")
def test_ties_at_the_edge_of_dftopk_divide_the_gradient() -> None:
    scores = torch.tensor([5.0, 1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    ops.dftopk(scores, 2)[0].backward()
    slope = logistic(4.0) * logistic(-4.0)
    third = -1 / 3
    torch.testing.assert_close(scores.grad, slope * torch.tensor([1.0, third, third, third], dtype=torch.float64))


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.witness("gradcheck")
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [*SORTS, *TOPKS])
def test_gradient_is_that_of_finite_differences(name: str, padded: bool) -> None:
    scores = lists(7, 3, 6).requires_grad_()
    mask = masks(8, 3, 6) if padded else None
    assert torch.autograd.gradcheck(lambda s: apply(name, s, k=2, mask=mask), (scores,), atol=1e-6)


@pytest.mark.witness("gradcheck")
@pytest.mark.parametrize("name", [*TOPKS, "neural_sort", "soft_sort", "diff_sort/reciprocal"])
def test_second_derivatives_are_right(name: str) -> None:
    scores = lists(9, 2, 5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda s: apply(name, s, k=2), (scores,), atol=1e-5)


@pytest.mark.witness("gradcheck")
@pytest.mark.parametrize("name", [*(n for n in SORTS if not n.startswith("diff")), *TOPKS])
def test_temperature_may_be_a_tensor_with_gradient(name: str) -> None:
    scores, mask = lists(10, 2, 6), torch.tensor([[True] * 6, [True, False, True, True, True, True]])
    tau = torch.tensor([[0.8], [1.7]], dtype=torch.float64, requires_grad=True)
    wide = tau if name in TOPKS else tau[:, :1]

    def function(tau: Tensor) -> Tensor:
        if name in SORTS:
            return torch.stack([apply(name, scores[i], tau=tau[i, 0], mask=mask[i]) for i in range(2)])
        return apply(name, scores, tau=tau, mask=mask)

    assert torch.autograd.gradcheck(function, (wide,), atol=1e-6)


@pytest.mark.witness("gradcheck", "log_inclusion")
@pytest.mark.parametrize("operator", ["dftopk", "lapsum_topk", "sigmoid_topk", "sparse_topk", "diff_sort"])
def test_log_inclusion_has_the_gradient_of_its_values(operator: str) -> None:
    scores, mask = lists(11, 3, 6).requires_grad_(), masks(12, 3, 6)

    def function(s: Tensor) -> Tensor:
        log_p, log_not_p = ops.log_inclusion(ops.topk(operator), s, 2, mask=mask)
        real = mask & (mask.sum(-1, keepdim=True) > 2)
        return torch.stack([log_p, log_not_p]).masked_fill(~real, 0.0).clamp(min=-50)

    assert torch.autograd.gradcheck(function, (scores,), atol=1e-6)


@pytest.mark.witness("hand", "log_inclusion")
@pytest.mark.parametrize("operator", ["neural_sort", "soft_sort"])
def test_log_inclusion_of_a_soft_sort_differentiates_one_minus_p(operator: str) -> None:
    # All rows carry no gradient in the denominator, so d log(1-p) = -dp / (1-p) with the dp of the inclusion itself.
    scores = lists(13, 5).requires_grad_()
    keep = ops.topk(operator, tau=0.9, gradient="one_minus")
    log_p, log_not_p = ops.log_inclusion(keep, scores, 2)
    p = keep(scores, 2)
    for j in range(5):
        (dp,) = torch.autograd.grad(p[j], scores, retain_graph=True)
        (dlog,) = torch.autograd.grad(log_p[j], scores, retain_graph=True)
        (dlog_not,) = torch.autograd.grad(log_not_p[j], scores, retain_graph=True)
        torch.testing.assert_close(dlog, dp / p[j])
        torch.testing.assert_close(dlog_not, -dp / (1 - p[j]))


@pytest.mark.parametrize("operator", ["dftopk", "lapsum_topk", "sigmoid_topk", "neural_sort", "soft_sort"])
def test_log_inclusion_is_the_logarithm_of_inclusion(operator: str) -> None:
    scores, mask = lists(14, 4, 7), masks(15, 4, 7)
    keep = ops.topk(operator, tau=0.8)
    p = keep(scores, 2, mask=mask)
    log_p, log_not_p = ops.log_inclusion(keep, scores, 2, mask=mask)
    decided = mask & (mask.sum(-1, keepdim=True) > 2)
    torch.testing.assert_close(log_p[decided], p[decided].log())
    torch.testing.assert_close(log_not_p[decided], (1 - p[decided]).log())


@pytest.mark.parametrize("operator", ["dftopk", "lapsum_topk", "sigmoid_topk"])
def test_log_inclusion_stays_exact_and_alive_where_p_rounds_to_zero(operator: str) -> None:
    scores = torch.tensor([1e4, 1.0, 0.0, -1e4], requires_grad=True)
    log_p, log_not_p = ops.log_inclusion(ops.topk(operator), scores, 1)
    assert log_p[3].item() == pytest.approx(-15000, rel=1e-3)  # the threshold is near 5000
    assert log_not_p[0].item() == pytest.approx(-5000, rel=1e-3)
    (grad,) = torch.autograd.grad(log_p[3], scores)
    assert grad[3].item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.witness("hand", "hard_topk")
def test_gradient_of_hard_topk_passes_straight_through() -> None:
    scores, mask = lists(16, 2, 5).requires_grad_(), masks(17, 2, 5)
    weights = lists(18, 2, 5)
    (ops.hard_topk(scores, 2, mask=mask) * weights).sum().backward()
    torch.testing.assert_close(scores.grad, weights * mask)


@pytest.mark.witness("brute force", "neural_sort")
def test_tied_scores_get_the_gradient_of_the_textbook() -> None:
    scores = torch.tensor([1.0, 2.0, 2.0, 0.5, 2.0], dtype=torch.float64)
    weights = lists(19, 5, 5)

    def textbook(s: Tensor) -> Tensor:
        n = len(s)
        spread = (s.unsqueeze(0) - s.unsqueeze(1)).abs().sum(0)
        scale = n + 1 - 2 * torch.arange(1, n + 1, dtype=s.dtype)
        return torch.softmax(scale[:, None] * s - spread, -1)

    gradients = []
    for function in (textbook, ops.neural_sort):
        s = scores.clone().requires_grad_()
        (function(s) * weights).sum().backward()
        gradients.append(s.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


# --- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.witness("mask equivalence")
@pytest.mark.parametrize("garbage", [0.0, 1e30, float("nan"), -INF], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing_wherever_it_stands(name: str, garbage: float) -> None:
    scores, mask = lists(20, 6, 9), masks(21, 6, 9)
    mask[0] = True
    padded = scores.masked_fill(~mask, garbage).requires_grad_()
    result = apply(name, padded, k=3, mask=mask)
    weights = lists(22, *result.shape)
    (result * weights).sum().backward()
    assert padded.grad is not None
    assert (padded.grad[~mask] == 0).all()
    for i, real in enumerate(mask):
        if not real.any():
            continue
        alone = scores[i][real].clone().requires_grad_()
        expected = apply(name, alone, k=3)
        torch.testing.assert_close(result[i][..., real], expected, rtol=1e-9, atol=1e-12)
        (expected * weights[i][..., real]).sum().backward()
        torch.testing.assert_close(padded.grad[i][real], alone.grad, rtol=1e-8, atol=1e-11)


@pytest.mark.witness("mask equivalence")
@pytest.mark.parametrize("name", ALL)
def test_a_score_of_minus_infinity_counts_as_masked(name: str) -> None:
    scores, mask = lists(23, 4, 6), masks(24, 4, 6)
    torch.testing.assert_close(
        apply(name, scores.masked_fill(~mask, -INF)), apply(name, scores, mask=mask), rtol=0, atol=0
    )


@pytest.mark.witness("permutation")
@pytest.mark.parametrize("name", [name for name in ALL if "diff_sort" not in name and "pirank" not in name])
def test_items_may_come_in_any_order(name: str) -> None:
    scores, mask = lists(25, 4, 8), masks(26, 4, 8)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(27))
    torch.testing.assert_close(
        apply(name, scores[:, order], mask=mask[:, order]), apply(name, scores, mask=mask)[..., order]
    )


@pytest.mark.parametrize("name", ALL)
def test_adding_a_constant_to_the_scores_changes_nothing(name: str) -> None:
    scores = lists(28, 4, 8)
    torch.testing.assert_close(apply(name, scores + 5.0), apply(name, scores), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [*TOPKS, "topk/neural_sort", "topk/soft_sort"])
def test_a_larger_score_never_has_a_smaller_probability(name: str) -> None:
    scores = lists(29, 20, 9)
    ranked = apply(name, scores, k=4).gather(-1, scores.argsort(-1, descending=True))
    assert (ranked.diff(dim=-1) <= 1e-12).all()


@pytest.mark.parametrize("name", EXACT)
def test_probabilities_sum_to_k(name: str) -> None:
    scores, mask = lists(30, 20, 9), masks(31, 20, 9)
    total = apply(name, scores, k=4, mask=mask).sum(-1)
    torch.testing.assert_close(total, mask.sum(-1).clamp(max=4).double())


@pytest.mark.parametrize("name", SORTS)
def test_rows_are_distributions(name: str) -> None:
    mask = masks(32, 10, 9)
    rows = apply(name, lists(33, 10, 9), k=3, mask=mask)
    exists = torch.arange(rows.shape[-2]) < mask.sum(-1, keepdim=True)
    torch.testing.assert_close(rows.sum(-1), exists.double())
    assert (rows >= 0).all()


@pytest.mark.parametrize("name", ["diff_sort", "diff_sort/bitonic", "diff_sort/optimal", "diff_sort/logistic"])
def test_diff_sort_is_doubly_stochastic(name: str) -> None:
    mask = masks(34, 10, 9)
    rows = apply(name, lists(35, 10, 9), k=9, mask=mask)
    torch.testing.assert_close(rows.sum(-2), mask.double())


LIMITS: dict[str, dict[str, Any]] = {
    **{name: {"tau": 1e-3} for name in ALL if "diff_sort" not in name and name != "hard_topk"},
    "diff_sort": {"steepness": 1e7},
    "diff_sort/bitonic": {"steepness": 1e7},
    "diff_sort/logistic": {"steepness": 1e5},
    "diff_sort/reciprocal": {"steepness": 1e7},
    "diff_sort/optimal": {"steepness": 1e7},
    "topk/diff_sort": {"steepness": 1e7},
    "hard_topk": {},
}


@pytest.mark.witness("limit")
@pytest.mark.parametrize("name", ALL)
def test_low_temperature_gives_the_hard_result(name: str) -> None:
    scores = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(i)) for i in range(5)]).double()
    result = apply(name, scores, k=3, **LIMITS[name])
    order = scores.argsort(-1, descending=True)
    if name in SORTS:
        expected = torch.nn.functional.one_hot(order[:, : result.shape[-2]], 8).double()
    else:
        expected = (scores >= 5).double()
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-3)


EXTREMES: dict[str, Tensor] = {
    "huge": torch.tensor([1e4, -1e4, 3.0, 1e4 - 1, 0.0, -5.0]),
    "tiny": torch.tensor([1e-30, -1e-30, 0.0, 2e-30, -0.0, 1e-38]),
    "ties": torch.full((6,), 2.5),
    "zeros": torch.zeros(6),
    "one apart": torch.tensor([1e4, 0.0, 0.0, 0.0, 0.0, 0.0]),
}


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("name", ALL)
def test_extreme_scores_stay_finite(name: str) -> None:
    kinds, dtypes = EXTREMES, (torch.float32, torch.bfloat16, torch.float64)
    options = ((1, 1.0), (3, 1e-3), (6, 1.0), (50, 1.0))
    for kind, dtype, (k, tau) in itertools.product(kinds, dtypes, options):
        case = f"{kind}, {dtype}, k = {k}, tau = {tau}"
        scores = EXTREMES[kind].to(dtype).clone().requires_grad_()
        changes: dict[str, Any] = {"tau": tau} if "tau" in ALL[name] else {}
        result = apply(name, scores, k=k, **changes)
        result.float().square().sum().backward()
        assert result.dtype == dtype, case
        assert result.isfinite().all(), case
        assert scores.grad is not None, case
        assert scores.grad.isfinite().all(), case


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("name", ALL)
def test_lists_without_items_or_with_one(name: str) -> None:
    scores = lists(36, 2, 4).requires_grad_()
    mask = torch.tensor([[False] * 4, [False, False, True, False]])
    result = apply(name, scores, k=2, mask=mask)
    result.sum().backward()
    assert (result[0] == 0).all()
    alone = result[1] if name not in SORTS else result[1].sum(-2)
    torch.testing.assert_close(alone, mask[1].double())
    assert scores.grad is not None
    if name != "hard_topk":
        assert (scores.grad == 0).all()
    single = lists(37, 1).requires_grad_()
    apply(name, single, k=1).sum().backward()
    assert single.grad is not None
    assert single.grad.isfinite().all()


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("name", [*SOFT_TOPKS, "hard_topk"])
@pytest.mark.parametrize("k", [4, 7])
def test_everything_is_kept_when_there_are_places_for_all(name: str, k: int) -> None:
    scores = lists(38, 3, 4, dtype=torch.float32).requires_grad_()
    p = apply(name, scores, k=k)
    torch.testing.assert_close(p, torch.ones(3, 4), rtol=0, atol=1e-6)
    if "diff" not in name and "pirank" not in name and name != "hard_topk":
        p.square().sum().backward()
        assert scores.grad is not None
        assert (scores.grad == 0).all()


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("more", [0, 1, 2, 40])
@pytest.mark.parametrize("name", [*SOFT_TOPKS, "hard_topk", "topk/neural_sort/flat", "topk/soft_sort/flat"])
def test_lists_of_every_length_are_kept_if_k_is_not_less(name: str, more: int) -> None:
    name, flat, _ = name.partition("/flat")  # a large tau takes another path through the sums of rows
    changes: dict[str, Any] = {"tau": 50.0} if flat else {}
    for n in range(1, 41):
        scores = lists(n, 2, n, dtype=torch.float32).requires_grad_()
        p = apply(name, scores, k=n + more, **changes)
        assert torch.equal(p, torch.ones_like(p)), n
        if name != "hard_topk":  # its gradient passes straight through
            (grad,) = torch.autograd.grad(p.sum(), scores)
            assert torch.equal(grad, torch.zeros_like(grad)), n


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("more", [0, 1, 2, 40])
@pytest.mark.parametrize("name", SORTS)
def test_rows_beyond_the_length_of_a_list_are_zero(name: str, more: int) -> None:
    for n in range(1, 41):
        scores = lists(n, 2, n, dtype=torch.float32)
        rows = apply(name, scores, k=n + more)
        assert rows.shape == (2, n + more, n)
        torch.testing.assert_close(rows[:, :n].sum(-1), torch.ones(2, n))
        assert not rows[:, n:].any()


@pytest.mark.witness("extremes")
@pytest.mark.parametrize("more", [0, 1, 2, 40])
@pytest.mark.parametrize("name", SORTS)
def test_rows_beyond_the_length_of_a_padded_list_are_zero(name: str, more: int) -> None:
    for n in (2, 13, 20, 40):
        scores = lists(n, 2, n, dtype=torch.float32)
        mask = torch.stack([torch.arange(n) < n - 1, torch.ones(n, dtype=torch.bool)])
        rows = apply(name, scores, k=n + more, mask=mask)
        torch.testing.assert_close(rows.sum(-1), (torch.arange(n + more) < mask.sum(-1, keepdim=True)).float())
        assert not rows[0, :, n - 1].any()


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_leading_dimensions_are_batch(name: str, shape: tuple[int, ...]) -> None:
    scores, mask = lists(39, *shape), masks(40, *shape)
    result = apply(name, scores, mask=mask)
    flat = apply(name, scores.reshape(-1, 5), mask=mask.reshape(-1, 5))
    torch.testing.assert_close(result.reshape(flat.shape), flat, rtol=0, atol=0)
    assert result.shape[: len(shape) - 1] == shape[:-1]


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("name", ALL)
def test_strides_do_not_matter(name: str) -> None:
    base = lists(41, 6, 4)
    transposed = base.t()
    torch.testing.assert_close(apply(name, transposed), apply(name, transposed.contiguous()))
    expanded = base[:1].expand(3, 4).requires_grad_()
    result = apply(name, expanded)
    torch.testing.assert_close(result, apply(name, base[:1].repeat(3, 1)))
    result.sum().backward()


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_lower_precision_is_the_same_rounded(name: str, dtype: torch.dtype) -> None:
    scores = lists(42, 4, 20).to(dtype)
    result = apply(name, scores, k=3)
    assert result.dtype == dtype
    expected = apply(name, scores.double(), k=3)
    tolerance = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance / 4)


@pytest.mark.witness("shapes and types")
@pytest.mark.parametrize("name", ALL)
def test_autocast_does_not_reach_inside(name: str) -> None:
    scores = lists(43, 4, 20, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = apply(name, scores, k=3)
    torch.testing.assert_close(inside.float(), apply(name, scores, k=3), rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_no_list_influences_another(name: str) -> None:
    scores = lists(44, 2, 6).requires_grad_()
    result = apply(name, scores)
    (grad,) = torch.autograd.grad(result[0].square().sum(), scores)
    assert (grad[1] == 0).all()
    with torch.no_grad():
        changed = scores.clone()
        changed[1] = 1e4 * lists(45, 6)
        torch.testing.assert_close(apply(name, changed)[0], result[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_backward_can_run_twice_and_nothing_is_overwritten(name: str) -> None:
    scores, mask = lists(46, 3, 6).requires_grad_(), masks(47, 3, 6)
    before = scores.detach().clone()
    loss = apply(name, scores, mask=mask).square().sum()
    (first,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (second,) = torch.autograd.grad(loss, scores)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(scores.detach(), before, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.witness("compile")
@pytest.mark.parametrize("name", ALL)
def test_compiles_without_a_break(name: str) -> None:
    """Forward and backward; without a mask only forward, which takes a quarter of the time."""
    scores, mask = lists(48, 3, 6, dtype=torch.float32), masks(49, 3, 6)
    for given, backend in ((None, "eager"), (mask, "aot_eager")):
        torch._dynamo.reset()
        compiled = torch.compile(partial(apply, name), fullgraph=True, backend=backend)
        eager_scores, compiled_scores = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        eager, traced = apply(name, eager_scores, mask=given), compiled(compiled_scores, mask=given)
        eager.square().sum().backward()
        traced.square().sum().backward()
        torch.testing.assert_close(traced, eager)
        torch.testing.assert_close(compiled_scores.grad, eager_scores.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.witness("compile")
@pytest.mark.parametrize("name", ["dftopk", "lapsum_topk", "neural_sort"])
def test_compiles_to_native_code(name: str) -> None:
    torch._dynamo.reset()
    scores = lists(50, 3, 6, dtype=torch.float32)
    compiled = torch.compile(partial(apply, name), fullgraph=True)
    a, b = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    with compiled_quickly():
        eager, traced = apply(name, a), compiled(b)
        eager.square().sum().backward()
        traced.square().sum().backward()
    torch.testing.assert_close(traced, eager)
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.witness("meta device")
@pytest.mark.parametrize("name", ALL)
def test_runs_on_a_device_without_data(name: str) -> None:
    scores = torch.empty(3, 6, device="meta", requires_grad=True)
    mask = torch.empty(3, 6, device="meta", dtype=torch.bool)
    for given in (None, mask):
        result = apply(name, scores, mask=given)
        result.sum().backward()
        assert result.shape == apply(name, lists(51, 3, 6)).shape


@pytest.mark.parametrize("name", [*TOPKS, "hard_topk"])
def test_a_long_list_passes(name: str) -> None:
    scores = lists(52, 100_000, dtype=torch.float32).requires_grad_()
    p = apply(name, scores, k=100)
    p.square().sum().backward()
    if name in EXACT:
        assert p.sum().item() == pytest.approx(100, rel=1e-3)
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_neural_sort_of_a_long_list_needs_no_square_matrix() -> None:
    scores = lists(53, 100_000, dtype=torch.float32).requires_grad_()
    rows = ops.neural_sort(scores, tau=1e-3, k=10)
    rows.square().sum().backward()
    assert rows.argmax(-1).tolist() == scores.topk(10).indices.tolist()


@pytest.mark.witness("brute force", "topk")
@pytest.mark.parametrize("tau", [0.02, 0.5, 50.0])
def test_inclusion_by_neural_sort_leaves_out_nothing_that_counts(tau: float) -> None:
    # For long lists only a band of the matrix is summed; the reference sums the whole matrix.
    scores, mask = lists(56, 3, 400), masks(57, 3, 400)
    rows = ops.neural_sort(scores, tau=tau, mask=mask)
    expected = rows[..., :20, :].sum(-2) / rows.sum(-2).where(mask, 1.0)
    torch.testing.assert_close(ops.topk("neural_sort", tau=tau)(scores, 20, mask=mask), expected)


def test_gumbel_samples_are_repeatable_and_centred_on_the_plackett_luce_order() -> None:
    scores = torch.tensor([1.0, 0.0, -1.0])
    rows, again = (
        ops.neural_sort(scores, tau=1e-4, k=1, gumbel_samples=4000, generator=torch.Generator().manual_seed(0))
        for _ in range(2)
    )
    assert rows.shape == (4000, 1, 3)
    torch.testing.assert_close(rows, again, rtol=0, atol=0)
    # Gumbel-max: the item that comes first is drawn from the softmax of the scores.
    torch.testing.assert_close(rows.mean(0)[0], scores.softmax(-1), rtol=0, atol=0.03)


def test_log_rows_is_the_logarithm_of_the_rows() -> None:
    scores, mask = lists(54, 3, 6), masks(55, 3, 6)
    for sort in (ops.neural_sort, ops.soft_sort, ops.diff_sort, partial(ops.pirank_sort, depth=2)):
        rows = sort(scores, k=4, mask=mask)
        log = ops.log_rows(sort, scores, k=4, mask=mask)
        torch.testing.assert_close(log.exp(), rows)
        assert (log[rows == 0] == ops.LOG_ZERO).all()


@pytest.mark.parametrize("name", [*(n for n in SORTS if not n.startswith("diff")), *TOPKS, "topk/neural_sort"])
def test_each_list_may_have_its_own_temperature(name: str) -> None:
    scores, tau = lists(58, 3, 6), torch.tensor([[0.3], [1.0], [4.0]], dtype=torch.float64)
    alone = torch.stack([apply(name, scores[i], tau=float(tau[i])) for i in range(3)])
    torch.testing.assert_close(apply(name, scores, tau=tau), alone)


def test_inclusion_with_noise_is_the_mean_over_draws() -> None:
    scores, mask = lists(59, 2, 6), masks(60, 2, 6)
    seed = torch.Generator().manual_seed
    noisy = ops.topk("neural_sort", gumbel_samples=3, beta=0.5, generator=seed(1), normalised=False)(
        scores, 2, mask=mask
    )
    rows = ops.neural_sort(scores, k=2, mask=mask, gumbel_samples=3, beta=0.5, generator=seed(1))
    torch.testing.assert_close(noisy, rows.sum(-2).mean(0))


@pytest.mark.witness("brute force", "pirank_sort")
@pytest.mark.parametrize(
    ("branches", "kept", "tau_shares"),
    [
        ([3, 2], None, None),
        ([3, 2], [3], [0.2]),
        ([2, 3], [2], [0.7]),
        ([2, 2, 3], None, [0.1, 0.4]),
        ([2, 2, 3], [2, 3], None),
        ([3, 1, 4], [2, 2], [0.3, 0.3]),
        ([6], None, None),
        ([1, 6], [1], [0.5]),
    ],
)
def test_free_trees_are_those_of_the_published_equations(
    branches: list[int], kept: list[int] | None, tau_shares: list[float] | None
) -> None:
    k, tau, n = 2, 0.7, math.prod(branches)
    keeps: list[int] = []
    for children in branches:
        keeps.append(min(k, children * (keeps[-1] if keeps else 1)))
    keeps = keeps if kept is None else [*kept, k]
    taus = [tau] * len(branches) if tau_shares is None else [tau * share for share in [*tau_shares, 1]]
    scores = lists(50, 3, n)
    options: dict[str, Any] = {"branches": branches, "kept": kept, "tau_shares": tau_shares}
    found = ops.pirank_sort(scores, k=k, tau=tau, **options)
    for one, rows in zip(scores.tolist(), found, strict=True):
        np.testing.assert_allclose(rows, published_tree(one, k, branches, keeps, taus), rtol=1e-10, atol=1e-14)
    own = ops.pirank_sort(scores, k=k, tau=torch.full((3, 1), tau, dtype=torch.float64), **options)
    torch.testing.assert_close(own, found)  # one temperature per list
    assert torch.autograd.gradcheck(lambda s: ops.pirank_sort(s, k=k, tau=tau, **options), scores.requires_grad_())


@pytest.mark.witness("hand", "pirank_sort")
def test_a_free_tree_of_one_level_is_neural_sort_and_figure_4_is_sorted() -> None:
    scores = lists(51, 4, 7)
    assert torch.equal(ops.pirank_sort(scores, k=3, branches=[9], tau=0.3), ops.neural_sort(scores, k=3, tau=0.3))
    figure = torch.tensor([0.2, 0.5, 0.3, 0.4, 0.1, 0.7])
    rows = ops.pirank_sort(figure, k=2, branches=[3, 2], kept=[2], tau=1e-3)
    torch.testing.assert_close(rows @ figure, torch.tensor([0.7, 0.5]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": []}, "branches must have at least one level"),
        ({"branches": [2, 0]}, r"branches\[1\] must be at least 1, got 0"),
        ({"branches": [2, 2]}, r"branches must have a product of at least 6, .* got \[2, 2\]"),
        ({"branches": [5]}, r"branches must have a product of at least 6"),
        ({"branches": [3, 2], "depth": 3}, "depth must be 2, the number of branches"),
        ({"branches": [3, 2], "kept": [1]}, r"kept\[0\] must be from 2 to 3, got 1"),
        ({"branches": [3, 2], "kept": [4]}, r"kept\[0\] must be from 2 to 3, got 4"),
        ({"branches": [3, 2], "kept": [2, 2]}, "kept must have one value per level below the root, 1, got 2"),
        ({"kept": [2]}, "kept must have one value per level below the root, 0, got 1"),
        ({"depth": 3, "tau_shares": [1.0, 0.5]}, "tau_shares must not decrease, nor exceed 1"),
        ({"depth": 2, "tau_shares": [1.5]}, "tau_shares must not decrease, nor exceed 1"),
        ({"depth": 2, "tau_shares": [0.0]}, r"tau_shares\[0\]"),
    ],
)
def test_trees_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.pirank_sort(torch.randn(6), k=2, **options)


def test_a_tree_of_one_level_includes_what_neural_sort_includes() -> None:
    scores = lists(61, 3, 7)
    torch.testing.assert_close(ops.topk("pirank_sort", depth=1)(scores, 2), ops.topk("neural_sort")(scores, 2))


@pytest.mark.parametrize("name", ALL)
def test_an_empty_batch_passes(name: str) -> None:
    assert apply(name, torch.zeros(0, 5)).shape[0] == 0


@pytest.mark.parametrize("name", [*TOPKS, "neural_sort", "soft_sort", "topk/neural_sort", "hard_topk"])
def test_functional_gradient_is_the_same(name: str) -> None:
    scores = lists(62, 2, 5)
    functional = torch.func.grad(lambda s: apply(name, s).square().sum())(scores)
    ordinary = scores.clone().requires_grad_()
    apply(name, ordinary).square().sum().backward()
    torch.testing.assert_close(functional, ordinary.grad)


@pytest.mark.parametrize("name", [name for name in ALL if name != "hard_topk"])
def test_a_temperature_of_another_dtype_is_that_number(name: str) -> None:
    scores = lists(70, 3, 6, dtype=torch.float32)
    scale = "steepness" if "diff_sort" in name else "tau"
    of_lists = torch.tensor([[0.5], [1.0], [2.0]], requires_grad=True)
    in_float64: dict[str, Any] = {scale: of_lists.double()}
    in_float32: dict[str, Any] = {scale: of_lists}
    found = apply(name, scores, **in_float64)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, apply(name, scores, **in_float32), rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(found.square().sum(), of_lists)
    assert gradient.isfinite().all()


def test_own_function_serves_as_a_soft_topk() -> None:
    def own(scores: Tensor, k: int, *, mask: Tensor | None = None) -> Tensor:
        return torch.tensor([0.0, 0.25, 1.0])

    log_p, log_not_p = ops.log_inclusion(own, torch.zeros(3), 1)
    torch.testing.assert_close(log_p, torch.tensor([-100.0, math.log(0.25), 0.0]))
    torch.testing.assert_close(log_not_p, torch.tensor([0.0, math.log(0.75), -100.0]))


# --- bad input -------------------------------------------------------------------------------------------------------

GOOD = torch.zeros(2, 4)


BAD: list[tuple[str, Any]] = [
    ("scores", torch.zeros(2, 4, dtype=torch.int64)),
    ("scores", torch.tensor(1.0)),
    ("scores", torch.zeros(2, 0)),
    ("scores", [1.0, 2.0]),
    ("scores", torch.tensor([[0.0, float("nan"), 1.0, 2.0]])),
    ("scores", torch.tensor([[0.0, INF, 1.0, 2.0]])),
    ("mask", torch.ones(2, 4)),
    ("mask", torch.ones(4, dtype=torch.bool)),
    ("mask", [True]),
    ("k", 0),
    ("k", 1.5),
    ("tau", 0.0),
    ("tau", -1.0),
    ("tau", float("nan")),
    ("tau", torch.tensor(0.0)),
    ("tau", torch.tensor(-1.0)),
    ("tau", "warm"),
]


@pytest.mark.parametrize("name", ALL)
def test_bad_input_is_refused_by_name(name: str) -> None:
    temperature = "tau" if "tau" in ALL[name] else "steepness" if "diff_sort" in name else None
    for argument, value in BAD:
        wrong = temperature if argument == "tau" else argument
        if wrong is None:
            assert name == "hard_topk"  # the only one without a temperature
            continue
        with pytest.raises((ValueError, TypeError), match=rf"\b{wrong}\b"):
            apply(name, **{"scores": GOOD, wrong: value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.topk("bubble_sort"), "name must be one of 'dftopk'"),
        (lambda: ops.topk("dftopk", temperature=1.0), "dftopk has no option 'temperature'; its options are tau"),
        (lambda: ops.soft_sort(GOOD, power=3), "power must be 1 or 2, got 3"),  # type: ignore[arg-type]
        (lambda: ops.sparse_topk(GOOD, 1, p=3), "p must be 2 or 4/3, got 3"),
        (lambda: ops.diff_sort(GOOD, network="bubble"), "network must be one of 'odd_even', 'bitonic'"),  # type: ignore[arg-type]
        (lambda: ops.diff_sort(GOOD, swap="gauss"), "swap must be one of 'logistic'"),  # type: ignore[arg-type]
        (lambda: ops.pirank_sort(GOOD, k=1, depth=0), "depth must be at least 1, got 0"),
    ],
)
def test_unknown_options_are_refused_with_what_is_allowed(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_nan_inside_a_compiled_function_is_an_error_too() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda s: ops.dftopk(s, 1), fullgraph=True, backend="aot_eager")
    compiled(torch.zeros(3))
    with pytest.raises(RuntimeError, match="scores must not hold NaN"):
        compiled(torch.tensor([0.0, float("nan"), 1.0]))


@pytest.mark.parametrize("name", ["neural_sort", "soft_sort"])
@pytest.mark.parametrize("gradient", ["rows", "exact", "one_minus"])
def test_gradients_of_a_normalised_sort_are_those_of_the_matrix_written_out(name: str, gradient: Any) -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True, False, True, True, False, True]])
    matrix = getattr(ops, name)(scores, mask=mask)
    top, rest, whole = matrix[:, :2].sum(-2), matrix[:, 2:].sum(-2), matrix.sum(-2)
    if gradient == "exact":
        p, not_p = top / whole, rest / whole
    elif gradient == "rows":
        p, not_p = top / whole.detach(), rest / whole.detach()
    else:
        p, not_p = top / whole.detach(), 1 - top / whole.detach()
    operator = ops.topk(name, gradient=gradient)
    for found, expected in (
        (operator(scores, 2, mask=mask)[mask], p[mask]),
        (operator.log(scores, 2, mask=mask)[0][mask], p[mask].log()),
        (operator.log(scores, 2, mask=mask)[1][mask], not_p[mask].log()),
    ):
        torch.testing.assert_close(found, expected)
        weights = torch.arange(1.0, len(found) + 1, dtype=torch.float64)
        gradients = [
            torch.autograd.grad((value * weights).sum(), scores, retain_graph=True) for value in (found, expected)
        ]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["neural_sort", "soft_sort"])
def test_masked_items_are_out_whatever_the_gradient(name: str) -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0, 5.0], [1.0, float("-inf"), 2.0, 0.0, 3.0]])
    mask = torch.tensor([[True, True, True, False, False], [True, True, True, True, True]])
    out = ~mask | scores.isinf()
    gradients: tuple[Any, ...] = ("rows", "exact", "one_minus")
    values = [ops.topk(name, gradient=gradient)(scores, 2, mask=mask) for gradient in gradients]
    for gradient, value in zip(gradients, values, strict=True):
        torch.testing.assert_close(value, values[0])
        assert (value[out] == 0).all()
        log_p, log_not_p = ops.topk(name, gradient=gradient).log(scores, 2, mask=mask)
        torch.testing.assert_close(log_p[~out].exp(), value[~out])
        assert (log_p[out] == -100).all()
        assert (log_not_p[out] == 0).all()


def test_the_exact_gradient_is_the_derivative_of_the_value() -> None:
    scores = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for name in ("neural_sort", "soft_sort"):
        assert torch.autograd.gradcheck(lambda s, name=name: ops.topk(name, gradient="exact")(s, 2), scores)
        assert torch.autograd.gradcheck(lambda s, name=name: ops.topk(name, gradient="exact").log(s, 2), scores)


def test_the_name_of_an_operator_is_no_operator() -> None:
    with pytest.raises(
        TypeError, match=r"topk must be an operator such as rankfall\.ops\.topk\('dftopk'\), got 'dftopk'"
    ):
        ops.log_inclusion("dftopk", torch.zeros(3), 1)  # type: ignore[arg-type]


def test_the_gradient_is_a_choice_for_soft_sorts() -> None:
    assert ops.topk("neural_sort") == ops.topk("neural_sort", gradient="rows")
    with pytest.raises(
        ValueError, match="gradient: 'rows' applies to a normalised neural_sort or soft_sort only, got dftopk"
    ):
        ops.topk("dftopk", gradient="rows")
    whole = ops.topk("neural_sort").log(torch.zeros(3), 5)
    assert [value.tolist() for value in whole] == [[0, 0, 0], [-100, -100, -100]]


@pytest.mark.witness("extremes", "log_inclusion")
@pytest.mark.parametrize("operator", ["diff_sort", "pirank_sort", "neural_sort", "soft_sort", "dftopk", "lapsum_topk"])
def test_long_lists_of_scores_that_hardly_differ_have_a_finite_gradient(operator: str) -> None:
    # Scores of an untrained model. A network of n layers moves an item from one end of the list to the other with a
    # probability that float32 can hardly represent, and the slope of its logarithm overflows.
    scores = torch.randn(4, 200, generator=torch.Generator().manual_seed(0)).mul(0.01).requires_grad_()
    for value in ops.log_inclusion(ops.topk(operator), scores, 10):
        (gradient,) = torch.autograd.grad(value.sum(), scores, retain_graph=True)
        assert gradient.isfinite().all()
