"""Pointwise losses: each item has its own term. A list without a positive label has an ordinary loss here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rankfall import register
from rankfall._checks import (
    at_least_float32,
    check_device,
    check_finite,
    check_lists,
    check_none,
    check_shape,
    check_values,
)
from rankfall._errors import RankfallError
from rankfall._lists import Reduction, item_weight, list_mean, reduce_lists
from rankfall.losses._module import LossModule

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@register.loss
def mse_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Squared error, mean over the items of a list.

    .. math:: \frac{1}{n} \sum_i (s_i - y_i)^2

    Use it if the scores should predict the labels themselves.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        >>> mse_loss(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]))
        tensor(2.)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    return _mean_over_items((scores - labels).square(), scores, mask, weight, reduction)


class MSELoss(LossModule):
    """Module of :func:`mse_loss`."""

    function = staticmethod(mse_loss)


@register.loss
def bce_loss(
    scores: Float[Tensor, "*batch n"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    threshold: float | None = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Binary cross entropy of the scores as logits, mean over the items of a list.

    .. math:: -\frac{1}{n} \sum_i t_i \log \sigma(s_i) + (1 - t_i) \log(1 - \sigma(s_i))

    Use it if the scores should be calibrated probabilities (after a sigmoid).

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension.
        labels: Tensor ``(..., n)`` of relevance labels. Higher is better.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        threshold: Labels above it have the target 1, all others 0. None: the labels are the targets themselves and must
            be in [0, 1].
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        A score of 0 means a probability of one half, which costs log 2 for either target:

        >>> bce_loss(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 0.0]))
        tensor(0.6931)
    """
    scores, labels, mask = check_lists(scores, labels, mask)
    if threshold is None:
        check_none("labels", (labels < 0) | (labels > 1), "values outside [0, 1] with threshold=None")
        target = labels
    else:
        target = (labels > check_finite("threshold", threshold)).to(scores.dtype)
    costs = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
    return _mean_over_items(costs, scores, mask, weight, reduction)


class BCELoss(LossModule):
    """Module of :func:`bce_loss`."""

    function = staticmethod(bce_loss)


@register.loss
def grade_softmax_loss(
    logits: Float[Tensor, "*batch n grades"],
    labels: Float[Tensor, "*batch n"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Classification into label grades, mean over the items of a list (baseline "Softmax" of ARF).

    .. math:: -\frac{1}{n} \sum_i \log \frac{e^{z_{i, y_i}}}{\sum_g e^{z_{ig}}}

    Use it with a model that has one output per grade, and rank items by their :func:`expected_grade`.

    Args:
        logits: Floating tensor ``(..., n, grades)``, one logit per grade of each item.
        labels: Tensor ``(..., n)`` of grades: whole numbers from 0 to grades - 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        reduction: ``"mean"`` or ``"sum"`` over the lists, or ``"none"`` for one value per list.

    Returns:
        A scalar tensor, or a tensor ``(...)`` if `reduction` is ``"none"``.

    Examples:
        Equal logits of four grades cost log 4:

        >>> grade_softmax_loss(torch.zeros(2, 4), torch.tensor([3.0, 0.0]))
        tensor(1.3863)
    """
    logits = _check_logits(logits)
    check_shape("labels", labels, logits.shape[:-1], of="logits without its grades")
    check_device("labels", labels, logits, of="logits")
    _, labels, mask = check_lists(torch.zeros_like(logits[..., 0]), labels, mask)
    logits = logits.masked_fill(~mask[..., None], 0.0)
    check_values("logits", logits)
    grades = logits.shape[-1]
    check_none("labels", labels != labels.floor(), "fractions, grades are whole numbers")
    check_none("labels", (labels < 0) | (labels >= grades), f"values outside 0..{grades - 1}, the {grades} grades")
    costs = -F.log_softmax(logits, -1).gather(-1, labels.long()[..., None]).squeeze(-1)
    return _mean_over_items(costs, labels, mask, weight, reduction)


class GradeSoftmaxLoss(LossModule):
    """Module of :func:`grade_softmax_loss`."""

    function = staticmethod(grade_softmax_loss)


def expected_grade(logits: Float[Tensor, "*batch n grades"]) -> Float[Tensor, "*batch n"]:
    r"""Score of each item for a model trained with :func:`grade_softmax_loss`: its expected grade.

    .. math:: \sum_g g \, \text{softmax}(z_i)_g

    Args:
        logits: Floating tensor ``(..., n, grades)``, one logit per grade of each item.

    Returns:
        Scores ``(..., n)``.

    Examples:
        >>> expected_grade(torch.zeros(2, 5))
        tensor([2., 2.])
    """
    logits = _check_logits(logits)
    check_values("logits", logits)
    share = logits.softmax(-1)
    return (share * torch.arange(share.shape[-1], device=share.device)).sum(-1)


def _check_logits(logits: Tensor) -> Tensor:
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a torch.Tensor, got {type(logits).__name__}")
    if not logits.is_floating_point():
        raise RankfallError(f"logits must be floating point, got {logits.dtype}; convert with logits.float()")
    if logits.ndim < 2 or logits.shape[-1] == 0:
        raise RankfallError(f"logits must have the shape (..., n, grades), got {tuple(logits.shape)}")
    return at_least_float32(logits)


def _mean_over_items(
    costs: Tensor, scores: Tensor, mask: Tensor, weight: Tensor | None, reduction: Reduction
) -> Tensor:
    of_items = item_weight(weight, scores, mask)
    per_list = list_mean(costs if of_items is None else costs * of_items, mask)
    return reduce_lists(per_list, weight=weight, reduction=reduction)
