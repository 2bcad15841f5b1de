"""Top-k operators with one threshold per list: DFTopK, LapSum, sigmoid and sparse top-k, and the exact top-k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_count, check_scores, is_published
from rankfall._errors import RankfallError
from rankfall._lists import kth_largest
from rankfall.ops._threshold import threshold_topk

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from rankfall.option_types import Scale


@register.operator
def dftopk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a logistic around the midpoint of the k-th and (k+1)-th score (DFTopK, sec. 4.3).

    .. math:: p_j = \sigma\big((s_j - \theta) / \tau\big), \qquad \theta = (s_{[k]} + s_{[k+1]}) / 2

    The cost is one selection, O(n). The threshold carries gradient: half of it goes to each of the two items at the
    boundary. The sum of p is close to k, but not equal to k. Use it if speed matters most; :func:`sigmoid_topk` has the
    same shape and an exact sum.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Inclusion probabilities ``(..., n)``, in the dtype of `scores`. Masked items get 0. If a list has at most k real
        items, each of them gets 1.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        The threshold is 1, so the values are the logistic of 1, -1 and -3:

        >>> import torch
        >>> dftopk(torch.tensor([2.0, 0.0, -2.0]), 1)
        tensor([0.7311, 0.2689, 0.0474])
    """
    return threshold_topk("midpoint", scores, k, tau, mask)


@register.operator
def lapsum_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a Laplace distribution function whose values sum to k (LapSum).

    .. math:: p_j = F\big((s_j - b) / \tau\big), \quad F(u) = \begin{cases} e^u / 2 & u < 0 \\ 1 - e^{-u} / 2 &
              u \ge 0 \end{cases}, \quad \textstyle\sum_j p_j = k

    The threshold b is found by a few exact steps that start at the midpoint of the k-th and (k+1)-th score: O(n), no
    sort. Use it where the probabilities must sum to k.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Inclusion probabilities ``(..., n)``, in the dtype of `scores`. Masked items get 0. If a list has at most k real
        items, each of them gets 1.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        Equal scores share k equally:

        >>> import torch
        >>> lapsum_topk(torch.tensor([5.0, 5.0, 5.0, 5.0]), 1)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return threshold_topk("laplace", scores, k, tau, mask)


@register.operator
def sigmoid_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by a logistic whose values sum to k exactly (rankfall).

    .. math:: p_j = \sigma\big((s_j - b) / \tau\big), \qquad \textstyle\sum_j p_j = k

    This is :func:`dftopk` with an exact sum: the threshold starts at the one of DFTopK and is moved by Newton steps
    until the sum is k, O(n). Use it if you want the logistic of DFTopK and probabilities that sum to k.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Inclusion probabilities ``(..., n)``, in the dtype of `scores`. Masked items get 0. If a list has at most k real
        items, each of them gets 1.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        Equal scores share k equally:

        >>> import torch
        >>> sigmoid_topk(torch.tensor([5.0, 5.0, 5.0, 5.0]), 1)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return threshold_topk("logistic", scores, k, tau, mask)


@register.operator
def sparse_topk(
    scores: Float[Tensor, "*batch n"],
    k: int,
    *,
    tau: Scale | Tensor = 1.0,
    p: float = 2,
    variant: Literal["sound", "published"] = "sound",
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Soft top-k by projection, with exact zeros and ones, whose values sum to k (Sparse top-k).

    .. math:: \arg\max_{0 \le x \le 1,\ \sum x = k} \langle s / \tau, x \rangle - \tfrac1p \textstyle\sum_j x_j^p

    The optimality conditions on this polytope have a single threshold b,
    :math:`x_j = \operatorname{clip}(s_j / \tau - b, 0, 1)^{1/(p-1)}`, which is found in O(n) without isotonic
    regression. Use it if items far from the boundary should be excluded (or included) exactly; these items get no
    gradient.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        p: Norm of the regulariser: 2 (Euclidean projection) or 4/3 (smoother).
        variant: ``"sound"`` is the formula. ``"published"`` is the Sparse Top-K row of DFTopK, table 1, as far as the
            defect of its code is known: the result goes through a sigmoid twice, so that all probabilities are between
            0.622 and 0.675. In LCRON on a small simulated log, joint recall is .153 with it, .264 without (one seed).
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Inclusion probabilities ``(..., n)``, in the dtype of `scores`. Masked items get 0. If a list has at most k real
        items, each of them gets 1.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        The threshold is 1.25, so the values are 0.75 + 0.25 + 0:

        >>> import torch
        >>> sparse_topk(torch.tensor([2.0, 1.5, 0.0]), 1)
        tensor([0.7500, 0.2500, 0.0000])
    """
    published = is_published(variant)
    x = threshold_topk(sparse_kind(p), scores, k, tau, mask)
    if not published:
        return x
    _, mask = check_scores(scores, mask)
    real = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    some_are_dropped = real.sum(-1, keepdim=True) > k
    return torch.where(real & some_are_dropped, x.sigmoid().sigmoid(), x)


def sparse_kind(p: float) -> str:
    """Return the name of the threshold function with the norm `p`."""
    if p == 2:
        return "clip"
    if isinstance(p, float) and abs(p - 4 / 3) < 1e-6:
        return "cube"
    raise RankfallError(f"p must be 2 or 4/3, got {p}")


@register.operator
def hard_topk(
    scores: Float[Tensor, "*batch n"], k: int, *, mask: Bool[Tensor, "*batch n"] | None = None
) -> Float[Tensor, "*batch n"]:
    """Hard top-k selection with a straight-through gradient (Bengio et al. 2013).

    The result is 1 for the k largest scores and 0 for all others. Ties at the boundary are resolved by position, so
    exactly min(k, n) items are selected. The backward pass hands the gradient of the result to the scores unchanged. It
    is the limit of every soft top-k as tau tends to 0; use it as a baseline for the soft operators.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        k: Number of items to select, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        Tensor ``(..., n)`` of zeros and ones, in the dtype of `scores`.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        >>> hard_topk(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
        tensor([0., 1., 0., 1.])
    """
    check_count("k", k)
    wide, mask = check_scores(scores, mask)
    values = wide if mask is None else wide.masked_fill(~mask, -torch.inf)
    kept = values > -torch.inf
    if k < scores.shape[-1]:
        boundary = kth_largest(values, k)[..., :1]
        above = values > boundary
        tied = (values == boundary) & kept
        places = k - above.sum(-1, keepdim=True)
        kept = above | (tied & (tied.cumsum(-1) <= places))
    # check_scores has filled masked items, so they get no gradient.
    result: Tensor = _StraightThrough.apply(wide, kept)  # type: ignore[no-untyped-call]
    return result.to(scores.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, kept: Tensor) -> Tensor:
        return kept.to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None
