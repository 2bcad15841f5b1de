"""DFTopK, table 5: the temperature of DFTopK inside LCRON, tested on lists of 200 items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_sweep import sweep
from rankfall.reproductions.dftopk_table1 import LENGTH, LENGTH_NOTE
from rankfall.reproductions.lcron_table2 import RECFLOW
from rankfall.reproductions.sweep import PublishedSweep

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

PUBLISHED = PublishedSweep(
    title="DFTopK, table 5",
    source=RECFLOW,
    along="tau",
    figures={
        "DFTopK": {
            1e-4: 0.0959,
            1e-3: 0.1452,
            0.01: 0.3561,
            0.1: 0.3647,
            1.0: 0.3901,
            10.0: 0.3953,
            100.0: 0.4010,
            1000.0: 0.4039,
            10000.0: 0.4028,
        }
    },
)


def run(task: Task) -> Report:
    """Train at every temperature."""
    return sweep(
        task,
        "dftopk-table5",
        PUBLISHED,
        lambda tau: {"name": "lcron", "topk": {"name": "dftopk", "tau": tau}},
        lists={"length": LENGTH},
        notes=[LENGTH_NOTE],
    )
