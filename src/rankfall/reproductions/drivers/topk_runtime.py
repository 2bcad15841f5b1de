"""CPU time of soft top-k operators by the length of lists, for k = n/2, beside published times.

Every operator is timed twice: the code of the library, and a textbook form, which is closer to what papers time. All of
them run in turns in one process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from rankfall.benchmarks.operators import OPERATORS
from rankfall.benchmarks.timing import MAX_BYTES, Shape, cpu_seconds, time_in_turns
from rankfall.reporting.figures import Lines
from rankfall.reproductions import textbook
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from rankfall.benchmarks.timing import Step
    from rankfall.reproductions.paper_schema import Number, TopkRuntime
    from rankfall.reproductions.task import Task

    Times = Mapping[str, Mapping[Number, float]]  # milliseconds for each operator and length

OURS, TEXTBOOK = "rankfall", "textbook"
CASES = {OURS: OPERATORS, TEXTBOOK: textbook.CASES}
FORWARD, BOTH = "forward", "forward + backward"
GROWTH = 4  # no operator grows faster than n^4, so that a pass that would take too long can be left out
PUBLISHED = "milliseconds"


def run(reproduction: TopkRuntime, task: Task) -> Report:
    """Time forward, and forward and backward, of every operator at every length."""
    lengths = [int(length) for length in reproduction.published.points if length <= task.size.longest]
    (hardware,) = reproduction.published.values
    published = reproduction.published.figures(hardware, PUBLISHED)
    times: dict[str, dict[str, dict[Number, float]]] = {
        f"{code}, {what}": {row: {} for row in reproduction.operators} for code in CASES for what in (FORWARD, BOTH)
    }
    for number, length in enumerate(lengths):
        task.progress(f"lists of {length}", number, len(lengths))
        for key, row, value in _measure(reproduction, length, times, task):
            times[key][row][length] = value
    title = f"milliseconds for {reproduction.lists} lists, k = n/2, CPU time of one thread"
    sheets = [
        _sheet(f"{BOTH}: {title}", BOTH, lengths, times, {f"published, {hardware}": published}),
        _sheet(f"{FORWARD}: {title}", FORWARD, lengths, times, {}),
    ]
    return Report(
        sheets=sheets,
        plots={reproduction.id: _figure(reproduction.title, lengths, times, published, hardware)},
        results={
            "lists": reproduction.lists,
            "lengths": lengths,
            "milliseconds": times,
            "published": {
                "hardware": hardware,
                "milliseconds": {row: dict(curve) for row, curve in published.items()},
            },
            "fastest": {key: fastest(times[f"{key}, {BOTH}"], lengths) for key in CASES},
        },
        notes=[*_notes(times, published, lengths), *reproduction.notes],
    )


# --- measuring ------------------------------------------------------------------------------------------------------


def _measure(
    reproduction: TopkRuntime, length: int, before: Mapping[str, Times], task: Task
) -> list[tuple[str, str, float]]:
    """Return the table, the operator and the milliseconds of every pass that is not left out."""
    seconds, longest_pass = (0.03, 4.0) if task.quick else (0.3, 120.0)
    shape = Shape(reproduction.lists, length, length // 2)
    steps: dict[str, Step] = {}
    measured: dict[str, tuple[str, str]] = {}
    for code, table in CASES.items():
        for row, name in reproduction.operators.items():
            case, keys = table[name], [f"{code}, {what}" for what in (FORWARD, BOTH)]
            if case.bytes(shape) <= MAX_BYTES and _expected(before[keys[1]][row], length) <= longest_pass:
                for key, step in zip(keys, passes(case.run, shape, task.seed), strict=True):
                    steps[f"{key}: {row}"], measured[f"{key}: {row}"] = step, (key, row)
    clocks = time_in_turns(steps, seconds=seconds)
    return [(*measured[name], 1000 * cpu_seconds(clock)) for name, clock in clocks.items()]


def _expected(before: Mapping[Number, float], length: int) -> float:
    """Return the largest number of seconds that a pass may take, by the lengths that were timed before it."""
    if not before:
        return 0.0
    last = max(before)
    seconds: float = before[last] / 1000 * (length / last) ** GROWTH
    return seconds


def passes(operator: Callable[[Tensor, Tensor, int], Tensor], shape: Shape, seed: int) -> tuple[Step, Step]:
    """Return a forward pass, and a forward and backward pass, of an operator on random lists."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape.lists, shape.n, generator=generator).requires_grad_()
    direction = torch.randn(shape.lists, shape.n, generator=generator)
    forward = partial(operator, scores, scores.detach(), shape.k)
    return forward, lambda: torch.autograd.grad(forward(), scores, direction)


# --- the report -----------------------------------------------------------------------------------------------------


def fastest(times: Times, lengths: Sequence[Number]) -> dict[str, str]:
    """Return the fastest operator at each length.

    >>> fastest({"a": {5: 1.0, 10: 4.0}, "b": {5: 2.0, 10: 3.0}}, [5, 10])
    {'5': 'a', '10': 'b'}
    """
    return {
        f"{length}": min((row for row in times if length in times[row]), key=lambda row: times[row][length])
        for length in lengths
    }


def _sheet(
    title: str, what: str, lengths: Sequence[int], times: Mapping[str, Times], published: Mapping[str, Times]
) -> Sheet:
    rows: list[list[str]] = []
    for source, values in {**{code: times[f"{code}, {what}"] for code in CASES}, **published}.items():
        rows += [[]] if rows else []
        rows += [
            [f"{row}, {source}", *(f"{curve[length]:,.2f}" if length in curve else "-" for length in lengths)]
            for row, curve in values.items()
        ]
    return Sheet(title, ["operator", *(f"n = {length}" for length in lengths)], rows)


def _figure(
    title: str, lengths: Sequence[Number], times: Mapping[str, Times], published: Times, hardware: str
) -> Lines:
    panels = {f"here, {code}": times[f"{code}, {BOTH}"] for code in CASES} | {f"published, {hardware}": published}
    points = [
        {"panel": panel, "series": row, "x": length, "y": value}
        for panel, rows in panels.items()
        for row, curve in rows.items()
        for length, value in curve.items()
    ]
    return Lines(
        points,
        title=f"{title}: a forward and backward pass by length",
        subtitle="milliseconds; k = n/2",
        x="items per list",
        y="milliseconds",
        series="operator",
        log_x=True,
        log_y=True,
        ticks=lengths,
    )


def _notes(times: Mapping[str, Times], published: Times, lengths: Sequence[int]) -> list[str]:
    winner = fastest(published, lengths)[f"{lengths[-1]}"]
    first = {code: list(fastest(times[f"{code}, {BOTH}"], lengths).values()).count(winner) for code in CASES}
    skipped = [
        f"{row} ({code}) from n = {next(n for n in lengths if n not in curve)} on"
        for code in CASES
        for row, curve in times[f"{code}, {BOTH}"].items()
        if len(curve) < len(lengths)
    ]
    notes = [
        f"Forward and backward of {winner} is the fastest in print at "
        f"{list(fastest(published, lengths).values()).count(winner)} of {len(lengths)} lengths, here at "
        f"{first[OURS]} (code of rankfall) and at {first[TEXTBOOK]} (textbook code)."
    ]
    return notes + (
        [f"Left out, because a pass would take too long or too much memory: {', '.join(skipped)}."] if skipped else []
    )
