"""ARF, tables 6 to 8, one of three sweeps of the temperature: L_Relax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.arf_tau import K, M, sweep_tau

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task


def run(task: Task) -> Report:
    """Train L_Relax at every temperature."""
    return sweep_tau(task, "arf-table6", "L_Relax", {"name": "relax_loss", "m": M, "k": K})
