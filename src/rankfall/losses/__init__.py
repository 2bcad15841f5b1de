r"""Ranking losses: functions of the scores and labels of one list of items.

A loss takes scores and labels of shape ``(..., n)``. It works on the last dimension, one list of n items; leading
dimensions are batch dimensions. Higher labels are better. Each loss function has a module twin that holds its options
(:class:`RankNetLoss` for :func:`ranknet_loss`); :class:`ARFLoss` and :class:`ARFv2Loss` exist as modules only, because
they train a weight.

Conventions that all losses share:

- `scores` of type float16 or bfloat16 are computed, and the loss is returned, in float32.
- `labels` carry no gradient. Gains are :math:`G = 2^y - 1` and need labels of at least 0. Discounts are
  :math:`1 / D(r)` with :math:`D(r) = \log_2(1 + r)`.
- `mask` marks the real items of padded lists. Padding may be anywhere and may hold any value. Masked items get gradient
  0 and do not affect the result.
- `weight` of shape ``(..., n)`` multiplies the terms of the items; a pair has the weight of the item with the better
  label. The counts and ideal values by which terms are divided do not change, so twice the weights give twice the loss
  and its gradient. `weight` of shape ``(...)`` multiplies the values of the lists and makes the mean a weighted mean.
- `reduction` is ``"mean"`` over the lists, ``"sum"``, or ``"none"`` for one value per list, of shape ``(...)``.
- Ranks inside a loss come from a stable descending sort of the detached scores.
- A list without a positive label has loss 0 and gradient 0, except in the pointwise losses (:func:`mse_loss`,
  :func:`bce_loss`, :func:`grade_softmax_loss`). A list that is all padding has loss 0 and gradient 0 in every loss.
- The value of a list does not grow with its length, except for :func:`softmax_loss` and :func:`listmle_loss`, which are
  sums as published.
- The pairwise losses compute their gradient along with their value, so they can be differentiated once, not twice.
- Arguments that are out of range, shapes that do not fit, and scores, labels and weights that are NaN or beyond 1e10
  raise a ValueError that names the argument.

Papers are cited as ARF (Wang et al. 2024, adaptive neural ranking framework), LLK (Jagerman et al. 2022,
LambdaLoss@K), PIR (Swezey et al. 2021, PiRank), LCR (Wang et al. 2025, LCRON) and DFT (DFTopK, 2025).
``rankfall methods`` prints the full references.

Examples:
    One list, whose third item is relevant:

    >>> import torch
    >>> scores = torch.tensor([2.0, 1.0, 3.0], requires_grad=True)
    >>> labels = torch.tensor([0.0, 0.0, 1.0])
    >>> softmax_loss(scores, labels)
    tensor(0.4076, grad_fn=...)

    A batch of two lists of different lengths. The first list has two items; the values at its third position are
    ignored:

    >>> scores = torch.tensor([[2.0, 1.0, float("nan")], [1.0, 0.5, 1.5]])
    >>> labels = torch.tensor([[1.0, 0.0, 9.0], [0.0, 0.0, 1.0]])
    >>> mask = torch.tensor([[True, True, False], [True, True, True]])
    >>> ranknet_loss(scores, labels, mask=mask, reduction="none")
    tensor([0.3133, 0.3937])

    A loss that needs a soft sort or a soft top-k takes any operator of :mod:`rankfall.ops`:

    >>> from rankfall import ops
    >>> pirank_ndcg_loss(scores, labels, mask=mask, k=2, sort=ops.soft_sort, tau=0.01)
    tensor(0.)
    >>> loss = TopKBCELoss(k=1, topk=ops.topk("lapsum_topk", tau=0.5))
    >>> loss(scores, labels, mask=mask)
    tensor(0.2414)
"""

from rankfall.losses.adaptive import ARFLoss, ARFv2Loss
from rankfall.losses.listwise import (
    ApproxNDCGLoss,
    ListMLELoss,
    SoftmaxLoss,
    approx_ndcg_loss,
    listmle_loss,
    softmax_loss,
)
from rankfall.losses.pairwise import (
    LambdaLoss,
    LambdaRankLoss,
    LambdaRecallLoss,
    RankNetLoss,
    lambda_loss,
    lambda_recall_loss,
    lambdarank_loss,
    ranknet_loss,
)
from rankfall.losses.pointwise import (
    BCELoss,
    GradeSoftmaxLoss,
    MSELoss,
    bce_loss,
    expected_grade,
    grade_softmax_loss,
    mse_loss,
)
from rankfall.losses.relaxed import (
    PiRankARPLoss,
    PiRankNDCGLoss,
    RelaxLoss,
    SortCrossEntropyLoss,
    TopKBCELoss,
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
