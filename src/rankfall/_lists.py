"""Lists of items: checks and arithmetic that all operators, losses and metrics share.

A tensor ``(..., n)`` holds one list of items in its last dimension; leading dimensions are batch dimensions. A boolean
`mask` of the same shape marks the real items of padded lists. All degenerate cases (padding, empty lists, ties, lists
without a relevant item, half precision) are handled in this module and nowhere else.

NaN is an error in the whole library. On a CPU in eager mode, where reading a value is cheap, it raises a `ValueError`
that names the argument. Inside ``torch.compile`` and on accelerators, where reading a value would synchronise with the
host, it is an assertion on the device, which PyTorch raises as a `RuntimeError`. Values at masked positions are never
used, so NaN is allowed there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from jaxtyping import Bool, Float

Reduction = Literal["mean", "sum", "none"]

LOG_2 = math.log(2)

WITHOUT_FLOAT64 = ("mps",)
"""Types of devices on which float32 is the widest type."""


# --- checks of arguments ----------------------------------------------------------------------------------------


def check_scores(
    scores: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"] | None
) -> tuple[Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"] | None]:
    """Return scores for an operator: at least float32, finite, and 0 where masked.

    An item with the score -inf is added to the mask. The returned mask is None only if every item is real.
    """
    _check_float("scores", scores)
    _check_mask(mask, scores)
    scores = at_least_float32(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, 0.0)
    if _can_read_values(scores):
        if _all_finite(scores):
            return scores, mask
        _raise_if_any(scores.isnan(), "scores", "NaN")
    else:
        _assert_on_device(scores < torch.inf, "scores", "NaN or +inf")
    real = scores != -torch.inf
    mask = real if mask is None else mask & real
    scores = scores.masked_fill(~real, 0.0)
    if _can_read_values(scores):
        _raise_if_any(scores == torch.inf, "scores", "+inf")
    return scores, mask


def check_lists(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"] | None
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Return scores, labels and mask for a loss: finite, of the same shape and floating dtype, 0 where masked.

    Half precision is converted to float32, since lists are longer than eight bits of mantissa can count.
    """
    _check_float("scores", scores)
    return _check_pair(scores, labels, mask)


def check_ranking(
    scores: Tensor,
    labels: Float[Tensor, "*batch n"],
    mask: Bool[Tensor, "*batch n"] | None,
    *,
    names: tuple[str, str] = ("scores", "labels"),
) -> tuple[Tensor, Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Return the same for a metric. Only the order of the scores matters, so ±inf is allowed."""
    _check_float(names[0], scores)
    return _check_pair(scores.detach(), labels, mask, infinite=True, names=names)


def _check_pair(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    *,
    infinite: bool = False,
    names: tuple[str, str] = ("scores", "labels"),
) -> tuple[Tensor, Tensor, Tensor]:
    check_like(names[1], labels, scores, of=names[0])
    if labels.is_complex():
        raise ValueError(f"{names[1]} must be real numbers, got {labels.dtype}")
    _check_mask(mask, scores)
    scores = at_least_float32(scores)
    labels = labels.detach().to(scores.dtype)
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    else:
        scores, labels = scores.masked_fill(~mask, 0.0), labels.masked_fill(~mask, 0.0)
    check_values(names[0], scores, infinite=infinite)
    check_values(names[1], labels)
    return scores, labels, mask


def check_values(name: str, values: Tensor, *, infinite: bool = False) -> None:
    """Raise an error for NaN, and for ±inf unless `infinite`, without synchronising with an accelerator."""
    found = "NaN" if infinite else "NaN or inf"
    if not _can_read_values(values):
        values = values.detach()  # fewer operations than isnan() and isfinite(): each of them starts a kernel
        _assert_on_device(values == values if infinite else values.abs() < torch.inf, name, found)
    elif not _all_finite(values):
        _raise_if_any(values.isnan() if infinite else ~values.isfinite(), name, found)


def check_none(name: str, bad: Tensor, found: str) -> None:
    """Raise an error if any element is marked as bad, without synchronising with an accelerator."""
    if _can_read_values(bad):
        _raise_if_any(bad, name, found)
    else:
        _assert_on_device(~bad, name, found)


def check_membership(name: str, values: Tensor) -> None:
    """Raise an error for values outside [0, 1], without synchronising with an accelerator."""
    check_none(name, (values < 0) | (values > 1), "values outside [0, 1]")


def check_shape(name: str, tensor: Tensor, shape: torch.Size, *, of: str = "scores") -> None:
    """Raise an error unless `tensor` is a tensor of `shape`, the shape of the argument named `of`."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.shape != shape:
        raise ValueError(f"{name} must have the shape of {of}, {tuple(shape)}, got {tuple(tensor.shape)}")


def check_device(name: str, tensor: Tensor, like: Tensor, *, of: str = "scores") -> None:
    """Raise an error unless `tensor` is on the device of `like`, the argument named `of`."""
    if tensor.device != like.device:
        raise ValueError(f"{name} must be on the device of {of}, {like.device}, got {tensor.device}")


def check_like(name: str, tensor: Tensor, like: Tensor, *, of: str = "scores") -> None:
    """Raise an error unless `tensor` is a tensor of the shape and on the device of `like`, the argument named `of`."""
    check_shape(name, tensor, like.shape, of=of)
    check_device(name, tensor, like, of=of)


def check_count(name: str, value: int) -> int:
    """Return a number of items. Raises an error unless it is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt | np.integer):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_positive(name: str, value: float | Tensor) -> float | Tensor:
    """Return a temperature or scale. Raises an error unless it is a positive number or a floating tensor of such."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise ValueError(f"{name} must be a floating tensor or a number, got {value.dtype}")
        check_none(name, ~((value > 0) & (value < torch.inf)), "a value that is not positive and finite")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymFloat | torch.SymInt | np.floating):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return value


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a keyword. Raises an error unless it is one of the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def is_published(variant: str) -> bool:
    """Whether the variant of a method is the published one. Raises an error unless it is that or the sound one."""
    return check_choice("variant", variant, ("sound", "published")) == "published"


def _check_float(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {tensor.dtype}; convert with {name}.float()")
    if tensor.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension (..., n), got a scalar")
    if tensor.shape[-1] == 0:
        raise ValueError(f"{name} must have at least one item per list, got shape {tuple(tensor.shape)}")


def _check_mask(mask: Tensor | None, scores: Tensor) -> None:
    if mask is None:
        return
    check_like("mask", mask, scores)
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean (True = real item), got {mask.dtype}")


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _can_read_values(tensor: Tensor) -> bool:
    """Return whether reading a value needs no synchronisation: in eager mode on a CPU."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)


def _all_finite(tensor: Tensor) -> bool:
    # A sum is finite only if every term is; it is several times cheaper than isfinite().all(). If a sum of finite terms
    # overflows, the caller runs the exact check.
    return bool(tensor.detach().sum().isfinite())


def _raise_if_any(bad: Tensor, name: str, found: str) -> None:
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"{name} must not hold {found}, found at index {where}")


def _assert_on_device(good: Tensor, name: str, found: str) -> None:
    if good.device.type != "meta":
        torch._assert_async(good.all(), f"{name} must not hold {found}")


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast, which would compute matrix products in half precision."""
    if device.type == "meta":  # not supported by autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating type of a device: float64, where it exists."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widen(tensor: Tensor) -> Tensor:
    """Convert to the widest floating type of the tensor's device."""
    return tensor.to(widest(tensor.device))


# --- arithmetic that is correct for empty lists -----------------------------------------------------------------


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with result 0 and gradient 0 where the denominator is 0."""
    zero = denominator == 0
    return (numerator / denominator.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)


def list_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the real items of each list; 0 for an empty list."""
    return safe_divide(values.masked_fill(~mask, 0.0).sum(-1), mask.sum(-1).to(values.dtype))


def has_positive(labels: Tensor, mask: Tensor) -> Tensor:
    """Return which lists have a real item with a positive label. All others have loss 0 in every listwise loss."""
    return ((labels > 0) & mask).any(-1)


def has_order(labels: Tensor, mask: Tensor) -> Tensor:
    """Return which lists have two real items with different labels."""
    highest = labels.masked_fill(~mask, -torch.inf).amax(-1)
    return highest > labels.masked_fill(~mask, torch.inf).amin(-1)


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
    check_device("weight", weight, scores)
    if weight.shape == scores.shape:
        weight = weight.detach().to(scores.dtype).masked_fill(~mask, 0.0)
        check_values("weight", weight)
        return weight
    if weight.shape == scores.shape[:-1]:
        check_values("weight", weight.detach())
        return None
    raise ValueError(
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
    check_count("k", k)
    eligible = mask & (labels > 0) if positive_only else mask
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


def relevant_order(relevance: Tensor, grades: Tensor, mask: Tensor) -> Tensor:
    """Return numbers that order the relevant items of each list by relevance, then by grade; 0 for all other items.

    Items with equal relevance and equal grades have equal numbers.
    """
    relevance = relevance.masked_fill(~mask, 0.0)
    relevant = relevance > 0
    by_grade = (grades - grades.amin(-1, keepdim=True) + 1) * relevant
    sizes_differ = relevant & (relevance != relevance.amax(-1, keepdim=True))
    if _can_read_values(relevance) and not bool(sizes_differ.any()):
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
    """Return draws of scores + beta * Gumbel noise, in a new first dimension."""
    check_count("gumbel_samples", samples)
    check_positive("beta", beta)
    exponential = torch.empty((samples, *scores.shape), dtype=torch.float32, device=scores.device)
    # The negative logarithm of an exponential variable is a Gumbel variable; a draw of 0 would be infinite.
    noise = -exponential.exponential_(generator=generator).clamp(min=torch.finfo(torch.float32).tiny).log()
    return scores + (beta * noise).to(scores.dtype)
