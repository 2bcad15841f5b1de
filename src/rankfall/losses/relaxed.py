"""Losses computed from a soft sort or a soft top-k; the operator is an argument."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_choice, check_count, check_flag, check_lists, check_none, check_scale, is_published
from rankfall._errors import RankfallError
from rankfall._lists import (
    Reduction,
    check_relevant,
    counts_for_order,
    discounts,
    gains,
    has_positive,
    has_recall_signal,
    ideal_dcg,
    item_weight,
    list_mean,
    rank_order,
    reduce_lists,
    safe_divide,
    top_labels,
)
from rankfall.losses._module import LossModule
from rankfall.ops import LOG_ZERO, log_inclusion, log_rows, neural_sort
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from rankfall.ops import SoftSort, TopK
    from rankfall.option_types import Count, Scale


@register.loss
def pirank_ndcg_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: Count | None = None,
    tau: Scale | Tensor | None = None,
    sort: SoftSort = neural_sort,
    straight_through: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""One minus NDCG@k of the softly sorted gains (PIR, eq. 8-10; NeuralNDCG).

    .. math:: 1 - \frac{1}{\text{ideal DCG@}k} \sum_{i \le k} \frac{[\hat P G]_i}{D(i)}

    With item weights, the loss is the difference of the ideal DCG and the DCG of weighted gains, divided by the ideal
    DCG without weights. Use it to optimise NDCG@k through a soft sort.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, at least 0. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        k: Number of ranks that count, at least 1. Default: all.
        tau: Positive temperature of `sort`: a number, a scalar tensor, or one value per list ``(..., 1)``. Default: the
            default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        straight_through: Whether the value is that of the hard permutation, with the gradient of the soft one, as in
            the published code. The loss is linear in the permutation, so the gradient, and with it the trained model,
            is the same as without. Equal scores share their ranks.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Two equal scores put half of the gain on each rank, so NDCG is (1 + 1/log2(3)) / 2:

        >>> pirank_ndcg_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor(0.1845)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    gain = gains(labels, mask)
    weighted = gain if of_items is None else gain * of_items
    by_rank = _softly_sorted(weighted, scores, sort, k=k, tau=tau, mask=mask, straight_through=straight_through)
    dcg = (by_rank * discounts(by_rank.shape[-1], by_rank)).sum(-1)
    ideal = ideal_dcg(gain, k=k)
    best = 1.0 if of_items is None else safe_divide(ideal_dcg(weighted, k=k), ideal)
    per_list = (best - safe_divide(dcg, ideal)).masked_fill(~has_positive(gain, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class PiRankNDCGLoss(LossModule):
    """Module of :func:`pirank_ndcg_loss`."""

    function = staticmethod(pirank_ndcg_loss)


@register.loss
def pirank_arp_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: Count | None = None,
    tau: Scale | Tensor | None = None,
    sort: SoftSort = neural_sort,
    straight_through: bool = False,
    variant: Literal["sound", "published"] = "sound",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Average relevance position of the softly sorted labels (PIR, eq. 11).

    .. math:: \frac{\sum_{i \le k} i \, [\hat P y]_i}{\sum_j y_j}

    Item weights multiply the labels in the numerator. As published, relevance beyond rank k adds nothing, so with a
    small k the loss can decrease when relevant items are lost: use it with all ranks, or beside another loss.

    The printed equation sums the first k labels in the denominator, in the order in which the items are given. The
    default sums all labels, so that the value does not depend on that order; for the default k both are equal.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, not negative. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        k: Number of ranks that count, at least 1. Default: all.
        tau: Positive temperature of `sort`: a number, a scalar tensor, or one value per list ``(..., 1)``. Default: the
            default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        straight_through: Whether the value is that of the hard permutation, with the gradient of the soft one, as in
            the published code. The loss is linear in the permutation, so the gradient, and with it the trained model,
            is the same as without. Equal scores share their ranks.
        variant: ``"sound"`` divides by the sum of all labels, so that the value is the ARP if k is the length of the
            list. ``"published"`` divides by the sum of the first k labels, as the equation is printed.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Two equal scores put half of the relevance on rank 1 and half on rank 2:

        >>> pirank_arp_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor(1.5000)
    """
    published = is_published(variant)
    scores, labels, mask = check_lists(scores, labels, mask)
    check_none("labels", labels < 0, "values below 0")
    of_items = item_weight(weight, scores, mask)
    relevance = labels if of_items is None else labels * of_items
    by_rank = _softly_sorted(relevance, scores, sort, k=k, tau=tau, mask=mask, straight_through=straight_through)
    position = torch.arange(1, by_rank.shape[-1] + 1, device=by_rank.device)
    counted = labels
    if published:
        counted = labels.masked_fill(mask.cumsum(-1) > by_rank.shape[-1], 0.0)
    per_list = safe_divide((by_rank * position).sum(-1), counted.sum(-1))
    return reduce_lists(per_list.masked_fill(~has_positive(labels, mask), 0.0), weight=weight, reduction=reduction)


class PiRankARPLoss(LossModule):
    """Module of :func:`pirank_arp_loss`."""

    function = staticmethod(pirank_arp_loss)


@register.loss
def sort_cross_entropy_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    tau: Scale | Tensor | None = None,
    sort: SoftSort = neural_sort,
    label_tau: Scale | Tensor | None = None,
    ties: Literal["average", "position"] = "average",
    variant: Literal["sound", "published"] = "sound",
    scale: Literal["mean", "sum"] | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy of the labels' permutation and the scores' soft permutation (ARF, eq. 12, L_Global).

    .. math:: -\frac{1}{n} \sum_{i, j} Q_{ij} \log \hat P_{ij}

    where :math:`Q` is the permutation of the labels, averaged over the orders of equal labels, so that the loss does
    not depend on the order in which items are given. The equation in ARF has a second minus sign and no factor 1/n;
    this is the positive cross entropy. It needs all n rows. Item weights multiply the columns. Only the order
    of the labels matters, so they may be negative (with `label_tau`, their differences). A list whose labels are all
    equal and not positive has loss 0. Use it if the whole order of the labels matters.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        tau: Positive temperature of `sort`: a number, a scalar tensor, or one value per list ``(..., 1)``. Default: the
            default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        label_tau: None for the hard permutation of the labels. Otherwise the positive temperature at which `sort` is
            applied to the labels: a number or a tensor ``(..., 1)``. Default of the published variant: `tau`.
        ties: Hard permutation of equal labels. ``"average"`` is the mean over all their orders. ``"position"`` puts the
            item that is given first before the others, so that the loss depends on the order of the items.
        variant: ``"published"`` is ARF, eq. 12, as printed: the soft permutation of the labels is the target, and rows
            are summed.
        scale: ``"mean"`` over the rows of a list, or their ``"sum"`` (the default of the published variant).
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        With equal scores both orders are equally likely, which costs log 2:

        >>> sort_cross_entropy_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    if label_tau is not None:
        check_scale("label_tau", label_tau, scores)
    n = scores.shape[-1]
    cost = -_floored(log_rows(sort, scores, k=n, mask=mask, tau=tau))
    cost = cost if of_items is None else cost * of_items[..., None, :]
    order = rank_order(labels, mask)
    real = mask.gather(-1, order)  # real items come first in the order, so these are also the ranks of the list
    published = is_published(variant)
    if published or label_tau is not None:
        by_rank = (cost * _rows(labels, sort, k=n, tau=tau if label_tau is None else label_tau, mask=mask)).sum(-1)
    elif check_choice("ties", ties, ("average", "position")) == "average":
        by_rank = (cost * _tie_shares(labels.gather(-1, order), labels, mask)).sum(-1)
    else:
        by_rank = cost.gather(-1, order[..., None]).squeeze(-1)
    scale = scale or ("sum" if published else "mean")
    per_list = _scaled(by_rank, real, scale).masked_fill(~counts_for_order(labels, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class SortCrossEntropyLoss(LossModule):
    """Module of :func:`sort_cross_entropy_loss`."""

    function = staticmethod(sort_cross_entropy_loss)


@register.loss
def relax_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    m: Count,
    k: Count,
    tau: Scale | Tensor | None = None,
    sort: SoftSort = neural_sort,
    positive_only: bool = True,
    label_tau: Scale | Tensor | None = None,
    variant: Literal["sound", "published"] = "sound",
    scale: Literal["mean", "sum"] | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Recall@m@k relaxed through a soft sort (ARF, eq. 11, L_Relax).

    .. math:: -\frac{1}{|a|} \sum_j a_j \log \Big(\frac{1}{m} \sum_{i \le m} \hat P_{ij}\Big)

    where :math:`a` is the membership in the k best labels. The paper has the factor 1/m, so that the loss of a perfect
    list is about log m, not 0, but not the factor 1/\|a\|. A list of at most m items cannot miss any item, but has this
    loss too; only :func:`topk_bce_loss` leaves such lists out. Use it for a stage that selects m items.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        m: Number of items that the scores keep, at least 1. May exceed the length of a list.
        k: Number of relevant items, at least 1: the k best labels. May exceed the length of a list.
        tau: Positive temperature of `sort`: a number, a scalar tensor, or one value per list ``(..., 1)``. Default: the
            default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        positive_only: Whether only labels above 0 can be among the k best; negative labels are then an error. Items
            tied at the k-th place share it.
        label_tau: None for the hard membership in the k best labels. Otherwise the positive temperature at which `sort`
            is applied to the labels, whose first k rows are added up, as in ARF, eq. 11: a number or a tensor ``(...,
            1)``. Default of the published variant: `tau`.
        variant: ``"published"`` is ARF, eq. 11, as printed: the membership is soft, see `label_tau`, and the items of a
            list are summed. The equation includes labels of 0, so it needs ``positive_only=False`` too.
        scale: ``"mean"`` over the relevant items of a list, or their ``"sum"`` (the default of the published variant).
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Two equal scores give each item half of rank 1, which costs log 2:

        >>> relax_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), m=1, k=1)
        tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_relevant(labels, positive_only)
    of_items = item_weight(weight, scores, mask)
    published = is_published(variant)
    if label_tau is not None:
        check_scale("label_tau", label_tau, scores)
    n = scores.shape[-1]
    if published or label_tau is not None:
        of_labels = tau if label_tau is None else label_tau
        truth = _rows(labels, sort, k=min(check_count("k", k), n), tau=of_labels, mask=mask).sum(-2)
        truth = truth * (labels > 0) if positive_only else truth
    else:
        truth = top_labels(labels, k, mask, positive_only=positive_only)
    # The sum is computed in log space, so that an item far below the cutoff still has a gradient.
    rows = log_rows(sort, scores, k=min(check_count("m", m), n), mask=mask, tau=tau)
    log_kept = _floored(rows.logsumexp(-2)) - math.log(m)
    cost = -truth * log_kept if of_items is None else -truth * log_kept * of_items
    total = cost.sum(-1)
    summed = _check_scale(scale or ("sum" if published else "mean")) == "sum"
    per_list = total if summed else safe_divide(total, truth.sum(-1))
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class RelaxLoss(LossModule):
    """Module of :func:`relax_loss`."""

    function = staticmethod(relax_loss)


@register.loss
def topk_bce_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: Count,
    m: Count | None = None,
    topk: TopK | None = None,
    positive_only: bool = True,
    scale: Literal["mean", "sum"] = "mean",
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Binary cross entropy of the inclusion of each item in the top k (DFT, L_TopK; LCR, eq. 12, L_single).

    .. math:: -\frac{1}{n} \sum_j a_j \log p_j + (1 - a_j) \log(1 - p_j)

    where :math:`a` is the membership in the k best labels. A list with at most m items has loss 0, since all of its
    items are included whatever their scores. L_single of LCRON is this loss with ``topk("neural_sort", tau=...)``. Use
    it for a stage that must select the k relevant items.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        k: Number of relevant items, at least 1: the k best labels.
        m: Number of items that the scores keep, at least 1. Default: `k`. If it is larger than `k`, the loss cannot
            reach 0: the probabilities add up to about m, but only k items have the target 1.
        topk: A soft top-k from :func:`rankfall.ops.topk`; in configurations, the name of any operator or a mapping of
            its name and options. Default: ``topk("dftopk")``.
        positive_only: Whether only labels above 0 can be among the k best; negative labels are then an error. Items
            tied at the k-th place share it.
        scale: ``"mean"`` over the items of a list, or their ``"sum"`` as in LCR, eq. 12.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        DFTopK puts its threshold halfway between the two equal scores, so each item is included with probability 1/2:

        >>> topk_bce_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), k=1)
        tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_relevant(labels, positive_only)
    of_items = item_weight(weight, scores, mask)
    truth = top_labels(labels, k, mask, positive_only=positive_only)
    kept = k if m is None else check_count("m", m)
    log_in, log_out = log_inclusion(make_topk("dftopk") if topk is None else topk, scores, kept, mask=mask)
    cost = -(truth * log_in + (1 - truth) * log_out)
    per_list = _scaled(cost if of_items is None else cost * of_items, mask, scale)
    per_list = per_list.masked_fill(~has_recall_signal(truth, mask, kept), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class TopKBCELoss(LossModule):
    """Module of :func:`topk_bce_loss`."""

    function = staticmethod(topk_bce_loss)


def _tie_shares(by_rank: Tensor, labels: Tensor, mask: Tensor) -> Float[Tensor, "*batch n n"]:
    """Return the permutation that sorts the labels, averaged over the orders of equal ones: they share their ranks."""
    equal = ((by_rank.unsqueeze(-1) == labels.unsqueeze(-2)) & mask.unsqueeze(-2)).to(labels.dtype)
    return equal / equal.sum(-1, keepdim=True).clamp(min=1)


def _scaled(values: Tensor, mask: Tensor, scale: str) -> Tensor:
    """Return the mean or the sum over the real items or ranks of each list."""
    return list_mean(values, mask) if _check_scale(scale) == "mean" else values.masked_fill(~mask, 0.0).sum(-1)


def _check_scale(scale: str) -> str:
    return check_choice("scale", scale, ("mean", "sum"))


def _softly_sorted(
    values: Tensor,
    scores: Tensor,
    sort: SoftSort,
    *,
    k: int | None,
    tau: float | Tensor | None,
    mask: Tensor,
    straight_through: bool,
) -> Float[Tensor, "*batch k"]:
    """Return the value that the soft permutation puts on each of the first k ranks.

    This is not a matmul, since autocast would compute it in half precision.
    """
    n = scores.shape[-1]
    ranks = n if k is None else min(check_count("k", k), n)  # no list has more ranks
    rows = _rows(scores, sort, k=ranks, tau=tau, mask=mask)
    if check_flag("straight_through", straight_through):
        rows = _hard_rows(scores, ranks, mask) + (rows - rows.detach())
    return (rows * values[..., None, :]).sum(-1)


def _hard_rows(scores: Tensor, k: int, mask: Tensor) -> Float[Tensor, "*batch k n"]:
    """Return the first k rows of the hard permutation, in which the items of equal scores share their ranks equally."""
    costs = -scores.detach().masked_fill(~mask, -torch.inf)
    ascending = costs.sort(-1).values
    first, end = (torch.searchsorted(ascending, costs, right=right).unsqueeze(-2) for right in (False, True))
    rank = torch.arange(k, device=scores.device).unsqueeze(-1)
    return ((rank >= first) & (rank < end) & mask.unsqueeze(-2)).to(scores.dtype) / (end - first)


def _rows(
    scores: Tensor, sort: SoftSort, *, k: int, tau: float | Tensor | None, mask: Tensor
) -> Float[Tensor, "*batch k n"]:
    """Return the rows of any soft sort, at its default temperature if `tau` is None."""
    if not callable(sort):
        raise TypeError(f"sort must be a soft sort such as rankfall.ops.softmax_sorts, got {sort!r}")
    options: dict[str, Any] = {} if tau is None else {"tau": tau}
    rows = sort(scores, k=k, mask=mask, **options)
    if rows.shape[:-2] != scores.shape[:-1]:
        raise RankfallError(f"sort must return one soft permutation per list, got shape {tuple(rows.shape)}")
    return rows


def _floored(logarithm: Tensor) -> Tensor:
    """Replace the logarithm of an exact 0 by -100, as in torch's binary cross entropy.

    NeuralSort and SoftSort never assign 0 to a real item, so their gradient does not vanish at the floor.
    """
    return logarithm.masked_fill(logarithm <= LOG_ZERO / 2, -100.0)
