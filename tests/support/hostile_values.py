"""Values that nobody should pass to a function, by the name of the argument, beside ordinary ones.

`KINDS` has the values of options and numbers, `HOSTILE_NUMBERS` those of tensors. :func:`option_values` is a strategy
for an option; :mod:`support.hostile_calls` puts such values into calls of every public function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import strategies as st

import rankfall as rf
from rankfall import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH = 5
"""Length of most lists."""

NUMBERS = (0.0, 1.0, -1.0, 1e-45, 1e-30, 3.5, 1e4, -1e4, 1e9, 1e10, -1e10)
"""Numbers that tensors may hold."""

HUGE = (1.1e10, 1e15, -1e15, 1e18, 1e20, -1e20, 1e30, -1e30, 1e38, -1e38, 3.4e38, 1e150, 1e308, -1e308)
HOSTILE_NUMBERS = (*HUGE, math.nan, math.inf, -math.inf)

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
HOSTILE_DTYPES = (torch.complex64, torch.int64, torch.bool, torch.uint8, torch.int32)

SHAPES: tuple[tuple[int, ...], ...] = (
    (LENGTH,),
    (3, LENGTH),
    (1, LENGTH),
    (2, 3, LENGTH),
    (0, LENGTH),
    (2, 1),
    (1,),
    (2, 40),
)
HOSTILE_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (2, 0), (0, 3), (3, 0), (0, 0), (3, LENGTH + 2), (7,))

NO_TENSORS: tuple[Any, ...] = ([1.0, 2.0, 3.0], 1.0, None, "scores", np.ones(LENGTH), [[1.0], [2.0, 3.0]], {}, 10**30)

SCALES: tuple[Any, ...] = (1.0, 0.5, 2, 1e-10, 1e10, 50.0, "scalar", "per list", np.float32(0.5), np.float64(2.0))
HOSTILE_SCALES: tuple[Any, ...] = (
    *(0, 0.0, -1.0, 1e-11, 1e-30, 1e-300, 5e-324, 1e11, 1e30, 1e300, 1.7e308, math.nan, math.inf, -math.inf, 10**30),
    *(
        10**400,
        None,
        True,
        "1",
        1j,
        [1.0],
        (),
        b"1",
        torch.tensor(1e-30),
        torch.tensor(math.nan),
        torch.tensor(1),
        "per item",
    ),
    *(torch.tensor(1j), torch.ones(7), torch.ones(0), torch.ones(2, 2, 2, 2, 1), np.float64("inf"), np.complex128(1j)),
)

COUNTS: tuple[Any, ...] = (1, 2, 3, LENGTH, LENGTH + 1, 20, np.int64(2), np.int8(3))
LARGE_COUNTS: tuple[Any, ...] = (10**6, 2**31 - 1)
HOSTILE_COUNTS: tuple[Any, ...] = (
    0,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    10**400,
    1.5,
    2.0,
    math.nan,
    math.inf,
    True,
    "3",
)
HOSTILE_COUNTS = (*HOSTILE_COUNTS, None, [2], torch.tensor(2), torch.tensor(1.5), b"2", 1j, np.float64(2.0), (), {})

HOSTILE_WORDS: tuple[Any, ...] = ("", "nothing", None, 1, True, [], 1.5, math.nan, ("mean",), {"name": 1}, b"mean")
HOSTILE_FLAGS: tuple[Any, ...] = ("yes", None, 2, 10**30, math.nan, [], torch.tensor([True, False]), "")
HOSTILE_FRACTIONS: tuple[Any, ...] = (
    -0.1,
    1.1,
    1e300,
    -(10**30),
    10**400,
    math.nan,
    math.inf,
    None,
    "0.5",
    True,
    1j,
    [0.5],
    torch.tensor(0.5),
)
HOSTILE_REALS: tuple[Any, ...] = ("0", 1j, [0.0], math.nan, (), 10**400, b"0", {}, torch.tensor([0.0, 1.0]))
HOSTILE_PARTS: tuple[Any, ...] = ("neural_sort", None, 1, 1.5, [], 10**30, "")
HOSTILE_LISTS: tuple[Any, ...] = (
    [],
    [0],
    [2, 3],
    [-1, -1],
    [2**63, 1],
    [10**30, 10**30],
    "ab",
    5.5,
    [1.5, 1],
    [True, True],
    [[2], [1]],
    1j,
)
HOSTILE_LISTS = (*HOSTILE_LISTS, ["a", "b"], [math.nan, 1], {}, [10**400, 1], [1] * 101)


@dataclass(frozen=True)
class Kind:
    """Values of an option: ordinary ones, which every function accepts, and hostile ones."""

    ordinary: Sequence[Any]
    hostile: Sequence[Any]


_sorts = [rf.ops.neural_sort, rf.ops.soft_sort, partial(rf.ops.soft_sort, power=2), rf.ops.diff_sort]
_operators = [rf.ops.topk(name) for name in ("dftopk", "lapsum_topk", "sigmoid_topk", "hard_topk", "sparse_topk")]
_operators += [rf.ops.topk("sparse_topk", p=4 / 3), rf.ops.topk("diff_sort"), rf.ops.topk("pirank_sort", depth=2)]
_operators += [
    rf.ops.topk(name, tau=tau)
    for name in ("dftopk", "lapsum_topk", "sigmoid_topk", "sparse_topk")
    for tau in (1e-10, 1e10)
]
_operators += [
    rf.ops.topk(name, gradient=way, tau=tau)
    for name in ("soft_sort", "neural_sort")
    for way in ("rows", "exact", "one_minus")
    for tau in (1e-10, 1.0, 1e10)
]

_count = Kind((*COUNTS, *COUNTS, *LARGE_COUNTS), HOSTILE_COUNTS)
_optional_count = Kind((None, *COUNTS, *LARGE_COUNTS), HOSTILE_COUNTS)
_scale = Kind(SCALES, HOSTILE_SCALES)
_optional_scale = Kind((None, *SCALES), HOSTILE_SCALES)
_word = partial(Kind, hostile=HOSTILE_WORDS)
_flag = Kind((True, False), HOSTILE_FLAGS)

KINDS: dict[str, Kind] = {
    "k": _count,
    "m": _count,
    "relevant": _count,
    "tau": _scale,
    "label_tau": _optional_scale,
    "steepness": _optional_scale,
    "temperature": Kind((1.0, 0.5, 1e-10, 1e10, np.float32(0.5)), HOSTILE_SCALES),
    "sigma": Kind((1.0, 0.5, 1e-10, 1e10, np.float32(0.5)), HOSTILE_SCALES),
    "beta": Kind((1.0, 0.5, 1e-10, 1e10, np.float32(0.5)), HOSTILE_SCALES),
    "gumbel_samples": Kind((0, 0, 1, 3), (*HOSTILE_COUNTS[1:], 10**6)),
    "generator": Kind((None,), ("seed", 1, math.nan, [])),
    "power": Kind((1, 2), (0, 3, 1.5, math.nan, True, "2", 10**30, None, torch.tensor(2))),
    "p": Kind((2, 4 / 3), (0, 1, 3.0, math.nan, "2", 10**30, 1j, None, 1e300)),
    "depth": Kind((None, 1, 2, 3), (0, -1, 1.5, 60, 10**6, 2**63, 10**30, math.nan, "2", True, [1])),
    "branches": Kind((None, None), HOSTILE_LISTS),
    "kept": Kind((None,), HOSTILE_LISTS),
    "tau_shares": Kind((None,), HOSTILE_LISTS),
    "quotas": Kind(((3, 2), (20, 1), (2**31 - 1, 10**6)), HOSTILE_LISTS),
    "min_depth": Kind((None, -1, (0, 1)), HOSTILE_LISTS),
    "stages": Kind((2,), (*HOSTILE_COUNTS, 10**9)),
    "mix": Kind((0.0, 0.5, 1.0, 1), HOSTILE_FRACTIONS),
    "alpha": Kind((0.5, 0.05), HOSTILE_FRACTIONS),
    "confidence": Kind((0.95, 0.5, 1e-9, 1 - 1e-9), (0.0, 1.0, *HOSTILE_FRACTIONS)),
    "threshold": Kind((0.0, 1, None, -1e300, 1e300), HOSTILE_REALS),
    "empty": Kind((0.0, 1, -1e30), HOSTILE_REALS[:3]),
    "e2e_weight": Kind(("fixed", "learned", 0.5, 1e5), (-1.0, 1e300, 1e11, math.nan, math.inf, 10**400, "x", 1j, [])),
    "single_weight": Kind(("learned", 0.5, 1e5), (-1.0, 1e300, 1e11, math.nan, math.inf, 10**400, "x", 1j, [])),
    "samples": Kind((1, 7, 100), (*HOSTILE_COUNTS, 10**9)),
    "folds": Kind((None,), HOSTILE_LISTS),
    "p_values": Kind(
        ([0.1, 0.2], [], torch.tensor([1e-300, 1.0])), ([2.0], [math.nan], 1.0, "x", None, [1j], [10**400])
    ),
    "sort": Kind(_sorts, HOSTILE_PARTS),
    "topk": Kind((None, *_operators), HOSTILE_PARTS),
    "loss": Kind((None,), HOSTILE_WORDS),
    "reduction": _word(("mean", "sum", "none")),
    "scale": _word(("mean", "sum")),
    "variant": _word(("sound", "published")),
    "version": _word(("sound", "heuristic")),
    "network": _word(("odd_even", "bitonic")),
    "swap": _word(("cauchy", "logistic", "reciprocal", "optimal")),
    "ties": _word(("average", "position")),
    "label_ties": _word(("skip", "count")),
    "gain": _word(("exp2", "linear")),
    "schedule": _word(("joint",)),
    "method": _word(("t", "bootstrap")),
    "alternative": _word(("two-sided", "greater", "less")),
    "over": _word(("both", "seeds", "queries")),
    "baseline": Kind((None, "a"), HOSTILE_WORDS),
    "labels": _word(("grades",)),
    "positive_only": _flag,
    "straight_through": _flag,
    "equal_variance": _flag,
    "higher_is_better": _flag,
    "normalised": _flag,
}
"""Values of options by name."""

_rows = Kind(COUNTS, (*HOSTILE_COUNTS, 2**31 - 1, 10**6))
SPECIAL: dict[tuple[str, str], Kind] = {
    **{(f"{place}{name}", "k"): _rows for name in registry.SORTS for place in ("ops.", "ops.log_rows/")},
    ("objectives.icc", "loss"): _word((None, "lambdarank", "ranknet")),
    ("objectives.per_stage", "loss"): Kind((rf.losses.RankNetLoss(), rf.losses.MSELoss()), ("ranknet_loss", 1, None)),
    ("metrics.funnel", "ties"): _word(("random", "position")),
    ("metrics.funnel", "quotas"): Kind(((3, 2), (20, 1), (2**31 - 1, 1)), HOSTILE_LISTS),
    ("metrics.ndcg_linear", "gain"): _word(("linear",)),
}
"""The same for single functions."""


def option_values(name: str) -> st.SearchStrategy[Any]:
    """Return a strategy for hostile and ordinary values of an option."""
    return st.sampled_from([*KINDS[name].hostile, *KINDS[name].ordinary])
