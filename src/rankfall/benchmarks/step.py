"""``bench step``: a training step of LCRON with every operator, relative to a step of binary cross entropy.

The first part measures the objective alone: forward and backward on the scores of two stages, over list lengths. A
batch has 128 lists, or fewer long lists for operators whose cost grows with n^2, so that a turn takes about a second.
Binary cross entropy runs in turns with all operators of the same shape. The second part measures the whole step of a
two-tower model and a DIN with the features of `rankfall.benchmarks.loader`, and the share of the objective in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from rankfall import objectives, ops, registry
from rankfall.benchmarks import loader
from rankfall.benchmarks.operators import TAU, bitonic_rows, odd_even_rows
from rankfall.benchmarks.timing import (
    Case,
    CostLimit,
    Row,
    Shape,
    cpu_seconds,
    cpu_spread,
    linear,
    measure_cases,
    pairs,
    rows,
    time_in_turns,
)
from rankfall.cascade import Cascade, Stage
from rankfall.data.impressions.spec import features_of
from rankfall.models import DIN, TwoTower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.benchmarks.timing import Step
    from rankfall.objectives import Objective
    from rankfall.ops import TopK

    Report = Callable[[str], None]  # called with a description after each measurement

BASELINE, OBJECTIVE = "bce", "objective alone"
STAGES = 2  # stages of the measured cascade
RELEVANT = 10  # relevant items per list, and quota of each stage
SIZES = (40, 200, 1000, 5000)
QUICK_SIZES = (40,)
LISTS = 128
SHORT = 200  # longest lists with a full batch for every operator, and with models
WORK = 1 << 23  # values that an operator may compute in a batch of longer lists
MODEL_ITEMS, QUICK_ITEMS = 6400, 320  # items per batch for models
TABLE_ROWS = 1000  # per embedding table; small, because the optimizer is not what is compared


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


def prepare(name: str, shape: Shape) -> Step:
    """Return one forward and backward pass of an objective."""
    return STEPS[name].step(shape)


def shapes(n: int) -> dict[Shape, list[str]]:
    """Return the names of the operators, grouped by the shape of the batch that they are measured with."""
    groups: dict[Shape, list[str]] = {}
    for name, operator in OBJECTIVE_OPERATORS.items():
        shape = Shape(LISTS, n, RELEVANT)
        while n > SHORT and shape.lists > 1 and operator.work(shape) > WORK:
            shape = replace(shape, lists=shape.lists // 2)
        groups.setdefault(shape, []).append(name)
    return groups


def sweep(sizes: Sequence[int], seconds: float, *, quick: bool, report: Report) -> list[Row]:
    """Measure the objective alone with every operator at every length."""
    limit, found = CostLimit(), list[Row]()
    for n in sizes:
        for shape, names in shapes(n).items():
            cases = {name: STEPS[name] for name in (BASELINE, *names)}
            found += measure_cases(cases, shape, seconds, limit, floors=[BASELINE], prepare=None if quick else prepare)
            report(f"{shape.lists} x {n}")
    return found


# --- the whole step ---------------------------------------------------------------------------------------------


def sweep_models(sizes: Sequence[int], seconds: float, *, quick: bool, report: Report) -> list[Row]:
    """Measure the step of a cascade with every objective, at the lengths of `model_sizes`.

    The ratios are those to the step with binary cross entropy, and to the objective alone on given scores.
    """
    found: list[Row] = []
    for n in model_sizes(sizes):
        items = QUICK_ITEMS if quick else MODEL_ITEMS
        found += _measure_models(Shape(max(1, min(LISTS, items // n)), n, RELEVANT), seconds)
        report(f"models, n = {n}")
    return found


def model_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the lengths at which models are measured."""
    return [n for n in sizes if n <= SHORT]


def _measure_models(shape: Shape, seconds: float) -> list[Row]:
    whole: dict[str, Step] = {f"whole/{name}": WholeStep(name, shape) for name in STEPS}
    clocks = time_in_turns(whole | {name: prepare(name, shape) for name in STEPS}, seconds=seconds)
    baseline = cpu_seconds(clocks[f"whole/{BASELINE}"])

    def row(name: str) -> Row:
        cpu, alone = cpu_seconds(clocks[f"whole/{name}"]), cpu_seconds(clocks[name])
        ratios = {BASELINE: cpu / baseline, OBJECTIVE: cpu / alone}
        spread = cpu_spread(clocks[f"whole/{name}"])
        return Row(name, shape.lists, shape.n, shape.k, cpu_ms=cpu * 1e3, spread=spread, ratios=ratios)

    return [row(name) for name in STEPS]


class WholeStep:
    """A training step on a batch of random ids: two models, an objective, the backward pass and Adam."""

    def __init__(self, name: str, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(0)
        spec = loader.spec()
        rows = {f"{group}.{name}": TABLE_ROWS for group, name, _ in spec.features}
        features = features_of(spec, rows)
        self.cascade = Cascade([Stage("retrieval", TwoTower(features), 30), Stage("ranking", DIN(features), 20)])
        self.optimizer = torch.optim.Adam(self.cascade.parameters(), lr=1e-3)
        self.objective = build_objective(name, shape.n, shape.k)

        def ids(*size: int) -> Tensor:
            return torch.randint(0, TABLE_ROWS, size, generator=generator, dtype=torch.int32)

        lists, n = shape.lists, shape.n
        self.grades = torch.rand(lists, n, generator=generator).argsort(-1).float()
        self.batch = SimpleNamespace(
            user={name: ids(lists) for name in loader.USER},
            context={},
            items={name: ids(lists, n) for name in loader.ITEM},
            sequences={"history": {name: ids(lists, loader.EVENTS) for name in loader.EVENT}},
            sequence_mask={"history": torch.ones(lists, loader.EVENTS, dtype=torch.bool)},
            mask=torch.ones(lists, n, dtype=torch.bool),
        )

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.objective(self.cascade(self.batch), self.grades, mask=self.batch.mask).backward()
        self.optimizer.step()
