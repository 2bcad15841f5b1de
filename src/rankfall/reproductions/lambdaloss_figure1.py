"""LambdaLoss@K, figure 1: how much a loss depends on the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reporting.figures import Lines
from rankfall.reproductions.lambdaloss_table1 import METHODS
from rankfall.reproductions.published import shown
from rankfall.reproductions.setup import LAMBDALOSS, oracle, run_comparison
from rankfall.reproductions.sweep import pick
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from rankfall.reproductions.task import Task

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # the paper's own are not in our notes
METRIC = "ndcg@5"


def run(task: Task) -> Report:
    """Train each loss of table 1 with each learning rate, one seed a fold."""
    data = task.data(LAMBDALOSS.recipe)
    rates = pick(RATES, task.size.points)
    methods = {
        f"{name} lr={rate:g}": {**method.section(tune=False), "optimizer": {"lr": rate}}
        for name, method in METHODS.items()
        for rate in rates
    }
    config = LAMBDALOSS.config(task, data, methods=methods, metrics=[METRIC], seeds=task.seeds[:1])
    result = run_comparison(task, config)
    means = {method["name"]: method["metrics"][METRIC]["mean"] for method in result["methods"]}
    values = {name: {rate: means.get(f"{name} lr={rate:g}") for rate in rates} for name in METHODS}
    known = {name: {rate: value for rate, value in of.items() if value is not None} for name, of in values.items()}
    rows = [
        [name, *(shown(of[rate]) if rate in of else "failed" for rate in rates), shown(_spread(of))]
        for name, of in known.items()
    ]
    picture = Lines(
        [{"series": name, "x": rate, "y": value} for name, of in known.items() for rate, value in of.items()],
        title="NDCG@5 by learning rate",
        subtitle=f"{data.name}, test lists",
        x="learning rate (Adam)",
        y=METRIC,
        series="loss",
        log_x=True,
        ticks=rates,
    )
    return Report(
        sheets=[
            Sheet(
                f"{METRIC} on {data.name} by learning rate", ["loss", *(f"{r:g}" for r in rates), "best - worst"], rows
            )
        ],
        plots={"lambdaloss-figure1": picture},
        results={
            "comparison": result,
            "values": {name: [{"lr": rate, METRIC: value} for rate, value in of.items()] for name, of in known.items()},
            "published": None,
            "oracle": oracle(data, [METRIC]),
            "data": data.summary(),
        },
        notes=["The published figure is a picture; its numbers are not in our notes."],
    )


def _spread(values: dict[float, float]) -> float:
    return max(values.values()) - min(values.values()) if values else float("nan")
