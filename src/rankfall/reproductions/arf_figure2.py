"""ARF, figure 2: trained for one Recall@m'@k', evaluated on another Recall@m@k.

A loss that knows m and k should be best where it is tested on what it was trained for, on the diagonal.
LambdaLoss@K knows one number only, for which it gets k'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reporting.figures import HeatMaps
from rankfall.reproductions.published import shown
from rankfall.reproductions.setup import ARF, oracle, run_comparison
from rankfall.reproductions.sweep import pick
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from rankfall.reproductions.task import Task

CUTS = ((10, 5), (20, 10), (30, 15), (40, 20))  # (m, k); the paper's own are not in our notes
TAU = 20.0


def _losses(m: int, k: int) -> dict[str, dict[str, Any]]:
    return {
        "L_Relax": {"name": "relax_loss", "m": m, "k": k, "tau": TAU},
        "Lambda-Recall@m@k": {"name": "lambda_recall_loss", "m": m, "k": k},
        "LambdaLoss@K": {"name": "lambda_loss", "k": k},
    }


def run(task: Task) -> Report:
    """Train three losses for every (m', k') and evaluate each on every (m, k)."""
    data = task.data(ARF.recipe)
    cuts = pick(CUTS, task.size.points)
    metrics = {f"{m}@{k}": f"recall@{m}@{k}" for m, k in cuts}
    trained = {(loss, f"{m}@{k}"): options for m, k in cuts for loss, options in _losses(m, k).items()}
    methods = {f"{loss} {cut}": {"loss": options} for (loss, cut), options in trained.items()}
    result = run_comparison(task, ARF.config(task, data, methods=methods, metrics=list(metrics.values())))
    means = {method["name"]: method["metrics"] for method in result["methods"]}
    cells = [
        {"panel": loss, "row": cut, "column": column, "value": means[f"{loss} {cut}"][metric]["mean"]}
        for loss, cut in trained
        if f"{loss} {cut}" in means
        for column, metric in metrics.items()
    ]
    cells.sort(key=lambda cell: list(_losses(1, 1)).index(cell["panel"]))
    picture = HeatMaps(
        cells,
        title="Recall@m@k, trained for one cut and evaluated on another",
        subtitle=f"{data.name}; framed: the best training for each evaluation",
        row="trained for m'@k'",
        column="evaluated at m@k",
    )
    losses = list(dict.fromkeys(cell["panel"] for cell in cells))
    return Report(
        sheets=[_sheet(loss, cells, list(metrics)) for loss in losses],
        plots={"arf-figure2": picture},
        results={
            "comparison": result,
            "cells": cells,
            "on_the_diagonal": {loss: _diagonal(loss, cells) for loss in losses},
            "published": None,
            "oracle": oracle(data, list(metrics.values())),
            "data": data.summary(),
        },
        notes=[
            *(
                f"{loss}: trained for the same cut is best in {_diagonal(loss, cells)} of {len(cuts)} columns."
                for loss in losses
            ),
            "The published heat maps are pictures; their numbers are not in our notes.",
        ],
    )


def _best(loss: str, column: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    return max(
        (cell for cell in cells if (cell["panel"], cell["column"]) == (loss, column)), key=lambda cell: cell["value"]
    )


def _diagonal(loss: str, cells: list[dict[str, Any]]) -> int:
    columns = dict.fromkeys(cell["column"] for cell in cells)
    return sum(_best(loss, column, cells)["row"] == column for column in columns)


def _sheet(loss: str, cells: list[dict[str, Any]], cuts: list[str]) -> Sheet:
    values = {(cell["row"], cell["column"]): cell for cell in cells if cell["panel"] == loss}
    rows = [
        [
            cut,
            *(
                f"{shown(values[cut, column]['value'])}{' <' * (_best(loss, column, cells)['row'] == cut)}"
                for column in cuts
            ),
        ]
        for cut in cuts
        if (cut, cuts[0]) in values
    ]
    return Sheet(f"{loss}: recall by training (rows) and evaluation (columns)", ["trained for", *cuts], rows)
