r"""Exact ranking metrics, the funnel of a cascade, and tests of significance.

A metric takes scores and labels ``(..., n)``: one list of items in the last dimension, leading dimensions are
batch, a boolean `mask` marks the real items of padded lists. It returns one value a list.

>>> import torch
>>> scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 0.0]])
>>> labels = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
>>> mask = torch.tensor([[True, True, True], [True, True, False]])
>>> mrr(scores, labels, mask=mask)
tensor([0.5000, 0.5000])

Equal scores count with the expected value over their orders, so what a random scorer gets, the chance level,
is the metric of constant scores:

>>> mrr(torch.zeros(2, 3), labels, mask=mask)
tensor([0.6111, 0.7500])

Lists on which a metric is undefined get the value `empty`, NaN if they shall not count:

>>> ndcg(scores, torch.zeros(2, 3), empty=float("nan"))
tensor([nan, nan])

A cascade of two stages that keep two items and one:

>>> funnel([scores, -scores], labels, quotas=[2, 1]).joint_recall
tensor([1., 1.])
"""

from rankfall.metrics.funnel import FunnelResult, funnel
from rankfall.metrics.ranking import arp, average_precision, hit_rate, mrr, ndcg, opa, precision, recall
from rankfall.metrics.significance import Row, TestResult, compare, holm, paired_test, two_sample_test

__all__ = [
    "FunnelResult",
    "Row",
    "TestResult",
    "arp",
    "average_precision",
    "compare",
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
