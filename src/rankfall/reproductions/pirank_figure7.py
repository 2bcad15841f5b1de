"""PiRank, figure 7: the wall clock of a sort in one piece (depth 1) and in a tree of depth 3.

The paper's depth 1 is NeuralSort through its n x n matrix, so its cost grows like L^2; depth 3 grows like L^(4/3). Our
operators compute only the k rows that are asked for, from prefix sums, so neither has the n x n matrix; the
textbook form is timed beside them, because it is what the figure is about.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from rankfall.benchmarks import textbook
from rankfall.benchmarks.measure import cpu_seconds, growth_exponent, time_in_turns
from rankfall.ops import pirank_sort
from rankfall.reporting.figures import Lines
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rankfall.reproductions.task import Task

# The sizes and the exponents of L that the paper states; its seconds are not in our notes.
SIZES = (5**3, 10**3, 13**3, 15**3)
PUBLISHED_GROWTH = {"depth 1": 2.0, "depth 3": 4 / 3}

TEXTBOOK, ONE, TREE = "depth 1, textbook (n x n)", "depth 1, rankfall (k rows)", "depth 3, rankfall (tree)"
STATED = {TEXTBOOK: "depth 1", ONE: "depth 1", TREE: "depth 3"}
LISTS = 64  # timed at once, so that what is measured is work and not the calls
MATRIX_ITEMS = 1_000_000  # of all n x n matrices at once; the textbook gets fewer lists if they are long


def run(task: Task) -> Report:
    """Time forward + backward of one row (k = 1) for every size."""
    sizes = [size for size in SIZES if size <= task.size.longest]
    _times(2**3, 0.0, task.seed)  # libraries are loaded at the first call
    seconds: dict[str, list[float]] = {name: [] for name in STATED}
    for number, size in enumerate(sizes):
        task.progress(f"lists of {size}", number, len(sizes))
        for name, value in _times(size, 1.0 if task.size.tune else 0.2, task.seed).items():
            seconds[name].append(value)
    growth = {name: growth_exponent(sizes, values) for name, values in seconds.items()}
    rows = [[f"{size:,}", *(f"{1000 * seconds[name][i]:,.3f}" for name in STATED)] for i, size in enumerate(sizes)]
    rows += [
        [],
        ["grows like", *(f"L^{growth[name]:.2f}" for name in STATED)],
        ["published", *(f"L^{PUBLISHED_GROWTH[stated]:.2f}" for stated in STATED.values())],
    ]
    title = "milliseconds a list, forward + backward, k = 1, one thread (CPU time)"
    points = [
        {"series": name, "x": size, "y": 1000 * value}
        for name, values in seconds.items()
        for size, value in zip(sizes, values, strict=True)
    ]
    picture = Lines(
        points,
        title="One row of a soft sort, in one piece or in a tree",
        subtitle=title,
        x="list size L",
        y="milliseconds a list",
        series="operator",
        log_x=True,
        log_y=True,
        ticks=sizes,
    )
    return Report(
        sheets=[Sheet(title, ["list size L", *STATED], rows)],
        plots={"pirank-figure7": picture},
        results={
            "sizes": sizes,
            "k": 1,
            "seconds_a_list": seconds,
            "growth": growth,
            "published": {"sizes": SIZES, "growth": PUBLISHED_GROWTH},
        },
        notes=_notes(seconds, growth),
    )


def _times(size: int, seconds: float, seed: int) -> dict[str, float]:
    """Seconds a list."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(LISTS, size, generator=generator)
    lists = dict.fromkeys(STATED, LISTS) | {TEXTBOOK: max(1, min(LISTS, MATRIX_ITEMS // size**2))}
    sorts: dict[str, Callable[[Tensor], Tensor]] = {
        TEXTBOOK: lambda s: textbook.neural_sort(s)[..., :1, :],
        ONE: partial(pirank_sort, k=1, depth=1),
        TREE: partial(pirank_sort, k=1, depth=3),
    }
    steps = {
        name: partial(_forward_backward, sort, scores[: lists[name]].clone().requires_grad_())
        for name, sort in sorts.items()
    }
    clocks = time_in_turns(steps, seconds=seconds)
    return {name: cpu_seconds(clock) / lists[name] for name, clock in clocks.items()}


def _forward_backward(sort: Callable[[Tensor], Tensor], scores: Tensor) -> None:
    torch.autograd.grad(sort(scores)[..., 0].sum(), scores)


def _notes(seconds: dict[str, list[float]], growth: dict[str, float]) -> list[str]:
    last = {name: values[-1] for name, values in seconds.items()}
    return [
        f"Against the n x n form, which grows like L^{growth[TEXTBOOK]:.2f}, depth 3 is "
        f"{last[TEXTBOOK] / last[TREE]:.0f} times as fast on the longest lists. That is the figure of the paper.",
        f"Against our depth 1 it takes {last[TREE] / last[ONE]:.1f} times as long there. Our depth 1 makes its one row "
        "from a sort and prefix sums, so there is no matrix that a tree could save.",
    ]
