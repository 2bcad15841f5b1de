"""The measured functions: forward and backward passes of the library's code, of textbook code, and of the floors.

A *floor* is a lower bound on the cost of any implementation: one element-wise pass (sigmoid), one selection (topk) or
one sort. The floor of an objective is binary cross entropy on every stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall import losses, metrics, objectives, ops, registry
from rankfall.benchmarks import textbook

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.benchmarks.measure import Step
    from rankfall.objectives import Objective
    from rankfall.ops import TopK

FLOORS = ("torch.sigmoid", "torch.topk", "torch.sort")
TAU = 0.1  # temperature of operators whose logits do not grow with n
FLOAT_BYTES = 4
STAGES = 2  # stages of the measured cascade


@dataclass(frozen=True)
class Shape:
    """Shape of a batch: `lists` lists of `n` items, of which the first `k` matter."""

    lists: int
    n: int
    k: int


def linear(shape: Shape) -> float:
    """Return the floats of a few values per item."""
    return 10 * shape.lists * shape.n


def rows(shape: Shape) -> float:
    """Return the floats of a few values per item and kept row."""
    return 4 * shape.lists * shape.n * shape.k


def pairs(shape: Shape) -> float:
    """Return the floats of one value per pair of items."""
    return shape.lists * shape.n**2


def square(matrices: int) -> Callable[[Shape], float]:
    """Return a function that counts the floats of `matrices` n x n matrices per list."""
    return lambda shape: matrices * pairs(shape)


def dense_layers(shape: Shape) -> float:
    """Return the floats of two n x n matrices for each of the n layers of a sorting network."""
    return 2 * shape.lists * shape.n**3


def odd_even_rows(shape: Shape) -> float:
    """Return the floats of the kept rows after each of n layers, and of their gradients."""
    return 2 * shape.n * shape.lists * shape.n * shape.k


def bitonic_rows(shape: Shape) -> float:
    """Return the floats of the kept rows for a network of log2(n) (log2(n) + 1) / 2 layers."""
    depth = math.ceil(math.log2(shape.n))
    return depth * (depth + 1) * shape.lists * (1 << depth) * shape.k


@dataclass(frozen=True)
class Case:
    """A measured function and estimates of its cost.

    Attributes:
        run: Function of scores, labels and k. Scores are (lists, n), or (stages, lists, n) with several stages.
        floats: Number of floats kept for the backward pass.
        work: Number of computed values, up to a constant factor.
        stages: Number of stages that the scores belong to.
    """

    run: Callable[[Tensor, Tensor, int], Tensor]
    floats: Callable[[Shape], float]
    work: Callable[[Shape], float] = pairs
    stages: int = 1

    def bytes(self, shape: Shape) -> float:
        """Estimate the memory of one forward and backward pass, in bytes."""
        return FLOAT_BYTES * self.floats(shape)


def list_tau(scores: Tensor) -> float:
    """Return a temperature proportional to n, because the logits of NeuralSort grow with n."""
    return scores.shape[-1] / 20


def _rows_of(
    sort: Callable[..., Tensor],
    *,
    scaled: bool = False,
    floats: Callable[[Shape], float] = rows,
    **options: object,
) -> Case:
    def run(scores: Tensor, labels: Tensor, k: int) -> Tensor:
        tau = {"tau": list_tau(scores)} if scaled else {}
        return sort(scores, k=k, **tau, **options).sum(-2)

    return Case(run, floats)


def _inclusion(topk: Callable[..., Tensor], **options: object) -> Case:
    return Case(lambda scores, labels, k: topk(scores, k, tau=TAU, **options), linear)


def _square_sort(sort: Callable[..., Tensor], matrices: int, *, scaled: bool = False, **options: object) -> Case:
    def run(scores: Tensor, labels: Tensor, k: int) -> Tensor:
        tau = {"tau": list_tau(scores)} if scaled else {}
        return sort(scores, **tau, **options)[..., :k, :].sum(-2)

    return Case(run, square(matrices))


def _normalised_neural_sort(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    return ops.topk("neural_sort", tau=list_tau(scores))(scores, k)


def _dense_diff_sort(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    return textbook.diff_sort(scores, steepness=2 * scores.shape[-1])[..., :k, :].sum(-2)


FLOOR_CASES = {
    "torch.sigmoid": Case(lambda scores, labels, k: torch.sigmoid(scores), linear),
    "torch.topk": Case(lambda scores, labels, k: scores.topk(k, -1).values, linear),
    "torch.sort": Case(lambda scores, labels, k: scores.sort(-1).values, linear),
}

OPERATORS = {
    "dftopk": _inclusion(ops.dftopk),
    "lapsum_topk": _inclusion(ops.lapsum_topk),
    "sigmoid_topk": _inclusion(ops.sigmoid_topk),
    "sparse_topk": _inclusion(ops.sparse_topk),
    "sparse_topk (p=4/3)": _inclusion(ops.sparse_topk, p=4 / 3),
    "hard_topk": Case(lambda scores, labels, k: ops.hard_topk(scores, k), linear),
    "neural_sort": _rows_of(ops.neural_sort, scaled=True),
    "neural_sort (normalised)": Case(_normalised_neural_sort, rows),
    "soft_sort": _rows_of(ops.soft_sort, tau=TAU),
    "diff_sort": _rows_of(ops.diff_sort, floats=odd_even_rows),
    "diff_sort (bitonic)": _rows_of(ops.diff_sort, floats=bitonic_rows, network="bitonic"),
    "pirank_sort": _rows_of(ops.pirank_sort, scaled=True),
}


def _default_operator(name: str) -> Case:
    """Return the case of a built-in operator that has no case of its own above, with its default options."""
    operator = registry.get("operator", name)
    if name in registry.sorts():
        return Case(lambda scores, labels, k: operator(scores, k=k).sum(-2), square(4))
    return Case(lambda scores, labels, k: operator(scores, k), linear)


OPERATORS |= {name: _default_operator(name) for name in registry.builtins("operator") if name not in OPERATORS}

TEXTBOOK_OPERATORS = {
    "dftopk": _inclusion(textbook.dftopk),
    "lapsum_topk": _inclusion(textbook.lapsum_topk),
    "sigmoid_topk": _inclusion(textbook.sigmoid_topk),
    "sparse_topk": _inclusion(textbook.sparse_topk),
    "sparse_topk (p=4/3)": _inclusion(textbook.sparse_topk, p=4 / 3),
    "neural_sort": _square_sort(textbook.neural_sort, 4, scaled=True),
    "soft_sort": _square_sort(textbook.soft_sort, 6, tau=TAU),
    "diff_sort": Case(_dense_diff_sort, dense_layers),
}

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
    for name, loss in registry.builtins("loss").items()
    if name not in LOSSES and name not in _NOT_MEASURED and not loss.is_class
}

TEXTBOOK_LOSSES = {
    "mse_loss": Case(lambda s, y, k: textbook.mse_loss(s, y), linear),
    "bce_loss": Case(lambda s, y, k: textbook.bce_loss(s, y), linear),
    "softmax_loss": Case(lambda s, y, k: textbook.softmax_loss(s, y), linear),
    "listmle_loss": Case(lambda s, y, k: textbook.listmle_loss(s, y), linear),
    "ranknet_loss": Case(lambda s, y, k: textbook.ranknet_loss(s, y), square(4)),
    "lambdarank_loss": Case(lambda s, y, k: textbook.lambdarank_loss(s, y), square(7)),
    "lambda_loss": Case(lambda s, y, k: textbook.lambda_loss(s, y, k), square(12)),
    "lambda_recall_loss": Case(lambda s, y, k: textbook.lambda_recall_loss(s, y, k, k), square(5)),
    "approx_ndcg_loss": Case(lambda s, y, k: textbook.approx_ndcg_loss(s, y), square(2)),
    "pirank_ndcg_loss": Case(lambda s, y, k: textbook.pirank_ndcg_loss(s, y, k, list_tau(s)), square(4)),
    "sort_cross_entropy_loss": Case(lambda s, y, k: textbook.sort_cross_entropy_loss(s, y, list_tau(s)), square(4)),
    "relax_loss": Case(lambda s, y, k: textbook.relax_loss(s, y, k, k, list_tau(s)), square(4)),
    "topk_bce_loss": Case(lambda s, y, k: textbook.topk_bce_loss(s, y, k), linear),
}

PIRANK = {f"depth {depth}": _rows_of(ops.pirank_sort, scaled=True, depth=depth) for depth in (1, 2, 3)}

METRICS = {
    "recall": Case(lambda s, y, k: metrics.recall(s, y, m=k, k=k), linear),
    "ndcg": Case(lambda s, y, k: metrics.ndcg(s, y, k=k), linear),
}

# --- a training step: LCRON on two stages with each operator, and binary cross entropy ------------------------------

BASELINE = "bce"


@dataclass(frozen=True)
class ObjectiveOperator:
    """An operator used inside an objective, built for lists of n items; `floats` and `work` are those of a case."""

    make: Callable[[int], TopK]
    floats: Callable[[Shape], float]
    work: Callable[[Shape], float]


def _threshold(name: str) -> ObjectiveOperator:
    return ObjectiveOperator(lambda n: ops.topk(name, tau=TAU), linear, linear)


def _all_rows(make: Callable[[int], TopK]) -> ObjectiveOperator:
    """Return a normalised sort, which keeps k rows but computes all n."""
    return ObjectiveOperator(make, rows, pairs)


def _network(network: str, floats: Callable[[Shape], float]) -> ObjectiveOperator:
    return ObjectiveOperator(lambda n: ops.topk("diff_sort", network=network), floats, floats)


def _tree_rows(shape: Shape) -> float:
    """Return the floats of a tree of two levels that keep k rows each."""
    return shape.k * rows(shape)


OBJECTIVE_OPERATORS = {
    "dftopk": _threshold("dftopk"),
    "lapsum_topk": _threshold("lapsum_topk"),
    "sigmoid_topk": _threshold("sigmoid_topk"),
    "sparse_topk": _threshold("sparse_topk"),
    "neural_sort": _all_rows(lambda n: ops.topk("neural_sort", tau=n / 20, gradient="rows")),
    "neural_sort (one_minus)": _all_rows(lambda n: ops.topk("neural_sort", tau=n / 20, gradient="one_minus")),
    "soft_sort": _all_rows(lambda n: ops.topk("soft_sort", tau=TAU, gradient="rows")),
    "soft_sort (one_minus)": _all_rows(lambda n: ops.topk("soft_sort", tau=TAU, gradient="one_minus")),
    "diff_sort": _network("odd_even", odd_even_rows),
    "diff_sort (bitonic)": _network("bitonic", bitonic_rows),
    "pirank_sort (depth 2)": ObjectiveOperator(
        lambda n: ops.topk("pirank_sort", tau=n / 20, depth=2), _tree_rows, _tree_rows
    ),
}


OBJECTIVE_OPERATORS |= {
    name: _all_rows(partial(lambda one, n: ops.topk(one), name))
    for name in registry.builtins("operator")
    if name != "hard_topk" and name not in {measured.split()[0] for measured in OBJECTIVE_OPERATORS}
}  # those without an entry of their own, with default options; a hard top-k has no gradient to train with


@cache
def build_objective(name: str, n: int, k: int) -> Objective:
    """Build binary cross entropy, or LCRON with the named operator, for lists of n items of which k are relevant."""
    if name == BASELINE:
        return objectives.BCE(relevant=k)
    return objectives.LCRON(relevant=k, topk=OBJECTIVE_OPERATORS[name].make(n))


def _objective_case(name: str, floats: Callable[[Shape], float], work: Callable[[Shape], float]) -> Case:
    def run(scores: Tensor, labels: Tensor, k: int) -> Tensor:
        value: Tensor = build_objective(name, labels.shape[-1], k)(list(scores), labels)
        return value

    return Case(run, lambda shape: STAGES * floats(shape), work, STAGES)


STEPS = {BASELINE: _objective_case(BASELINE, linear, linear)} | {
    name: _objective_case(name, operator.floats, operator.work) for name, operator in OBJECTIVE_OPERATORS.items()
}

TABLES = {
    "floor": FLOOR_CASES,
    "ops": OPERATORS,
    "ops textbook": TEXTBOOK_OPERATORS,
    "losses": LOSSES,
    "losses textbook": TEXTBOOK_LOSSES,
    "pirank": PIRANK,
    "metrics": METRICS,
    "step": STEPS,
}


def prepare(table: str, name: str, shape: Shape) -> Step:
    """Return one forward and backward pass of a case, on random scores and skewed grades 0..4."""
    case = TABLES[table][name]
    size = (shape.lists, shape.n) if case.stages == 1 else (case.stages, shape.lists, shape.n)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(size, generator=generator).requires_grad_()
    labels = torch.rand(shape.lists, shape.n, generator=generator).pow(3).mul(5).floor()
    direction = torch.randn(shape.lists, shape.n, generator=generator)
    return partial(_step, case.run, scores, labels, shape.k, direction)


def _step(
    run: Callable[[Tensor, Tensor, int], Tensor], scores: Tensor, labels: Tensor, k: int, direction: Tensor
) -> None:
    value = run(scores, labels, k)
    if not value.requires_grad:  # a metric has no backward pass
        return
    if value.ndim == 2:
        torch.autograd.grad(value, scores, direction[:, : value.shape[-1]])
    else:
        torch.autograd.grad(value.mean(), scores)
