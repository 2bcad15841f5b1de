"""A small tree of soft sorts: the values that every node keeps, by temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.ops import neural_sort, pirank_sort
from rankfall.reporting.figures import Lines
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rankfall.reproductions.paper_schema import SortTree
    from rankfall.reproductions.task import Task


def run(reproduction: SortTree, task: Task) -> Report:  # all drivers have the same arguments
    """Merge the scores in a tree at every temperature; the hard tree is the one at the smallest."""
    scores = torch.tensor(reproduction.scores, dtype=torch.float64)
    levels = {tau: kept_values(scores, reproduction.branches, reproduction.k, tau) for tau in reproduction.taus}
    roots = {
        tau: pirank_sort(scores, k=reproduction.k, tau=tau, branches=reproduction.branches) @ scores for tau in levels
    }
    points = [
        {"series": f"rank {rank}", "x": tau, "y": float(value)}
        for tau, root in roots.items()
        for rank, value in enumerate(root, start=1)
    ]
    return Report(
        sheets=[
            Sheet(
                f"values that a node keeps, scores {_listed(scores)}",
                ["tau", *(_name(level, len(reproduction.branches)) for level in range(len(reproduction.branches)))],
                [[f"{tau:g}", *("; ".join(map(_listed, nodes)) for nodes in found)] for tau, found in levels.items()],
            )
        ],
        plots={
            reproduction.id: Lines(
                points,
                title="The best scores at the root of a tree of soft sorts",
                x="tau",
                y="value",
                series="",
                log_x=True,
                ticks=reproduction.taus,
            )
        },
        results={
            "values": {f"{tau:g}": [nodes.tolist() for nodes in found] for tau, found in levels.items()},
            "roots": {f"{tau:g}": root.tolist() for tau, root in roots.items()},
            "published": {"scores": reproduction.scores, "branches": reproduction.branches, "k": reproduction.k},
        },
        notes=reproduction.notes,
    )


def kept_values(scores: Tensor, branches: Sequence[int], k: int, tau: float) -> list[Tensor]:
    """Return the values that the nodes of each level keep, ``(nodes, kept)``, with a soft sort per node."""
    found: list[Tensor] = []
    values = scores.unsqueeze(-1)
    for children in branches:
        joined = values.reshape(-1, children * values.shape[-1])
        rows = neural_sort(joined, k=min(k, joined.shape[-1]), tau=tau)
        values = (rows * joined.unsqueeze(-2)).sum(-1)
        found.append(values)
    return found


def _name(level: int, levels: int) -> str:
    return "root" if level == levels - 1 else f"level {level + 1}"


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.3g}" for value in values.tolist())
