"""NeuralSort and SoftSort: soft permutations whose rows are softmaxes of the scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall import register
from rankfall._checks import check_rows, check_scale, check_scores, widen
from rankfall._errors import RankfallError
from rankfall._lists import add_gumbel, any_order, operator, safe_divide
from rankfall.ops._rows import CHUNK, LOG_ZERO, SoftRows

if TYPE_CHECKING:
    from typing import Literal

    from jaxtyping import Bool, Float

    from rankfall.option_types import NotNegativeCount, Scale


@register.operator
def neural_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    tau: Scale | Tensor = 1.0,
    k: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
    gumbel_samples: NotNegativeCount = 0,
    beta: Scale = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch k n"]:
    r"""Soft permutation in closed form (NeuralSort; ARF, eq. 10; PIR, eq. 12).

    .. math:: \hat P_{ij} = \operatorname{softmax}_j
              \Big( \big((n + 1 - 2i)\, s_j - \textstyle\sum_l |s_j - s_l|\big) / \tau \Big)

    As tau tends to 0, row i becomes the item of rank i. The sums of absolute differences are computed with one sort and
    prefix sums, so k rows cost O(n log n + k n) and no n x n matrix is built. The differences grow with n, so tau
    should grow with n too. This is the soft sort of ARF, PiRank and LCRON, and the default of the losses that need one.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        k: Number of rows to return, at least 1. Default: n.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        gumbel_samples: Number of draws of Gumbel noise that is added to the scores, 0 for no noise.
        beta: Positive scale of the Gumbel noise.
        generator: Random generator of the Gumbel noise. Default: torch's global generator.

    Returns:
        The first k rows of the soft permutation, ``(..., k, n)``, in the dtype of `scores`. Masked columns, and rows
        for ranks beyond the length of a list, are 0.
        With `gumbel_samples` > 0, the soft permutations of the draws are in a new first dimension.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        >>> neural_sort(torch.tensor([1.0, 3.0, 2.0]), tau=0.01).round()
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """
    noisy = scores
    if gumbel_samples:
        noisy, mask = check_scores(scores, mask)
        noisy = add_gumbel(noisy, gumbel_samples, beta, generator)
        mask = None if mask is None else mask.expand(noisy.shape)
    rows = neural_rows(noisy, tau, mask)
    return rows.probabilities(0, check_rows("k", k, rows.shape[-1])).to(scores.dtype)


def neural_rows(scores: Tensor, tau: float | Tensor, mask: Tensor | None) -> SoftRows:
    """Return the rows of NeuralSort as lazily computed :class:`SoftRows`."""
    scores, mask = check_scores(scores, mask)
    check_scale("tau", tau, scores)
    return neural_rows_of(scores, tau, mask)


def neural_rows_of(scores: Tensor, tau: float | Tensor, mask: Tensor | None) -> SoftRows:
    """Return :func:`neural_rows` of scores that have been checked, 0 where masked.

    Let the items be in descending order, r_j the rank of item j and A_j the sum of all scores before it. Then the sum
    of absolute differences is 2 A_j + (n + 2 - 2 r_j) s_j minus the sum of all scores. The latter is the same for every
    item and cancels in the softmax, so a logit is

        (2 r_j - 1) s_j - 2 A_j - 2 i s_j

    which does not contain n, so padding cannot change it. In late rows this is a small difference of large numbers.
    Therefore all O(n) work is done in float64, and each block of rows is computed relative to its middle row.
    """
    filled = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    top = filled.detach().amax(-1, keepdim=True)
    if mask is not None:
        top = top.masked_fill(top == -torch.inf, 0.0)  # a list without items
    s = (scores - top) / tau
    wide = widen(s)
    order = any_order(filled)
    base: Tensor = _RankedSums.apply(wide, order, mask)  # type: ignore[no-untyped-call]
    ranked = wide.detach().gather(-1, order)

    def few_logits(start: int, stop: int, mask: Tensor | None, base: Tensor, wide: Tensor, ranked: Tensor) -> Tensor:
        middle = min((start + stop) // 2, scores.shape[-1] - 1)
        at_middle = base - 2 * (middle + 1) * wide
        highest = at_middle.detach() if mask is None else at_middle.detach().masked_fill(~mask, LOG_ZERO)
        at_middle = (at_middle - highest.amax(-1, keepdim=True)).to(s.dtype)
        # Subtracting a constant from all scores changes nothing; this one makes them small where the rows peak.
        beside = (wide - ranked[..., middle, None]).to(s.dtype)
        step = 2 * torch.arange(start - middle, stop - middle, device=s.device, dtype=s.dtype).unsqueeze(-1)
        return torch.addcmul(at_middle.unsqueeze(-2), beside.unsqueeze(-2), step, value=-1)

    def logits(start: int, stop: int, *inputs: Any) -> Tensor:
        if torch.compiler.is_compiling():  # it would build one graph per number of parts
            return few_logits(start, stop, *inputs)
        return torch.cat([few_logits(row, min(row + FEW, stop), *inputs) for row in range(start, stop, FEW)], -2)

    def pull(start: int, stop: int, grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        middle = (start + stop) // 2
        step = 2 * torch.arange(start - middle, stop - middle, device=s.device, dtype=s.dtype).unsqueeze(-1)
        total, slope = grad.sum(-2).to(wide.dtype), (grad * step).sum(-2).to(wide.dtype)
        return total, -2 * (middle + 1) * total - slope, torch.zeros_like(total)

    def rest(start: int) -> Tensor:
        given = s if mask is None else s.masked_fill(~mask, -torch.inf)
        sums: Tensor = torch.ops.rankfall.neural_column_sums(given.gather(-1, order), start)
        return torch.empty_like(s).scatter(-1, order, sums)

    return SoftRows((base, wide, ranked), logits, pull, scores.shape, mask, rest if s.device.type == "cpu" else None)


FEW = 32
"""Rows that are computed relative to one of them."""


class _RankedSums(torch.autograd.Function):
    """s -> (2 r - 1) s - 2 (sum of the scores before), with |x|' = 0 at 0, so that tied items get equal gradients."""

    @staticmethod
    def forward(s: Tensor, order: Tensor, mask: Tensor | None) -> Tensor:
        v = s.gather(-1, order)
        if mask is not None:  # masked items are last; zeros do not change the sums
            v = v.masked_fill(~mask.gather(-1, order), 0.0)
        odd = torch.arange(1, 2 * v.shape[-1], 2, device=v.device, dtype=v.dtype)
        # exclusive prefix sums: inclusive ones minus the item itself
        base = (odd + 2) * v - 2 * v.cumsum(-1)
        return torch.empty_like(base).scatter_(-1, order, base)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, order, mask = ctx.saved_tensors
        s = s.detach()
        v = (s if mask is None else s.masked_fill(~mask, -torch.inf)).gather(-1, order)
        g = grads[0].gather(-1, order)
        first, last = _tie_bounds(v)
        until = g.cumsum(-1)
        before = (until - g).gather(-1, first)
        grad = (first + last + 2) * g + until.gather(-1, last) + before - 2 * until[..., -1:]
        return torch.empty_like(grad).scatter(-1, order, grad), None, None


def _tie_bounds(v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last position of each position's run of equal values in a sorted list."""
    n = v.shape[-1]
    position = torch.arange(n, device=v.device).expand(v.shape)
    changes = v[..., 1:] != v[..., :-1]
    starts = torch.nn.functional.pad(changes, (1, 0), value=True)
    ends = torch.nn.functional.pad(changes, (0, 1), value=True)
    first = position.where(starts, 0).cummax(-1).values
    last = position.where(ends, n - 1).flip(-1).cummin(-1).values.flip(-1)
    return first, last


@operator(
    "neural_column_sums(Tensor ranked, int start) -> Tensor",
    like=lambda ranked, start: torch.empty_like(ranked, memory_format=torch.contiguous_format),
)
def _column_sums(ranked: Tensor, start: int) -> Tensor:
    """Sum the rows from `start` on of the soft permutation of lists in descending order, padded with -inf.

    The algorithm depends on the values, so it runs on CPUs only. Prefix sums are taken in float64: the logits of late
    rows are small differences of large numbers.
    """
    n = ranked.shape[-1]
    v = ranked.reshape(-1, n).double()
    exists = v > -torch.inf
    v = v.masked_fill(~exists, 0.0)
    rank = torch.arange(1, n + 1, dtype=v.dtype)
    base = (2 * rank + 1) * v - 2 * v.cumsum(-1)
    spread = float(v.amin()) if len(v) else 0.0  # the largest score is 0
    block = min(n, 64, int(-RANGE / spread)) if spread < 0 else min(n, 64)
    with torch.autocast("cpu", enabled=False):
        if block < 12:
            total = _banded_sums(v, base, rank, exists, start, ranked.dtype)
        else:
            total = _factored_sums(v, base, exists, start, block, spread / 2, ranked.dtype)
    return total.reshape(ranked.shape)


RANGE = 40.0
"""Logarithm of a range of numbers that float32 represents with a wide margin."""


def _factored_sums(
    v: Tensor, base: Tensor, exists: Tensor, start: int, block: int, centre: float, dtype: torch.dtype
) -> Tensor:
    """Column sums for scores that are close together.

    exp(base - 2 i v) of row i = middle + r is exp(base - 2 middle v) exp(-2 r v). The second factor is the same for
    every block of rows, so all sums are products of two thin matrices.
    """
    lists, n = v.shape
    offset = torch.arange(block, dtype=dtype) - block // 2
    total = torch.zeros_like(v, dtype=dtype)
    few = max(1, CHUNK // (4 * n * block))
    for some in (slice(one, one + few) for one in range(0, lists, few)):
        within = torch.exp(-2 * offset.unsqueeze(-1) * (v[some] - centre).to(dtype).unsqueeze(-2))
        for middles in torch.arange(start + block // 2, n + block // 2, block).split(max(1, CHUNK // (few * n))):
            at_middle = base[some].unsqueeze(-2) - 2 * (middles + 1).unsqueeze(-1) * v[some].unsqueeze(-2)
            at_middle.masked_fill_(~exists[some].unsqueeze(-2), -torch.inf)
            at_middle = at_middle.sub_(at_middle.amax(-1, keepdim=True)).to(dtype).exp_()
            at_middle.nan_to_num_(0.0)  # a list without items
            rows = middles.unsqueeze(-1) + torch.arange(block) - block // 2
            real = rows < exists[some].sum(-1)[:, None, None]
            share = safe_divide(real.to(dtype), at_middle @ within.mT, least=0.0)
            total[some] += at_middle.mul_(share @ within).sum(-2)
    return total


def _banded_sums(v: Tensor, base: Tensor, rank: Tensor, exists: Tensor, start: int, dtype: torch.dtype) -> Tensor:
    """Column sums for scores that are far apart.

    In descending order, row i peaks at item i and decreases on both sides. The decrease accelerates, since logits are
    concave in the score. Items whose probability is negligible are skipped, which leaves a band of the matrix.
    """
    lists, n = v.shape
    peak = base - 2 * rank * v
    width = _band(v, base, peak, exists)
    base, peak = base.masked_fill(~exists, -torch.inf), peak.masked_fill(~exists, torch.inf)
    total = torch.zeros_like(v, dtype=dtype)
    rows = max(1, min(width // 2, 64))
    few = max(1, CHUNK // (4 * rows * min(n, rows + 2 * width)))
    for first in range(start, n, rows):
        last = min(first + rows, n)
        columns = slice(max(0, first - width), min(n, last + width))
        for some in (slice(one, one + few) for one in range(0, lists, few)):
            # Relative to the block's first row and its peak, numbers are small enough for the dtype of the result.
            at_first = base[some, columns] - 2 * rank[first] * v[some, columns]
            at_first = (at_first - (base[some, first] - 2 * rank[first] * v[some, first]).unsqueeze(-1)).nan_to_num_(
                -torch.inf, neginf=-torch.inf
            )
            beside = (v[some, columns] - v[some, first].unsqueeze(-1)).to(dtype)
            step = (rank[first:last] - rank[first]).to(dtype)
            logits = torch.addcmul(at_first.to(dtype)[:, None], beside[:, None], step[:, None], value=-2)
            share = torch.softmax(logits, -1).nan_to_num_(0.0) * exists[some, first:last, None]
            total[some, columns] += share.sum(-2)
    return total


def _band(v: Tensor, base: Tensor, peak: Tensor, exists: Tensor) -> int:
    """Return the distance from the peak beyond which probabilities are below the rounding error of a sum of n terms."""
    n = v.shape[-1]
    enough = math.log(n) - math.log(torch.finfo(v.dtype).eps)
    rank = torch.arange(1, n + 1, dtype=v.dtype)
    width = 8
    while width < n:
        fall_right = peak[:, :-width] - (base[:, width:] - 2 * rank[:-width] * v[:, width:])
        fall_left = peak[:, width:] - (base[:, :-width] - 2 * rank[width:] * v[:, :-width])
        fall = torch.minimum(fall_right, fall_left).masked_fill(~exists[:, width:], torch.inf)
        if float(fall.min()) > enough:
            return width
        width += max(1, width // 4)
    return n


LARGEST_ROOT = 1e12
"""Largest absolute value of the scores in units of the square root of tau, with power 2."""


@register.operator
def soft_sort(
    scores: Float[Tensor, "*batch n"],
    *,
    tau: Scale | Tensor = 1.0,
    power: Literal[1, 2] = 1,
    k: int | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch k n"]:
    r"""Soft permutation by the distance to the sorted scores (SoftSort).

    .. math:: \hat P_{ij} = \operatorname{softmax}_j ( -|s_{[i]} - s_j|^p / \tau )

    where :math:`s_{[i]}` is the i-th largest score and p is `power`. After the selection of the k largest scores, k
    rows cost O(k n). Use it as a cheaper alternative to :func:`neural_sort`.

    Args:
        scores: Floating tensor ``(..., n)``, one list of n items in the last dimension. Higher is better.
        tau: Positive temperature: a number, a scalar tensor, or one value per list ``(..., 1)``. The smaller it is,
            the closer the result is to the hard one.
        power: Power p of the distance, 1 or 2.
        k: Number of rows to return, at least 1. Default: n.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

    Returns:
        The first k rows of the soft permutation, ``(..., k, n)``, in the dtype of `scores`. Masked columns, and rows
        for ranks beyond the length of a list, are 0.

    Raises:
        ValueError: If an argument is out of range, a shape does not fit, or a score is NaN or beyond 1e10.

    Examples:
        >>> soft_sort(torch.tensor([1.0, 3.0, 2.0]), tau=0.01).round()
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """
    rows = soft_sort_rows(scores, tau, mask, power)
    return rows.probabilities(0, check_rows("k", k, scores.shape[-1])).to(scores.dtype)


def soft_sort_rows(scores: Tensor, tau: float | Tensor, mask: Tensor | None, power: int = 1) -> SoftRows:
    """Return the rows of SoftSort as lazily computed :class:`SoftRows`."""
    if isinstance(power, bool | Tensor) or power not in (1, 2):
        raise RankfallError(f"power must be 1 or 2, got {power}")
    scores, mask = check_scores(scores, mask)
    check_scale("tau", tau, scores)
    # Squares of differences must stay far above LOG_ZERO.
    scores = scores / tau if power == 1 else (scores / tau**0.5).clamp(-LARGEST_ROOT, LARGEST_ROOT)
    filled = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    order = filled.detach().argsort(-1, descending=True)
    ranked = scores.gather(-1, order)

    def logits(start: int, stop: int, mask: Tensor | None, ranked: Tensor, scores: Tensor) -> Tensor:
        # Rows past the last item exist only where the mask sets them to 0, so any score can be used there.
        heads = ranked[..., start:stop] if stop <= scores.shape[-1] else _extend(ranked, stop)[..., start:stop]
        distance = (heads.unsqueeze(-1) - scores.unsqueeze(-2)).abs()
        return -distance if power == 1 else -distance.square()

    def pull(start: int, stop: int, grad: Tensor, ranked: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        apart = scores.unsqueeze(-2) - ranked[..., start:stop].unsqueeze(-1)
        of_scores = -grad * (apart.sign() if power == 1 else 2 * apart)
        return torch.nn.functional.pad(-of_scores.sum(-1), (start, ranked.shape[-1] - stop)), of_scores.sum(-2)

    return SoftRows((ranked, scores), logits, pull, scores.shape, mask)


def _extend(ranked: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(ranked, (0, count - ranked.shape[-1]))
