"""ARF, tables 6 to 8, one of three sweeps of the temperature: NeuralSort (L_Global)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.arf_tau import sweep_tau

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task


def run(task: Task) -> Report:
    """Train NeuralSort (L_Global) at every temperature."""
    return sweep_tau(task, "arf-table7", "NeuralSort (L_Global)", {"name": "sort_cross_entropy_loss"})
