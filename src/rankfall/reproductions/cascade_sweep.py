"""Sweeps of one number of LCRON, all else equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.reproductions.cascade_setup import TWO_STAGES, CascadeMethod, compare
from rankfall.reproductions.sweep import PublishedSweep, Swept, pick, sweep_report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.reproductions.task import Report, Task


def sweep(
    task: Task,
    name: str,
    published: PublishedSweep,
    objective: Callable[[float], dict[str, Any]],
    *,
    lists: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """Train the objective of each published point."""
    data = task.log(TWO_STAGES.platform)
    ((method, figures),) = published.figures.items()
    points = pick(list(figures), task.size.points)
    labels = {point: f"{published.along} = {point:g}" for point in points}
    methods = {label: CascadeMethod(objective(point)) for point, label in labels.items()}
    result = compare(task, data, TWO_STAGES, methods, tune=False, lists=lists)
    title = f"{name} on {data.name}"
    swept = [Swept(method, point, title, label) for point, label in labels.items()]
    return sweep_report(name, published, {title: result}, swept, data, notes)
