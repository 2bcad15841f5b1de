"""LCRON, table 8: its temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_sweep import sweep
from rankfall.reproductions.lcron_table2 import LCRON, RECFLOW
from rankfall.reproductions.sweep import PublishedSweep

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

PUBLISHED = PublishedSweep(
    title="LCRON, table 8",
    source=RECFLOW,
    along="tau",
    figures={LCRON: {1.0: 0.8701, 20.0: 0.8709, 50.0: 0.8732, 100.0: 0.8722, 200.0: 0.8721, 1000.0: 0.8716}},
)


def run(task: Task) -> Report:
    """Train at every temperature."""
    return sweep(
        task,
        "lcron-table8",
        PUBLISHED,
        lambda tau: {"name": "lcron", "topk": {"name": "neural_sort", "tau": tau}},
    )
