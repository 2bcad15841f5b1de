"""Measurement of time and memory for comparisons that must be reproducible on a busy machine.

Steps that are compared run in turns in one process, so that other load of the machine affects all of them; the median
over many turns is reported. Time is the CPU time of the process, which excludes other processes. Peak memory is the
high-water mark of a fresh process as reported by the operating system, so it includes NumPy and the allocator.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Step = Callable[[], object]

MIN_TURNS, MAX_TURNS = 20, 200
COLD_START = 2.0  # upper limit of the seconds that a first call spends on imports and initialisation


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
    with _threads(threads):
        for name, step in steps.items():
            clocks[name].warm_up(step)
        while running := [name for name, clock in clocks.items() if clock.wants_more(seconds)]:
            for name in running:
                clocks[name].run(steps[name])
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
    context.set_forkserver_preload(["rankfall.benchmarks.cases"])
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


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
