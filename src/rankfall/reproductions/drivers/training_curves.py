"""The relaxed NDCG that PiRank optimizes and the exact one, after every epoch, by temperature.

The relaxed NDCG is one minus the loss. At low temperatures it is close to the exact NDCG of the same scores, and the
gradient of the loss is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rankfall.data import RankingData
from rankfall.losses import pirank_ndcg_loss
from rankfall.metrics import ndcg
from rankfall.reporting.figures import Lines
from rankfall.reproductions.protocols import deviations, list_config
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.published_table import format_value
from rankfall.reproductions.task import Report, Sheet
from rankfall.training.build import Temperature, scheduled
from rankfall.training.config.ranker_config import validate
from rankfall.training.measured_lists import score
from rankfall.training.methods import train
from rankfall.training.train_ranker import load_lists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.data.lists.list_loader import Lists
    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.paper_schema import Number, Options, TrainingCurves
    from rankfall.reproductions.task import Task
    from rankfall.training.checks import Ranker
    from rankfall.training.config.ranker_config import RankerConfig

    Tau = Number | Options  # a temperature, or its schedule

RELAXED, HARD, GRADIENT = "relaxed", "hard", "gradient"


def run(reproduction: TrainingCurves, task: Task) -> Report:
    """Train at each temperature on the first fold and measure both metrics on validation lists after every epoch."""
    data = task.lists(reproduction.protocol)
    metric = f"NDCG@{reproduction.k}"
    rows: list[dict[str, Any]] = []
    taus: list[Tau] = [*pick_points(reproduction.taus, task.size.points), *reproduction.others]
    for number, tau in enumerate(taus):
        task.progress(_label(tau), number, len(taus))
        rows += _curves(reproduction, task, data, tau)
    curves = [row for row in rows if row["metric"] != GRADIENT]
    figure = Lines(
        curves,
        title=f"{metric} over training: relaxed at tau, and hard",
        subtitle=f"{data.name}, validation lists",
        x="epoch",
        y=metric,
        series="temperature",
        dashed="metric",
    )
    summaries = {_label(tau): _summary(_label(tau), rows) for tau in taus}
    return Report(
        sheets=[_sheet(f"{metric} on {data.name}, validation lists", summaries)],
        plots={reproduction.id: figure},
        results={
            "curves": rows,
            "gap_after_the_last_epoch": {name: one["relaxed"] - one["hard"] for name, one in summaries.items()},
            "summaries": summaries,
            "published": {"taus": reproduction.taus},
            "data": data.summary(),
        },
        notes=[*deviations(reproduction.protocol, task, data), *reproduction.notes],
    )


def _sheet(title: str, summaries: Mapping[str, Mapping[str, float]]) -> Sheet:
    rows = [
        [
            name,
            format_value(one["relaxed"]),
            format_value(one["hard"]),
            f"{one['relaxed'] - one['hard']:+.3f}",
            format_value(one["best"]),
            format_value(one["first"]),
            f"{one['gradient']:.2g}",
        ]
        for name, one in summaries.items()
    ]
    columns = ["", "relaxed", "hard", "relaxed - hard", "best hard", "first epoch", "gradient norm, first epoch"]
    return Sheet(f"{title}; gradient of the loss by the scores of a list", columns, rows)


def _label(tau: Tau) -> str:
    if isinstance(tau, dict):
        return f"tau = {tau['start']:g} to {tau['end']:g}, {tau.get('schedule', 'exponential')}"
    return f"tau = {tau:g}"


def _summary(series: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the values of a series after the last epoch, its best one, and those after the first epoch."""
    of = {
        metric: [row["y"] for row in rows if (row["series"], row["metric"]) == (series, metric)]
        for metric in (RELAXED, HARD, GRADIENT)
    }
    return {
        "relaxed": of[RELAXED][-1],
        "hard": of[HARD][-1],
        "best": max(of[HARD]),
        "first": of[HARD][0],
        "gradient": of[GRADIENT][0],
    }


def _curves(reproduction: TrainingCurves, task: Task, data: ListData, tau: Tau) -> list[dict[str, Any]]:
    config = _config(reproduction, task, data, tau)
    lists = load_lists(RankingData.load(data.path), config.data, "valid")
    rows: list[dict[str, Any]] = []

    def measure(epoch: Any, learner: Any) -> None:
        now = tau_at(tau, epoch.epoch / config.training.epochs)
        for metric, value in relaxed_and_hard_ndcg(learner.model, lists, k=reproduction.k, tau=now).items():
            rows.append({"series": _label(tau), "metric": metric, "x": epoch.epoch, "y": value})

    name = _label(tau).replace("tau = ", "tau-").replace(" ", "-").replace(",", "")
    train(config, task.out / "training" / name, force=True, on_epoch=measure)
    return rows


def tau_at(tau: Tau, share: float) -> float:
    """Return the temperature after a share of training.

    >>> round(tau_at({"start": 100, "end": 1, "schedule": "exponential"}, 0.5), 6)
    10.0
    """
    temperatures: list[Temperature] = []
    now = scheduled("tau", tau, temperatures)
    for temperature in temperatures:
        temperature.set(share)
    return float(now)


def _config(reproduction: TrainingCurves, task: Task, data: ListData, tau: Tau) -> RankerConfig:
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
    """Return the means of both metrics, and of the norm of the gradient, over the lists with a relevant document."""
    scores = score(model, lists)
    values: dict[str, list[torch.Tensor]] = {RELAXED: [], HARD: [], GRADIENT: []}
    for batch in lists.by_length():
        padded = batch.pad(scores[torch.from_numpy(batch.rows)]).requires_grad_()
        hard = ndcg(padded.detach(), batch.labels, k=k, mask=batch.mask, empty=float("nan"))
        loss = pirank_ndcg_loss(padded, batch.labels, mask=batch.mask, k=k, tau=tau, reduction="none")
        (gradient,) = torch.autograd.grad(loss.sum(), padded)
        values[HARD].append(hard)
        values[RELAXED].append((1 - loss.detach()).masked_fill(hard.isnan(), float("nan")))
        values[GRADIENT].append(gradient.norm(dim=-1).masked_fill(hard.isnan(), float("nan")))
    return {metric: float(torch.cat(parts).double().nanmean()) for metric, parts in values.items()}
