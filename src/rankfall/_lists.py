"""Lists of items: arithmetic that all operators, losses and metrics share.

A tensor ``(..., n)`` holds one list of items in its last dimension; leading dimensions are batch dimensions. A boolean
`mask` of the same shape marks the real items of padded lists. All degenerate cases (padding, empty lists, ties, lists
without a relevant item, half precision) are handled in this module and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from rankfall._checks import (
    can_read_values,
    check_choice,
    check_count,
    check_device,
    check_flag,
    check_generator,
    check_none,
    check_scale,
    check_values,
    widen,
)
from rankfall._errors import RankfallError
from rankfall.option_types import LARGEST

Reduction = Literal["mean", "sum", "none"]

LOG_2 = math.log(2)

SMALLEST = 1e-30
"""Sums of labels, gains or weights up to this count as 0."""

MOST_SAMPLES = 1 << 17
"""Largest number of draws of Gumbel noise."""


# --- arithmetic that is correct for empty lists -----------------------------------------------------------------


def safe_divide(numerator: Tensor, denominator: Tensor, *, least: float = SMALLEST) -> Tensor:
    """Divide, with result 0 and gradient 0 where the denominator is at most `least` in absolute value.

    The reciprocal of the default can be multiplied by a weight. With ``least=0.0`` only a division by 0 is left out.
    """
    zero = denominator == 0 if least == 0 else denominator.abs() <= least
    return (numerator / denominator.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)


def list_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the real items of each list; 0 for an empty list."""
    return safe_divide(values.masked_fill(~mask, 0.0).sum(-1), mask.sum(-1).to(values.dtype))


def has_positive(labels: Tensor, mask: Tensor) -> Tensor:
    """Return which lists have a real item with a positive label. All others have loss 0 in losses with gains."""
    return ((labels > 0) & mask).any(-1)


def has_order(labels: Tensor, mask: Tensor) -> Tensor:
    """Return which lists have two real items with different labels."""
    highest = labels.masked_fill(~mask, -torch.inf).amax(-1)
    return highest > labels.masked_fill(~mask, torch.inf).amin(-1)


def counts_for_order(labels: Tensor, mask: Tensor) -> Tensor:
    """Return which lists have a loss of the order of their labels: all but those without labels other than one <= 0.

    Two different labels are an order, whatever their signs. Equal positive labels count as ties.
    """
    return has_order(labels, mask) | has_positive(labels, mask)


def has_recall_signal(truth: Tensor, mask: Tensor, k: int) -> Tensor:
    """Return which lists have a relevant item and more than k items, so that the recall at k depends on the scores."""
    return has_positive(truth, mask) & (mask.sum(-1) > k)


def reduce_lists(per_list: Tensor, *, weight: Tensor | None, reduction: Reduction) -> Tensor:
    """Reduce one value per list. List weights make the mean a weighted mean.

    Item weights (``weight.ndim == per_list.ndim + 1``) have been applied inside the loss already.
    """
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    of_lists = weight is not None and weight.ndim == per_list.ndim
    if weight is not None and of_lists:
        weight = weight.detach().to(per_list.dtype)
        per_list = per_list * weight
    if reduction == "none":
        return per_list
    if reduction == "sum":
        return per_list.sum()
    if weight is not None and of_lists:
        return safe_divide(per_list.sum(), weight.sum())
    return mean_over_lists(per_list)


def mean_over_lists(per_list: Tensor) -> Tensor:
    """Return the mean of one value per list; 0 for an empty batch."""
    return per_list.sum() / max(1, per_list.numel())


def item_weight(weight: Tensor | None, scores: Tensor, mask: Tensor) -> Tensor | None:
    """Return item weights ``(..., n)``, 0 where masked; None if `weight` is None or holds one weight per list."""
    if weight is None:
        return None
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a torch.Tensor, got {type(weight).__name__}")
    if weight.is_complex():
        raise RankfallError(f"weight must be real numbers, got {weight.dtype}")
    check_device("weight", weight, scores)
    if weight.shape == scores.shape:
        weight = weight.detach().to(scores.dtype).masked_fill(~mask, 0.0)
        check_values("weight", weight)
        return weight
    if weight.shape == scores.shape[:-1]:
        check_values("weight", weight.detach().to(scores.dtype))
        return None
    raise RankfallError(
        f"weight must have the shape of scores {tuple(scores.shape)} (items) or {tuple(scores.shape[:-1])} "
        f"(lists), got {tuple(weight.shape)}"
    )


# --- labels -----------------------------------------------------------------------------------------------------


def gains(labels: Tensor, mask: Tensor, *, kind: str = "exp2") -> Tensor:
    """Return the gain of each item, up to a positive factor per list: 2^y - 1 ("exp2") or y ("linear"); 0 where masked.

    All users divide by an ideal sum of gains, so a factor cancels. The division by 2^max(y) keeps 2^y finite for labels
    of any size (full-stage grades reach hundreds); powers of two are exact. A label below 0 would have a negative gain,
    for which an ideal order is not defined, so it raises an error.
    """
    check_none("labels", (labels < 0) & mask, "values below 0")
    if check_choice("gain", kind, ("exp2", "linear")) == "linear":
        return labels.masked_fill(~mask, 0.0)
    largest = labels.masked_fill(~mask, 0.0).amax(-1, keepdim=True)
    # 2^y - 1 = -2^y (2^-y - 1), whose last factor is precise for small labels
    return (-torch.exp2(labels - largest) * torch.expm1(-LOG_2 * labels)).masked_fill(~mask, 0.0)


def discounts(n: int, like: Tensor, *, k: int | None = None) -> Tensor:
    """Return 1 / log2(1 + r) for the ranks r = 1..n, 0 beyond rank k."""
    rank = torch.arange(1, n + 1, device=like.device, dtype=like.dtype)
    discount = torch.log2(1 + rank).reciprocal()
    return discount if k is None else discount * (rank <= k)


def ideal_dcg(gain: Tensor, *, k: int | None = None) -> Tensor:
    """Return the largest DCG of the first k ranks over all orders of the list."""
    best = gain.sort(-1, descending=True).values
    return (best * discounts(gain.shape[-1], gain, k=k)).sum(-1)


def top_labels(labels: Tensor, k: int, mask: Tensor, *, positive_only: bool = True) -> Tensor:
    """Return the membership in [0, 1] of each item in the ground truth: the k best labels.

    Only labels above 0 count unless `positive_only` is False. Items tied at the boundary share the remaining places
    equally, so the order of the items never matters.
    """
    k = check_count("k", k)
    eligible = mask & (labels > 0) if check_flag("positive_only", positive_only) else mask
    values = labels.masked_fill(~eligible, -torch.inf)
    if k >= labels.shape[-1]:
        return eligible.to(labels.dtype)
    boundary = kth_largest(values, k)[..., :1]
    above = values > boundary
    tied = (values == boundary) & eligible
    places = k - above.sum(-1, keepdim=True)
    share = safe_divide(places.to(labels.dtype), tied.sum(-1, keepdim=True).to(labels.dtype))
    # A list of scores with fewer than k items, one of them -inf, has more places left than ties.
    return above.to(labels.dtype) + tied * share.clamp(max=1.0)


def check_relevant(labels: Tensor, positive_only: bool) -> None:
    """Raise an error for negative labels if only positive ones are relevant: the others would be lost silently."""
    if check_flag("positive_only", positive_only):
        found = "values below 0 with positive_only=True; positive_only=False takes the k best labels of any sign"
        check_none("labels", labels < 0, found)


def relevant_order(relevance: Tensor, grades: Tensor, mask: Tensor) -> Tensor:
    """Return numbers that order the relevant items of each list by relevance, then by grade; 0 for all other items.

    Items with equal relevance and equal grades have equal numbers.
    """
    relevance = relevance if relevance.is_floating_point() else widen(relevance)
    relevance = relevance.masked_fill(~mask, 0.0)
    relevant = relevance > 0
    by_grade = (grades - grades.amin(-1, keepdim=True) + 1) * relevant
    sizes_differ = relevant & (relevance != relevance.amax(-1, keepdim=True))
    if can_read_values(relevance) and not bool(sizes_differ.any()):
        return by_grade  # in most logs all relevant items are equally relevant
    below = widen(_count_below(relevance, relevant)) * (by_grade.amax(-1, keepdim=True) + 1)
    return (_count_below(below + by_grade, relevant) + 1).to(grades.dtype) * relevant


def _count_below(values: Tensor, mask: Tensor) -> Tensor:
    """Return how many of a list's values are lower than each of them, among those where `mask` is True."""
    ascending = values.masked_fill(~mask, torch.inf).sort(-1).values
    return torch.searchsorted(ascending, values.contiguous())


# --- custom operators -------------------------------------------------------------------------------------------

Kernel = Callable[..., Tensor]


def operator(schema: str, *, like: Kernel, device: str = "cpu") -> Callable[[Kernel], Kernel]:
    """Register a function as a custom operator ``torch.ops.rankfall.NAME``, one node for torch.compile.

    (`torch.library.custom_op` does the same, but its first call imports the compiler, which takes about three seconds
    in every process.)

    Args:
        schema: Name and signature of the operator.
        like: Function that creates an empty result.
        device: ``"cpu"``, or ``"default"`` for any device.
    """
    name = schema.partition("(")[0]
    torch.library.define(f"rankfall::{name}", schema.removeprefix(name))

    def register(kernel: Kernel) -> Kernel:
        torch.library.impl(f"rankfall::{name}", device)(kernel)
        torch.library.register_fake(f"rankfall::{name}")(like)
        return kernel

    return register


# --- order ------------------------------------------------------------------------------------------------------


def rank_order(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the indices of the items by descending score, ties by position, masked items last."""
    # Sorting puts NaN last, even behind an item with the score -inf.
    return scores.detach().neg().masked_fill(~mask, torch.nan).argsort(dim=-1, stable=True)


def kth_largest(values: Tensor, k: int) -> Tensor:
    """Return the k-th and (k+1)-th largest value of each list, ``(..., 2)``, for k < n, without gradient."""
    values = values.detach()
    if values.device.type == "cpu":
        pair: Tensor = torch.ops.rankfall.kth_largest(values, k)
        return pair
    return values.topk(k + 1, sorted=True).values[..., k - 1 :]


@operator(
    "kth_largest(Tensor values, int k) -> Tensor", like=lambda values, k: values.new_empty((*values.shape[:-1], 2))
)
def _select_cpu(values: Tensor, k: int) -> Tensor:
    # NumPy's selection takes a tenth of the time of torch.topk or kthvalue on a CPU. One pivot and a minimum take a
    # sixth of the time of two pivots.
    n = values.shape[-1]
    rows = values.reshape(-1, n).numpy()
    pair = torch.empty((*values.shape[:-1], 2), dtype=values.dtype)
    out = pair.view(-1, 2).numpy()
    # A few lists at a time, in one scratch buffer that fits into the cache.
    step = max(1, (1 << 15) // n)
    for start in range(0, len(rows), step):
        scratch = rows[start : start + step].copy()
        scratch.partition(n - k - 1, axis=-1)
        scratch[:, n - k :].min(-1, out=out[start : start + step, 0])
        out[start : start + step, 1] = scratch[:, n - k - 1]
    return pair


def any_order(values: Tensor) -> Tensor:
    """Return the indices by descending value, ties in any order, without gradient."""
    values = values.detach()
    if values.device.type == "cpu":
        order: Tensor = torch.ops.rankfall.any_order(values)
        return order
    return values.argsort(-1, descending=True)


@operator(
    "any_order(Tensor values) -> Tensor",
    like=lambda values: torch.empty_like(values, dtype=torch.int64, memory_format=torch.contiguous_format),
)
def _order_cpu(values: Tensor) -> Tensor:
    # NumPy's vectorised sort takes a third of the time of torch.argsort on a CPU.
    return torch.from_numpy((-values.numpy()).argsort(axis=-1))


# --- noise ------------------------------------------------------------------------------------------------------


def add_gumbel(scores: Tensor, samples: int, beta: float, generator: torch.Generator | None) -> Tensor:
    """Return draws of scores + beta * Gumbel noise, in a new first dimension, at most `LARGEST` in absolute value."""
    check_count("gumbel_samples", samples, most=MOST_SAMPLES)
    check_scale("beta", beta)
    check_generator(generator)
    exponential = torch.empty((samples, *scores.shape), dtype=torch.float32, device=scores.device)
    # The negative logarithm of an exponential variable is a Gumbel variable; a draw of 0 would be infinite.
    noise = -exponential.exponential_(generator=generator).clamp(min=torch.finfo(torch.float32).tiny).log()
    return (scores + (beta * noise).to(scores.dtype)).clamp(-LARGEST, LARGEST)
