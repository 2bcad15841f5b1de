"""DFTopK, table 6: operators inside LCRON, trained with more and more random negatives, tested on lists of 200."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_setup import TWO_STAGES, compare
from rankfall.reproductions.dftopk_table1 import LENGTH, LENGTH_NOTE, METHODS, OPERATORS_NOTE
from rankfall.reproductions.lcron_table2 import RECFLOW
from rankfall.reproductions.sweep import PublishedSweep, Swept, pick, sweep_report

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

NEGATIVES = (0, 5, 10, 15, 20, 25)  # added to each training list
SOURCE_NOTE = "Negatives in training come from the other lists of the batch."
_JOINT = {
    "NeuralSort": (0.3815, 0.4659, 0.5047, 0.5228, 0.5326, 0.5430),
    "SoftSort": (0.3988, 0.4942, 0.5225, 0.5399, 0.5525, 0.5573),
    "DiffSort": (0.2465, 0.2560, 0.2733, 0.2645, 0.1194, 0.2540),
    "LapSum": (0.3922, 0.4908, 0.5240, 0.5364, 0.5485, 0.5564),
    "Sparse Top-K": (0.3437, 0.4026, 0.4392, 0.4516, 0.4504, 0.4547),
    "DFTopK": (0.4040, 0.4990, 0.5290, 0.5428, 0.5537, 0.5607),
}
PUBLISHED = PublishedSweep(
    title="DFTopK, table 6",
    source=RECFLOW,
    along="negatives",
    figures={name: dict(zip(NEGATIVES, row, strict=True)) for name, row in _JOINT.items()},
    logarithmic=False,
)


def run(task: Task) -> Report:
    """Train every operator with every number of negatives; one seed, nothing tuned."""
    data = task.log(TWO_STAGES.platform)
    comparisons, swept = {}, []
    some = None if task.size.points is None else min(3, task.size.points)
    for count in pick(NEGATIVES, some):
        title = f"dftopk-table6 on {data.name}, {count} negatives"
        comparisons[title] = compare(
            task,
            data,
            TWO_STAGES,
            METHODS,
            tune=False,
            seeds=task.cascade_seeds[:1],
            lists={"length": LENGTH, "negatives": count, "negatives_from": "batch"},
            directory=f"comparison-{count}",
        )
        swept += [Swept(name, count, title, name) for name in METHODS]
    return sweep_report(
        "dftopk-table6", PUBLISHED, comparisons, swept, data, notes=[LENGTH_NOTE, SOURCE_NOTE, OPERATORS_NOTE]
    )
