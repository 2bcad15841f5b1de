"""ARF, table 5: DiffSort in the place of NeuralSort, on industrial lists of ads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.industry import IndustrySet, compare_losses, loss

if TYPE_CHECKING:
    from rankfall.reproductions.cascade_setup import CascadeMethod
    from rankfall.reproductions.task import Report, Task

SORT = "diff_sort"  # odd-even network, Cauchy, steepness twice the number of ads: its defaults, and the paper's

FIGURES = {
    "easy": {
        "DiffSort": (0.941, 0.945, 0.985),
        "L_Relax, DiffSort": (0.941, 0.943, 0.982),
        "ARF, DiffSort": (0.957, 0.949, 0.986),
    },
    "hard": {
        "DiffSort": (0.888, 0.949, 0.984),
        "L_Relax, DiffSort": (0.908, 0.947, 0.983),
        "ARF, DiffSort": (0.919, 0.952, 0.989),
    },
}


def methods(of: IndustrySet) -> dict[str, CascadeMethod]:
    """The losses that go through a sort, by the cuts of the set."""
    return {
        "DiffSort": loss("sort_cross_entropy_loss", sort=SORT),
        "L_Relax, DiffSort": loss("relax_loss", m=of.m, k=of.k, sort=SORT),
        "ARF, DiffSort": loss("arf", m=of.m, k=of.k, sort=SORT),
    }


def run(task: Task) -> Report:
    """Compare the three losses."""
    return compare_losses(task, "arf-table5", "ARF, table 5", methods, FIGURES)
