"""DFTopK, table 1: operators inside LCRON, tested on lists that random negatives extend to 200 items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_setup import TWO_STAGES, compare, lcron
from rankfall.reproductions.lcron_table2 import RECFLOW
from rankfall.reproductions.published import Published, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

LENGTH = 200  # of validation and test lists
LENGTH_NOTE = f"Validation and test lists are extended to {LENGTH} items by random ones."
OPERATORS_NOTE = (
    "The published code's DiffSort never passes exchanged values on, and its sparse top-k takes a sigmoid twice: "
    "those two rows of the paper are not those operators; here they are."
)

PUBLISHED = Published(
    title="DFTopK, table 1",
    metrics=("joint_recall", "ranking/recall", "retrieval/recall"),
    digits=4,
    figures={
        RECFLOW: {
            "NeuralSort": (0.3815, 0.4124, 0.4542),
            "SoftSort": (0.3988, 0.3986, 0.4978),
            "DiffSort": (0.2465, 0.2381, 0.3122),
            "LapSum": (0.3922, 0.4043, 0.4835),
            "Sparse Top-K": (0.3437, 0.3593, 0.4299),
            "DFTopK": (0.4040, 0.4007, 0.5069),
        }
    },
)

# Smaller temperatures than on the lists that are trained on: the validation day of a small simulated log, with lists of
# this length, likes them better.
METHODS = {
    "NeuralSort": lcron("neural_sort", 10.0, 50.0),
    "SoftSort": lcron("soft_sort", 0.1, 1.0),
    "DiffSort": lcron("diff_sort", 80.0, 10.0, temperature="steepness"),
    "LapSum": lcron("lapsum_topk", 0.1, 1.0),
    "Sparse Top-K": lcron("sparse_topk", 10.0, 1.0),
    "exact sigmoid": lcron("sigmoid_topk", 0.1, 1.0),
    "DFTopK": lcron("dftopk", 0.1, 1.0),
}


def run(task: Task) -> Report:
    """Compare the operators."""
    data = task.log(TWO_STAGES.platform)
    result = compare(task, data, TWO_STAGES, METHODS, lists={"length": LENGTH})
    return table_report("dftopk-table1", result, PUBLISHED, data, notes=[LENGTH_NOTE, OPERATORS_NOTE])
