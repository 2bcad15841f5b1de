"""``bench ops`` and ``bench losses``: forward and backward passes of every operator and loss over list lengths.

The floors are one element-wise pass (sigmoid), one selection (topk) and one sort.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from rankfall import losses, ops, registry
from rankfall.benchmarks.timing import Case, CostLimit, Row, Shape, linear, measure_cases, rows, square

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.benchmarks.timing import Step

FunctionKind = Literal["ops", "losses"]

SIZES = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
QUICK_SIZES = (50, 200)
BATCH_ITEMS = 128_000  # 128 lists of 1000 items; batches of longer lists have fewer lists
TAU = 0.1  # temperature of operators whose logits do not grow with n


def list_tau(scores: Tensor) -> float:
    """Return a temperature proportional to n, because the logits of NeuralSort grow with n."""
    return scores.shape[-1] / 20


def odd_even_rows(shape: Shape) -> float:
    """Return the floats of the kept rows after each of n layers, and of their gradients."""
    return 2 * shape.n * shape.lists * shape.n * shape.k


def bitonic_rows(shape: Shape) -> float:
    """Return the floats of the kept rows for a network of log2(n) (log2(n) + 1) / 2 layers."""
    depth = math.ceil(math.log2(shape.n))
    return depth * (depth + 1) * shape.lists * (1 << depth) * shape.k


def kept_rows(
    sort: Callable[..., Tensor],
    *,
    scaled: bool = False,
    floats: Callable[[Shape], float] = rows,
    **options: object,
) -> Case:
    """Return the case of a soft sort of which the first k rows are computed."""

    def run(scores: Tensor, labels: Tensor, k: int) -> Tensor:
        tau = {"tau": list_tau(scores)} if scaled else {}
        return sort(scores, k=k, **tau, **options).sum(-2)

    return Case(run, floats)


def inclusion(topk: Callable[..., Tensor], **options: object) -> Case:
    """Return the case of a soft top-k."""
    return Case(lambda scores, labels, k: topk(scores, k, tau=TAU, **options), linear)


def _normalised_neural_sort(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    return ops.topk("neural_sort", tau=list_tau(scores))(scores, k)


FLOORS = {
    "torch.sigmoid": Case(lambda scores, labels, k: torch.sigmoid(scores), linear),
    "torch.topk": Case(lambda scores, labels, k: scores.topk(k, -1).values, linear),
    "torch.sort": Case(lambda scores, labels, k: scores.sort(-1).values, linear),
}

OPERATORS = {
    "dftopk": inclusion(ops.dftopk),
    "lapsum_topk": inclusion(ops.lapsum_topk),
    "sigmoid_topk": inclusion(ops.sigmoid_topk),
    "sparse_topk": inclusion(ops.sparse_topk),
    "sparse_topk (p=4/3)": inclusion(ops.sparse_topk, p=4 / 3),
    "hard_topk": Case(lambda scores, labels, k: ops.hard_topk(scores, k), linear),
    "neural_sort": kept_rows(ops.neural_sort, scaled=True),
    "neural_sort (normalised)": Case(_normalised_neural_sort, rows),
    "soft_sort": kept_rows(ops.soft_sort, tau=TAU),
    "diff_sort": kept_rows(ops.diff_sort, floats=odd_even_rows),
    "diff_sort (bitonic)": kept_rows(ops.diff_sort, floats=bitonic_rows, network="bitonic"),
    "pirank_sort": kept_rows(ops.pirank_sort, scaled=True),
}


def _default_operator(name: str) -> Case:
    """Return the case of a built-in operator that has no case of its own above, with its default options."""
    operator = registry.get("operator", name)
    if name in registry.SORTS:
        return Case(lambda scores, labels, k: operator(scores, k=k).sum(-2), square(4))
    return Case(lambda scores, labels, k: operator(scores, k), linear)


OPERATORS |= {name: _default_operator(name) for name in registry.builtins("operator") if name not in OPERATORS}

LOSSES = {
    "mse_loss": Case(lambda s, y, k: losses.mse_loss(s, y), linear),
    "bce_loss": Case(lambda s, y, k: losses.bce_loss(s, y), linear),
    "softmax_loss": Case(lambda s, y, k: losses.softmax_loss(s, y), linear),
    "listmle_loss": Case(lambda s, y, k: losses.listmle_loss(s, y), linear),
    "ranknet_loss": Case(lambda s, y, k: losses.ranknet_loss(s, y), linear),
    "lambdarank_loss": Case(lambda s, y, k: losses.lambdarank_loss(s, y), linear),
    "lambda_loss": Case(lambda s, y, k: losses.lambda_loss(s, y, k=k), linear),
    "lambda_recall_loss": Case(lambda s, y, k: losses.lambda_recall_loss(s, y, m=k, k=k), linear),
    "approx_ndcg_loss": Case(lambda s, y, k: losses.approx_ndcg_loss(s, y), linear),
    "pirank_ndcg_loss": Case(lambda s, y, k: losses.pirank_ndcg_loss(s, y, k=k, tau=list_tau(s)), rows),
    "sort_cross_entropy_loss": Case(lambda s, y, k: losses.sort_cross_entropy_loss(s, y, tau=list_tau(s)), square(4)),
    "relax_loss": Case(lambda s, y, k: losses.relax_loss(s, y, m=k, k=k, tau=list_tau(s)), rows),
    "topk_bce_loss": Case(lambda s, y, k: losses.topk_bce_loss(s, y, k=k), linear),
}

_NOT_MEASURED = {"grade_softmax_loss", "pirank_arp_loss"}  # cross entropy and a soft sort, which are measured


def _default_loss(name: str) -> Case:
    """Return the case of a built-in loss that has no case of its own above. Cutoffs are k, other options defaults."""
    loss = registry.get("loss", name)
    required = [one.name for one in registry.options("loss", name).values() if one.required]
    return Case(lambda s, y, k: loss(s, y, **dict.fromkeys(required, k)), square(4))


LOSSES |= {
    name: _default_loss(name)
    for name in registry.builtins("loss")
    if name.endswith("_loss") and name not in LOSSES and name not in _NOT_MEASURED
}


def prepare(name: str, shape: Shape) -> Step:
    """Return one forward and backward pass of an operator, a loss or a floor."""
    return (FLOORS | OPERATORS | LOSSES)[name].step(shape)


def shapes(sizes: Sequence[int], *, quick: bool) -> list[Shape]:
    """Return every length with k = 10, followed by every length with k = n/2 unless `quick` is set."""
    few = [Shape(_lists(n), n, 10) for n in sizes]
    half = [Shape(_lists(n), n, n // 2) for n in sizes if n // 2 != 10]
    return few if quick else few + half


def sweep(
    kind: FunctionKind, sizes: Sequence[int], seconds: float, *, quick: bool, report: Callable[[str], None]
) -> list[Row]:
    """Measure every operator or loss, and the floors.

    Args:
        kind: "ops" or "losses".
        sizes: List lengths.
        seconds: Approximate time to measure each function.
        quick: Measure only k = 10 on one thread, without memory.
        report: Called with a description after each shape.
    """
    limit, found = CostLimit(), list[Row]()
    cases = FLOORS | (OPERATORS if kind == "ops" else LOSSES)
    for shape in shapes(sizes, quick=quick):
        found += measure_cases(cases, shape, seconds, limit, floors=FLOORS, prepare=None if quick else prepare)
        report(f"n = {shape.n}, k = {shape.k}")
    return found


def _lists(n: int) -> int:
    return max(1, min(128, BATCH_ITEMS // n))
