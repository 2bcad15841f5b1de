"""Gradient conflict by operator: which items a loss pushes to the wrong side, and why.

A gradient step lowers the score of an item whose gradient is positive. A loss that raises the inclusion probability of
every relevant item can nevertheless lower the scores of some of them. The boundary of a list is its k-th and its
(k+1)-th best item. The measures are shares of

- relevant items that -log p lowers, summed over the relevant items of a list;
- items on the wrong side of L_TopK, the binary cross entropy of p: relevant ones that it lowers, others that it raises.
  Its target is the set of the relevant items, so it is only measured with their number as k;
- absolute gradient of either loss that falls on the boundary;
- rows, of the first k of a soft sort, that raise one relevant item and lower another: the zero-sum competition that
  DFTopK draws in figure 2;
- pairs of such a row and a relevant item for which the row lowers the item;
- absolute gradient of these rows on relevant items that cancels in their sum: the cancellation of LCRON, E.1.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rankfall import ops
from rankfall.studies.diagnosis.diagnosis_result import OperatorConflict
from rankfall.training.stage_figures import Resampler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rankfall.studies.diagnosis.funnel_lists import FunnelLists

    Shares = Mapping[str, float]  # by measure

LOWERED, WRONG = "relevant items lowered by -log p", "items on the wrong side of L_TopK"
BOUNDARY, BOUNDARY_BCE = "gradient of -log p on the boundary", "gradient of L_TopK on the boundary"
ROW_CONFLICT, ROW_LOWERED = "rows with a conflict", "relevant items lowered by a row"
CANCELLED = "gradient of rows that cancels"
MEASURES = (LOWERED, WRONG, BOUNDARY, BOUNDARY_BCE, ROW_CONFLICT, ROW_LOWERED, CANCELLED)
ROUNDING = 1e-9  # share of the largest gradient of the list below which the sign of a gradient is not counted

OPERATORS: dict[str, dict[str, Any]] = {  # compared on the scores of a run
    "NeuralSort, gradient of LCRON's code": {"name": "neural_sort", "gradient": "rows"},
    "NeuralSort, exact gradient": {"name": "neural_sort", "gradient": "exact"},
    "SoftSort, gradient of LCRON's code": {"name": "soft_sort", "gradient": "rows"},
    "SoftSort, exact gradient": {"name": "soft_sort", "gradient": "exact"},
    "LapSum": {"name": "lapsum_topk"},
    "exact sigmoid": {"name": "sigmoid_topk"},
    "DFTopK": {"name": "dftopk"},
}
SOFTNESS = (0.1, 1.0)  # temperatures in units of the spread of the scores
MOST_LISTS = 200
MOST_ROWS = 8  # of a soft sort whose gradients are measured one by one
MOST_ITEMS = 400  # of a list, since the matrices of soft sorts grow with the square of its length
_MOST_CELLS = 6.4e6  # lists * items * items


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(
    options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int, mask: Tensor | None = None
) -> dict[str, float]:
    """Return the shares of an operator by name.

    Args:
        options: Options of `rankfall.ops.topk`.
        scores: Scores ``(lists, items)``.
        relevant: Mask of relevant items.
        k: Number of selected items, fewer than any list has.
        mask: Mask of real items. Default: all items are real.
    """
    shares = of_inclusion(options, scores, relevant, k, mask)
    if options["name"].endswith("_sort"):
        shares |= of_rows(options, scores, relevant, k, mask)
    return shares


def lowered_per_list(
    options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int, mask: Tensor | None = None
) -> Tensor:
    """Return the number ``(lists,)`` of relevant items that -log p lowers; the arguments are those of `measure`."""
    scores = scores.detach().requires_grad_()
    log_p, _ = ops.log_inclusion(ops.topk(**options), scores, k, mask=mask)
    towards = _gradient(-log_p[relevant].sum(), scores)
    return (_lowered(towards) & relevant).sum(-1)


def of_inclusion(
    options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int, mask: Tensor | None = None
) -> dict[str, float]:
    """Return the shares of the losses of inclusion probabilities."""
    operator = ops.topk(**options)
    real = torch.ones_like(relevant) if mask is None else mask
    scores = scores.detach().requires_grad_()
    log_p, log_not_p = ops.log_inclusion(operator, scores, k, mask=mask)
    (towards,) = torch.autograd.grad(-(log_p * relevant)[real].sum(), scores, retain_graph=True)
    boundary = scores.masked_fill(~real, -torch.inf).topk(k + 1, -1).indices[..., k - 1 :]
    shares = {LOWERED: _share(_lowered(towards)[relevant]), BOUNDARY: _mass(towards, boundary)}
    if (relevant.sum(-1) == k).all():
        (bce,) = torch.autograd.grad(-torch.where(relevant, log_p, log_not_p)[real].sum(), scores)
        shares[WRONG] = _share(torch.where(relevant, _lowered(bce), _lowered(-bce))[real])
        shares[BOUNDARY_BCE] = _mass(bce, boundary)
    return shares


def of_rows(
    options: Mapping[str, Any],
    scores: Tensor,
    relevant: Tensor,
    k: int,
    mask: Tensor | None = None,
    *,
    most: int | None = None,
) -> dict[str, float]:
    """Return the shares that the first k rows of a soft sort have each on its own; they depend on no `gradient`.

    Args:
        options: Options of `rankfall.ops.topk`.
        scores: Scores ``(lists, items)``.
        relevant: Mask of relevant items.
        k: Number of rows.
        mask: Mask of real items. Default: all items are real.
        most: Measure at most this number of rows, evenly spaced. Default: all rows.
    """
    scores = scores.detach().requires_grad_()
    settings = {key: value for key, value in options.items() if key not in ("name", "gradient", "normalised")}
    matrix = partial(getattr(ops, options["name"]), **settings)(scores, k=k, mask=mask)
    found = (matrix * relevant.unsqueeze(-2)).sum(-1)  # expected relevant items at each rank
    count = k if most is None else min(k, most)
    places = [(2 * number + 1) * k // (2 * count) for number in range(count)]
    rows = torch.stack([_gradient(-found[:, i].sum(), scores) for i in places], -2)
    on_relevant = relevant.unsqueeze(-2).expand_as(rows)
    total = _gradient(-found.sum(), scores)[relevant].abs().sum()
    parts = rows[on_relevant].abs().sum() * (k / count)
    lowered, raised = (_lowered(one) & on_relevant for one in (rows, -rows))
    several = relevant.sum(-1) > 1  # a single relevant item has none to compete with
    return {
        ROW_CONFLICT: _share((lowered.any(-1) & raised.any(-1))[several]),
        ROW_LOWERED: _share(lowered[on_relevant]),
        CANCELLED: max(0.0, float(1 - total / parts)),
    }


def _gradient(value: Tensor, scores: Tensor) -> Tensor:
    return torch.autograd.grad(value, scores, retain_graph=True)[0]


def _lowered(gradient: Tensor) -> Tensor:
    """Return which items a gradient step lowers, apart from rounding."""
    return gradient > ROUNDING * gradient.abs().amax(-1, keepdim=True)


def _share(found: Tensor) -> float:
    return float(found.double().mean())


def _mass(gradient: Tensor, places: Tensor) -> float:
    return float(gradient.gather(-1, places).abs().sum() / gradient.abs().sum())


# --- the scores of a run --------------------------------------------------------------------------------------------


def conflicts_of_run(lists: FunnelLists, stage: int, own: Mapping[str, Any] | None) -> list[OperatorConflict]:
    """Return the gradient conflict of every operator on the scores of a stage, with its quota as k.

    Operators differ in the meaning of their temperature. NeuralSort multiplies scores by the number of items, so that
    its temperature is multiplied too; then all operators of the same softness blur about the same number of items.

    If the longest list has more than `MOST_ITEMS` items, the relevant items and a random sample of the others are
    measured. All lists and k become shorter by the same factor, so that each list keeps its share of selected items.
    The shares are those of lists of this length. With half of the items, published gradients of soft sorts lowered up
    to .17 fewer of the relevant items in tests, other operators differed by up to .03; shares on the boundary become
    larger, except for DFTopK, since its two items are a larger part of the list.

    Args:
        lists: The lists of the run.
        stage: Index of the stage.
        own: Options of `rankfall.ops.topk` that the run was trained with, if there are some.

    Returns:
        Nothing if no list has more items than the quota.
    """
    k = lists.quotas[stage]
    long = (lists.mask.sum(-1) > k).nonzero().squeeze(-1)
    if not len(long):
        return []
    width = lists.mask.shape[-1]
    items = min(width, MOST_ITEMS)
    count = min(MOST_LISTS, int(_MOST_CELLS / items**2), len(long))
    generator = torch.Generator().manual_seed(0)
    chosen = long[torch.randperm(len(long), generator=generator)[:count]]
    mask, relevant = lists.mask[chosen], lists.weight[chosen] > 0
    scores = lists.scores[stage][chosen].double().masked_fill(~mask, 0.0)
    if width > items:
        k = max(1, k * items // width)
        places, mask = _sample(mask, relevant, items / width, k + 1, generator)
        relevant, scores = relevant.gather(-1, places) & mask, scores.gather(-1, places)
    length = float(mask.sum(-1).double().mean())
    scaled = scores / _spread(scores, mask)
    compared: list[tuple[str, float | None, dict[str, Any], Tensor]] = []
    if own is not None:
        compared.append((operator_text(own), None, dict(own), scores))
    for softness, (name, options) in itertools.product(SOFTNESS, OPERATORS.items()):
        tau = softness * (length if options["name"] == "neural_sort" else 1.0)
        compared.append((name, softness, {**options, "tau": tau}, scaled))
    rows: dict[tuple[str, float | None], dict[str, float]] = {}  # of each soft sort, whatever its gradient is
    found = []
    for name, softness, options, given in compared:
        shares, key = of_inclusion(options, given, relevant, k, mask), (options["name"], softness)
        if isinstance(options["name"], str) and options["name"].endswith("_sort"):
            if key not in rows:
                rows[key] = of_rows(options, given, relevant, k, mask, most=MOST_ROWS)
            shares |= rows[key]
        lowered = lowered_per_list(options, given, relevant, k, mask)
        (estimate,) = Resampler().ratios([(lowered, relevant.sum(-1))])
        found.append(
            OperatorConflict(lists.stages[stage], name, softness is None, softness, k, count, estimate, shares)
        )
    return found


def _sample(
    mask: Tensor, relevant: Tensor, share: float, least: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Choose a share of the items of each list: all relevant items, then random others.

    Args:
        mask: Real items ``(lists, items)``.
        relevant: Relevant items.
        share: Share of the items of a list that are chosen.
        least: Smallest number of chosen items, at most the length of any list.
        generator: Random generator.

    Returns:
        The places ``(lists, chosen)`` of the items, padded to the longest list, and a mask of the same shape.
    """
    count = (share * mask.sum(-1, keepdim=True)).ceil().long().clamp(min=least).maximum(relevant.sum(-1, keepdim=True))
    keys = torch.rand(mask.shape, generator=generator) + relevant.float() - (~mask).float()
    places = keys.topk(int(count.max()), -1).indices
    return places, torch.arange(places.shape[-1]) < count


def operator_text(options: Mapping[str, Any]) -> str:
    """Return an operator and its options.

    >>> operator_text({"name": "dftopk", "tau": 1.0})
    'dftopk, tau = 1'
    """
    given = [f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}" for key, value in options.items()]
    name = options["name"] if isinstance(options["name"], str) else options["name"].__name__
    return ", ".join([name, *(text for text in given if not text.startswith("name"))])


def _spread(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the root mean square deviation of scores from the mean of their list."""
    count = mask.sum(-1, keepdim=True)
    centred = (scores - (scores * mask).sum(-1, keepdim=True) / count) * mask
    spread = (centred**2).sum().div(mask.sum()).sqrt()
    return torch.where(spread > 0, spread, torch.ones_like(spread))
