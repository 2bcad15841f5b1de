"""CPU time of one row of a soft sort by the length of lists: computed at once (depth 1) and in a tree of depth 3.

Depth 1 of the paper is NeuralSort through its n x n matrix, with a cost of L^2; depth 3 costs L^(4/3). Our operators
compute only the k rows that are asked for, from prefix sums, so neither has the n x n matrix. The textbook form is
timed beside them, because it is what the figure is about.
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

    from rankfall.reproductions.paper_schema import SortRuntime
    from rankfall.reproductions.task import Task

TEXTBOOK, ONE, TREE = "depth 1, textbook (n x n)", "depth 1, rankfall (k rows)", "depth 3, rankfall (tree)"
PUBLISHED_AS = {TEXTBOOK: "depth 1", ONE: "depth 1", TREE: "depth 3"}
LISTS = 64  # timed at once, so that the overhead of calls does not count
MATRIX_ITEMS = 1_000_000  # entries of all n x n matrices at once; long lists are timed in smaller batches


def run(reproduction: SortRuntime, task: Task) -> Report:
    """Time forward and backward of one row (k = 1) for every length."""
    lengths = [length for length in reproduction.lengths if length <= task.size.longest]
    _times(2**3, 0.0, task.seed)  # the first call loads libraries
    seconds: dict[str, list[float]] = {name: [] for name in PUBLISHED_AS}
    for number, length in enumerate(lengths):
        task.progress(f"lists of {length}", number, len(lengths))
        for name, value in _times(length, 1.0 if task.size.tune else 0.2, task.seed).items():
            seconds[name].append(value)
    growth = {name: growth_exponent(lengths, values) for name, values in seconds.items()}
    rows = [
        [f"{length:,}", *(f"{1000 * seconds[name][i]:,.3f}" for name in PUBLISHED_AS)]
        for i, length in enumerate(lengths)
    ]
    rows += [
        [],
        ["grows like", *(f"L^{growth[name]:.2f}" for name in PUBLISHED_AS)],
        ["published", *(f"L^{reproduction.growth[name]:.2f}" for name in PUBLISHED_AS.values())],
    ]
    title = "milliseconds per list, forward + backward, k = 1, one thread (CPU time)"
    points = [
        {"series": name, "x": length, "y": 1000 * value}
        for name, values in seconds.items()
        for length, value in zip(lengths, values, strict=True)
    ]
    figure = Lines(
        points,
        title="One row of a soft sort, computed at once or in a tree",
        subtitle=title,
        x="list size L",
        y="milliseconds per list",
        series="operator",
        log_x=True,
        log_y=True,
        ticks=lengths,
    )
    return Report(
        sheets=[Sheet(title, ["list size L", *PUBLISHED_AS], rows)],
        plots={reproduction.id: figure},
        results={
            "sizes": lengths,
            "k": 1,
            "seconds_a_list": seconds,
            "growth": growth,
            "published": {"sizes": reproduction.lengths, "growth": reproduction.growth},
        },
        notes=[*_notes(seconds, growth), *reproduction.notes],
    )


def _times(length: int, seconds: float, seed: int) -> dict[str, float]:
    """Seconds per list."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(LISTS, length, generator=generator)
    lists = dict.fromkeys(PUBLISHED_AS, LISTS) | {TEXTBOOK: max(1, min(LISTS, MATRIX_ITEMS // length**2))}
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
        f"On the longest lists, depth 3 is {last[TEXTBOOK] / last[TREE]:.0f} times as fast as the n x n form, which "
        f"grows like L^{growth[TEXTBOOK]:.2f}. This is what the figure of the paper shows.",
        f"It takes {last[TREE] / last[ONE]:.1f} times as long as our depth 1, which computes its one row from a sort "
        "and prefix sums, without the matrix that a tree avoids.",
    ]
