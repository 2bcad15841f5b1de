"""Benchmark of a training step of LCRON with every operator, relative to a step of binary cross entropy.

The first part measures the objective alone: forward and backward on the scores of two stages, over list lengths. A
batch has 128 lists, or fewer long lists for operators whose cost grows with n^2, so that a turn takes about a second.
Binary cross entropy runs in turns with all operators of the same shape. The second part measures the whole step of a
two-tower model and a DIN with the features of `rankfall.benchmarks.loader_bench`, and the share of the objective in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from rankfall.benchmarks import loader_bench as loader
from rankfall.benchmarks.cases import BASELINE, OBJECTIVE_OPERATORS, STEPS, Shape, build_objective, prepare
from rankfall.benchmarks.measure import cpu_seconds, cpu_spread, growth_exponent, time_in_turns, wall_seconds
from rankfall.benchmarks.operator_sweep import CostLimit, case_peak_bytes, timed
from rankfall.cascade import Cascade, Stage
from rankfall.data.impressions.spec import features_of
from rankfall.models import DIN, TwoTower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.benchmarks.measure import Clock, Step

    Report = Callable[[str], None]  # called with a description after each measurement

RELEVANT = 10  # relevant items per list, and quota of each stage
SIZES = (40, 200, 1000, 5000)
QUICK_SIZES = (40,)
LISTS = 128
SHORT = 200  # longest lists with a full batch for every operator, and with models
WORK = 1 << 23  # values that an operator may compute in a batch of longer lists
MODEL_ITEMS, QUICK_ITEMS = 6400, 320  # items per batch for models
TABLE_ROWS = 1000  # per embedding table; small, because the optimizer is not what is compared


@dataclass(frozen=True)
class Row:
    """Result of an objective alone at one shape: milliseconds and megabytes, None if not measured."""

    name: str
    lists: int
    n: int
    cpu_ms: float | None = None  # one thread, CPU time
    spread: float | None = None  # of cpu_ms: half the interquartile range as a share of the median
    wall_ms: float | None = None  # all threads, wall time
    ns_per_item: float | None = None  # cpu_ms per item
    to_baseline: float | None = None  # cpu_ms divided by that of binary cross entropy
    growth: float | None = None  # e in "CPU time per list ~ n^e" between the previous length and this one
    peak_mb: float | None = None
    left_out: str = ""  # reason why it was not measured


@dataclass(frozen=True)
class WholeRow:
    """Result of a whole training step of a cascade: CPU time on one thread and the share of the objective."""

    name: str
    lists: int
    n: int
    cpu_ms: float
    spread: float | None
    to_baseline: float  # cpu_ms divided by that of the step with binary cross entropy
    objective_ms: float  # the objective alone, on given scores
    share: float  # objective_ms / cpu_ms


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
    limit = CostLimit()
    rows: list[Row] = []
    for n in sizes:
        for shape, names in shapes(n).items():
            rows += _measure(shape, names, seconds, limit, quick=quick)
            report(f"{shape.lists} x {n}")
    return with_growth(rows)


def with_growth(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, which are sorted by length, with the growth of cost since the previous length."""
    previous: dict[str, Row] = {}
    extended = []
    for row in rows:
        shorter = previous.get(row.name)
        if shorter is not None and shorter.cpu_ms is not None and row.cpu_ms is not None and row.name != BASELINE:
            costs = shorter.cpu_ms / shorter.lists, row.cpu_ms / row.lists
            extended.append(replace(row, growth=growth_exponent((shorter.n, row.n), costs)))
        else:
            extended.append(row)
        previous[row.name] = row
    return extended


def _measure(shape: Shape, names: list[str], seconds: float, limit: CostLimit, *, quick: bool) -> list[Row]:
    reasons = {name: limit.reason("step", name, shape) for name in names}
    keys = [("step", name) for name in (BASELINE, *names) if not reasons.get(name)]
    steps = {key: prepare(*key, shape) for key in keys}
    single = timed(steps, seconds, threads=1)
    many = {} if quick else timed(steps, seconds / 3, threads=torch.get_num_threads())
    peaks = {} if quick else {key: case_peak_bytes(*key, shape) for key in keys}
    baseline = cpu_seconds(single["step", BASELINE])

    def row(name: str) -> Row:
        key = ("step", name)
        if key not in single:
            return Row(name, shape.lists, shape.n, left_out=reasons[name])
        cpu = cpu_seconds(single[key])
        limit.note("step", name, shape, cpu)
        return Row(
            name,
            shape.lists,
            shape.n,
            cpu_ms=cpu * 1e3,
            spread=cpu_spread(single[key]),
            wall_ms=wall_seconds(many[key]) * 1e3 if key in many else None,
            ns_per_item=cpu * 1e9 / (shape.lists * shape.n),
            to_baseline=cpu / baseline,
            peak_mb=peaks[key] / 2**20 if key in peaks else None,
        )

    return [row(name) for name in (BASELINE, *names)]


# --- the whole step ---------------------------------------------------------------------------------------------


def sweep_models(sizes: Sequence[int], seconds: float, *, quick: bool, report: Report) -> list[WholeRow]:
    """Measure the step of a cascade with every objective, at the lengths of `model_sizes`."""
    rows: list[WholeRow] = []
    for n in model_sizes(sizes):
        items = QUICK_ITEMS if quick else MODEL_ITEMS
        rows += _measure_models(Shape(max(1, min(LISTS, items // n)), n, RELEVANT), seconds)
        report(f"models, n = {n}")
    return rows


def model_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the lengths at which models are measured."""
    return [n for n in sizes if n <= SHORT]


def _measure_models(shape: Shape, seconds: float) -> list[WholeRow]:
    whole: dict[str, Step] = {f"whole/{name}": WholeStep(name, shape) for name in STEPS}
    alone = {f"alone/{name}": prepare("step", name, shape) for name in STEPS}
    clocks = time_in_turns(whole | alone, seconds=seconds)
    baseline = cpu_seconds(clocks[f"whole/{BASELINE}"])
    return [_whole_row(name, shape, clocks[f"whole/{name}"], clocks[f"alone/{name}"], baseline) for name in STEPS]


def _whole_row(name: str, shape: Shape, whole: Clock, alone: Clock, baseline: float) -> WholeRow:
    cpu, objective = cpu_seconds(whole), cpu_seconds(alone)
    return WholeRow(
        name,
        shape.lists,
        shape.n,
        cpu_ms=cpu * 1e3,
        spread=cpu_spread(whole),
        to_baseline=cpu / baseline,
        objective_ms=objective * 1e3,
        share=objective / cpu,
    )


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
