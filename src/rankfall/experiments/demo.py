"""What ``rankfall demo`` shows: one small network, eight losses, generated lists whose ideal order is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.data import Recipe
from rankfall.experiments.setup import LEARNING_RATE, SMALL_NETWORK, Method, Setup, compare, oracle
from rankfall.experiments.task import Size
from rankfall.training.config import RankerConfig, validate

if TYPE_CHECKING:
    from rankfall.experiments.datasets import DataSet
    from rankfall.experiments.task import Task

METRICS = ("ndcg@10", "recall@20@10", "mrr", "opa")
METHODS = {
    "mse_loss": Method("mse_loss"),
    "ranknet_loss": Method("ranknet_loss"),
    "softmax_loss": Method("softmax_loss"),
    "lambda_loss": Method("lambda_loss", {"k": 10}),
    "approx_ndcg_loss": Method("approx_ndcg_loss"),
    "pirank_ndcg_loss": Method("pirank_ndcg_loss", {"k": 10}, (5.0,)),
    "relax_loss": Method("relax_loss", {"m": 20, "k": 10}, (20.0,)),
    "topk_bce_loss": Method("topk_bce_loss", {"k": 10, "topk": "dftopk"}),
}
SETUP = Setup(recipe=Recipe(), network=SMALL_NETWORK, metric="ndcg@10")
FULL = Size(generated_lists=300, epochs=12, patience=4, seeds=2, tune=False)
QUICK = Size(generated_lists=60, epochs=2, patience=2, seeds=1, tune=False)


def run(task: Task) -> tuple[dict[str, Any], RankerConfig]:
    """The comparison, with what the oracle gets, and a configuration that trains on the same data."""
    data = task.data(SETUP.recipe)
    result = compare(task, data, SETUP, METHODS, METRICS)
    return {**result, "oracle": oracle(data, METRICS)}, _config(task, data)


def _config(task: Task, data: DataSet) -> RankerConfig:
    (fold,) = data.folds.values()
    return validate(
        {
            "data": {"path": str(data.path), **fold},
            "model": SMALL_NETWORK,
            "loss": {"name": "lambda_loss", "k": 10},
            "optimizer": {"lr": LEARNING_RATE},
            "training": {"epochs": task.size.epochs, "patience": task.size.patience, "seed": task.seed},
        }
    )
