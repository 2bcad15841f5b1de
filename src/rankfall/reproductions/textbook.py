"""Literal implementations of operators from their papers: n x n matrices, dense layers, plain autograd.

They take a batch of full lists ``(..., n)``. They support no mask and no ties at the boundary, and do not try to save
memory. Reproductions of runtimes measure them beside the library; tests compare values and gradients.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rankfall.benchmarks.operators import TAU, inclusion, list_tau
from rankfall.benchmarks.timing import Case, Shape, square

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

BISECTIONS = 60

# --- soft permutations --------------------------------------------------------------------------------------


def neural_sort(scores: Float[Tensor, "*batch n"], tau: float = 1.0) -> Float[Tensor, "*batch n n"]:
    """NeuralSort (Grover et al. 2019, eq. 8), from the matrix of all differences."""
    n = scores.shape[-1]
    distance = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs().sum(-1)
    slope = n + 1 - 2 * torch.arange(1, n + 1, dtype=scores.dtype)
    logits = slope.unsqueeze(-1) * scores.unsqueeze(-2) - distance.unsqueeze(-2)
    return (logits / tau).softmax(-1)


def soft_sort(scores: Float[Tensor, "*batch n"], tau: float = 1.0, power: int = 1) -> Float[Tensor, "*batch n n"]:
    """SoftSort (Prillo & Eisenschlos 2020, eq. 3), all rows."""
    ordered = scores.sort(-1, descending=True).values
    return (-(ordered.unsqueeze(-1) - scores.unsqueeze(-2)).abs().pow(power) / tau).softmax(-1)


def diff_sort(
    scores: Float[Tensor, "*batch n"], steepness: float, network: str = "odd_even"
) -> Float[Tensor, "*batch n n"]:
    """DiffSort (Petersen et al. 2021) with Cauchy comparators, as a product of dense n x n layers."""
    n = scores.shape[-1]
    values = scores
    permutation = torch.eye(n, dtype=scores.dtype).expand(*scores.shape, n)
    for upper, lower in _odd_even(n) if network == "odd_even" else _bitonic(n):
        gap = values[..., upper] - values[..., lower]
        keep = torch.atan(steepness * gap) / math.pi + 0.5  # share of the upper wire that stays on it
        layer = torch.eye(n, dtype=scores.dtype).repeat(*scores.shape[:-1], 1, 1)
        layer[..., upper, upper] = keep
        layer[..., lower, lower] = keep
        layer[..., upper, lower] = 1 - keep
        layer[..., lower, upper] = 1 - keep
        permutation = layer @ permutation
        values = (layer @ values.unsqueeze(-1)).squeeze(-1)
    return permutation


def _odd_even(n: int) -> list[tuple[Tensor, Tensor]]:
    starts = [torch.arange(layer % 2, n - 1, 2) for layer in range(n)]
    return [(start, start + 1) for start in starts]


def _bitonic(n: int) -> list[tuple[Tensor, Tensor]]:
    wires = torch.arange(n)
    layers = []
    for block in range(1, n.bit_length()):
        for level in range(block - 1, -1, -1):
            first = wires[wires & (1 << level) == 0]
            second = first + (1 << level)
            descending = first & (1 << block) == 0
            layers.append((torch.where(descending, first, second), torch.where(descending, second, first)))
    return layers


# --- soft top-k ---------------------------------------------------------------------------------------------


def dftopk(scores: Float[Tensor, "*batch n"], k: int, tau: float = 1.0) -> Float[Tensor, "*batch n"]:
    """DFTopK (section 4.3): a sigmoid around the middle between the k-th and the next score."""
    boundary = scores.topk(k + 1, -1).values[..., k - 1 :].mean(-1, keepdim=True)
    return torch.sigmoid((scores - boundary) / tau)


def lapsum_topk(scores: Float[Tensor, "*batch n"], k: int, tau: float = 1.0) -> Float[Tensor, "*batch n"]:
    """LapSum (Struski et al. 2025): sort, exponential prefix sums, threshold in closed form, autograd.

    With v the sorted scores divided by tau, left[i] = sum of exp(v_j - v_i) over j <= i and right[i] = sum of
    exp(v_i - v_j) over j >= i, the inclusions sum to (items above i) - (right - 1) / 2 + left / 2 for a
    threshold at v_i. Between two neighbours the sum is a quadratic in the exponential of the threshold.
    """
    n = scores.shape[-1]
    v = scores.sort(-1).values / tau
    log_left = v.logcumsumexp(-1) - v
    log_right = (-v).flip(-1).logcumsumexp(-1).flip(-1) + v
    above = torch.arange(n - 1, -1, -1, dtype=v.dtype)
    total = above - (log_right.exp() - 1) / 2 + log_left.exp() / 2
    index = (total >= k).sum(-1, keepdim=True) - 1
    low, high = index.clamp(min=0), (index + 1).clamp(max=n - 1)
    left, right = log_left.gather(-1, low), log_right.gather(-1, high)
    v_low, v_high = v.gather(-1, low), v.gather(-1, high)
    missing = k - (n - 1 - index).to(v.dtype)
    inside = (v_low + v_high + left - right) / 2 - torch.asinh(missing * ((v_high - v_low - left - right) / 2).exp())
    before_first = v_low + math.log(2 * (n - k)) - right
    after_last = v_high + left - math.log(2 * k)
    threshold = torch.where(index < 0, before_first, torch.where(index >= n - 1, after_last, inside))
    u = scores / tau - threshold
    tail = (-u.abs()).exp() / 2
    return torch.where(u >= 0, 1 - tail, tail)


def sigmoid_topk(scores: Float[Tensor, "*batch n"], k: int, tau: float = 1.0) -> Float[Tensor, "*batch n"]:
    """Sigmoid whose threshold makes the inclusions sum to k, by bisection."""
    return _with_sum(scores / tau, k, torch.sigmoid, margin=40.0)


def sparse_topk(scores: Float[Tensor, "*batch n"], k: int, tau: float = 1.0, p: float = 2) -> Float[Tensor, "*batch n"]:
    """Sparse top-k mask (Sander et al. 2023) from its optimality conditions, by bisection."""
    return _with_sum(scores / tau, k, lambda u: u.clamp(0, 1) ** (1 / (p - 1)), margin=1.0)


def _with_sum(scores: Tensor, k: int, inclusion: Callable[[Tensor], Tensor], margin: float) -> Tensor:
    values = scores.detach()
    low = values.amin(-1, keepdim=True) - margin
    high = values.amax(-1, keepdim=True) + margin
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        too_many = inclusion(values - middle).sum(-1, keepdim=True) > k
        low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
    threshold = (low + high) / 2
    # One Newton step under autograd: it leaves the value unchanged and has the derivative of the implicit function.
    with torch.enable_grad():
        u = (values - threshold).requires_grad_()
        density = torch.autograd.grad(inclusion(u).sum(), u)[0].sum(-1, keepdim=True)
    excess = inclusion(scores - threshold).sum(-1, keepdim=True) - k
    threshold = threshold + (excess - excess.detach()) / density.clamp(min=torch.finfo(values.dtype).tiny)
    return inclusion(scores - threshold)


# --- NDCG of a soft order -----------------------------------------------------------------------------------


def pirank_ndcg_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], k: int, tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """NDCG@k of the soft order (PIR, eq. 8 to 10), through the whole NeuralSort matrix."""
    gain = torch.exp2(labels) - 1
    soft_gain = (neural_sort(scores, tau) @ gain.unsqueeze(-1)).squeeze(-1)[..., :k]
    discount = rank_discount(torch.arange(1, k + 1, dtype=scores.dtype))
    return 1 - (soft_gain * discount).sum(-1) / ideal_dcg(gain, k)


def rank_discount(rank: Tensor) -> Tensor:
    """Return the discount of DCG at each rank."""
    return 1 / torch.log2(1 + rank)


def ideal_dcg(gain: Tensor, k: int) -> Tensor:
    """Return the DCG@k of the best order."""
    best = gain.sort(-1, descending=True).values[..., :k]
    return (best * rank_discount(torch.arange(1, best.shape[-1] + 1, dtype=gain.dtype))).sum(-1)


# --- the cases of runtimes ----------------------------------------------------------------------------------


def _dense_layers(shape: Shape) -> float:
    """Return the floats of two n x n matrices for each of the n layers of a sorting network."""
    return 2 * shape.lists * shape.n**3


def _first_rows(sort: Callable[..., Tensor], matrices: int, **options: object) -> Case:
    return Case(lambda scores, labels, k: sort(scores, **options)[..., :k, :].sum(-2), square(matrices))


def _neural_sort(scores: Tensor) -> Tensor:
    return neural_sort(scores, tau=list_tau(scores))


def _diff_sort(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    return diff_sort(scores, steepness=2 * scores.shape[-1])[..., :k, :].sum(-2)


CASES = {
    "dftopk": inclusion(dftopk),
    "lapsum_topk": inclusion(lapsum_topk),
    "sigmoid_topk": inclusion(sigmoid_topk),
    "sparse_topk": inclusion(sparse_topk),
    "sparse_topk (p=4/3)": inclusion(sparse_topk, p=4 / 3),
    "neural_sort": _first_rows(_neural_sort, 4),
    "soft_sort": _first_rows(soft_sort, 6, tau=TAU),
    "diff_sort": Case(_diff_sort, _dense_layers),
}  # as `rankfall.benchmarks.operators` names them
