"""LambdaLoss@K, table 2: the cut-off in LambdaRank, in the old heuristic and in the sound weights, on NDCG@5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.published import Published, table_report
from rankfall.reproductions.setup import LAMBDALOSS, Method, compare, oracle

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

PUBLISHED = Published(
    title="LambdaLoss@K, table 2",
    metrics=("ndcg@5",),
    unit=100,
    digits=4,
    figures={
        "MSLR-WEB30K": {
            "LambdaRank": (46.87,),
            "LambdaRank@1": (45.35,),
            "LambdaRank@5": (46.68,),
            "LambdaLoss@5 V1": (46.76,),
            "LambdaLoss": (47.11,),
            "LambdaLoss@1": (47.40,),
            "LambdaLoss@5": (47.08,),
        },
        "Istella": {
            "LambdaRank": (67.55,),
            "LambdaRank@1": (65.79,),
            "LambdaRank@5": (67.82,),
            "LambdaLoss@5 V1": (66.86,),
            "LambdaLoss": (67.62,),
            "LambdaLoss@1": (67.90,),
            "LambdaLoss@5": (67.61,),
        },
        "Yahoo": {
            "LambdaRank": (70.08,),
            "LambdaRank@1": (69.46,),
            "LambdaRank@5": (70.38,),
            "LambdaLoss@5 V1": (70.34,),
            "LambdaLoss": (70.78,),
            "LambdaLoss@1": (70.71,),
            "LambdaLoss@5": (70.82,),
        },
    },
)

METHODS = {
    "LambdaRank": Method("lambdarank_loss"),
    "LambdaRank@1": Method("lambdarank_loss", {"k": 1}),
    "LambdaRank@5": Method("lambdarank_loss", {"k": 5}),
    "LambdaLoss@5 V1": Method("lambda_loss", {"k": 5, "version": "heuristic"}),
    "LambdaLoss": Method("lambda_loss"),
    "LambdaLoss@1": Method("lambda_loss", {"k": 1}),
    "LambdaLoss@5": Method("lambda_loss", {"k": 5}),
}


def run(task: Task) -> Report:
    """Compare the seven losses."""
    data = task.data(LAMBDALOSS.recipe)
    result = compare(task, data, LAMBDALOSS, METHODS, PUBLISHED.metrics)
    return table_report("lambdaloss-table2", result, PUBLISHED, data, oracle(data, PUBLISHED.metrics))
