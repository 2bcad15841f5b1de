"""Literal implementations of operators and losses from their papers: n x n matrices, dense layers, plain autograd.

They take a batch of full lists ``(..., n)``. They support no mask and no ties at the boundary, and do not try to save
memory. `rankfall bench` compares the cost of the library with theirs; tests compare values and gradients.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

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


# --- losses: one value per list -----------------------------------------------------------------------------


def mse_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Mean squared error over the items."""
    return (scores - labels).square().mean(-1)


def bce_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Binary cross entropy against the target "label > 0", mean over the items."""
    return F.binary_cross_entropy_with_logits(scores, (labels > 0).to(scores.dtype), reduction="none").mean(-1)


def softmax_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Softmax cross entropy (LLK, eq. 7)."""
    return -(labels * scores.log_softmax(-1)).sum(-1)


def listmle_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Plackett-Luce likelihood of the label order, ties by position (Xia et al. 2008)."""
    ordered = scores.gather(-1, labels.argsort(dim=-1, descending=True, stable=True))
    return (ordered.flip(-1).logcumsumexp(-1).flip(-1) - ordered).sum(-1)


def ranknet_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """RankNet (LLK, eq. 6), mean over the pairs with different labels."""
    better = _better(labels)
    return (_pair_loss(scores) * better).sum((-1, -2)) / better.sum((-1, -2)).clamp(min=1)


def lambdarank_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """LambdaRank (LLK, eq. 11)."""
    discount = _discount(_ranks(scores))
    swap = (discount.unsqueeze(-1) - discount.unsqueeze(-2)).abs()
    return _weighted_pairs(scores, labels, swap, labels.shape[-1])


def lambda_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], k: int
) -> Float[Tensor, "*batch"]:
    """LambdaLoss@K (LLK, eq. 16 and 17)."""
    rank = _ranks(scores)
    gap = (rank.unsqueeze(-1) - rank.unsqueeze(-2)).abs()
    delta = torch.where(gap > 0, _discount(gap.clamp(min=1)) - _discount(gap + 1), 0)
    deepest = torch.maximum(rank.unsqueeze(-1), rank.unsqueeze(-2))
    mu = torch.where(deepest > k, 1 / (1 - _discount(deepest)), 1)
    return _weighted_pairs(scores, labels, delta * mu, k)


def lambda_recall_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], m: int, k: int
) -> Float[Tensor, "*batch"]:
    """Lambda-Recall@m@k (ARF, eq. 6 and 7) for labels without a tie at the k-th place."""
    relevant = _relevant(labels, k)
    kept = (_ranks(scores) <= m).to(scores.dtype)
    weight = (relevant.unsqueeze(-1) - relevant.unsqueeze(-2)).abs() * (kept.unsqueeze(-1) - kept.unsqueeze(-2)).abs()
    return (weight * _pair_loss(scores) * _better(labels)).sum((-1, -2)) / k


def approx_ndcg_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """ApproxNDCG (LLK, eq. 8), from the matrix of all differences."""
    gain = torch.exp2(labels) - 1
    before = torch.sigmoid((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / tau)
    rank = 0.5 + before.sum(-1)  # the item itself adds sigmoid(0) = 1/2
    return 1 - (gain * _discount(rank)).sum(-1) / _ideal_dcg(gain, labels.shape[-1])


def pirank_ndcg_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], k: int, tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """NDCG@k of the soft order (PIR, eq. 8 to 10), through the whole NeuralSort matrix."""
    gain = torch.exp2(labels) - 1
    soft_gain = (neural_sort(scores, tau) @ gain.unsqueeze(-1)).squeeze(-1)[..., :k]
    discount = _discount(torch.arange(1, k + 1, dtype=scores.dtype))
    return 1 - (soft_gain * discount).sum(-1) / _ideal_dcg(gain, k)


def sort_cross_entropy_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """L_Global (ARF, eq. 12): cross entropy of the rows of both orders; equal labels share their ranks."""
    equal = labels.sort(-1, descending=True).values.unsqueeze(-1) == labels.unsqueeze(-2)
    target = equal / equal.sum(-1, keepdim=True)
    return -(target * neural_sort(scores, tau).log()).sum(-1).mean(-1)


def relax_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], m: int, k: int, tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """L_Relax (ARF, eq. 11) for labels without a tie at the k-th place."""
    relevant = _relevant(labels, k)
    kept = neural_sort(scores, tau)[..., :m, :].sum(-2) / m
    return -(relevant * kept.log()).sum(-1) / relevant.sum(-1)


def topk_bce_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], k: int, tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """TopK-BCE (DFTopK): cross entropy of the inclusions, for labels without a tie at the k-th place."""
    return F.binary_cross_entropy(dftopk(scores, k, tau), _relevant(labels, k), reduction="none").mean(-1)


def _better(labels: Tensor) -> Tensor:
    return (labels.unsqueeze(-1) > labels.unsqueeze(-2)).to(labels.dtype)


def _pair_loss(scores: Tensor) -> Tensor:
    return F.softplus(scores.unsqueeze(-2) - scores.unsqueeze(-1))


def _weighted_pairs(scores: Tensor, labels: Tensor, rank_weight: Tensor, k: int) -> Tensor:
    gain = torch.exp2(labels) - 1
    gap = (gain.unsqueeze(-1) - gain.unsqueeze(-2)).abs()
    pairs = gap * rank_weight * _pair_loss(scores) * _better(labels)
    return pairs.sum((-1, -2)) / _ideal_dcg(gain, k)


def _ranks(scores: Tensor) -> Tensor:
    order = scores.detach().argsort(dim=-1, descending=True, stable=True)
    rank: Tensor = order.argsort(-1) + 1
    return rank.to(scores.dtype)


def _discount(rank: Tensor) -> Tensor:
    return 1 / torch.log2(1 + rank)


def _ideal_dcg(gain: Tensor, k: int) -> Tensor:
    best = gain.sort(-1, descending=True).values[..., :k]
    return (best * _discount(torch.arange(1, best.shape[-1] + 1, dtype=gain.dtype))).sum(-1)


def _relevant(labels: Tensor, k: int) -> Tensor:
    kth = labels.topk(k, -1).values[..., -1:]
    return ((labels >= kth) & (labels > 0)).to(labels.dtype)
