"""LCRON, tables 9 to 12: the methods of table 2 at other learning rates and batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rankfall.reproductions.cascade_setup import TWO_STAGES, compare
from rankfall.reproductions.lcron_table2 import LCRON, RECFLOW
from rankfall.reproductions.lcron_table2 import METHODS as OF_TABLE2
from rankfall.reproductions.published import Published, table_report

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task

RIVALS = ("BCE", "ICC", "RankFlow", "FS-RankNet", "FS-LambdaLoss", "ARF", "ARF-v2")
METHODS = {name: OF_TABLE2[name] for name in (*RIVALS, LCRON, "LCRON, DFTopK")}
METRICS = ("joint_recall", "ranking/recall", "retrieval/recall")


def compare_at(task: Task, table: int, *, rate: float, batch: int, published: float) -> Report:
    """Train all methods at one learning rate and batch, without any tuning; the paper has LCRON at `published`."""
    data = task.log(TWO_STAGES.platform)
    setup = replace(TWO_STAGES, batch=batch, rate=rate)
    result = compare(task, data, setup, METHODS, tune=False)
    figures = Published(
        title=f"LCRON, table {table}", metrics=METRICS, digits=4, figures={RECFLOW: {LCRON: (published, None, None)}}
    )
    joint = {method["name"]: method["metrics"][METRICS[0]]["mean"] for method in result["methods"]}
    behind = [name for name in RIVALS if name in joint and LCRON in joint and joint[name] < joint[LCRON]]
    notes = [
        f"Learning rate {rate:g}, batches of {setup.batch_for(data)} impressions where the paper has {batch}, nothing "
        "tuned.",
        f"In the paper LCRON is first of eight, the figures of the others are not in our notes. Here {len(behind)} of "
        f"the {len(RIVALS)} others are behind it.",
    ]
    report = table_report(f"lcron-table{table}", result, figures, data, notes=notes)
    return replace(report, results={**report.results, "behind_lcron": behind})
