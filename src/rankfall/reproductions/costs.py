"""Time and memory of steps that are compared: side by side in one process, memory in a fresh process for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall.benchmarks.measure import cpu_seconds, cpu_spread, peak_bytes, time_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankfall.benchmarks.measure import Step


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a step.

    Attributes:
        seconds: Median CPU time on one thread.
        spread: Half the interquartile range as a share of the median, None for fewer than two turns.
        peak: Peak memory that the step adds in a fresh process, in bytes.
    """

    seconds: float
    spread: float | None
    peak: int


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments of the function that prepares a step: of the measured one, and of a small one that runs before it."""

    full: tuple[Any, ...]
    small: tuple[Any, ...]


def costs_of(prepare: Callable[..., Step], cases: Mapping[str, Case], *, seconds: float) -> dict[str, Cost]:
    """Measure steps, which take turns so that other load of the machine affects all of them.

    Args:
        prepare: Importable function that returns a step.
        cases: Its arguments by name.
        seconds: Approximate time for each step.
    """
    clocks = time_in_turns({name: prepare(*case.full) for name, case in cases.items()}, seconds=seconds)
    return {
        name: Cost(
            seconds=cpu_seconds(clocks[name]),
            spread=cpu_spread(clocks[name]),
            peak=peak_bytes(prepare, small=case.small, full=case.full),
        )
        for name, case in cases.items()
    }
