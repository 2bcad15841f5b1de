"""LCRON, table 7: soft sorts by themselves and inside LCRON, and the quotas inside L_e2e."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_setup import TWO_STAGES, CascadeMethod, compare, lcron
from rankfall.reproductions.lcron_table2 import LCRON, RECFLOW, TAUS
from rankfall.reproductions.lcron_table2 import METHODS as OF_TABLE2
from rankfall.reproductions.published import Published, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

SOFT_SORT_TAUS = (1.0, 0.1)

PUBLISHED = Published(
    title="LCRON, table 7",
    metrics=("joint_recall", "ranking/recall", "retrieval/recall"),
    digits=4,
    figures={
        RECFLOW: {
            "SoftSort": (0.8103, None, None),
            "NeuralSort": (0.8210, None, None),
            "LCRON, SoftSort": (0.8723, 0.8720, 0.9703),
            LCRON: (0.8732, 0.8729, 0.9700),
            "LCRON, quotas 30 and 20": (0.8714, None, None),
        }
    },
)


def _cross_entropy(sort: str, taus: tuple[float, ...]) -> CascadeMethod:
    return CascadeMethod({"name": "sort_ce", "sort": sort, "tau": taus[0]}, {"objective.tau": taus})


METHODS = {
    "SoftSort": _cross_entropy("soft_sort", SOFT_SORT_TAUS),
    "NeuralSort": _cross_entropy("neural_sort", TAUS),
    "LCRON, SoftSort": lcron("soft_sort", *SOFT_SORT_TAUS),
    LCRON: OF_TABLE2[LCRON],
    "LCRON, quotas 30 and 20": lcron("neural_sort", *TAUS, quotas=[stage.quota for stage in TWO_STAGES.stages]),
    "LCRON, 1 - p as printed": lcron("neural_sort", *TAUS, gradient="one_minus"),
}


def run(task: Task) -> Report:
    """Compare the soft sorts with LCRON."""
    data = task.log(TWO_STAGES.platform)
    notes = [
        "SoftSort and NeuralSort by themselves are the cross entropy of the soft permutation, in every stage. 1 - p as "
        "printed, which is not in the paper's table, takes the gradient of 1 - p from p as in its equations; all other "
        "rows take it from the other rows of the permutation, as in its code. The values are the same."
    ]
    return table_report("lcron-table7", compare(task, data, TWO_STAGES, METHODS), PUBLISHED, data, notes=notes)
