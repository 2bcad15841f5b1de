"""Time and memory, taken so that a ratio can be believed.

What is compared runs in turns in one process, so a busy moment of the machine hits all of it alike; the
median of many turns is reported. Time is CPU time of the process: on a shared machine it does not count the
neighbours. The peak of memory is that of a fresh process, by the operating system's own account, so NumPy's
and the allocator's share is in it.
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
COLD_START = 2.0  # seconds that a first call may spend on imports and the like


@dataclass
class Clock:
    """The times of one step in seconds: of the CPU (all threads added up) and of the wall."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def run(self, step: Step) -> None:
        """Time one turn."""
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def warm_up(self, step: Step) -> None:
        """Run a step until it is warm. One that takes longer than any cold start is not run again: its turn counts."""
        for _ in range(3):
            self.run(step)
            if self.cpu[-1] > COLD_START:
                return
            self.cpu.clear()
            self.wall.clear()

    def wants_more(self, seconds: float) -> bool:
        """Whether another turn fits: twenty at least, unless they take ten times what was asked for."""
        spent, turns = sum(self.wall), len(self.wall)
        if turns >= MAX_TURNS or (turns > 0 and spent >= 10 * seconds):
            return False
        return turns < MIN_TURNS or spent < seconds


def time_in_turns(steps: Mapping[str, Step], *, seconds: float, threads: int = 1) -> dict[str, Clock]:
    """Run the steps in turns, each for about `seconds`, and return their times."""
    clocks = {name: Clock() for name in steps}
    with _threads(threads):
        for name, step in steps.items():
            clocks[name].warm_up(step)
        while running := [name for name, clock in clocks.items() if clock.wants_more(seconds)]:
            for name in running:
                clocks[name].run(steps[name])
    return clocks


def cpu_seconds(clock: Clock) -> float:
    """Median CPU time of one turn."""
    return statistics.median(clock.cpu)


def wall_seconds(clock: Clock) -> float:
    """Median wall time of one turn."""
    return statistics.median(clock.wall)


def cpu_spread(clock: Clock) -> float | None:
    """Half the range of the middle half of the turns, as a share of the median; None of less than two turns.

    >>> cpu_spread(Clock(cpu=[1.0, 2.0, 3.0]))
    0.5
    """
    if len(clock.cpu) < 2:
        return None
    first, _, third = statistics.quantiles(clock.cpu, n=4)
    return (third - first) / 2 / cpu_seconds(clock)


def growth_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The exponent e of cost ~ n^e: the slope of the least-squares line of log cost over log n.

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
    """Memory that the step ``prepare(*full)`` adds at its peak, measured in a fresh process.

    The processes are forked from a server that has imported torch and done nothing else: each starts in
    milliseconds and has its own high-water mark. The step ``prepare(*small)`` runs first, so that what is
    loaded once (kernels, libraries) does not count.
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
        raise MemoryError("the measured process ended before its step did; it probably ran out of memory") from None
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
    unit = 1 if sys.platform == "darwin" else 1024  # the one reports bytes, the other kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
