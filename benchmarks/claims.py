"""Claims about the cost of operators, losses and the loader, each with its target and the measured value."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch.utils.data import default_collate

from benchmarks import parse_settings, print_report, show_step
from rankfall import metrics, ops
from rankfall.benchmarks import loader, operators
from rankfall.benchmarks.loader import DAY, EVENT, EVENTS, ITEM, ITEMS, STAGES, USER
from rankfall.benchmarks.timing import (
    WARM_UP,
    Case,
    Shape,
    cpu_seconds,
    growth_exponent,
    linear,
    peak_bytes,
    time_in_turns,
)
from rankfall.reproductions import textbook

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rankfall.benchmarks.timing import Step
    from rankfall.data.impressions.log import ImpressionLog

USUAL = Shape(128, 1000, 10)
SHORT = Shape(128, 100, 10)
LONG = Shape(1, 100_000, 10)
PAIRS = Shape(1, 10_000, 10)
MEMORY_SIZES = (50_000, 100_000, 200_000, 400_000)
PIRANK_SIZES = (4096, 8192, 16_384, 32_768, 65_536)
GROWTH_LISTS = 4  # enough items for the cost per item to dominate the cost per call
LINEAR = 1.1  # largest measured exponent that counts as linear
MB = 2**20
KINDS = ("ops", "losses", "loader")
LOOP = "loop over requests"

TABLES = {
    "floor": operators.FLOORS,
    "ops": operators.OPERATORS,
    "ops textbook": textbook.CASES,
    "losses": operators.LOSSES,
    "pirank": {f"depth {depth}": operators.kept_rows(ops.pirank_sort, scaled=True, depth=depth) for depth in (1, 2, 3)},
    "metrics": {
        "recall": Case(lambda s, y, k: metrics.recall(s, y, m=k, k=k), linear),
        "ndcg": Case(lambda s, y, k: metrics.ndcg(s, y, k=k), linear),
    },
}


def prepare(table: str, name: str, shape: Shape) -> Step:
    """Return one forward and backward pass of a case."""
    return TABLES[table][name].step(shape)


def case_peak_bytes(table: str, name: str, shape: Shape) -> int:
    """Return the peak memory of one forward and backward pass of a case, in bytes."""
    return peak_bytes(prepare, small=(table, name, WARM_UP), full=(table, name, shape))


@dataclass(frozen=True)
class Claim:
    """A claim about cost, its target and the measured value."""

    claim: str
    target: str
    measured: str
    value: float
    met: bool


def at_most(claim: str, limit: float, value: float, unit: str = " x") -> Claim:
    """Return a claim that is met if the value is at most the limit."""
    return Claim(claim, f"<= {limit:g}{unit}", f"{value:.2f}{unit}", value, value <= limit)


def at_least(claim: str, limit: float, value: float, unit: str = " x") -> Claim:
    """Return a claim that is met if the value is at least the limit."""
    return Claim(claim, f">= {limit:g}{unit}", f"{value:,.1f}{unit}", value, value >= limit)


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long."""

    kinds: tuple[str, ...] = KINDS
    seconds: float = 0.3  # approximate time to measure each function


def check_claims(settings: Settings, report: Callable[[str], None]) -> list[Claim]:
    """Measure all claims: forward and backward, on one thread; and the speed of the loader.

    Args:
        settings: What is measured, and for how long.
        report: Called with the name of each group of claims after it is measured.
    """
    claims: list[Claim] = []
    for kind in settings.kinds:
        for name, check in CHECKS[kind].items():
            claims += check(settings.seconds)
            report(name)
    return claims


def _thresholds(seconds: float) -> list[Claim]:
    cost = _costs(
        seconds,
        USUAL,
        floor=("torch.sigmoid", "torch.topk", "torch.sort"),
        ops=("dftopk", "lapsum_topk", "sigmoid_topk", "sparse_topk"),
    )
    cheapest = cost["floor", "torch.topk"] + cost["floor", "torch.sigmoid"]
    sort, dftopk = cost["floor", "torch.sort"], cost["ops", "dftopk"]
    return [
        at_most("dftopk / (torch.topk + torch.sigmoid)", 2, dftopk / cheapest),
        at_most("lapsum_topk / torch.sort", 1, cost["ops", "lapsum_topk"] / sort),
        at_most("sparse_topk / torch.sort", 2, cost["ops", "sparse_topk"] / sort),
        at_most("sigmoid_topk / dftopk", 4, cost["ops", "sigmoid_topk"] / dftopk),
    ]


def _neural_sort(seconds: float) -> list[Claim]:
    normalised = "neural_sort (normalised)"
    cost = _costs(seconds, USUAL, **{"ops": ("neural_sort", normalised), "ops textbook": ("neural_sort",)})
    textbook = cost["ops textbook", "neural_sort"]
    peaks = [case_peak_bytes("ops", "neural_sort", Shape(GROWTH_LISTS, n, 10)) for n in MEMORY_SIZES]
    exponent = growth_exponent(MEMORY_SIZES, peaks)
    return [
        at_least("neural_sort inclusion, faster than n x n", 100, textbook / cost["ops", "neural_sort"]),
        at_least(f"{normalised} inclusion, faster than n x n", 100, textbook / cost["ops", normalised]),
        at_most("neural_sort, growth of memory with n", LINEAR, exponent, unit=""),
    ]


def _diff_sort(seconds: float) -> list[Claim]:
    faster = _times_faster("diff_sort", seconds, SHORT)
    return [at_least("diff_sort (odd-even, n = 100), faster than dense layers", 5, faster)]


def _pirank_sort(seconds: float) -> list[Claim]:
    return [_pirank_growth(depth, seconds) for depth in (2, 3)]


def _pirank_growth(depth: int, seconds: float) -> Claim:
    """Compare with the exponent of the paper: an upper limit, as our nodes compute only the rows they keep."""
    case = f"depth {depth}"
    shapes = [Shape(GROWTH_LISTS, n, 10) for n in PIRANK_SIZES]
    costs = [_costs(seconds, shape, pirank=(case,))["pirank", case] for shape in shapes]
    limit = round(1 + 1 / depth, 2)
    return at_most(f"pirank_sort, growth of time with n at {case}", limit, growth_exponent(PIRANK_SIZES, costs), "")


def _long_list(table: str, *names: str) -> Callable[[float], list[Claim]]:
    """Return a check that lists of 100,000 items fit into the memory of a small machine."""

    def check(seconds: float) -> list[Claim]:
        return [_memory(table, name, LONG, "100,000 items") for name in names]

    return check


def _pairs(seconds: float) -> list[Claim]:
    return [_memory("losses", name, PAIRS, "10,000 items") for name in ("ranknet_loss", "lambda_loss")]


def _memory(table: str, name: str, shape: Shape, size: str) -> Claim:
    return at_most(f"{name} on {size}, peak memory", 2048, case_peak_bytes(table, name, shape) / MB, unit=" MB")


def _times_faster(name: str, seconds: float, shape: Shape) -> float:
    cost = _costs(seconds, shape, **{"ops": (name,), "ops textbook": (name,)})
    return cost["ops textbook", name] / cost["ops", name]


def _costs(seconds: float, shape: Shape, **names: tuple[str, ...]) -> dict[tuple[str, str], float]:
    """Return the CPU seconds of cases measured in turns, by table and name."""
    keys = {f"{table}/{name}": (table, name) for table, group in names.items() for name in group}
    steps = {label: prepare(*key, shape) for label, key in keys.items()}
    clocks = time_in_turns(steps, seconds=seconds)
    return {keys[label]: cpu_seconds(clock) for label, clock in clocks.items()}


# --- the loop ---------------------------------------------------------------------------------------------------


class RequestLoop:
    """Loader as in published code: dictionaries from requests to arrays, and a loop over the requests of a batch.

    Published loaders unpickle one dictionary ``{request: {stage: (n, features)}}``, one dictionary
    ``{request: (50, features)}`` for the sequences, and collate the arrays of the requests with torch. Building the
    dictionaries is not part of the measured time.
    """

    COLUMNS = ("item", *(f"item.{name}" for name in ITEM), "rank", "relevance", "grade", "feedback.effective_view")

    def __init__(self, log: ImpressionLog) -> None:
        table = log.days[DAY].table()
        self.requests: list[int] = table["request"].to_pylist()
        self.users = dict(zip(self.requests, self._arrays(table, [f"user.{name}" for name in USER]), strict=True))
        events = self._arrays(table, [f"sequence.history.{name}" for name in EVENT])
        self.sequences = dict(zip(self.requests, events, strict=True))
        stages = (
            {stage: rows[depth == number] for number, stage in enumerate(STAGES) if (depth == number).any()}
            for rows, (depth,) in zip(
                self._arrays(table, self.COLUMNS),
                (rows.T for rows in self._arrays(table, ["depth"])),
                strict=True,
            )
        )
        self.stages = dict(zip(self.requests, stages, strict=True))

    @staticmethod
    def _arrays(table: pa.Table, names: Any) -> Iterator[NDArray[np.int64]]:
        """Return, per request, the columns `names` (lists or values) stacked along the last axis."""
        columns = [table[name].combine_chunks() for name in names]
        flat = np.stack(
            [(column.values if pa.types.is_list(column.type) else column).to_numpy() for column in columns], -1
        ).astype(np.int64)
        length = len(flat) // len(table)
        return iter(flat.reshape(len(table), length, -1) if length > 1 else flat)

    def __getitem__(self, request: int) -> dict[str, Any]:
        """Return the padded arrays of one request."""
        user, events, stages = self.users[request], self.sequences[request], self.stages[request]
        arrays: dict[str, Any] = {f"user.{name}": user[i] for i, name in enumerate(USER)}
        history = np.zeros((EVENTS, len(EVENT)), np.int64)
        history[: len(events)] = events
        arrays |= {f"sequence.history.{name}": history[:, i] for i, name in enumerate(EVENT)}
        arrays["sequence_mask"] = np.arange(EVENTS) < len(events)
        lists = np.zeros((ITEMS, len(self.COLUMNS)), np.int64)
        depth, mask, start = np.full(ITEMS, -1), np.zeros(ITEMS, bool), 0
        for number, stage in enumerate(STAGES):
            if stage in stages:
                span = slice(start, start + len(stages[stage]))
                lists[span], depth[span], mask[span] = stages[stage], number, True
                start = span.stop
        arrays |= {name: lists[:, i] for i, name in enumerate(self.COLUMNS)}
        return arrays | {"depth": depth, "mask": mask}

    def batch(self, requests: list[int]) -> dict[str, Tensor]:
        """Return the tensors of a batch of requests."""
        collated: dict[str, Tensor] = default_collate([self[request] for request in requests])
        return collated


def loader_speeds(log: ImpressionLog, seconds: float) -> dict[str, float]:
    """Return impressions per second of CPU time of the loader's settings and of the loop, measured in turns."""
    steps, _ = loader.loader_steps(log)
    loop = RequestLoop(log)
    requests = cycle([loop.requests[i : i + loader.BATCH] for i in range(0, len(loop.requests), loader.BATCH)])
    clocks = time_in_turns({**steps, LOOP: lambda: loop.batch(next(requests))}, seconds=seconds)
    counts = dict.fromkeys(steps, len(log.days[DAY])) | {LOOP: loader.BATCH}
    return {name: counts[name] / cpu_seconds(clock) for name, clock in clocks.items()}


def loader_claim(speeds: dict[str, float]) -> Claim:
    """Return the claim about the speed of the loader."""
    return at_least("shuffled batches, faster than a loop over requests", 25, speeds["shuffled"] / speeds[LOOP])


def _loader(seconds: float) -> list[Claim]:
    with tempfile.TemporaryDirectory() as directory:
        return [loader_claim(loader_speeds(loader.write_log(Path(directory), loader.IMPRESSIONS), seconds))]


# --- all claims -------------------------------------------------------------------------------------------------

Check = Callable[[float], list[Claim]]

CHECKS: dict[str, dict[str, Check]] = {
    "ops": {
        "threshold operators": _thresholds,
        "neural_sort": _neural_sort,
        "diff_sort": _diff_sort,
        "pirank_sort": _pirank_sort,
        "long lists": _long_list("ops", "dftopk", "lapsum_topk", "sigmoid_topk", "sparse_topk", "neural_sort"),
    },
    "losses": {
        "pairs": _pairs,
        "long lists": _long_list("losses", "softmax_loss"),
        "long lists, metrics": _long_list("metrics", "recall", "ndcg"),
    },
    "loader": {"shuffled batches": _loader},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all claims."""
    settings, _ = parse_settings(__doc__, Settings, arguments)
    claims = check_claims(settings, lambda name: show_step(name, 0, None))
    problems = [f"{one.claim}: {one.measured}, the target is {one.target}" for one in claims if not one.met]
    return print_report({"claims": [asdict(claim) for claim in claims], "problems": problems})


if __name__ == "__main__":
    sys.exit(main())
