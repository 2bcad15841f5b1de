"""LCRON, table 3: what its two losses are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_setup import TWO_STAGES, compare, lcron
from rankfall.reproductions.lcron_table2 import LCRON, RECFLOW, TAUS
from rankfall.reproductions.lcron_table2 import METHODS as OF_TABLE2
from rankfall.reproductions.published import Published, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

PUBLISHED = Published(
    title="LCRON, table 3",
    metrics=("joint_recall", "ranking/recall", "retrieval/recall"),
    digits=4,
    figures={
        RECFLOW: {
            LCRON: (0.8732, 0.8729, 0.9700),
            "without L_e2e": (0.8710, 0.8707, 0.9695),
            "without L_single": (0.8712, 0.8712, 0.9692),
        }
    },
)

METHODS = {
    LCRON: OF_TABLE2[LCRON],
    "without L_e2e": lcron("neural_sort", *TAUS, e2e_weight=0),
    "without L_single": lcron("neural_sort", *TAUS, single_weight=0),
}


def run(task: Task) -> Report:
    """Leave out each of the two losses."""
    data = task.log(TWO_STAGES.platform)
    return table_report("lcron-table3", compare(task, data, TWO_STAGES, METHODS), PUBLISHED, data)
