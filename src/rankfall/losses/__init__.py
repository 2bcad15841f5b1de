r"""Losses on one list of scores.

A loss takes scores and labels of the shape ``(..., n)``: it works on the last dimension, one list of n items, and
leading dimensions are batch. Higher labels are better. What differs between losses is said in their own doc strings;
what they share stands here.

One list, of which the third item is relevant:

>>> import torch
>>> scores = torch.tensor([2.0, 1.0, 3.0], requires_grad=True)
>>> labels = torch.tensor([0.0, 0.0, 1.0])
>>> softmax_loss(scores, labels)
tensor(0.4076, grad_fn=...)

Lists of different length go in one batch, padded anywhere and with anything; the mask marks the real items. Here the
first list has two items, and what stands in the third place is not looked at:

>>> scores = torch.tensor([[2.0, 1.0, float("nan")], [1.0, 0.5, 1.5]])
>>> labels = torch.tensor([[1.0, 0.0, 9.0], [0.0, 0.0, 1.0]])
>>> mask = torch.tensor([[True, True, False], [True, True, True]])
>>> ranknet_loss(scores, labels, mask=mask, reduction="none")
tensor([0.3133, 0.3937])

A loss that needs a soft sort or a soft top-k takes any of :mod:`rankfall.ops`, and every loss has a module twin that
holds its options:

>>> from rankfall import ops
>>> pirank_ndcg_loss(scores, labels, mask=mask, k=2, sort=ops.soft_sort, tau=0.01)
tensor(0.)
>>> loss = TopKBCELoss(k=1, topk=ops.topk("lapsum_topk", tau=0.5))
>>> loss(scores, labels, mask=mask)
tensor(0.2414)

Arguments of every loss
  scores: floating tensor ``(..., n)``. float16 and bfloat16 are computed, and returned, in float32.
  labels: tensor of the same shape. Labels carry no gradient. Gains are :math:`G = 2^y - 1` and expect labels of at
    least 0; discounts are :math:`1 / D(r)` with :math:`D(r) = \log_2(1 + r)`.
  mask: boolean tensor of the same shape, True = real item. Masked items get gradient 0 and change nothing.
  weight: ``(..., n)`` multiplies the items' terms, and a pair has the weight of the item with the better label; the
    counts that terms are divided by stay. ``(...)`` multiplies the lists' values and makes the mean a weighted mean.
  reduction: "mean" over the lists, "sum", or "none" for one value a list, of the shape ``(...)``.

Options that several losses share
  k: number of ranks or of relevant items; m: number of items kept. Either may exceed the length of a list.
  sigma: slope of a pair's logistic loss.
  sort: a soft sort, called as ``sort(scores, k=k, mask=mask)``; tau: its temperature, None for its own default.
  positive_only: whether only labels above 0 can be among the k best. Items tied at the k-th place share it.

Ranks inside a loss come from a stable descending sort of the detached scores. A list without a positive label counts
exactly 0, with gradient 0, in every loss but the pointwise ones (:func:`mse_loss`, :func:`bce_loss`,
:func:`grade_softmax_loss`), and so does a list that is all padding in every loss. The value of a list does not grow
with its length, except for :func:`softmax_loss` and :func:`listmle_loss`, which are sums as published.
The pairwise losses find their gradient along with their value, so they can be differentiated once, not twice.

Papers are cited as ARF (Wang et al. 2024, adaptive neural ranking framework), LLK (Jagerman et al. 2022,
LambdaLoss@K), PIR (Swezey et al. 2021, PiRank), LCR (Wang et al. 2025, LCRON) and DFT (DFTopK, 2025).
"""

from rankfall.losses.approx import approx_ndcg_loss
from rankfall.losses.listwise import listmle_loss, softmax_loss
from rankfall.losses.modules import (
    ApproxNDCGLoss,
    ARFLoss,
    ARFv2Loss,
    BCELoss,
    GradeSoftmaxLoss,
    LambdaLoss,
    LambdaRankLoss,
    LambdaRecallLoss,
    ListMLELoss,
    MSELoss,
    PiRankARPLoss,
    PiRankNDCGLoss,
    RankNetLoss,
    RelaxLoss,
    SoftmaxLoss,
    SortCrossEntropyLoss,
    TopKBCELoss,
)
from rankfall.losses.pairwise import lambda_loss, lambda_recall_loss, lambdarank_loss, ranknet_loss
from rankfall.losses.pointwise import bce_loss, expected_grade, grade_softmax_loss, mse_loss
from rankfall.losses.relaxed import (
    pirank_arp_loss,
    pirank_ndcg_loss,
    relax_loss,
    sort_cross_entropy_loss,
    topk_bce_loss,
)

__all__ = [
    "ARFLoss",
    "ARFv2Loss",
    "ApproxNDCGLoss",
    "BCELoss",
    "GradeSoftmaxLoss",
    "LambdaLoss",
    "LambdaRankLoss",
    "LambdaRecallLoss",
    "ListMLELoss",
    "MSELoss",
    "PiRankARPLoss",
    "PiRankNDCGLoss",
    "RankNetLoss",
    "RelaxLoss",
    "SoftmaxLoss",
    "SortCrossEntropyLoss",
    "TopKBCELoss",
    "approx_ndcg_loss",
    "bce_loss",
    "expected_grade",
    "grade_softmax_loss",
    "lambda_loss",
    "lambda_recall_loss",
    "lambdarank_loss",
    "listmle_loss",
    "mse_loss",
    "pirank_arp_loss",
    "pirank_ndcg_loss",
    "ranknet_loss",
    "relax_loss",
    "softmax_loss",
    "sort_cross_entropy_loss",
    "topk_bce_loss",
]
