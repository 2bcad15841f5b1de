"""A loss trained on lists of one length and tested on lists of another: values, and gains over the shortest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.data import RankingData
from rankfall.metrics.named import parse
from rankfall.reporting.figures import Lines
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import deviations, list_config, run_comparison
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet, few_seeds_note
from rankfall.studies.comparison_plan import ComparisonConfig, make_plan
from rankfall.training.measured_lists import score
from rankfall.training.train_ranker import load_lists, load_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rankfall.data.lists.list_loader import Lists
    from rankfall.reproductions.paper_schema import LengthTransfer
    from rankfall.reproductions.task import Task

Values = dict[tuple[str, int, int], float]  # by metric, length of training lists and length of test lists


def run(reproduction: LengthTransfer, task: Task) -> Report:
    """Train on samples of each length from every list, and test on samples of each length."""
    data = task.lists(reproduction.protocol)
    lengths = pick_points(reproduction.lengths, task.size.points)
    sections = {_label(length): fill(reproduction.method.config, {"length": length}) for length in lengths}
    metrics = reproduction.metrics
    config = list_config(reproduction.protocol, task, data, sections, metrics=metrics)
    comparison = run_comparison(task, config)
    trained = [length for length in lengths if _label(length) in {method.name for method in comparison.methods}]
    values: Values = {}
    for length in trained:
        values |= _test(config, task.out / "comparison", length, lengths, metrics, task.seed)
    gained = gains(values, lengths[0])
    patterns = find_patterns(values, gained, lengths) if trained == lengths else []
    return Report(
        sheets=[_sheet(values, gained, metrics, trained, lengths), *_pattern_sheet(patterns)],
        plots={reproduction.id: _figure(reproduction, data.name, gained, lengths)},
        results={
            "comparison": comparison.to_json(),
            "cells": [
                {"metric": metric, "trained": train, "tested": test, "value": value, "gain": gained.get(key)}
                for key, value in values.items()
                for metric, train, test in [key]
            ],
            "patterns": [{"claim": one.claim, "holds": one.holds, "of": one.of} for one in patterns],
            "published": {"sizes": reproduction.lengths, "claims": [one.claim for one in patterns]},
            "data": data.summary(),
        },
        notes=[
            *few_seeds_note(comparison.seeds),
            *deviations(reproduction.protocol, task, data),
            *reproduction.notes,
        ],
    )


# --- what the paper claims ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """A claim about pairs of neighbouring cells, the number of pairs for which it holds here, and of all pairs."""

    claim: str
    holds: int
    of: int


def gains(values: Values, shortest: int) -> Values:
    """Return the relative improvement over training on the shortest lists; positive is better for every metric.

    >>> gains({("ndcg@1", 10, 20): 0.4, ("ndcg@1", 40, 20): 0.5, ("arp", 10, 20): 8.0, ("arp", 40, 20): 6.0}, 10)
    {('ndcg@1', 10, 20): 0.0, ('ndcg@1', 40, 20): 0.25, ('arp', 10, 20): 0.0, ('arp', 40, 20): 0.25}
    """
    found = {}
    for (metric, train, test), value in values.items():
        base = values.get((metric, shortest, test))
        if base:
            sign = 1 if parse(metric).higher_is_better else -1
            found[metric, train, test] = round(sign * (value / base - 1), 12) + 0.0  # no -0.0
    return found


def find_patterns(values: Values, gained: Values, lengths: Sequence[int]) -> list[Pattern]:
    """Count the pairs of neighbouring cells for which the claims of PiRank, section 4.2, hold."""
    metrics = list(dict.fromkeys(metric for metric, _, _ in values))
    cutoffs = [metric for metric in metrics if metric.startswith("ndcg@")]
    longer = lengths[1:]

    def longer_trains_better(chosen: Iterable[str]) -> list[bool]:
        return [
            gained[metric, long, test] > gained[metric, short, test]
            for metric, test in product(chosen, lengths)
            for short, long in pairwise(lengths)
        ]

    less_at_larger_k = [
        gained[large, train, test] < gained[small, train, test]
        for small, large in pairwise(cutoffs)
        for train, test in product(longer, lengths)
    ]
    more_on_longer_tests = [
        gained[metric, train, long] > gained[metric, train, short]
        for metric, train in product(cutoffs, longer)
        for short, long in pairwise(lengths)
    ]
    found = [
        ("a longer training list is better, at every test length and k", longer_trains_better(cutoffs)),
        ("the gain decreases with k", less_at_larger_k),
        ("the gain increases with the test length (the paper: except for lists of 20 at k = 1)", more_on_longer_tests),
    ]
    if cutoffs:
        in_cutoffs = {key: value for key, value in gained.items() if key[0] in cutoffs}
        corner = (cutoffs[0], lengths[-1], lengths[-1])
        found.append(("the gain is largest for the longest lists at the smallest k", [_largest(in_cutoffs) == corner]))
    published = {"mrr": "always", "opa": "not always", "arp": "not always"}
    found += [
        (f"{metric.upper()}: a longer training list is better (the paper: {often})", longer_trains_better([metric]))
        for metric, often in published.items()
        if metric in metrics
    ]
    return [Pattern(claim, sum(holds), len(holds)) for claim, holds in found if holds]


def _largest(gained: Values) -> tuple[str, int, int]:
    return max(gained, key=lambda key: gained[key])


def _pattern_sheet(patterns: Sequence[Pattern]) -> list[Sheet]:
    rows = [[one.claim, f"{one.holds} of {one.of}"] for one in patterns]
    return [Sheet("claims of the paper: pairs of neighbouring cells for which they hold here", ["", "here"], rows)]


# --- testing ------------------------------------------------------------------------------------------------------


def _label(length: int) -> str:
    return f"lists of {length}"


def _test(
    config: ComparisonConfig, out: Path, train: int, lengths: Sequence[int], metrics: Sequence[str], seed: int
) -> Values:
    """Means over folds and seeds on test lists cut to each length, with the same documents for all trainings."""
    plan = make_plan(config, out)
    data = RankingData.load(config.data["path"])
    found: dict[tuple[str, int, int], list[torch.Tensor]] = {}
    for fold in plan.folds:
        for run_seed in config.seeds:
            run, model = load_run(plan.run(_label(train), fold, {}, run_seed).directory)
            lists = load_lists(data, run.data, "test")
            scores = score(model, lists)
            for length in lengths:
                for metric, of_lists in measure_samples(scores, lists, length, metrics, seed).items():
                    found.setdefault((metric, train, length), []).append(of_lists)
    return {key: float(torch.cat(parts).double().nanmean()) for key, parts in found.items()}


def measure_samples(
    scores: torch.Tensor, lists: Lists, length: int, metrics: Sequence[str], seed: int
) -> dict[str, torch.Tensor]:
    """Return the metrics of every list, cut to a random sample of `length` documents."""
    batch: Any = lists.batch(np.arange(len(lists)), max_list=length, rng=np.random.default_rng([seed, length]))
    padded = batch.pad(scores[torch.from_numpy(batch.rows)])
    return {name: parse(name)(padded, batch.labels, batch.mask) for name in metrics}


# --- reporting ----------------------------------------------------------------------------------------------------


def _sheet(
    values: Values, gained: Values, metrics: Sequence[str], trained: Sequence[int], lengths: Sequence[int]
) -> Sheet:
    def cell(metric: str, train: int, test: int) -> str:
        key = (metric, train, test)
        gain = f" ({100 * gained[key]:+.1f} %)" if train != lengths[0] and key in gained else ""
        return f"{format_value(values[key])}{gain}"

    rows: list[list[str]] = []
    for metric in metrics:
        rows += [[]] if rows else []
        rows += [
            [f"{metric}, trained on {train}", *(cell(metric, train, test) for test in lengths)] for train in trained
        ]
    title = f"by length of test lists, with the gain over training on lists of {lengths[0]}"
    return Sheet(title, ["", *(f"tested on {length}" for length in lengths)], rows)


def _figure(reproduction: LengthTransfer, data: str, gained: Values, lengths: Sequence[int]) -> Lines:
    shown = [metric for metric in reproduction.metrics if metric.startswith("ndcg")] or reproduction.metrics
    points = [
        {"panel": metric, "series": _label(train), "x": test, "y": 100 * gain}
        for metric in shown
        for (of, train, test), gain in gained.items()
        if of == metric
    ]
    return Lines(
        points,
        title=f"{reproduction.method.name}: gain in percent over training on lists of {lengths[0]}",
        subtitle=f"{data}; all metrics are in results.json",
        x="documents in a test list",
        y="gain in percent",
        series="training",
        log_x=True,
        ticks=lengths,
    )
