"""A loss trained on lists of one length and tested on lists of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.data import RankingData
from rankfall.metrics import ndcg
from rankfall.reporting.figures import HeatMaps
from rankfall.reproductions.paper_schema import fill
from rankfall.reproductions.protocols import list_config, run_comparison
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.comparison_plan import ComparisonConfig, make_plan
from rankfall.training.scoring import score
from rankfall.training.train_ranker import load_lists, load_run

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.lists.list_loader import Lists
    from rankfall.reproductions.paper_schema import LengthTransfer
    from rankfall.reproductions.task import Task


def run(reproduction: LengthTransfer, task: Task) -> Report:
    """Train on samples of each length from every list, and test on samples of each length."""
    data = task.lists(reproduction.protocol)
    lengths = pick_points(reproduction.lengths, task.size.points)
    sections = {_label(length): fill(reproduction.method.config, {"length": length}) for length in lengths}
    metric = f"ndcg@{reproduction.k}"
    config = list_config(reproduction.protocol, task, data, sections, metrics=[metric])
    comparison = run_comparison(task, config)
    values = {
        method.name: _test(config, task.out / "comparison", method.name, lengths, reproduction.k, task.seed)
        for method in comparison.methods
    }
    cells = [
        {"panel": data.name, "row": name, "column": str(length), "value": value}
        for name, by_length in values.items()
        for length, value in by_length.items()
    ]
    figure = HeatMaps(
        cells,
        title=f"{reproduction.method.name}: length of training lists by length of test lists",
        subtitle=f"{metric.upper()}; framed: the best training for each test",
        row="training",
        column="documents in a test list",
    )
    rows = [[name, *(format_value(value) for value in by_length.values())] for name, by_length in values.items()]
    title = f"{metric.upper()} by length of training lists (rows) and of test lists"
    wins = _wins_of_longest(values, lengths)
    return Report(
        sheets=[Sheet(title, ["", *map(str, lengths)], rows)],
        plots={reproduction.id: figure},
        results={
            "comparison": comparison.to_json(),
            "cells": cells,
            "published": {"sizes": reproduction.lengths, "claim": reproduction.claim},
            "data": data.summary(),
        },
        notes=[
            f"The longest training lists are best for {wins} of {len(lengths)} lengths of test lists. "
            f"The paper: {reproduction.claim}.",
            *reproduction.notes,
        ],
    )


def _label(length: int) -> str:
    return f"lists of {length}"


def _wins_of_longest(values: dict[str, dict[int, float]], lengths: list[int]) -> int:
    if not values:
        return 0
    return sum(max(values, key=lambda name: values[name][length]) == _label(lengths[-1]) for length in lengths)


def _test(config: ComparisonConfig, out: Path, method: str, lengths: list[int], k: int, seed: int) -> dict[int, float]:
    """Mean NDCG over folds and seeds on test lists cut to each length, with the same documents for all methods."""
    plan = make_plan(config, out)
    data = RankingData.load(config.data["path"])
    found: dict[int, list[torch.Tensor]] = {length: [] for length in lengths}
    for fold in plan.folds:
        for run_seed in config.seeds:
            run, model = load_run(plan.run(method, fold, {}, run_seed).directory)
            lists = load_lists(data, run.data, "test")
            scores = score(model, lists)
            for length in lengths:
                found[length].append(ndcg_of_samples(scores, lists, length, k, seed))
    return {length: float(torch.cat(parts).double().nanmean()) for length, parts in found.items()}


def ndcg_of_samples(scores: torch.Tensor, lists: Lists, length: int, k: int, seed: int) -> torch.Tensor:
    """Return the NDCG@k of every list, cut to a random sample of `length` documents."""
    batch: Any = lists.batch(np.arange(len(lists)), max_list=length, rng=np.random.default_rng([seed, length]))
    padded = batch.pad(scores[torch.from_numpy(batch.rows)])
    return ndcg(padded, batch.labels, k=k, mask=batch.mask, empty=float("nan"))
