"""Claims about the cost of operators and losses, each with its target and the measured value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankfall.benchmarks.cases import Shape, prepare
from rankfall.benchmarks.measure import cpu_seconds, growth_exponent, time_in_turns
from rankfall.benchmarks.operator_sweep import FunctionKind, case_peak_bytes

USUAL = Shape(128, 1000, 10)
SHORT = Shape(128, 100, 10)
LONG = Shape(1, 100_000, 10)
PAIRS = Shape(1, 10_000, 10)
MEMORY_SIZES = (50_000, 100_000, 200_000, 400_000)
PIRANK_SIZES = (4096, 8192, 16_384, 32_768, 65_536)
GROWTH_LISTS = 4  # enough items for the cost per item to dominate the cost per call
LINEAR = 1.1  # largest measured exponent that counts as linear
MB = 2**20


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


def check_claims(kind: FunctionKind, seconds: float, report: Callable[[str], None]) -> list[Claim]:
    """Measure all claims about operators or losses: forward and backward, on one thread.

    Args:
        kind: "ops" or "losses".
        seconds: Approximate time to measure each function.
        report: Called with the name of each group of claims after it is measured.

    Returns:
        The claims with their measured values.
    """
    claims: list[Claim] = []
    for name, check in CHECKS[kind].items():
        claims += check(seconds)
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


Check = Callable[[float], list[Claim]]

CHECKS: dict[FunctionKind, dict[str, Check]] = {
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
}
