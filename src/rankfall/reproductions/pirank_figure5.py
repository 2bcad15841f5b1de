"""PiRank, figure 5: the relaxed metric that is trained and the hard one that is meant, over training, by temperature.

The relaxed NDCG@10 is one minus the loss. The smaller tau, the closer it is to the hard NDCG@10 of the same scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rankfall.data import RankingData
from rankfall.losses import pirank_ndcg_loss
from rankfall.metrics import ndcg
from rankfall.reporting.figures import Lines
from rankfall.reproductions.published import shown
from rankfall.reproductions.setup import PIRANK
from rankfall.reproductions.sweep import pick
from rankfall.reproductions.task import Report, Sheet
from rankfall.training.config.ranker_config import validate
from rankfall.training.scoring import score
from rankfall.training.train_ranker import load_lists, train

if TYPE_CHECKING:
    from rankfall.data.lists.list_loader import Lists
    from rankfall.reproductions.datasets import DataSet
    from rankfall.reproductions.task import Task
    from rankfall.training.build import Ranker
    from rankfall.training.config.ranker_config import RankerConfig

TAUS = (0.1, 1.0, 5.0, 10.0)  # of the paper, whose curves are not in our notes
K = 10
RELAXED, HARD = "relaxed", "hard"


def run(task: Task) -> Report:
    """Train at each temperature on the first fold and measure both after every epoch, on validation lists."""
    data = task.data(PIRANK.recipe)
    rows: list[dict[str, Any]] = []
    taus = pick(TAUS, task.size.points)
    for number, tau in enumerate(taus):
        task.progress(f"tau = {tau:g}", number, len(taus))
        rows += _curves(task, data, tau)
    picture = Lines(
        rows,
        title="NDCG@10 over training: relaxed at tau, and hard",
        subtitle=f"{data.name}, validation lists",
        x="epoch",
        y="NDCG@10",
        series="temperature",
        dashed="metric",
    )
    names = list(dict.fromkeys(row["series"] for row in rows))
    last = {(row["series"], row["metric"]): row["y"] for row in rows}
    best = {tau: max(row["y"] for row in rows if (row["series"], row["metric"]) == (tau, HARD)) for tau in names}
    gaps = {tau: last[tau, RELAXED] - last[tau, HARD] for tau in names}
    table = [
        [
            tau,
            *(shown(last[tau, metric]) for metric in (RELAXED, HARD)),
            f"{gaps[tau]:+.3f}",
            shown(best[tau]),
        ]
        for tau in names
    ]
    return Report(
        sheets=[
            Sheet(
                f"NDCG@10 on {data.name}, validation lists, after the last epoch",
                ["", "relaxed", "hard", "relaxed - hard", "best hard"],
                table,
            )
        ],
        plots={"pirank-figure5": picture},
        results={"curves": rows, "gap_after_the_last_epoch": gaps, "published": {"taus": TAUS}, "data": data.summary()},
        notes=["The published figure is a picture; its numbers are not in our notes."],
    )


def _curves(task: Task, data: DataSet, tau: float) -> list[dict[str, Any]]:
    config = _config(task, data, tau)
    lists = load_lists(RankingData.load(data.path), config.data, "valid")
    rows: list[dict[str, Any]] = []

    def measure(epoch: Any, model: Ranker) -> None:
        for metric, value in _both(model, lists, tau).items():
            rows.append({"series": f"tau = {tau:g}", "metric": metric, "x": epoch.epoch, "y": value})

    train(config, task.out / "training" / f"tau-{tau:g}", force=True, on_validation=measure)
    return rows


def _config(task: Task, data: DataSet, tau: float) -> RankerConfig:
    comparison = PIRANK.config(task, data, methods={"pirank": {}})
    content = {
        "data": {**comparison.data, **next(iter(data.folds.values()))},
        "model": comparison.model,
        "loss": {"name": "pirank_ndcg_loss", "k": K, "tau": tau},
        "optimizer": comparison.optimizer,
        "training": {**comparison.training, "patience": None, "seed": task.seed},
    }
    return validate(content)


def _both(model: Ranker, lists: Lists, tau: float) -> dict[str, float]:
    """Both metrics as means over the lists with a relevant document."""
    scores = score(model, lists)
    values: dict[str, list[torch.Tensor]] = {RELAXED: [], HARD: []}
    for batch in lists.by_length():
        padded = batch.pad(scores[torch.from_numpy(batch.rows)])
        hard = ndcg(padded, batch.labels, k=K, mask=batch.mask, empty=float("nan"))
        loss = pirank_ndcg_loss(padded, batch.labels, mask=batch.mask, k=K, tau=tau, reduction="none")
        values[HARD].append(hard)
        values[RELAXED].append((1 - loss).masked_fill(hard.isnan(), float("nan")))
    return {metric: float(torch.cat(parts).double().nanmean()) for metric, parts in values.items()}
