"""Which items of a list losses push up or down: the sign of their derivative by each score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.reporting.figures import Lines
from rankfall.reproductions.task import Report, Sheet
from rankfall.training.build import make_loss
from rankfall.training.config.ranker_config import LossConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.reproductions.paper_schema import GradientSigns, Number, Options
    from rankfall.reproductions.task import Task

STEP = 0.5  # difference of neighbouring scores


def run(reproduction: GradientSigns, task: Task) -> Report:  # all drivers have the same arguments
    """Differentiate every loss on every list, sorted by score."""
    pushes = {
        name: {loss: push(labels, options) for loss, options in reproduction.losses.items()}
        for name, labels in reproduction.lists.items()
    }
    points = [
        {"panel": name, "series": loss, "x": rank, "y": value}
        for name, by_loss in pushes.items()
        for loss, values in by_loss.items()
        for rank, value in enumerate(values, start=1)
    ]
    return Report(
        sheets=[_sheet(name, labels, pushes[name], reproduction.k) for name, labels in reproduction.lists.items()],
        plots={
            reproduction.id: Lines(
                points,
                title="Minus the derivative of a loss by the score of each item",
                subtitle="above 0: the item is pushed up",
                x="rank",
                y="push",
                series="loss",
            )
        },
        results={"pushes": pushes, "labels": reproduction.lists, "k": reproduction.k, "published": None},
        notes=[
            *(
                f"{name}: {loss} moves {moved} of the {len(values)} relevant items below rank {reproduction.k}."
                for name, labels in reproduction.lists.items()
                for loss in reproduction.losses
                for values in [[pushes[name][loss][i] for i in below(labels, reproduction.k)]]
                for moved in [sum(value != 0 for value in values)]
            ),
            *reproduction.notes,
        ],
    )


def push(labels: Sequence[Number], loss: Options) -> list[float]:
    """Return minus the derivative by each score, for items with evenly spaced, descending scores."""
    scores = (-STEP * torch.arange(len(labels), dtype=torch.float64)).requires_grad_()
    function, _ = make_loss(LossConfig.model_validate(loss))
    value = function(scores[None], torch.tensor([labels], dtype=torch.float64), mask=torch.ones(1, len(labels)).bool())
    (gradient,) = torch.autograd.grad(value, scores)
    found: list[float] = (-gradient).tolist()
    return found


def below(labels: Sequence[Number], k: int) -> list[int]:
    """Return the positions of the relevant items below rank k.

    >>> below([1, 0, 1, 1], 2)
    [2, 3]
    """
    return [position for position, label in enumerate(labels) if label > 0 and position >= k]


def _sheet(name: str, labels: Sequence[Number], pushes: dict[str, list[float]], k: int) -> Sheet:
    rows = [
        [
            f"{position + 1}{' (below k)' * (position >= k)}",
            "relevant" if label > 0 else "",
            *(_shown(values[position]) for values in pushes.values()),
        ]
        for position, label in enumerate(labels)
    ]
    return Sheet(f"{name}: push of each item (0: none)", ["rank", "", *pushes], rows)


def _shown(value: float) -> str:
    if value == 0:
        return "0"
    return f"{'up' if value > 0 else 'down'} {abs(value):.1g}"
