"""Benchmark of every operator or every loss over list lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from rankfall.benchmarks.cases import FLOORS, TABLES, Shape, prepare
from rankfall.benchmarks.measure import cpu_seconds, growth_exponent, peak_bytes, time_in_turns, wall_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rankfall.benchmarks.measure import Clock, Step

    Report = Callable[[str], None]  # called with a description after each measurement

FunctionKind = Literal["ops", "losses"]

SIZES = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
QUICK_SIZES = (50, 200)
BATCH_ITEMS = 128_000  # 128 lists of 1000 items; batches of longer lists have fewer lists
MAX_BYTES = 4 * 2**30
MAX_SECONDS = 10.0
LARGE = 500  # shortest list in the fit of growth: below, the cost per call dominates the cost per item


@dataclass(frozen=True)
class Settings:
    """Extent of the measurement.

    Attributes:
        sizes: List lengths.
        seconds: Approximate time to measure each step.
        quick: Measure only k = 10 on one thread, without memory.
    """

    sizes: Sequence[int] = SIZES
    seconds: float = 0.3
    quick: bool = False

    @property
    def shapes(self) -> list[Shape]:
        """Every length with k = 10, followed by every length with k = n/2 unless `quick` is set."""
        few = [Shape(_lists(n), n, 10) for n in self.sizes]
        half = [Shape(_lists(n), n, n // 2) for n in self.sizes if n // 2 != 10]
        return few if self.quick else few + half


@dataclass(frozen=True)
class Row:
    """Result of one function at one shape: milliseconds and megabytes, None if not measured."""

    name: str
    lists: int
    n: int
    k: int
    cpu_ms: float | None = None  # one thread, CPU time
    wall_ms: float | None = None  # all threads, wall time
    ratios: dict[str, float] | None = None  # cpu_ms divided by that of each floor
    textbook_ms: float | None = None
    textbook_faster: float | None = None  # textbook_ms / cpu_ms
    peak_mb: float | None = None
    textbook_peak_mb: float | None = None
    left_out: str = ""  # reason why it was not measured
    textbook_left_out: str = ""


def sweep(kind: FunctionKind, settings: Settings, report: Report) -> list[Row]:
    """Measure every function of `kind`, and the floors, at every shape."""
    limit = CostLimit()
    rows: list[Row] = []
    for shape in settings.shapes:
        rows += _measure_shape(kind, shape, settings, limit)
        report(f"n = {shape.n}, k = {shape.k}")
    return rows


def growth(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return, per function and choice of k, the exponent e in "CPU time per list ~ n^e", fitted to long lists."""
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


# --- one shape ----------------------------------------------------------------------------------------------


class CostLimit:
    """Predicts the cost of a step from shorter lists, so that steps of several minutes are skipped."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, str, bool], tuple[Shape, float]] = {}

    def note(self, table: str, name: str, shape: Shape, seconds: float) -> None:
        """Record the measured cost of a step."""
        self.last[table, name, shape.k == 10] = (shape, seconds)

    def reason(self, table: str, name: str, shape: Shape) -> str:
        """Return why the step is skipped, or an empty string if it is not."""
        case = TABLES[table][name]
        need = case.bytes(shape)
        if need > MAX_BYTES:
            return f"needs {need / 2**30:,.0f} GB"
        before = self.last.get((table, name, shape.k == 10))
        if before is not None:
            shorter, seconds = before
            expected = seconds * case.work(shape) / case.work(shorter)
            if expected > MAX_SECONDS:
                return f"would take {expected:,.0f} s"
        return ""


def _measure_shape(kind: FunctionKind, shape: Shape, settings: Settings, limit: CostLimit) -> list[Row]:
    tables = ("floor", kind, f"{kind} textbook")
    reasons = {("floor", name): "" for name in TABLES["floor"]}  # floors are never skipped: every ratio needs them
    reasons |= {(table, name): limit.reason(table, name, shape) for table in tables[1:] for name in TABLES[table]}
    steps = {key: prepare(*key, shape) for key, reason in reasons.items() if not reason}
    single = timed(steps, settings.seconds, threads=1)
    for (table, name), clock in single.items():
        limit.note(table, name, shape, cpu_seconds(clock))  # wall time includes other load of the machine
    ours = {key: step for key, step in steps.items() if key[0] != tables[2]}
    many = {} if settings.quick else timed(ours, settings.seconds / 3, threads=torch.get_num_threads())
    peaks = {} if settings.quick else {key: case_peak_bytes(*key, shape) for key in steps}

    def row(table: str, name: str) -> Row:
        key, other = (table, name), (tables[2], name)
        if key not in single:
            return Row(name, shape.lists, shape.n, shape.k, left_out=reasons[key])
        cpu = cpu_seconds(single[key])
        slow = cpu_seconds(single[other]) if other in single else None
        return Row(
            name,
            shape.lists,
            shape.n,
            shape.k,
            cpu_ms=cpu * 1e3,
            wall_ms=wall_seconds(many[key]) * 1e3 if key in many else None,
            ratios={floor: cpu / cpu_seconds(single["floor", floor]) for floor in FLOORS},
            textbook_ms=None if slow is None else slow * 1e3,
            textbook_faster=None if slow is None else slow / cpu,
            peak_mb=peaks[key] / 2**20 if key in peaks else None,
            textbook_peak_mb=peaks[other] / 2**20 if other in peaks else None,
            textbook_left_out=reasons.get(other, ""),
        )

    return [row(table, name) for table in tables[:2] for name in TABLES[table]]


def timed(steps: dict[tuple[str, str], Step], seconds: float, threads: int) -> dict[tuple[str, str], Clock]:
    """Measure steps in turns and return their clocks, by table and name."""
    by_name = {"/".join(key): step for key, step in steps.items()}
    clocks = time_in_turns(by_name, seconds=seconds, threads=threads)
    return {key: clocks["/".join(key)] for key in steps}


def case_peak_bytes(table: str, name: str, shape: Shape) -> int:
    """Return the peak memory of one forward and backward pass of a case, in bytes."""
    return peak_bytes(prepare, small=(table, name, Shape(1, 32, 4)), full=(table, name, shape))


def _lists(n: int) -> int:
    return max(1, min(128, BATCH_ITEMS // n))
