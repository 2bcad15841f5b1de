"""ARF, table 2: nine losses on Recall@30@15, NDCG@15 and NDCG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.published import Published, table_report
from rankfall.reproductions.setup import ARF, Method, compare, oracle

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

M, K = 30, 15
TAUS = (20.0, 100.0)  # of a soft sort

PUBLISHED = Published(
    title="ARF, table 2",
    metrics=("recall@30@15", "ndcg@15", "ndcg"),
    figures={
        "MSLR-WEB30K": {
            "Softmax (n-class)": (0.413, 0.416, 0.721),
            "RankNet": (0.405, 0.447, 0.737),
            "ApproxNDCG": (0.440, 0.504, 0.765),
            "NeuralSort (L_Global)": (0.423, 0.486, 0.756),
            "LambdaLoss": (0.409, 0.453, 0.743),
            "LambdaLoss@K": (0.411, 0.461, 0.745),
            "Lambda-Recall@m@k": (0.416, 0.461, 0.744),
            "L_Relax": (0.445, 0.511, 0.765),
            "ARF": (0.446, 0.513, 0.767),
        },
        "Istella": {
            "Softmax (n-class)": (0.357, 0.069, 0.359),
            "RankNet": (0.608, 0.530, 0.694),
            "ApproxNDCG": (0.628, 0.588, 0.736),
            "NeuralSort (L_Global)": (0.573, 0.519, 0.684),
            "LambdaLoss": (0.626, 0.537, 0.703),
            "LambdaLoss@K": (0.609, 0.540, 0.705),
            "Lambda-Recall@m@k": (0.593, 0.522, 0.686),
            "L_Relax": (0.644, 0.583, 0.729),
            "ARF": (0.651, 0.598, 0.739),
        },
    },
)

METHODS = {
    "Softmax (n-class)": Method("grade_softmax_loss"),
    "RankNet": Method("ranknet_loss"),
    "ApproxNDCG": Method("approx_ndcg_loss", taus=(0.1, 1.0)),
    "NeuralSort (L_Global)": Method("sort_cross_entropy_loss", taus=TAUS),
    "LambdaLoss": Method("lambda_loss"),
    "LambdaLoss@K": Method("lambda_loss", {"k": K}),
    "Lambda-Recall@m@k": Method("lambda_recall_loss", {"m": M, "k": K}),
    "L_Relax": Method("relax_loss", {"m": M, "k": K}, TAUS),
    "ARF": Method("arf", {"m": M, "k": K}, TAUS),
}


def run(task: Task) -> Report:
    """Compare the nine losses."""
    data = task.data(ARF.recipe)
    result = compare(task, data, ARF, METHODS, PUBLISHED.metrics)
    return table_report("arf-table2", result, PUBLISHED, data, oracle(data, PUBLISHED.metrics))
