"""Losses that interpret a list of scores as a distribution over items or over orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rankfall import register
from rankfall._checks import check_lists, check_none, check_scale
from rankfall._lists import (
    Reduction,
    add_gumbel,
    counts_for_order,
    gains,
    has_positive,
    ideal_dcg,
    item_weight,
    rank_order,
    reduce_lists,
    safe_divide,
)
from rankfall.losses._module import LossModule, map_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from rankfall.option_types import NotNegativeCount, Scale


@register.loss
def softmax_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Softmax cross entropy, the top-one form of ListNet (Cao et al. 2007; LLK, eq. 7).

    .. math:: -\sum_i y_i \log \frac{e^{s_i}}{\sum_j e^{s_j}}

    The labels are not normalised; divide them by their sum to get a distribution. Use it as a fast, strong baseline for
    lists with few relevant items.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, at least 0. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Three equal scores give every item a probability of one third, so a relevant item costs log 3:

        >>> softmax_loss(torch.tensor([5.0, 5.0, 5.0]), torch.tensor([0.0, 1.0, 0.0]))
        tensor(1.0986)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_none("labels", labels < 0, "values below 0")
    of_items = item_weight(weight, scores, mask)
    target = labels if of_items is None else labels * of_items
    # The smallest finite number, not -inf: 0 * -inf is NaN, and a list may be all padding.
    log_share = F.log_softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), -1)
    per_list = -(target * log_share).sum(-1).masked_fill(~has_positive(labels, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class SoftmaxLoss(LossModule):
    """Module of :func:`softmax_loss`."""

    function = staticmethod(softmax_loss)


@register.loss
def listmle_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ListMLE: negative log likelihood of the order of the labels under the Plackett-Luce model (Xia et al. 2008).

    .. math:: \sum_i \Big(\log \sum_{j \ge i} e^{s_{\pi(j)}} - s_{\pi(i)}\Big)

    where :math:`\pi` puts the labels in descending order, equal labels by position. An item weight is the weight of the
    step that places the item. Only the order of the labels matters, so they may be negative. A list whose labels are
    all equal and not positive has loss 0. Use it if the whole order of the labels matters.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Equal scores make all 3! orders equally likely, so each order costs log 6:

        >>> listmle_loss(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([2.0, 1.0, 0.0]))
        tensor(1.7918)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    of_items = item_weight(weight, scores, mask)
    order = rank_order(labels, mask)
    step_weight = (mask.to(scores.dtype) if of_items is None else of_items).gather(-1, order)
    ordered = _padded_far_below(scores, mask).gather(-1, order)
    remaining = ordered.flip(-1).logcumsumexp(-1).flip(-1)
    per_list = (step_weight * (remaining - ordered)).sum(-1).masked_fill(~counts_for_order(labels, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class ListMLELoss(LossModule):
    """Module of :func:`listmle_loss`."""

    function = staticmethod(listmle_loss)


def _padded_far_below(scores: Tensor, mask: Tensor) -> Tensor:
    """Subtract each list's highest score, and put masked items so far below the lowest that their exponentials vanish.

    Only differences matter, and a common offset would cost precision. logcumsumexp has no finite gradient at -inf, and
    the smallest finite number would absorb the scores next to it.
    """
    fixed = scores.detach()
    highest = fixed.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    lowest = fixed.masked_fill(~mask, torch.inf).amin(-1, keepdim=True)
    return torch.where(mask, scores - highest, (lowest - highest).clamp(max=0.0) - 1000.0)


@register.loss
def approx_ndcg_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    tau: Scale | Tensor = 1.0,
    gumbel_samples: NotNegativeCount = 0,
    beta: Scale = 1.0,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""ApproxNDCG: one minus NDCG at smooth ranks (Qin et al. 2010; LLK, eq. 8; Gumbel: Bruch et al. 2020).

    .. math:: 1 - \frac{1}{\text{ideal DCG}} \sum_i \frac{G_i}{D(\hat r_i)}, \quad
              \hat r_i = 1 + \sum_{j \ne i} \sigma\Big(\frac{s_j - s_i}{\tau}\Big)

    LLK, eq. 8 sums over all j, which would add the constant 1/2 to each rank; here the item itself is left out. With
    item weights, the loss is the difference of the ideal DCG and the DCG of weighted gains, divided by the ideal DCG
    without weights. Use it to optimise NDCG directly, without a soft sort.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels, at least 0. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is, the
            closer the ranks are to the exact ones.
        gumbel_samples: Number of draws of Gumbel noise that is added to the scores, 0 for no noise. The loss is the
            mean over the draws.
        beta: Positive scale of the Gumbel noise.
        generator: Random generator of the Gumbel noise. Default: torch's global generator.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Two equal scores share the ranks 1 and 2, so NDCG is 1/log2(2.5):

        >>> approx_ndcg_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]))
        tensor(0.2435)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    check_scale("tau", tau, scores)
    check_scale("beta", beta)
    of_items = item_weight(weight, scores, mask)
    gain = gains(labels, mask)
    weighted = gain if of_items is None else gain * of_items
    noisy = add_gumbel(scores, gumbel_samples, beta, generator) if gumbel_samples else scores[None]
    discount = torch.log2(1 + _smooth_ranks(noisy / tau, mask)).reciprocal()
    ideal = ideal_dcg(gain)
    best = 1.0 if of_items is None else safe_divide(ideal_dcg(weighted), ideal)
    reached = safe_divide((weighted * discount).sum(-1), ideal)
    per_list = (best - reached).mean(0).masked_fill(~has_positive(gain, mask), 0.0)
    return reduce_lists(per_list, weight=weight, reduction=reduction)


class ApproxNDCGLoss(LossModule):
    """Module of :func:`approx_ndcg_loss`."""

    function = staticmethod(approx_ndcg_loss)


def _smooth_ranks(scores: Tensor, mask: Tensor) -> Tensor:
    def block(start: int, stop: int) -> Tensor:
        ahead = torch.sigmoid(scores[..., None, :] - scores[..., start:stop, None])
        # The item's own sigmoid is 1/2, and ranks start at 1.
        return 0.5 + (ahead * mask[..., None, :]).sum(-1)

    return torch.cat(map_rows(block, scores.shape[-1], scores.numel()), -1)
