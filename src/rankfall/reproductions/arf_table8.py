"""ARF, tables 6 to 8, one of three sweeps of the temperature: ARF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.arf_tau import K, M, sweep_tau

if TYPE_CHECKING:
    from rankfall.reproductions.task import Report, Task


def run(task: Task) -> Report:
    """Train ARF at every temperature."""
    return sweep_tau(task, "arf-table8", "ARF", {"name": "arf", "m": M, "k": K})
