"""Losses that go through a soft sort or a soft top-k, whichever operator is passed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall._lists import (
    Reduction,
    can_miss,
    check_count,
    check_lists,
    discounts,
    gains,
    has_positive,
    ideal_dcg,
    item_weight,
    list_mean,
    rank_order,
    reduce_lists,
    safe_divide,
    top_labels,
)
from rankfall.ops import LOG_ZERO, log_inclusion, log_rows, neural_sort
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from rankfall.ops import SoftSort, TopK


def pirank_ndcg_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: int | None = None,
    tau: float | Tensor | None = None,
    sort: SoftSort = neural_sort,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""One minus NDCG@k of the softly sorted gains (PIR 8-10; NeuralNDCG, Pobrotyn & Białobrzeski 2021).

    .. math:: 1 - \frac{1}{\text{ideal DCG@}k} \sum_{i \le k} \frac{[\hat P G]_i}{D(i)}

    k: number of ranks that count, default all. Item weights multiply the gains, of the ideal order too.

    Two equal scores put half of the gain on each rank: NDCG is (1 + 1/log2(3)) / 2:

    >>> pirank_ndcg_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(0.1845)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    gain = gains(labels, mask) if of_items is None else gains(labels, mask) * of_items
    by_rank = _softly_sorted(gain, scores, sort, k=k, tau=tau, mask=mask)
    dcg = (by_rank * discounts(by_rank.shape[-1], by_rank)).sum(-1)
    per_list = (1 - safe_divide(dcg, ideal_dcg(gain, k=k))).masked_fill(~has_positive(gain, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


def pirank_arp_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: int | None = None,
    tau: float | Tensor | None = None,
    sort: SoftSort = neural_sort,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Average relevance position of the softly sorted labels (PIR 11).

    .. math:: \frac{\sum_{i \le k} i \, [\hat P y]_i}{\sum_j y_j}

    k: number of ranks that count, default all. Labels must not be negative. Item weights multiply the labels, in
    the denominator too. As published, relevance beyond rank k adds nothing, so with a small k a list may gain by
    losing its relevant items: use it with all ranks, or beside another loss.

    Two equal scores put half of the relevance on rank 1 and half on rank 2:

    >>> pirank_arp_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(1.5000)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    relevance = labels if of_items is None else labels * of_items
    by_rank = _softly_sorted(relevance, scores, sort, k=k, tau=tau, mask=mask)
    position = torch.arange(1, by_rank.shape[-1] + 1, device=by_rank.device)
    per_list = safe_divide((by_rank * position).sum(-1), relevance.sum(-1))
    return reduce_lists(per_list.masked_fill(~has_positive(labels, mask), 0.0), weight=weight, reduction=reduction)


def sort_cross_entropy_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    tau: float | Tensor | None = None,
    sort: SoftSort = neural_sort,
    label_tau: float | Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy between the permutation of the labels and the soft one of the scores (ARF 12, L_Global).

    .. math:: -\frac{1}{n} \sum_{i, j} Q_{ij} \log \hat P_{ij}

    The equation in ARF has a second minus sign; this is the positive cross entropy. It needs all n rows.

    label_tau: None for the hard permutation :math:`Q` of the labels, equal ones by position; or the temperature at
      which `sort` is applied to the labels too. Item weights multiply the columns.

    Equal scores tell nothing about the two ranks, which costs log 2:

    >>> sort_cross_entropy_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    n = scores.shape[-1]
    cost = -_floored(log_rows(sort, scores, k=n, mask=mask, tau=tau))
    cost = cost if of_items is None else cost * of_items[..., None, :]
    order = rank_order(labels, mask)
    if label_tau is None:
        by_rank = cost.gather(-1, order[..., None]).squeeze(-1)
    else:
        by_rank = (cost * _rows(labels, sort, k=n, tau=label_tau, mask=mask)).sum(-1)
    # Real items come first in the order, so the mask in that order marks the list's own ranks.
    per_list = list_mean(by_rank, mask.gather(-1, order)).masked_fill(~has_positive(labels, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


def relax_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    m: int,
    k: int,
    tau: float | Tensor | None = None,
    sort: SoftSort = neural_sort,
    positive_only: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Recall@m@k relaxed through a soft sort (ARF 11, L_Relax).

    .. math:: -\frac{1}{|a|} \sum_j a_j \log \Big(\frac{1}{m} \sum_{i \le m} \hat P_{ij}\Big)

    m: number of items kept by score. k: number of relevant items; :math:`a` is membership in the k best labels.
    The factor 1/m is the paper's: the loss of a perfect list is about log m, not 0. So is that of a list of at most m
    items, which cannot miss any; only :func:`topk_bce_loss` leaves such lists out.

    Two equal scores give either item half of rank 1, which costs log 2:

    >>> relax_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), m=1, k=1)
    tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    truth = top_labels(labels, k, mask, positive_only=positive_only)
    # The sum stays in log space: an item far below the cut still has a gradient.
    rows = log_rows(sort, scores, k=check_count("m", m), mask=mask, tau=tau)
    log_kept = _floored(rows.logsumexp(-2)) - math.log(m)
    cost = -truth * log_kept if of_items is None else -truth * log_kept * of_items
    per_list = safe_divide(cost.sum(-1), truth.sum(-1))
    return reduce_lists(per_list, weight=weight, reduction=reduction)


def topk_bce_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: int,
    topk: TopK | None = None,
    positive_only: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Binary cross entropy of each item's inclusion in the top k (DFT, L_TopK; LCR 12, L_single).

    .. math:: -\frac{1}{n} \sum_j a_j \log p_j + (1 - a_j) \log(1 - p_j)

    k: number of items included by score, and of relevant items; :math:`a` is membership in the k best labels. Of a
      list that has no more than k items all are included, whatever their scores: its loss is 0.
    topk: inclusion function from :func:`rankfall.ops.topk`, default ``topk("dftopk")``. L_single of LCRON is this
      loss with ``topk("neural_sort", tau=...)``.

    DFTopK puts its threshold halfway between the two equal scores, so either is included with probability 1/2:

    >>> topk_bce_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), k=1)
    tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    truth = top_labels(labels, k, mask, positive_only=positive_only)
    log_in, log_out = log_inclusion(make_topk("dftopk") if topk is None else topk, scores, k, mask=mask)
    cost = -(truth * log_in + (1 - truth) * log_out)
    per_list = list_mean(cost if of_items is None else cost * of_items, mask)
    per_list = per_list.masked_fill(~can_miss(truth, mask, k), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


def _softly_sorted(
    values: Tensor,
    scores: Tensor,
    sort: SoftSort,
    *,
    k: int | None,
    tau: float | Tensor | None,
    mask: Tensor,
) -> Float[Tensor, "*batch k"]:
    """What the soft permutation puts on each of the first k ranks. Not a matmul: autocast would halve its digits."""
    ranks = scores.shape[-1] if k is None else check_count("k", k)
    return (_rows(scores, sort, k=ranks, tau=tau, mask=mask) * values[..., None, :]).sum(-1)


def _rows(
    scores: Tensor, sort: SoftSort, *, k: int, tau: float | Tensor | None, mask: Tensor
) -> Float[Tensor, "*batch k n"]:
    """Rows of any soft sort, at its own temperature if none is given."""
    options: dict[str, Any] = {} if tau is None else {"tau": tau}
    rows = sort(scores, k=k, mask=mask, **options)
    if rows.shape[:-2] != scores.shape[:-1]:
        raise ValueError(f"sort must give one soft permutation a list, got shape {tuple(rows.shape)} of its draws")
    return rows


def _floored(logarithm: Tensor) -> Tensor:
    """Logarithms in which that of an exact 0 is -100, as in torch's binary cross entropy.

    NeuralSort and SoftSort never give a real item 0, so their gradient does not end at the floor.
    """
    return logarithm.masked_fill(logarithm <= LOG_ZERO / 2, -100.0)
