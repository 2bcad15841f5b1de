"""ARF and ARF-v2: a loss of the recall and a loss of the order, balanced by a trained weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rankfall import register
from rankfall._checks import check_choice, check_lists, is_published
from rankfall._lists import Reduction, counts_for_order, item_weight, reduce_lists
from rankfall.losses.relaxed import RelaxLoss, SortCrossEntropyLoss, TopKBCELoss
from rankfall.ops import neural_sort
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from rankfall.losses._module import LossModule
    from rankfall.ops import SoftSort, TopK
    from rankfall.option_types import Count, Scale


class _AdaptiveLoss(nn.Module):
    """A loss of the recall plus a loss of the whole order, balanced by a trained weight."""

    def __init__(self, recall: LossModule, order: LossModule, reduction: Reduction) -> None:
        super().__init__()
        check_choice("reduction", reduction, ("mean", "sum", "none"))
        self.recall = recall
        self.order = order
        self.reduction = reduction
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(
        self,
        scores: Float[Tensor, "*batch n"],
        labels: Float[Tensor, "*batch n"],
        *,
        mask: Bool[Tensor, "*batch n"] | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Return the balanced loss.

        Args:
            scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
            labels: Tensor ``(..., n)`` of relevance labels. Higher is better. Negative labels need
                ``positive_only=False``.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
            weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        """
        scores, labels, mask = check_lists(scores, labels, mask)
        of_items = item_weight(weight, scores, mask)
        recall = self.recall(scores, labels, mask=mask, weight=of_items)
        order = self.order(scores, labels, mask=mask, weight=of_items)
        balanced = order / (2 * self.alpha.square()) + self.alpha.abs().log()
        # The logarithm would pull alpha to 0 on lists without information about the order.
        per_list = recall + balanced.masked_fill(~counts_for_order(labels, mask), 0.0)
        return reduce_lists(per_list, weight=weight, reduction=self.reduction)


@register.loss("arf")
class ARFLoss(_AdaptiveLoss):
    r"""ARF: :func:`relax_loss` and :func:`sort_cross_entropy_loss`, balanced by a trained weight (ARF, eq. 13).

    .. math:: L_{Relax} + \frac{1}{2 \alpha^2} L_{Global} + \log |\alpha|

    The weight :math:`\alpha` starts at 1 and is a parameter: pass it to the optimizer together with the parameters of
    the model. A list whose labels are all equal and not positive has loss 0, without the logarithm. Use it for a stage
    that selects m items by their whole order.

    Args:
        m: Number of items that the scores keep, at least 1. May exceed the length of a list.
        k: Number of relevant items, at least 1: the k best labels. May exceed the length of a list.
        tau: Positive temperature of `sort` in both losses: a number, a scalar tensor, or one value per list ``(...,
            1)``. Default: the default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        label_tau: None for the hard permutation of the labels. Otherwise the positive temperature at which `sort` is
            applied to the labels: a number or a tensor ``(..., 1)``.
            Default of the published variant: `tau`.
        ties: Hard permutation of equal labels: the ``"average"`` over all their orders, or by ``"position"``.
        positive_only: Whether only labels above 0 can be among the k best; negative labels are then an error. Items
            tied at the k-th place share it.
        variant: ``"published"`` is eq. 11 to 13 as printed: the soft permutation of the labels is the target of both
            losses, not only of the order, and both are sums.
        scale: ``"mean"`` of both losses, ``"sum"`` of both (the default of the published variant), or ``"mixed"``: the
            sum for the recall and the mean for the order, as in the code of LCRON's baseline. The trained weight starts
            at 1, so the scale decides the balance at the start: with 10 relevant of 40 items and equal scores, the
            ratio of recall to order is 1, 1/4 and 10.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Examples:
        Two equal scores: the recall costs log 2, the order half of log 2:

        >>> loss = ARFLoss(m=1, k=1)
        >>> loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])).detach()
        tensor(1.0397)
    """

    def __init__(
        self,
        *,
        m: Count,
        k: Count,
        tau: Scale | Tensor | None = None,
        sort: SoftSort = neural_sort,
        label_tau: Scale | Tensor | None = None,
        ties: Literal["average", "position"] = "average",
        positive_only: bool = True,
        variant: Literal["sound", "published"] = "sound",
        scale: Literal["mean", "sum", "mixed"] | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        published = is_published(variant)
        of_recall, of_order = adaptive_scales(scale or ("sum" if published else "mean"))
        relaxed = RelaxLoss(
            m=m,
            k=k,
            tau=tau,
            sort=sort,
            positive_only=positive_only,
            label_tau=label_tau if published else None,
            variant=variant,
            scale=of_recall,
            reduction="none",
        )
        order = SortCrossEntropyLoss(
            tau=tau, sort=sort, label_tau=label_tau, ties=ties, variant=variant, scale=of_order, reduction="none"
        )
        super().__init__(relaxed, order, reduction)


def adaptive_scales(scale: str) -> tuple[Literal["mean", "sum"], Literal["mean", "sum"]]:
    """Return the scales of the losses of the recall and of the order that a scale of both stands for."""
    check_choice("scale", scale, ("mean", "sum", "mixed"))
    return "mean" if scale == "mean" else "sum", "sum" if scale == "sum" else "mean"


@register.loss("arf_v2")
class ARFv2Loss(_AdaptiveLoss):
    r"""ARF-v2: ARF with :func:`topk_bce_loss` instead of :func:`relax_loss` (LCR, baseline).

    .. math:: L_{single} + \frac{1}{2 \alpha^2} L_{Global} + \log |\alpha|

    The weight :math:`\alpha` starts at 1 and is a parameter, as in :class:`ARFLoss`. Use it as a baseline for LCRON.

    Args:
        k: Number of relevant items, at least 1: the k best labels.
        m: Number of items that the scores keep, at least 1. Default: `k`. LCRON's baseline takes the stage's quota.
        topk: A soft top-k from :func:`rankfall.ops.topk`; in configurations, the name of any operator or a mapping of
            its name and options. Default: NeuralSort at `tau`, as published.
        tau: Positive temperature of `sort`, and of the default of `topk`: a number, a scalar tensor, or one value per
            list ``(..., 1)``. Default: the default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        label_tau: None for the hard permutation of the labels. Otherwise the positive temperature at which `sort` is
            applied to the labels: a number or a tensor ``(..., 1)``.
        ties: Hard permutation of equal labels: the ``"average"`` over all their orders, or by ``"position"``.
        positive_only: Whether only labels above 0 can be among the k best; negative labels are then an error. Items
            tied at the k-th place share it.
        scale: ``"mean"`` of both losses, ``"sum"`` of both, or ``"mixed"``: the sum for the inclusion and the mean for
            the order.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Examples:
        Two equal scores: inclusion costs log 2, the order half of log 2:

        >>> loss = ARFv2Loss(k=1)
        >>> loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])).detach()
        tensor(1.0397)
    """

    def __init__(
        self,
        *,
        k: Count,
        m: Count | None = None,
        topk: TopK | None = None,
        tau: Scale | Tensor | None = None,
        sort: SoftSort = neural_sort,
        label_tau: Scale | Tensor | None = None,
        ties: Literal["average", "position"] = "average",
        positive_only: bool = True,
        scale: Literal["mean", "sum", "mixed"] = "mean",
        reduction: Reduction = "mean",
    ) -> None:
        if topk is None:
            topk = make_topk("neural_sort") if tau is None else make_topk("neural_sort", tau=tau)
        of_recall, of_order = adaptive_scales(scale)
        super().__init__(
            TopKBCELoss(k=k, m=m, topk=topk, positive_only=positive_only, scale=of_recall, reduction="none"),
            SortCrossEntropyLoss(tau=tau, sort=sort, label_tau=label_tau, ties=ties, scale=of_order, reduction="none"),
            reduction,
        )
