"""Measurement of time and memory for comparisons that must be reproducible on a busy machine.

Steps that are compared run in turns in one process, so that other load of the machine affects all of them; the median
over many turns is reported. Time is the CPU time of the process, which excludes other processes. Peak memory is the
high-water mark of a fresh process as reported by the operating system, so it includes NumPy and the allocator.

A measured function is a :class:`Case`. :func:`measure_cases` measures several at one :class:`Shape`, each relative to
some of them: the *floors*, which are lower bounds on the cost of any implementation.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch import Tensor

    Step = Callable[[], object]

MIN_TURNS, MAX_TURNS = 20, 200
COLD_START = 2.0  # upper limit of the seconds that a first call spends on imports and initialisation
FLOAT_BYTES = 4
MAX_BYTES = 4 * 2**30  # of a case that is measured
MAX_SECONDS = 10.0  # of a turn
LARGE = 500  # shortest list in the fit of growth: below, the cost per call dominates the cost per item


@dataclass
class Clock:
    """Measured times of one step in seconds: CPU time (sum over threads) and wall time."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def run(self, step: Step) -> None:
        """Time one turn."""
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def warm_up(self, step: Step) -> None:
        """Run a step three times without recording it; a step longer than COLD_START runs once and is recorded."""
        for _ in range(3):
            self.run(step)
            if self.cpu[-1] > COLD_START:
                return
            self.cpu.clear()
            self.wall.clear()

    def wants_more(self, seconds: float) -> bool:
        """Return whether to run another turn: at least twenty, unless they take ten times `seconds`."""
        spent, turns = sum(self.wall), len(self.wall)
        if turns >= MAX_TURNS or (turns > 0 and spent >= 10 * seconds):
            return False
        return turns < MIN_TURNS or spent < seconds


def time_in_turns(steps: Mapping[str, Step], *, seconds: float, threads: int = 1) -> dict[str, Clock]:
    """Run the steps in turns, each for about `seconds`.

    Args:
        steps: Functions without arguments, by name.
        seconds: Approximate total time of each step.
        threads: Number of threads of torch during the measurement.

    Returns:
        The measured times, by name.
    """
    clocks = {name: Clock() for name in steps}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name, step in steps.items():
            clocks[name].warm_up(step)
        while running := [name for name, clock in clocks.items() if clock.wants_more(seconds)]:
            for name in running:
                clocks[name].run(steps[name])
    finally:
        torch.set_num_threads(before)
    return clocks


def cpu_seconds(clock: Clock) -> float:
    """Return the median CPU time per turn."""
    return statistics.median(clock.cpu)


def wall_seconds(clock: Clock) -> float:
    """Return the median wall time per turn."""
    return statistics.median(clock.wall)


def cpu_spread(clock: Clock) -> float | None:
    """Return half the interquartile range as a share of the median, or None for fewer than two turns.

    >>> cpu_spread(Clock(cpu=[1.0, 2.0, 3.0]))
    0.5
    """
    if len(clock.cpu) < 2:
        return None
    first, _, third = statistics.quantiles(clock.cpu, n=4)
    return (third - first) / 2 / cpu_seconds(clock)


def growth_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent e in cost ~ n^e: the slope of the least-squares line of log cost over log n.

    >>> growth_exponent([10, 100, 1000], [3.0, 300.0, 30000.0])
    2.0
    >>> growth_exponent([10], [1.0])
    nan
    """
    if len(sizes) < 2:
        return math.nan
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return round(statistics.linear_regression(x, y).slope, 12)


def peak_bytes(prepare: Callable[..., Step], *, small: tuple[Any, ...], full: tuple[Any, ...]) -> int:
    """Return the peak memory that the step ``prepare(*full)`` adds, measured in a fresh process.

    The processes are forked from a server that has only imported torch: each starts in milliseconds and has its own
    high-water mark. The step ``prepare(*small)`` runs first, so that kernels and libraries that are loaded once do not
    count.

    Args:
        prepare: Importable function that returns the step.
        small: Arguments of a small step to warm up with.
        full: Arguments of the measured step.

    Returns:
        The difference of the high-water marks, in bytes.

    Raises:
        MemoryError: The measured process died.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rankfall.benchmarks.operators"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(sender, prepare, small, full))
    process.start()
    sender.close()
    try:
        peak: int = receiver.recv()
    except EOFError:
        raise MemoryError("the measured process ended during its step; it probably ran out of memory") from None
    finally:
        process.join()
    return peak


def _report_peak(sender: Any, prepare: Callable[..., Step], small: tuple[Any, ...], full: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    prepare(*small)()
    step = prepare(*full)
    before = _high_water()
    step()
    sender.send(_high_water() - before)


def _high_water() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# --- cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Shape of a batch: `lists` lists of `n` items, of which the first `k` matter."""

    lists: int
    n: int
    k: int


WARM_UP = Shape(1, 32, 4)


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

    def step(self, shape: Shape) -> Step:
        """Return one forward and backward pass on random scores and skewed grades 0..4."""
        size = (shape.lists, shape.n) if self.stages == 1 else (self.stages, shape.lists, shape.n)
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(size, generator=generator).requires_grad_()
        labels = torch.rand(shape.lists, shape.n, generator=generator).pow(3).mul(5).floor()
        direction = torch.randn(shape.lists, shape.n, generator=generator)
        return partial(self._forward_backward, scores, labels, shape.k, direction)

    def _forward_backward(self, scores: Tensor, labels: Tensor, k: int, direction: Tensor) -> None:
        value = self.run(scores, labels, k)
        if not value.requires_grad:  # a metric has no backward pass
            return
        if value.ndim == 2:
            torch.autograd.grad(value, scores, direction[:, : value.shape[-1]])
        else:
            torch.autograd.grad(value.mean(), scores)


class CostLimit:
    """Predicts the cost of a case from shorter lists, so that cases of several minutes are skipped."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, bool], tuple[Shape, float]] = {}

    def note(self, name: str, shape: Shape, seconds: float) -> None:
        """Record the measured cost of a case."""
        self._last[name, shape.k == 10] = (shape, seconds)

    def reason(self, name: str, case: Case, shape: Shape) -> str:
        """Return why the case is skipped, or an empty string if it is not."""
        if case.bytes(shape) > MAX_BYTES:
            return f"needs {case.bytes(shape) / 2**30:,.0f} GB"
        if (name, shape.k == 10) in self._last:
            shorter, seconds = self._last[name, shape.k == 10]
            expected = seconds * case.work(shape) / case.work(shorter)
            if expected > MAX_SECONDS:
                return f"would take {expected:,.0f} s"
        return ""


@dataclass(frozen=True)
class Row:
    """Result of one case at one shape: milliseconds and megabytes, None if not measured."""

    name: str
    lists: int
    n: int
    k: int
    cpu_ms: float | None = None  # one thread, CPU time
    spread: float | None = None  # of cpu_ms: half the interquartile range as a share of the median
    wall_ms: float | None = None  # all threads, wall time
    ns_per_item: float | None = None  # cpu_ms per item
    ratios: dict[str, float] = field(default_factory=dict)  # cpu_ms divided by that of each floor
    peak_mb: float | None = None
    left_out: str = ""  # reason why it was not measured


def measure_cases(
    cases: Mapping[str, Case],
    shape: Shape,
    seconds: float,
    limit: CostLimit,
    *,
    floors: Collection[str],
    prepare: Callable[[str, Shape], Step] | None,
) -> list[Row]:
    """Measure cases at one shape, in turns.

    Args:
        cases: The cases, by name.
        shape: The shape of the batch.
        seconds: Approximate time to measure each case.
        limit: Decides which cases are skipped.
        floors: Names of the cases that the others are compared with. They are never skipped.
        prepare: Importable function that returns the step of a case, for the measurement of memory. None: neither
            memory nor the time on all threads is measured.
    """
    left_out = {name: "" if name in floors else limit.reason(name, case, shape) for name, case in cases.items()}
    steps = {name: cases[name].step(shape) for name, reason in left_out.items() if not reason}
    single = time_in_turns(steps, seconds=seconds)
    many: dict[str, Clock] = {}
    peaks: dict[str, int] = {}
    if prepare is not None:
        many = time_in_turns(steps, seconds=seconds / 3, threads=torch.get_num_threads())
        peaks = {name: peak_bytes(prepare, small=(name, WARM_UP), full=(name, shape)) for name in steps}

    def row(name: str) -> Row:
        empty = Row(name, shape.lists, shape.n, shape.k, left_out=left_out[name])
        if name not in single:
            return empty
        cpu = cpu_seconds(single[name])
        limit.note(name, shape, cpu)  # wall time includes other load of the machine
        return replace(
            empty,
            cpu_ms=cpu * 1e3,
            spread=cpu_spread(single[name]),
            wall_ms=wall_seconds(many[name]) * 1e3 if name in many else None,
            ns_per_item=cpu * 1e9 / (shape.lists * shape.n),
            ratios={floor: cpu / cpu_seconds(single[floor]) for floor in floors},
            peak_mb=peaks[name] / 2**20 if name in peaks else None,
        )

    return [row(name) for name in cases]


def growth(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return, per case and choice of k, the exponent e in "CPU time per list ~ n^e", fitted to long lists."""
    groups: dict[tuple[str, str], list[tuple[int, float]]] = {}
    exponents: dict[str, dict[str, float]] = {}
    for row in rows:
        exponents[row.name] = {}
        if row.cpu_ms is not None and row.n >= LARGE:
            key = (row.name, "k = 10" if row.k == 10 else "k = n/2")
            groups.setdefault(key, []).append((row.n, row.cpu_ms / row.lists))
    for (name, k), costs in groups.items():
        if len(costs) > 1:
            exponents[name][k] = growth_exponent(*zip(*costs, strict=True))
    return exponents
