"""LCRON, table 4: L_single at fixed weights, with L_e2e at 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_sweep import sweep
from rankfall.reproductions.lcron_table2 import LCRON, RECFLOW, TAUS
from rankfall.reproductions.sweep import PublishedSweep

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

PUBLISHED = PublishedSweep(
    title="LCRON, table 4",
    source=RECFLOW,
    along="weight of L_single",
    figures={
        LCRON: {
            0.01: 0.8712,
            0.1: 0.8706,
            0.5: 0.8705,
            1.0: 0.8723,
            2.0: 0.8731,
            3.0: 0.8730,
            4.0: 0.8720,
            5.0: 0.8733,
        }
    },
)


def run(task: Task) -> Report:
    """Train at every weight."""
    topk = {"name": "neural_sort", "tau": TAUS[0]}
    return sweep(
        task,
        "lcron-table4",
        PUBLISHED,
        lambda weight: {"name": "lcron", "topk": topk, "single_weight": weight},
        notes=["LCRON with weights that are learned got .8732 in the paper."],
    )
