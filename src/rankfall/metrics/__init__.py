"""Exact ranking metrics, the funnel of a cascade, and significance tests.

A metric takes scores and labels ``(..., n)``: one list of items in the last dimension, leading dimensions are batch
dimensions. A boolean `mask` marks the real items of padded lists. A metric returns one value per list.

Equal scores count with the expected value over their orders. Therefore the chance level, the expected value of a random
scorer, is the metric of constant scores. Lists on which a metric is undefined get the value `empty`; pass NaN to
exclude them from a ``nanmean``.

Examples:
    >>> import torch
    >>> scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 0.0]])
    >>> labels = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> mrr(scores, labels, mask=mask)
    tensor([0.5000, 0.5000])

    The chance level:

    >>> mrr(torch.zeros(2, 3), labels, mask=mask)
    tensor([0.6111, 0.7500])

    Lists without a relevant item:

    >>> ndcg(scores, torch.zeros(2, 3), empty=float("nan"))
    tensor([nan, nan])

    A cascade of two stages that keep two items and one item:

    >>> funnel([scores, -scores], labels, quotas=[2, 1]).joint_recall
    tensor([1., 1.])
"""

from rankfall.metrics.funnel import FunnelResult, funnel
from rankfall.metrics.ranking import arp, average_precision, hit_rate, mrr, ndcg, opa, precision, recall
from rankfall.metrics.significance import Row, TestResult, compare, crossed_test, holm, paired_test, two_sample_test

__all__ = [
    "FunnelResult",
    "Row",
    "TestResult",
    "arp",
    "average_precision",
    "compare",
    "crossed_test",
    "funnel",
    "hit_rate",
    "holm",
    "mrr",
    "ndcg",
    "opa",
    "paired_test",
    "precision",
    "recall",
    "two_sample_test",
]
