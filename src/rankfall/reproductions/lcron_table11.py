"""LCRON, table 11: learning rate 0.02, batches of 512."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.lcron_rates import compare_at

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task


def run(task: Task) -> Report:
    """Compare the methods of table 2 there."""
    return compare_at(task, 11, rate=0.02, batch=512, published=0.8841)
