"""LambdaLoss@K, table 1: LambdaLoss with the cut-off in its weights against established losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.published import Published, table_report
from rankfall.reproductions.setup import LAMBDALOSS, Method, compare, oracle

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

PUBLISHED = Published(
    title="LambdaLoss@K, table 1",
    metrics=("ndcg@1", "ndcg@5", "ndcg"),
    unit=100,
    digits=4,
    figures={
        "MSLR-WEB30K": {
            "Pairwise (RankNet)": (45.31, 45.38, 70.67),
            "Softmax": (47.33, 46.69, 71.45),
            "Gumbel ApproxNDCG": (48.20, 46.85, 71.31),
            "LambdaLoss": (47.74, 47.11, 71.55),
            "LambdaLoss@1": (48.50, 47.40, 71.65),
            "LambdaLoss@5": (47.34, 47.09, 71.57),
        },
        "Istella": {
            "Pairwise (RankNet)": (67.76, 64.77, 79.95),
            "Softmax": (69.45, 66.70, 81.02),
            "Gumbel ApproxNDCG": (71.27, 66.93, 80.89),
            "LambdaLoss": (71.17, 67.62, 81.51),
            "LambdaLoss@1": (71.72, 67.90, 81.74),
            "LambdaLoss@5": (71.19, 67.61, 81.56),
        },
        "Yahoo": {
            "Pairwise (RankNet)": (66.47, 69.84, 82.66),
            "Softmax": (67.52, 70.62, 83.15),
            "Gumbel ApproxNDCG": (67.75, 70.30, 82.91),
            "LambdaLoss": (67.92, 70.78, 83.17),
            "LambdaLoss@1": (68.06, 70.71, 83.13),
            "LambdaLoss@5": (67.94, 70.82, 83.17),
        },
    },
)

METHODS = {
    "Pairwise (RankNet)": Method("ranknet_loss"),
    "Softmax": Method("softmax_loss"),
    "Gumbel ApproxNDCG": Method("approx_ndcg_loss", {"gumbel_samples": 8}, (0.1, 1.0)),
    "LambdaLoss": Method("lambda_loss"),
    "LambdaLoss@1": Method("lambda_loss", {"k": 1}),
    "LambdaLoss@5": Method("lambda_loss", {"k": 5}),
}


def run(task: Task) -> Report:
    """Compare the six losses."""
    data = task.data(LAMBDALOSS.recipe)
    result = compare(task, data, LAMBDALOSS, METHODS, PUBLISHED.metrics)
    return table_report("lambdaloss-table1", result, PUBLISHED, data, oracle(data, PUBLISHED.metrics))
