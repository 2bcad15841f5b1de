r"""Losses over pairs of items of one list.

All of them are one sum. A pair costs :math:`\log(1 + e^{-\sigma (s_w - s_l)})`, where *w* is the item with the better
label, times the difference of the two labels' values, times a weight that depends on the two ranks. If the list is in
rank order, the latter weight is the same matrix for every list, and each unordered pair occurs once, in the upper
triangle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rankfall import register
from rankfall._checks import check_choice, check_count, check_lists, check_scale, check_share
from rankfall._lists import (
    Reduction,
    check_relevant,
    discounts,
    gains,
    has_positive,
    ideal_dcg,
    item_weight,
    rank_order,
    reduce_lists,
    safe_divide,
    top_labels,
)
from rankfall.losses._module import LossModule, row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float

    from rankfall.option_types import Count, Fraction, Scale

    # The weight of rank i against the lower rank j, for rows start..stop and columns start..n; 0 unless i < j.
    RankWeight = Callable[[int, int], Tensor]


# --- the sum over pairs -----------------------------------------------------------------------------------------


def _pair_sum(
    scores: Tensor,
    grades: Tensor,
    mask: Tensor,
    *,
    weight: Tensor | None,
    rank_weight: RankWeight,
    rows: int | None = None,
    advantage: Callable[[Tensor, Tensor], Tensor] = torch.sub,
) -> Tensor:
    """Sum over each list's pairs of |advantage of grades| * rank weight * log(1 + exp(loser's - winner's score)).

    Only the first `rows` ranks are used as the upper item of a pair, which covers all nonzero truncated weights. The
    gradient is computed along with the value, one block of pairs at a time, so pairs are neither stored nor visited
    twice.
    """
    n = scores.shape[-1]
    order = rank_order(scores, mask)
    ordered = scores.gather(-1, order)
    levels = ordered.detach()
    grades, real = grades.gather(-1, order), mask.gather(-1, order)
    weight = None if weight is None else weight.gather(-1, order)
    total, slope = torch.zeros_like(levels[..., 0]), torch.zeros_like(levels)
    for start, stop in row_blocks(n if rows is None else min(rows, n), levels.numel()):
        gap = F.relu(_differences(torch.sub, levels, start, stop))
        ahead = _differences(advantage, grades, start, stop)
        lower_wins = ahead < 0
        size = ahead.abs() * rank_weight(start, stop)
        size *= real[..., None, start:]  # masked items rank last, so a pair is real if its lower item is real
        if weight is not None:
            size *= torch.where(lower_wins, weight[..., None, start:], weight[..., start:stop, None])
        # In rank order no real pair has a negative gap, so e^-gap cannot overflow. Where the lower item is the winner,
        # the cost is log(1 + e^gap) = gap + log(1 + e^-gap).
        power = torch.exp(-gap)
        wrong = lower_wins.to(power.dtype)
        total += (size * torch.addcmul(torch.log1p(power), wrong, gap)).sum((-2, -1))
        step = size * (wrong - power / (1 + power))
        slope[..., start:stop] += step.sum(-1)
        slope[..., start:] -= step.sum(-2)
    value: Tensor = _WithGradient.apply(ordered, total, slope)  # type: ignore[no-untyped-call]
    return value


class _WithGradient(torch.autograd.Function):
    """One value per list with a gradient that has been computed already."""

    @staticmethod
    def forward(scores: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        scores, slope = ctx.saved_tensors
        result: Tensor = _OnceDifferentiable.apply(gradient[..., None] * slope, scores)  # type: ignore[no-untyped-call]
        return result, None, None


class _OnceDifferentiable(torch.autograd.Function):
    """Links a gradient to the scores it depends on, so that a second derivative raises an error instead of being 0."""

    @staticmethod
    def forward(gradient: Tensor, scores: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        raise RuntimeError("pairwise losses can be differentiated once, not twice")


def _differences(function: Callable[[Tensor, Tensor], Tensor], values: Tensor, start: int, stop: int) -> Tensor:
    return function(values[..., start:stop, None], values[..., None, start:])


def _any_rank(scores: Tensor) -> RankWeight:
    ranks = torch.arange(scores.shape[-1], device=scores.device)
    return lambda start, stop: _differences(torch.lt, ranks, start, stop)


def _discount_difference(discount: Tensor) -> RankWeight:
    # Discounts decrease with the rank, so negative differences are below the diagonal.
    return lambda start, stop: F.relu(_differences(torch.sub, discount, start, stop))


def _distance_discount(discount: Tensor, k: int | None, version: str) -> RankWeight:
    """Return the delta of LambdaLoss: the discount lost between distance d and d + 1, with either truncation at k."""
    n = discount.shape[0] - 1
    # lost[d] for the distance d = j - i of two ranks; the distance of an item to itself loses nothing.
    lost = F.pad(discount[: n - 1] - discount[1:n], (1, 0))
    row_factor = column_factor = torch.ones_like(lost)
    ranks = torch.arange(1, n + 1, device=discount.device)
    if k is not None:
        beyond = ranks > k
        if version == "sound":
            # The larger of the two ranks is that of the column.
            column_factor = torch.where(beyond, 1 / (1 - discount[:n]), 1.0)
        else:
            row_factor = (~beyond).to(lost.dtype)

    def weights(start: int, stop: int) -> Tensor:
        if torch.compiler.is_compiling():  # it would build one graph per length of a window
            shifted = lost[_differences(torch.sub, -ranks, start, stop).clamp(min=0)]
        else:
            # Row i is lost[j - i]: the same numbers, shifted right by one place per row.
            shifted = F.pad(lost[: n - start], (stop - start - 1, 0)).unfold(0, n - start, 1).flip(0)
        return shifted * row_factor[start:stop, None] * column_factor[start:]

    return weights


def _mixed(mix: float, first: RankWeight, second: RankWeight) -> RankWeight:
    return lambda start, stop: (1 - mix) * first(start, stop) + mix * second(start, stop)


# --- the losses -------------------------------------------------------------------------------------------------


@register.loss
def ranknet_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    sigma: Scale = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""RankNet: logistic loss of every pair with different labels (Burges et al. 2005; LLK, eq. 6).

    .. math:: \frac{1}{|\{y_i > y_j\}|} \sum_{y_i > y_j} \log(1 + e^{-\sigma (s_i - s_j)})

    The loss is the mean over the pairs, and 0 for a list whose labels are all equal. Only the order of the labels
    matters, so they may be negative. Pairs are processed in blocks, so
    memory is linear in n. Use it if every pair matters equally, whatever its rank.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        sigma: Positive slope of the logistic loss of a pair.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        One pair, in the wrong order by 1, costs log(1 + e):

        >>> ranknet_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
        tensor(1.3133)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    total = _pair_sum(
        scores * check_scale("sigma", sigma),
        labels,
        mask,
        weight=item_weight(weight, scores, mask),
        rank_weight=_any_rank(scores),
        advantage=lambda winner, loser: torch.sign(winner - loser),
    )
    return reduce_lists(safe_divide(total, _pairs(labels, mask)), weight=weight, reduction=reduction)


class RankNetLoss(LossModule):
    """Module of :func:`ranknet_loss`."""

    function = staticmethod(ranknet_loss)


def _pairs(labels: Tensor, mask: Tensor) -> Tensor:
    """Return the number of pairs of real items with different labels."""
    ascending = labels.masked_fill(~mask, torch.inf).sort(-1).values
    below = torch.searchsorted(ascending, labels.contiguous())
    return below.masked_fill(~mask, 0).sum(-1).to(labels.dtype)


@register.loss
def lambdarank_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: Count | None = None,
    sigma: Scale = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""LambdaRank: RankNet with pairs weighted by the NDCG that a swap changes (Burges 2010; LLK, eq. 11 and 12).

    .. math:: \frac{1}{\text{ideal DCG@}k} \sum_{y_i > y_j}
              |G_i - G_j| \Big|\frac{1}{D(r_i)} - \frac{1}{D(r_j)}\Big| \log(1 + e^{-\sigma (s_i - s_j)})

    With `k`, the discounts :math:`1/D` are 0 beyond rank k, and only the pairs of the first k ranks are computed. The
    weight carries no gradient. Use it to optimise NDCG; :func:`lambda_loss` is the variant with a proven bound.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, at least 0. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        k: Cutoff K of NDCG@K, at least 1. Default: the whole list.
        sigma: Positive slope of the logistic loss of a pair.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        The wrong order loses 1 - 1/log2(3) of an ideal DCG of 1, times log(1 + e):

        >>> lambdarank_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
        tensor(0.4847)
    """
    return lambda_loss(scores, labels, mask=mask, weight=weight, k=k, mix=1.0, sigma=sigma, reduction=reduction)


class LambdaRankLoss(LossModule):
    """Module of :func:`lambdarank_loss`."""

    function = staticmethod(lambdarank_loss)


@register.loss
def lambda_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    k: Count | None = None,
    version: Literal["sound", "heuristic"] = "sound",
    mix: Fraction = 0.0,
    sigma: Scale = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""LambdaLoss, and LambdaLoss@K in both versions (Wang et al. 2018; LLK, eq. 13 and 15-17).

    .. math:: \frac{1}{\text{ideal DCG@}k} \sum_{y_i > y_j} |G_i - G_j| \delta_{ij} \log(1 + e^{-\sigma (s_i - s_j)}),
              \quad \delta_{ij} = \frac{1}{D(|r_i - r_j|)} - \frac{1}{D(|r_i - r_j| + 1)}

    Use it to optimise NDCG or NDCG@K.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, at least 0. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        k: Cutoff K of NDCG@K, at least 1. Default: the whole list.
        version: Truncation of :math:`\delta` at K. ``"sound"`` (LLK, eq. 16 and 17) multiplies it by :math:`1 / (1 -
            1/D(\max(r_i, r_j)))` if either rank is beyond K, which makes the loss a bound of NDCG@K. ``"heuristic"``
            (LLK, eq. 15) drops the pairs with both ranks beyond K.
        mix: Share of the weight of LambdaRank that replaces :math:`\delta`, from 0 to 1 (the "smooth fraction" of
            FS-LTR).
        sigma: Positive slope of the logistic loss of a pair.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        In the wrong order, distance 1 loses 1 - 1/log2(3) of an ideal DCG of 1, times log(1 + e). With k = 1 the lower
        item is beyond the cutoff, and its factor makes the weight exactly 1:

        >>> lambda_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]))
        tensor(0.4847)
        >>> lambda_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]), k=1)
        tensor(1.3133)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_choice("version", version, ("sound", "heuristic"))
    check_share("mix", mix)
    if k is not None:
        check_count("k", k)
    n = scores.shape[-1]
    gain = gains(labels, mask)
    by_distance = _distance_discount(discounts(n + 1, scores), k, version)
    by_swap = _discount_difference(discounts(n, scores, k=k))
    rank_weight = by_distance if mix == 0 else by_swap if mix == 1 else _mixed(mix, by_distance, by_swap)
    total = _pair_sum(
        scores * check_scale("sigma", sigma),
        gain,
        mask,
        weight=item_weight(weight, scores, mask),
        rank_weight=rank_weight,
        rows=None if version == "sound" and mix < 1 else k,
    )
    per_list = safe_divide(total, ideal_dcg(gain, k=k)).masked_fill(~has_positive(labels, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class LambdaLoss(LossModule):
    """Module of :func:`lambda_loss`."""

    function = staticmethod(lambda_loss)


@register.loss
def lambda_recall_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    m: Count,
    k: Count,
    positive_only: bool = True,
    sigma: Scale = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Logistic loss of the pairs whose swap changes Recall@m@k (ARF, eq. 6 and 7).

    .. math:: \frac{1}{k} \sum_{y_i > y_j} |a_i - a_j| \, \big|[r_i \le m] - [r_j \le m]\big|
              \log(1 + e^{-\sigma (s_i - s_j)})

    where :math:`a` is the membership in the k best labels. Use it for a stage that selects m items, without a soft
    sort.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        m: Number of items that the scores keep, at least 1. May exceed the length of a list.
        k: Number of relevant items, at least 1: the k best labels. May exceed the length of a list.
        positive_only: Whether only labels above 0 can be among the k best; negative labels are then an error. Items
            tied at the k-th place share it.
        sigma: Positive slope of the logistic loss of a pair.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        One item is kept; the relevant item is behind it by 1:

        >>> lambda_recall_loss(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0]), m=1, k=1)
        tensor(1.3133)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_relevant(labels, positive_only)
    kept = torch.arange(scores.shape[-1], device=scores.device) < check_count("m", m)
    total = _pair_sum(
        scores * check_scale("sigma", sigma),
        top_labels(labels, k, mask, positive_only=positive_only),
        mask,
        weight=item_weight(weight, scores, mask),
        rank_weight=_discount_difference(kept.to(scores.dtype)),
        rows=m,
    )
    return reduce_lists(total / k, weight=weight, reduction=reduction)


class LambdaRecallLoss(LossModule):
    """Module of :func:`lambda_recall_loss`."""

    function = staticmethod(lambda_recall_loss)
