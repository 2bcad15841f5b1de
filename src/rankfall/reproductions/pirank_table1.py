"""PiRank, table 1: six losses on OPA, ARP (lower is better), MRR and NDCG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.published import Published, table_report
from rankfall.reproductions.setup import PIRANK, Method, compare, oracle

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

K = 10  # ranks of the relaxed NDCG that is trained

PUBLISHED = Published(
    title="PiRank, table 1",
    metrics=("opa", "arp", "mrr", "ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10", "ndcg@15"),
    figures={
        "MSLR-WEB30K": {
            "RankNet": (0.611, 46.75, 0.786, 0.332, 0.337, 0.347, 0.376, 0.399),
            "LambdaRank": (0.619, 46.17, 0.798, 0.392, 0.396, 0.404, 0.426, 0.445),
            "Softmax": (0.613, 46.56, 0.762, 0.332, 0.339, 0.353, 0.382, 0.405),
            "ApproxNDCG": (0.631, 45.46, 0.815, 0.423, 0.409, 0.415, 0.434, 0.454),
            "NeuralSort": (0.635, 44.97, 0.780, 0.373, 0.387, 0.402, 0.431, 0.453),
            "PiRank-NDCG": (0.630, 45.39, 0.813, 0.425, 0.421, 0.426, 0.446, 0.465),
        },
        "Yahoo C14": {
            "RankNet": (0.625, 10.51, 0.890, 0.600, 0.622, 0.650, 0.704, 0.733),
            "LambdaRank": (0.636, 10.45, 0.896, 0.633, 0.652, 0.676, 0.723, 0.749),
            "Softmax": (0.627, 10.47, 0.887, 0.589, 0.618, 0.648, 0.704, 0.733),
            "ApproxNDCG": (0.649, 10.28, 0.903, 0.669, 0.670, 0.690, 0.736, 0.761),
            "NeuralSort": (0.648, 10.32, 0.898, 0.640, 0.656, 0.681, 0.729, 0.755),
            "PiRank-NDCG": (0.654, 10.25, 0.902, 0.662, 0.672, 0.694, 0.738, 0.764),
        },
    },
)

METHODS = {
    "RankNet": Method("ranknet_loss"),
    "LambdaRank": Method("lambdarank_loss"),
    "Softmax": Method("softmax_loss"),
    "ApproxNDCG": Method("approx_ndcg_loss", taus=(0.1, 1.0)),
    "NeuralSort": Method("sort_cross_entropy_loss", taus=(20.0, 100.0)),
    "PiRank-NDCG": Method("pirank_ndcg_loss", {"k": K}, (20.0, 100.0)),
}


def run(task: Task) -> Report:
    """Compare the six losses."""
    data = task.data(PIRANK.recipe)
    result = compare(task, data, PIRANK, METHODS, PUBLISHED.metrics)
    return table_report("pirank-table1", result, PUBLISHED, data, oracle(data, PUBLISHED.metrics))
