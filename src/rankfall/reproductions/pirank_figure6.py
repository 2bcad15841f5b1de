"""PiRank, figure 6: lists of one size in training, of another in the test. Larger training lists should be better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.data import RankingData
from rankfall.metrics import ndcg
from rankfall.reporting.figures import HeatMaps
from rankfall.reproductions.published import shown
from rankfall.reproductions.setup import PIRANK, run_comparison
from rankfall.reproductions.sweep import pick
from rankfall.reproductions.task import Report, Sheet
from rankfall.studies.comparison_plan import ComparisonConfig, make_plan
from rankfall.training.scoring import score
from rankfall.training.train_ranker import load_lists, load_run

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.reproductions.task import Task

SIZES = (10, 20, 40, 100)  # of the paper, whose numbers are not in our notes
K = 10
TAU = 20.0


def run(task: Task) -> Report:
    """Train on samples of each size of every list and test on samples of each size."""
    data = task.data(PIRANK.recipe)
    sizes = pick(SIZES, task.size.points)
    loss = {"name": "pirank_ndcg_loss", "k": K, "tau": TAU}
    methods = {_label(size): {"loss": loss, "training": {"max_list": size}} for size in sizes}
    config = PIRANK.config(task, data, methods=methods, metrics=["ndcg@10"])
    result = run_comparison(task, config)
    trained = [method["name"] for method in result["methods"]]
    values = {name: _tests(config, task.out / "comparison", name, sizes, task.seed) for name in trained}
    cells = [
        {"panel": data.name, "row": name, "column": str(size), "value": value}
        for name, of in values.items()
        for size, value in of.items()
    ]
    rows = [[name, *(shown(value) for value in of.values())] for name, of in values.items()]
    wins = sum(max(values, key=lambda name: values[name][size]) == _label(sizes[-1]) for size in sizes) if values else 0
    picture = HeatMaps(
        cells,
        title="PiRank-NDCG: size of training lists against size of test lists",
        subtitle="NDCG@10; framed: the best training for each test",
        row="training",
        column="documents in a test list",
    )
    return Report(
        sheets=[Sheet("NDCG@10 by size of training lists (rows) and of test lists", ["", *map(str, sizes)], rows)],
        plots={"pirank-figure6": picture},
        results={
            "comparison": result,
            "cells": cells,
            "published": {"sizes": SIZES, "claim": "larger training lists are better"},
            "data": data.summary(),
        },
        notes=[
            f"The largest training lists are best for {wins} of {len(sizes)} test sizes; the paper: larger is better.",
            "The published figure is a picture; its numbers are not in our notes.",
        ],
    )


def _label(size: int) -> str:
    return f"lists of {size}"


def _tests(config: ComparisonConfig, out: Path, method: str, sizes: list[int], seed: int) -> dict[int, float]:
    """Mean NDCG@10 over folds and seeds on test lists cut to each size, all methods on the same documents."""
    plan = make_plan(config, out)
    data = RankingData.load(config.data["path"])
    found: dict[int, list[torch.Tensor]] = {size: [] for size in sizes}
    for fold in plan.folds:
        for run_seed in config.seeds:
            run, model = load_run(plan.run(method, fold, {}, run_seed).directory)
            lists = load_lists(data, run.data, "test")
            scores = score(model, lists)
            for size in sizes:
                found[size].append(_ndcg_of_samples(scores, lists, size, seed))
    return {size: float(torch.cat(parts).double().nanmean()) for size, parts in found.items()}


def _ndcg_of_samples(scores: torch.Tensor, lists: Any, size: int, seed: int) -> torch.Tensor:
    batch = lists.batch(np.arange(len(lists)), max_list=size, rng=np.random.default_rng([seed, size]))
    padded = batch.pad(scores[torch.from_numpy(batch.rows)])
    return ndcg(padded, batch.labels, k=K, mask=batch.mask, empty=float("nan"))
