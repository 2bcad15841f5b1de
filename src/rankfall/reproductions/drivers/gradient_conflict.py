"""Gradient conflict by operator on synthetic lists: which items a loss pushes to the wrong side, and why.

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

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rankfall import ops
from rankfall.reporting.figures import Lines
from rankfall.reproductions.synthetic_lists import make_lists
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rankfall.reproductions.paper_schema import GradientConflict
    from rankfall.reproductions.task import Task

    Shares = Mapping[str, float]  # by measure

QUICK_LISTS = 200

LOWERED, WRONG = "relevant items lowered by -log p", "items on the wrong side of L_TopK"
BOUNDARY, BOUNDARY_BCE = "gradient of -log p on the boundary", "gradient of L_TopK on the boundary"
ROW_CONFLICT, ROW_LOWERED = "rows with a conflict", "relevant items lowered by a row"
CANCELLED = "gradient of rows that cancels"
MEASURES = (LOWERED, WRONG, BOUNDARY, BOUNDARY_BCE, ROW_CONFLICT, ROW_LOWERED, CANCELLED)
ROUNDING = 1e-9  # share of the largest gradient of the list below which the sign of a gradient is not counted


def run(reproduction: GradientConflict, task: Task) -> Report:
    """Measure every operator at every k."""
    lists = reproduction.lists
    if task.quick:
        lists = lists.model_copy(update={"lists": min(lists.lists, QUICK_LISTS)})
    scores, relevant = make_lists(lists, task.seed)
    shares: dict[str, dict[int, Shares]] = {name: {} for name in reproduction.operators}
    for number, (name, options) in enumerate(reproduction.operators.items()):
        task.progress(name, number, len(shares))
        for k in reproduction.ks:
            shares[name][k] = measure(options, scores, relevant, k)
    drawn = [
        {"panel": measure, "series": name, "x": k, "y": 100 * by_k[k][measure]}
        for measure in (LOWERED, BOUNDARY)
        for name, by_k in shares.items()
        for k in by_k
    ]
    return Report(
        sheets=[_sheet(measure, shares, reproduction.ks) for measure in MEASURES],
        plots={
            reproduction.id: Lines(
                drawn,
                title=f"{reproduction.title}: gradient conflict by operator",
                subtitle=f"percent; {lists.lists} lists of {lists.items} items, {lists.relevant} of them relevant",
                x="k",
                y="percent",
                series="operator",
                ticks=reproduction.ks,
            )
        },
        results={
            "lists": lists.model_dump(),
            "shares": {name: {f"{k}": dict(found) for k, found in by_k.items()} for name, by_k in shares.items()},
            "published": "a drawing without numbers",
        },
        notes=reproduction.notes,
    )


def _sheet(measure: str, shares: Mapping[str, Mapping[int, Shares]], ks: list[int]) -> Sheet:
    measured = {name: by_k for name, by_k in shares.items() if any(measure in found for found in by_k.values())}
    rows = [
        [name, *(f"{100 * by_k[k][measure]:.1f}" if measure in by_k[k] else "-" for k in ks)]
        for name, by_k in measured.items()
    ]
    return Sheet(f"percent: {measure}", ["operator", *(f"k = {k}" for k in ks)], rows)


# --- measures -----------------------------------------------------------------------------------------------------


def measure(options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
    """Return the shares of an operator by name.

    Args:
        options: Options of `rankfall.ops.topk`.
        scores: Scores ``(lists, items)``.
        relevant: Mask of relevant items.
        k: Number of selected items, fewer than a list has.
    """
    shares = of_inclusion(options, scores, relevant, k)
    if options["name"].endswith("_sort"):
        shares |= of_rows(options, scores, relevant, k)
    return shares


def of_inclusion(options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
    """Return the shares of the losses of inclusion probabilities."""
    operator = ops.topk(**options)
    scores = scores.detach().requires_grad_()
    log_p, log_not_p = ops.log_inclusion(operator, scores, k)
    (towards,) = torch.autograd.grad(-(log_p * relevant).sum(), scores, retain_graph=True)
    boundary = scores.topk(k + 1, -1).indices[..., k - 1 :]
    shares = {LOWERED: _share(_lowered(towards)[relevant]), BOUNDARY: _mass(towards, boundary)}
    if (relevant.sum(-1) == k).all():
        (bce,) = torch.autograd.grad(-torch.where(relevant, log_p, log_not_p).sum(), scores)
        shares[WRONG] = _share(torch.where(relevant, _lowered(bce), _lowered(-bce)))
        shares[BOUNDARY_BCE] = _mass(bce, boundary)
    return shares


def of_rows(options: Mapping[str, Any], scores: Tensor, relevant: Tensor, k: int) -> dict[str, float]:
    """Return the shares that the first k rows of a soft sort have each on its own; they depend on no `gradient`.

    Args:
        options: Options of `rankfall.ops.topk`.
        scores: Scores ``(lists, items)``.
        relevant: Mask of relevant items.
        k: Number of rows.
    """
    scores = scores.detach().requires_grad_()
    settings = {key: value for key, value in options.items() if key not in ("name", "gradient", "normalised")}
    matrix = partial(getattr(ops, options["name"]), **settings)(scores, k=k)
    found = (matrix * relevant.unsqueeze(-2)).sum(-1)  # expected relevant items at each rank
    rows = torch.stack([_gradient(-found[:, i].sum(), scores) for i in range(k)], -2)
    on_relevant = relevant.unsqueeze(-2).expand_as(rows)
    total = _gradient(-found.sum(), scores)[relevant].abs().sum()
    parts = rows[on_relevant].abs().sum()
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
