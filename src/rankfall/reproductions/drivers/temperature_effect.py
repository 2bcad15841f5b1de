"""A soft top-k by temperature: its distance to the hard one, and the size of its gradient.

Two gradients of L_TopK, the binary cross entropy of the inclusions, are shown: with respect to the scores, which has a
factor 1 / tau, and with respect to the scores divided by tau, as papers write it. Both give the same steps with an
optimizer that divides by the size of the gradient, such as Adam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall import ops
from rankfall.reporting.figures import Lines
from rankfall.reproductions.published_sweep import pick_points
from rankfall.reproductions.synthetic_lists import make_lists
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from torch import Tensor

    from rankfall.reproductions.paper_schema import TemperatureEffect
    from rankfall.reproductions.task import Task

DISTANCE, EXCESS = "mean |p - hard|", "|sum of p - k| / k"
GRADIENT, SCALED = "mean |dL/ds|", "mean |dL/d(s/tau)|"
REACHED = "items reached"
MEASURES = (DISTANCE, EXCESS, GRADIENT, SCALED, REACHED)
FAINT = 0.01  # an item is reached if its gradient is at least this share of the largest one of its list


def run(reproduction: TemperatureEffect, task: Task) -> Report:
    """Measure the operator at every temperature."""
    scores, relevant = make_lists(reproduction.lists, task.seed)
    taus = pick_points(reproduction.taus, task.size.points and max(task.size.points, 5))
    values = {tau: measure(reproduction.operator, scores, relevant, reproduction.k, tau) for tau in taus}
    drawn = [
        {"panel": measure, "series": reproduction.operator, "x": tau, "y": found[measure]}
        for measure in (DISTANCE, GRADIENT, SCALED)
        for tau, found in values.items()
    ]
    return Report(
        sheets=[
            Sheet(
                f"{reproduction.operator} by temperature, k = {reproduction.k}, scores of standard deviation 1",
                ["tau", *MEASURES],
                [[f"{tau:g}", *(f"{found[measure]:.3g}" for measure in MEASURES)] for tau, found in values.items()],
            )
        ],
        plots={
            reproduction.id: Lines(
                drawn,
                title=f"{reproduction.title}: {reproduction.operator} by temperature",
                x="tau",
                y="",
                series="operator",
                log_x=True,
                log_y=True,
                ticks=taus,
            )
        },
        results={
            "lists": reproduction.lists.model_dump(),
            "values": {f"{tau:g}": found for tau, found in values.items()},
            "published": {"taus": reproduction.taus},
        },
        notes=reproduction.notes,
    )


def measure(operator: str, scores: Tensor, relevant: Tensor, k: int, tau: float) -> dict[str, float]:
    """Return what temperature `tau` changes, by name."""
    scores = scores.detach().requires_grad_()
    topk = ops.topk(operator, tau=tau)
    log_p, log_not_p = ops.log_inclusion(topk, scores, k)
    loss = -torch.where(relevant, log_p, log_not_p).mean(-1)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    with torch.no_grad():
        p, hard = topk(scores, k), ops.hard_topk(scores, k)
    size = gradient.abs()
    return {
        DISTANCE: float((p - hard).abs().mean()),
        EXCESS: float((p.sum(-1) - k).abs().mean() / k),
        GRADIENT: float(size.mean()),
        SCALED: float(size.mean() * tau),
        REACHED: float((size >= FAINT * size.amax(-1, keepdim=True)).double().mean()),
    }
