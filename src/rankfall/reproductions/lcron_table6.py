"""LCRON, table 6: a cascade of three stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_setup import THREE_STAGES, compare
from rankfall.reproductions.lcron_table2 import LCRON, RECFLOW
from rankfall.reproductions.lcron_table2 import METHODS as OF_TABLE2
from rankfall.reproductions.published import Published, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

STAGE_METRICS = ("ranking/recall", "preranking/recall", "retrieval/recall")  # that are not in our notes of the paper
PUBLISHED = Published(
    title="LCRON, table 6",
    metrics=("joint_recall", *STAGE_METRICS),
    digits=4,
    figures={
        RECFLOW: {
            name: (joint, None, None, None)
            for name, joint in {
                "BCE": 0.7191,
                "ICC": 0.6386,
                "RankFlow": 0.7308,
                "FS-RankNet": 0.6200,
                "FS-LambdaLoss": 0.7319,
                "ARF": 0.7256,
                "ARF-v2": 0.7332,
                LCRON: 0.7390,
            }.items()
        }
    },
)

METHODS = {name: OF_TABLE2[name] for name in (*PUBLISHED.figures[RECFLOW], "BCE, all samples", "LCRON, DFTopK")}


def run(task: Task) -> Report:
    """Compare the objectives on three stages."""
    data = task.log(THREE_STAGES.platform)
    return table_report("lcron-table6", compare(task, data, THREE_STAGES, METHODS), PUBLISHED, data)
