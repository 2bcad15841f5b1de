"""LCRON, table 12: learning rate 0.02, batches of 2048."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.lcron_rates import compare_at

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task


def run(task: Task) -> Report:
    """Compare the methods of table 2 there."""
    return compare_at(task, 12, rate=0.02, batch=2048, published=0.8785)
