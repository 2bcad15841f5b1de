"""Where the built-in components are: the names of configurations, with module and attribute.

A new component needs a line here. So names, and mistakes in them, are known without importing torch. Everything else
is read from the function or class itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankfall.register import Kind

BUILTINS: dict[Kind, dict[str, str]] = {
    "operator": {
        "dftopk": "rankfall.ops.threshold_topk:dftopk",
        "diff_sort": "rankfall.ops.diff_sort:diff_sort",
        "hard_topk": "rankfall.ops.threshold_topk:hard_topk",
        "lapsum_topk": "rankfall.ops.threshold_topk:lapsum_topk",
        "neural_sort": "rankfall.ops.softmax_sorts:neural_sort",
        "pirank_sort": "rankfall.ops.pirank_sort:pirank_sort",
        "sigmoid_topk": "rankfall.ops.threshold_topk:sigmoid_topk",
        "soft_sort": "rankfall.ops.softmax_sorts:soft_sort",
        "sparse_topk": "rankfall.ops.threshold_topk:sparse_topk",
    },
    "loss": {
        "approx_ndcg_loss": "rankfall.losses.listwise:approx_ndcg_loss",
        "arf": "rankfall.losses.adaptive:ARFLoss",
        "arf_v2": "rankfall.losses.adaptive:ARFv2Loss",
        "bce_loss": "rankfall.losses.pointwise:bce_loss",
        "grade_softmax_loss": "rankfall.losses.pointwise:grade_softmax_loss",
        "lambda_loss": "rankfall.losses.pairwise:lambda_loss",
        "lambda_recall_loss": "rankfall.losses.pairwise:lambda_recall_loss",
        "lambdarank_loss": "rankfall.losses.pairwise:lambdarank_loss",
        "listmle_loss": "rankfall.losses.listwise:listmle_loss",
        "mse_loss": "rankfall.losses.pointwise:mse_loss",
        "pirank_arp_loss": "rankfall.losses.relaxed:pirank_arp_loss",
        "pirank_ndcg_loss": "rankfall.losses.relaxed:pirank_ndcg_loss",
        "ranknet_loss": "rankfall.losses.pairwise:ranknet_loss",
        "relax_loss": "rankfall.losses.relaxed:relax_loss",
        "softmax_loss": "rankfall.losses.listwise:softmax_loss",
        "sort_cross_entropy_loss": "rankfall.losses.relaxed:sort_cross_entropy_loss",
        "topk_bce_loss": "rankfall.losses.relaxed:topk_bce_loss",
    },
    "objective": {
        "arf": "rankfall.objectives.soft_sorts:ARF",
        "arf_v2": "rankfall.objectives.soft_sorts:ARFv2",
        "bce": "rankfall.objectives.independent:BCE",
        "fs_lambda_loss": "rankfall.objectives.independent:FSLambdaLoss",
        "fs_ranknet": "rankfall.objectives.independent:FSRankNet",
        "icc": "rankfall.objectives.independent:ICC",
        "lcron": "rankfall.objectives.lcron:LCRON",
        "per_stage": "rankfall.objectives.independent:PerStage",
        "rankflow": "rankfall.objectives.independent:RankFlow",
        "sort_ce": "rankfall.objectives.soft_sorts:SortCE",
    },
    "model": {
        "din": "rankfall.models.scorers:DIN",
        "mlp": "rankfall.models.scorers:EmbeddingMLP",
        "two_tower": "rankfall.models.scorers:TwoTower",
    },
    "metric": {
        "arp": "rankfall.metrics.ranking:arp",
        "hit_rate": "rankfall.metrics.ranking:hit_rate",
        "map": "rankfall.metrics.ranking:average_precision",
        "mrr": "rankfall.metrics.ranking:mrr",
        "ndcg": "rankfall.metrics.ranking:ndcg",
        "ndcg_linear": "rankfall.metrics.ranking:ndcg",
        "opa": "rankfall.metrics.ranking:opa",
        "opa_all": "rankfall.metrics.ranking:opa",
        "precision": "rankfall.metrics.ranking:precision",
        "recall": "rankfall.metrics.ranking:recall",
    },
    "source": {},
}

SORTS = ("diff_sort", "neural_sort", "pirank_sort", "soft_sort")
"""The built-in operators that return rows of a soft permutation. The others return inclusion probabilities."""
