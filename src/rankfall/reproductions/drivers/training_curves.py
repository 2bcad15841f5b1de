"""The relaxed NDCG that PiRank optimizes and the exact one, after every epoch, by temperature.

The relaxed NDCG is one minus the loss. At low temperatures it is close to the exact NDCG of the same scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rankfall.data import RankingData
from rankfall.losses import pirank_ndcg_loss
from rankfall.metrics import ndcg
from rankfall.reporting.figures import Lines
from rankfall.reproductions.protocols import list_config
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet
from rankfall.training.config.ranker_config import validate
from rankfall.training.scoring import score
from rankfall.training.train_ranker import load_lists, train

if TYPE_CHECKING:
    from rankfall.data.lists.list_loader import Lists
    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.paper_schema import Number, TrainingCurves
    from rankfall.reproductions.task import Task
    from rankfall.training.build_ranker import Ranker
    from rankfall.training.config.ranker_config import RankerConfig

RELAXED, HARD = "relaxed", "hard"


def run(reproduction: TrainingCurves, task: Task) -> Report:
    """Train at each temperature on the first fold and measure both metrics on validation lists after every epoch."""
    data = task.lists(reproduction.protocol)
    metric = f"NDCG@{reproduction.k}"
    rows: list[dict[str, Any]] = []
    taus = pick_points(reproduction.taus, task.size.points)
    for number, tau in enumerate(taus):
        task.progress(f"tau = {tau:g}", number, len(taus))
        rows += _curves(reproduction, task, data, tau)
    figure = Lines(
        rows,
        title=f"{metric} over training: relaxed at tau, and hard",
        subtitle=f"{data.name}, validation lists",
        x="epoch",
        y=metric,
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
            format_value(last[tau, RELAXED]),
            format_value(last[tau, HARD]),
            f"{gaps[tau]:+.3f}",
            format_value(best[tau]),
        ]
        for tau in names
    ]
    return Report(
        sheets=[
            Sheet(
                f"{metric} on {data.name}, validation lists, after the last epoch",
                ["", "relaxed", "hard", "relaxed - hard", "best hard"],
                table,
            )
        ],
        plots={reproduction.id: figure},
        results={
            "curves": rows,
            "gap_after_the_last_epoch": gaps,
            "published": {"taus": reproduction.taus},
            "data": data.summary(),
        },
        notes=reproduction.notes,
    )


def _curves(reproduction: TrainingCurves, task: Task, data: ListData, tau: Number) -> list[dict[str, Any]]:
    config = _config(reproduction, task, data, tau)
    lists = load_lists(RankingData.load(data.path), config.data, "valid")
    rows: list[dict[str, Any]] = []

    def measure(epoch: Any, model: Ranker) -> None:
        for metric, value in relaxed_and_hard_ndcg(model, lists, k=reproduction.k, tau=tau).items():
            rows.append({"series": f"tau = {tau:g}", "metric": metric, "x": epoch.epoch, "y": value})

    train(config, task.out / "training" / f"tau-{tau:g}", force=True, on_validation=measure)
    return rows


def _config(reproduction: TrainingCurves, task: Task, data: ListData, tau: Number) -> RankerConfig:
    comparison = list_config(reproduction.protocol, task, data, {"pirank": {}})
    content = {
        "data": {**comparison.data, **next(iter(data.folds.values()))},
        "model": comparison.model,
        "loss": {"name": "pirank_ndcg_loss", "k": reproduction.k, "tau": tau},
        "optimizer": comparison.optimizer,
        "training": {**comparison.training, "patience": None, "seed": task.seed},
    }
    return validate(content)


def relaxed_and_hard_ndcg(model: Ranker, lists: Lists, *, k: int, tau: float) -> dict[str, float]:
    """Return the means of both metrics over the lists with a relevant document."""
    scores = score(model, lists)
    values: dict[str, list[torch.Tensor]] = {RELAXED: [], HARD: []}
    for batch in lists.by_length():
        padded = batch.pad(scores[torch.from_numpy(batch.rows)])
        hard = ndcg(padded, batch.labels, k=k, mask=batch.mask, empty=float("nan"))
        loss = pirank_ndcg_loss(padded, batch.labels, mask=batch.mask, k=k, tau=tau, reduction="none")
        values[HARD].append(hard)
        values[RELAXED].append((1 - loss).masked_fill(hard.isnan(), float("nan")))
    return {metric: float(torch.cat(parts).double().nanmean()) for metric, parts in values.items()}
