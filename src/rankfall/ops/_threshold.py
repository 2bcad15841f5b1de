"""One family: soft top-k through a threshold.

Every operator of the family is ``p = phi((scores - b) / tau)`` with one threshold `b` per list. The operators differ in
the function phi and in the condition that determines b:

==============  ===================  ==============================================
`dftopk`        logistic             midway between the k-th and (k+1)-th score
`sigmoid_topk`  logistic             sum of p = k
`lapsum_topk`   Laplace CDF          sum of p = k
`sparse_topk`   clip(u, 0, 1)^(1|3)  sum of p = k
==============  ===================  ==============================================

They share one solver and one backward pass. Scores are first shifted so that the midpoint of the k-th and (k+1)-th is
0, and divided by tau. This does not change p, and keeps full precision at the boundary, where it matters.

On a CPU, `where`, `masked_fill` and comparisons of whole tensors cost ten to thirty times as much as arithmetic (they
are not vectorised). Therefore indicators are computed with `sign` below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rankfall._checks import check_count, check_scale, check_scores
from rankfall._lists import kth_largest, safe_divide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Bool, Float

LOG_2 = 0.6931471805599453
LOG_OF_ZERO = -100.0
"""Logarithm of an exact 0 in a cross entropy, as in :func:`torch.nn.functional.binary_cross_entropy`."""


@dataclass(frozen=True)
class ThresholdFunction:
    """A member of the family: functions of ``z = (scores - b) / tau`` or of ``p = phi(z)``."""

    phi: Callable[[Tensor], Tensor]  # z -> p; may overwrite z
    slope: Callable[[Tensor], Tensor]  # p -> dp/dz
    log_phi: Callable[[Tensor], tuple[Tensor, Tensor]]  # z -> log p, log(1 - p)
    share: Callable[[Tensor], Tensor]  # z -> dp/dz up to one factor per list, safe from underflow
    inverse: Callable[[Tensor], Tensor]  # p -> z
    step: Callable[[Tensor, int, Tensor, Tensor], tuple[Tensor, Tensor]]  # z, k, n, target -> sum of p, change of b
    steps: int  # number of steps of the solver in float32
    middle: float = 0.0  # where phi is 1/2
    width: float = torch.inf  # if finite, phi is 0 below z = 0 and 1 above z = width
    midpoint: bool = False  # b is the midpoint, no equation to solve


def threshold_topk(kind: str, scores: Tensor, k: int, tau: float | Tensor, mask: Tensor | None) -> Tensor:
    """Return the inclusion probabilities of a member of the family."""
    lists = _centre(scores, k, tau, mask)
    p: Tensor = _Inclusion.apply(*lists[:-1], k, kind)  # type: ignore[no-untyped-call]
    whole = lists[-1]
    return (p if whole is None else p.masked_fill(whole, 1.0)).to(scores.dtype)


def log_threshold_topk(
    kind: str, scores: Tensor, k: int, tau: float | Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p), exact where p itself would round to 0 or 1; the logarithm of 0 is `LOG_OF_ZERO`."""
    lists = _centre(scores, k, tau, mask)
    z: Tensor = _Logits.apply(*lists[:-1], k, kind)  # type: ignore[no-untyped-call]
    whole = lists[-1]
    log_p, log_not_p = FUNCTIONS[kind].log_phi(z if whole is None else z.masked_fill(whole, torch.inf))
    return _finite(log_p), _finite(log_not_p)


def _finite(log_p: Tensor) -> Tensor:
    return log_p.masked_fill(log_p == -torch.inf, LOG_OF_ZERO)


def _centre(
    scores: Float[Tensor, "*batch n"],
    k: int,
    tau: float | Tensor,
    mask: Bool[Tensor, "*batch n"] | None,
) -> tuple[Tensor, float, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Check and prepare the arguments for the functions below.

    Returns:
        The scores, the number to divide them by, their k-th and (k+1)-th largest values, the mask, the number of real
        items, and the items of lists that are kept completely (k >= n). The last three are None if every item is real
        and k < n.
    """
    check_count("k", k)
    scores, mask = check_scores(scores, mask)
    check_scale("tau", tau, scores)
    if isinstance(tau, Tensor):  # which may require a gradient
        scores, tau = scores / tau, 1.0
    n = scores.shape[-1]
    if mask is None and k < n:
        return scores, tau, kth_largest(scores, k), None, None, None
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    count = mask.sum(-1, keepdim=True)
    whole = count <= k
    # For k >= n any boundary is allowed: its results are not used.
    edges = kth_largest(scores.masked_fill(~mask, -torch.inf), min(k, n - 1)) if n > 1 else scores.new_zeros(2)
    return scores, tau, edges.masked_fill(whole, 0.0), mask, count, whole & mask


def _from_midpoint(scores: Tensor, tau: float, edges: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return scores and edges as distances from the midpoint of the edges in units of tau; -inf where masked."""
    middle = edges.mean(-1, keepdim=True)
    u = (scores - middle).div_(tau)
    if mask is not None:
        u.masked_fill_(~mask, -torch.inf)
    return u, (edges - middle).div_(tau)


# In the two functions below, the implicit function theorem gives db/du, so no step of the solver is recorded. They work
# in place where possible: allocating memory costs more than the arithmetic.


class _Inclusion(torch.autograd.Function):
    """scores -> p = phi(u - b(u))."""

    @staticmethod
    def forward(
        scores: Tensor, tau: float, edges: Tensor, mask: Tensor | None, count: Tensor | None, k: int, kind: str
    ) -> Tensor:
        member = FUNCTIONS[kind]
        u, edges = _from_midpoint(scores, tau, edges, mask)
        return member.phi(u if member.midpoint else u.sub_(_threshold(member, u, edges, count, k)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kind = FUNCTIONS[ctx.kind]
        p, scores, edges, mask = ctx.saved_tensors
        slope = kind.slope(p)
        if kind.midpoint:
            through = slope.mul_(grads[0])
            through_b = through.sum(-1, keepdim=True)
            for share in _edge_shares(scores, edges, mask):
                through = through.addcmul_(share, through_b, value=-0.5)
        else:
            through = grads[0] * slope
            through_b = safe_divide(through.sum(-1, keepdim=True), slope.sum(-1, keepdim=True), least=0.0)
            through = through.addcmul_(slope, through_b, value=-1)
        return through.div_(ctx.tau), None, None, None, None, None, None


class _Logits(torch.autograd.Function):
    """scores -> z = u - b(u), for log p: where the slopes of p underflow, those of log p do not."""

    @staticmethod
    def forward(
        scores: Tensor, tau: float, edges: Tensor, mask: Tensor | None, count: Tensor | None, k: int, kind: str
    ) -> Tensor:
        member = FUNCTIONS[kind]
        u, edges = _from_midpoint(scores, tau, edges, mask)
        return u if member.midpoint else u.sub_(_threshold(member, u, edges, count, k))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kind = FUNCTIONS[ctx.kind]
        z, scores, edges, mask = ctx.saved_tensors
        total = grads[0].sum(-1, keepdim=True)
        if kind.midpoint:
            through = grads[0]
            for share in _edge_shares(scores, edges, mask):
                through = through - share * (total / 2)
        else:
            weights = kind.share(z)
            through = grads[0] - weights * safe_divide(total, weights.sum(-1, keepdim=True), least=0.0)
        return through / ctx.tau, None, None, None, None, None, None


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, tau, edges, mask, _, _, kind = inputs
    ctx.kind, ctx.tau = kind, tau
    ctx.save_for_backward(output, scores, edges, mask)


def _edge_shares(scores: Tensor, edges: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Yield the k-th item and then the (k+1)-th, as weights that sum to 1: tied items share the weight."""
    scores = scores.detach()
    for edge in edges.split(1, dim=-1):
        # A comparison written directly into a float tensor is five times as fast as one into a boolean tensor.
        share = torch.eq(scores, edge, out=torch.empty_like(scores))
        if mask is not None:
            share.masked_fill_(~mask, 0.0)
        yield share.div_(share.sum(-1, keepdim=True).clamp_(min=1))


def _threshold(kind: ThresholdFunction, u: Tensor, edges: Tensor, count: Tensor | None, k: int) -> Tensor:
    """Return the b at which phi(u - b) sums to k, by steps that never leave a bracket.

    The number of steps is fixed, so no step depends on a value on the host.
    """
    n = torch.full_like(edges[..., :1], u.shape[-1]) if count is None else count.to(u.dtype)
    target = kind.inverse((k / n).clamp(max=1 - torch.finfo(u.dtype).eps))
    low, high = _bracket(kind, u, edges, target, masked=count is not None)
    b = torch.clamp(torch.full_like(low, -kind.middle), min=low, max=high)
    close = k * torch.finfo(u.dtype).eps
    # Convergence is quadratic: two more steps double the digits twice.
    for _ in range(kind.steps + 2 * (u.dtype == torch.float64)):
        total, change = kind.step(u - b, k, n, target)
        low = torch.where(total >= k, b, low)
        high = torch.where(total <= k, b, high)
        new = b + change
        new = torch.where((new >= low) & (new <= high), new, (low + high) / 2)
        # Where every p has rounded to 0 or 1, slopes are 0 and a step is meaningless.
        b = torch.where((total - k).abs() <= close, b, new)
    return torch.where(n > k, b, 0.0)  # a list that is kept completely has no threshold


def _bracket(
    kind: ThresholdFunction, u: Tensor, edges: Tensor, target: Tensor, *, masked: bool
) -> tuple[Tensor, Tensor]:
    # If all scores were equal to the smallest (largest) one, b would be smaller (larger); 1 is a margin for rounding.
    smallest = u.masked_fill(u == -torch.inf, torch.inf) if masked else u
    low = smallest.amin(-1, keepdim=True) - target - 1
    high = u.amax(-1, keepdim=True) - target + 1
    if kind.width < torch.inf:
        # With b at the (k+1)-th score at most k items are kept; with b at the k-th minus the ramp's width, at least k.
        low = torch.maximum(low, edges[..., :1] - kind.width)
        high = torch.maximum(torch.minimum(high, edges[..., 1:]), low)
    return low, high


# --- the members ------------------------------------------------------------------------------------------------


def _newton(
    sums: Callable[[Tensor], tuple[Tensor, Tensor]],
    inverse: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
) -> Callable[[Tensor, int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Create Newton's step on phi^-1 of the mean of p instead of on the sum of p.

    This function of b is linear if all scores are equal and nearly linear if they are close, so steps neither overshoot
    nor stall. `sums` returns the sum of p and the sum of dp/dz.
    """

    def step(z: Tensor, k: int, n: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        total, slopes = sums(z)
        mean = total / n
        return total, (inverse(mean) - target) * n * slope(mean) / slopes

    return step


def _nearness(z: Tensor) -> Tensor:
    """Return exp(-|z|) relative to the item nearest to the threshold, so that it cannot underflow for all items."""
    distance = z.abs()
    nearest = distance.amin(-1, keepdim=True).clamp(max=torch.finfo(z.dtype).max)
    return torch.exp(nearest - distance)


def _logistic_slope(p: Tensor) -> Tensor:
    return torch.addcmul(p, p, p, value=-1)


def _logistic_step(z: Tensor, k: int, n: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    sign = z.sign()
    p = z.sigmoid_()
    slopes = _logistic_slope(p).sum(-1, keepdim=True)
    return _tail_step(k, sign, torch.minimum(p, 1 - p), slopes)


def _log_logistic(z: Tensor) -> tuple[Tensor, Tensor]:
    return F.logsigmoid(z), F.logsigmoid(-z)


def _laplace(z: Tensor) -> Tensor:
    # e^-|z| / 2 below 0 and 1 - e^-|z| / 2 above, without cancellation on either side
    sign = z.sign()
    return torch.addcmul((1 + sign) / 2, sign, z.abs_().neg_().exp_(), value=-0.5)


def _laplace_slope(p: Tensor) -> Tensor:
    return torch.minimum(p, 1 - p)


def _laplace_step(z: Tensor, k: int, n: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    sign = z.sign()
    return _tail_step(k, sign, z.abs_().neg_().exp_().div_(2), None)


def _tail_step(k: int, sign: Tensor, tail: Tensor, slopes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sum of p, and the change of b that would make it k if tails were exponential.

    `tail` is p below b and 1 - p above; let B and A be its sums there. With a rate r, moving b by log(x) / r turns the
    sum of p into above + B/x - A x, which equals k at a root of a quadratic in x. For Laplace, r is 1 and the step is
    exact as long as no score lies between the old and the new b. For the logistic, r is chosen to match the slope, so
    that steps are Newton's near the solution and still good far from it.
    """
    above = (sign.shape[-1] + sign.sum(-1, keepdim=True)) / 2
    both, difference = tail.sum(-1, keepdim=True), sign.mul_(tail).sum(-1, keepdim=True)  # A + B, A - B
    missing = k - above
    root = torch.sqrt(missing * missing + (both + difference) * (both - difference))
    # Use the form of the root that does not subtract nearly equal numbers.
    few = (both - difference) / (root + missing)
    many = (root - missing) / (both + difference)
    change = torch.log(torch.where(missing >= 0, few, many))
    return above - difference, change if slopes is None else change * both / slopes


def _log_laplace(z: Tensor) -> tuple[Tensor, Tensor]:
    below = z < 0
    distance = torch.where(below, -z, z)  # |z|, with slope 1 at 0 where abs() would have none
    log_tail, log_rest = -distance - LOG_2, torch.log1p(-torch.exp(-distance) / 2)
    return torch.where(below, log_tail, log_rest), torch.where(below, log_rest, log_tail)


def _laplace_inverse(p: Tensor) -> Tensor:
    return torch.where(p < 0.5, torch.log(2 * p), -torch.log(2 * (1 - p)))


def _inside(p: Tensor) -> Tensor:
    """Return 1 where 0 < p < 1, else 0."""
    return torch.addcmul(p, p, p, value=-1).sign_()


def _clip(z: Tensor) -> Tensor:
    return z.clamp(0, 1)


def _clip_sums(z: Tensor) -> tuple[Tensor, Tensor]:
    p = _clip(z)
    return p.sum(-1, keepdim=True), _inside(p).sum(-1, keepdim=True)


def _cube(z: Tensor) -> Tensor:
    return _clip(z) ** 3


def _cube_slope(p: Tensor) -> Tensor:
    root = p.clamp(min=torch.finfo(p.dtype).tiny) ** (1 / 3)  # whose own slope is infinite at 0
    return 3 * root * root * _inside(p)


def _cube_sums(z: Tensor) -> tuple[Tensor, Tensor]:
    root = _clip(z)
    square = root * root
    slopes = _inside(root).mul_(square)
    return square.mul_(root).sum(-1, keepdim=True), 3 * slopes.sum(-1, keepdim=True)


def _log_clip(power: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def log_phi(z: Tensor) -> tuple[Tensor, Tensor]:
        p = _clip(z) ** power
        inside = (p > 0) & (p < 1)
        between = torch.where(inside, p, 0.5)  # keeps the slopes of the logarithms finite at 0 and 1
        zero = torch.zeros_like(p)
        return (
            torch.where(inside, torch.log(between), torch.where(p > 0, zero, -torch.inf)),
            torch.where(inside, torch.log1p(-between), torch.where(p > 0, -torch.inf, zero)),
        )

    return log_phi


_LOGISTIC = ThresholdFunction(
    phi=torch.sigmoid,
    slope=_logistic_slope,
    log_phi=_log_logistic,
    share=lambda z: _nearness(z) * torch.sigmoid(z.abs()).square(),
    inverse=torch.logit,
    step=_logistic_step,
    steps=6,
)

FUNCTIONS = {
    "midpoint": replace(_LOGISTIC, midpoint=True),
    "logistic": _LOGISTIC,
    "laplace": ThresholdFunction(
        phi=_laplace,
        slope=_laplace_slope,
        log_phi=_log_laplace,
        share=_nearness,
        inverse=_laplace_inverse,
        step=_laplace_step,
        steps=4,
    ),
    "clip": ThresholdFunction(
        phi=_clip,
        slope=_inside,
        log_phi=_log_clip(1),
        share=lambda z: _inside(_clip(z)),
        inverse=lambda p: p,
        step=_newton(_clip_sums, lambda p: p, torch.ones_like),
        steps=10,
        middle=0.5,
        width=1.0,
    ),
    "cube": ThresholdFunction(
        phi=_cube,
        slope=_cube_slope,
        log_phi=_log_clip(3),
        share=lambda z: _cube_slope(_cube(z)),
        inverse=lambda p: p ** (1 / 3),
        step=_newton(_cube_sums, lambda p: p ** (1 / 3), _cube_slope),
        steps=20,
        middle=0.5 ** (1 / 3),
        width=1.0,
    ),
}
