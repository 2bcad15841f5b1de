"""A training step of LCRON with every operator inside, beside one of binary cross entropy.

First the objective alone, forward and backward on the scores of two stages, over list lengths. Lists come in batches of
128; longer ones in fewer for an operator whose cost grows with n^2, so that a turn takes about a second. Binary cross
entropy runs in turns with all operators of the same shape. Then the whole step of a two-tower model and a DIN with the
features of `rankfall.benchmarks.loader_bench`, and the share of it that the objective is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from rankfall.benchmarks import loader_bench as loader
from rankfall.benchmarks.cases import BASELINE, INSIDE, STEPS, Shape, objective_of, prepare
from rankfall.benchmarks.measure import cpu_seconds, cpu_spread, growth_exponent, time_in_turns, wall_seconds
from rankfall.benchmarks.operator_sweep import TooSlow, peak_of, timed
from rankfall.cascade import Cascade, Stage
from rankfall.data.impressions.spec import features_of
from rankfall.models import DIN, TwoTower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rankfall.benchmarks.measure import Clock, Step

    Report = Callable[[str], None]  # called after each piece of work with what was measured

RELEVANT = 10  # the ground truth, and what each stage keeps
SIZES = (40, 200, 1000, 5000)
QUICK_SIZES = (40,)
LISTS = 128
SHORT = 200  # up to here every operator gets all lists, and models are measured
WORK = 1 << 23  # numbers that an operator may compute in a batch of longer lists
MODEL_ITEMS, QUICK_ITEMS = 6400, 320  # of a batch for models
TABLE_ROWS = 1000  # of each embedding; their optimiser is no concern of an objective


@dataclass(frozen=True)
class Row:
    """An objective alone at one shape. Times in milliseconds, memory in MB; None where it was not measured."""

    name: str
    lists: int
    n: int
    cpu_ms: float | None = None  # one thread, CPU time
    spread: float | None = None  # of cpu_ms: half the range of the middle half of the turns, as a share
    wall_ms: float | None = None  # all threads, wall time
    ns_per_item: float | None = None  # of cpu_ms, by n and lists
    to_baseline: float | None = None  # cpu_ms over that of binary cross entropy
    growth: float | None = None  # e of: CPU time of a list ~ n^e, since the shorter length before
    peak_mb: float | None = None
    left_out: str = ""  # why it was not measured


@dataclass(frozen=True)
class Whole:
    """The step of a cascade with an objective, on one thread in CPU time, and the share that the objective takes."""

    name: str
    lists: int
    n: int
    cpu_ms: float
    spread: float | None
    to_baseline: float  # cpu_ms over that of the step with binary cross entropy
    objective_ms: float  # the objective alone, on scores that are given
    share: float  # objective_ms / cpu_ms


def shapes(n: int) -> dict[Shape, list[str]]:
    """The operators by the batch that they are measured with."""
    found: dict[Shape, list[str]] = {}
    for name, inside in INSIDE.items():
        shape = Shape(LISTS, n, RELEVANT)
        while n > SHORT and shape.lists > 1 and inside.work(shape) > WORK:
            shape = replace(shape, lists=shape.lists // 2)
        found.setdefault(shape, []).append(name)
    return found


def sweep(sizes: Sequence[int], seconds: float, *, quick: bool, report: Report) -> list[Row]:
    """Every operator at every length."""
    limit = TooSlow()
    found: list[Row] = []
    for n in sizes:
        for shape, names in shapes(n).items():
            found += _measure(shape, names, seconds, limit, quick=quick)
            report(f"{shape.lists} x {n}")
    return with_growth(found)


def with_growth(rows: Sequence[Row]) -> list[Row]:
    """The rows, in the order of their lengths, with how cost has grown since the length before."""
    before: dict[str, Row] = {}
    found = []
    for row in rows:
        shorter = before.get(row.name)
        if shorter is not None and shorter.cpu_ms is not None and row.cpu_ms is not None and row.name != BASELINE:
            costs = shorter.cpu_ms / shorter.lists, row.cpu_ms / row.lists
            found.append(replace(row, growth=growth_exponent((shorter.n, row.n), costs)))
        else:
            found.append(row)
        before[row.name] = row
    return found


def _measure(shape: Shape, names: list[str], seconds: float, limit: TooSlow, *, quick: bool) -> list[Row]:
    reasons = {name: limit.reason("step", name, shape) for name in names}
    keys = [("step", name) for name in (BASELINE, *names) if not reasons.get(name)]
    steps = {key: prepare(*key, shape) for key in keys}
    single = timed(steps, seconds, threads=1)
    many = {} if quick else timed(steps, seconds / 3, threads=torch.get_num_threads())
    peaks = {} if quick else {key: peak_of(*key, shape) for key in keys}
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


def sweep_models(sizes: Sequence[int], seconds: float, *, quick: bool, report: Report) -> list[Whole]:
    """The step of a cascade with every objective, at the lengths that are short enough."""
    found: list[Whole] = []
    for n in model_sizes(sizes):
        items = QUICK_ITEMS if quick else MODEL_ITEMS
        found += _measure_models(Shape(max(1, min(LISTS, items // n)), n, RELEVANT), seconds)
        report(f"models, n = {n}")
    return found


def model_sizes(sizes: Sequence[int]) -> list[int]:
    """The lengths at which models are measured."""
    return [n for n in sizes if n <= SHORT]


def _measure_models(shape: Shape, seconds: float) -> list[Whole]:
    whole: dict[str, Step] = {f"whole/{name}": WholeStep(name, shape) for name in STEPS}
    alone = {f"alone/{name}": prepare("step", name, shape) for name in STEPS}
    clocks = time_in_turns(whole | alone, seconds=seconds)
    baseline = cpu_seconds(clocks[f"whole/{BASELINE}"])
    return [_whole(name, shape, clocks[f"whole/{name}"], clocks[f"alone/{name}"], baseline) for name in STEPS]


def _whole(name: str, shape: Shape, whole: Clock, alone: Clock, baseline: float) -> Whole:
    cpu, objective = cpu_seconds(whole), cpu_seconds(alone)
    return Whole(
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
    """Scores by two models, an objective, the way back and Adam, on a batch of random ids."""

    def __init__(self, name: str, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(0)
        described = loader.spec()
        rows = {f"{group}.{name}": TABLE_ROWS for group, name, _ in described.features}
        features = features_of(described, rows)
        self.cascade = Cascade([Stage("retrieval", TwoTower(features), 30), Stage("ranking", DIN(features), 20)])
        self.optimizer = torch.optim.Adam(self.cascade.parameters(), lr=1e-3)
        self.objective = objective_of(name, shape.n, shape.k)

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
