"""A published table that cannot be measured without private traffic. The report shows it with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.reproductions.paper_schema import mean_of
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from rankfall.reproductions.paper_schema import PublishedOnly
    from rankfall.reproductions.task import Task


def run(reproduction: PublishedOnly, task: Task) -> Report:  # all drivers have the same arguments
    """Show the table."""
    published = reproduction.published
    sheets = [
        Sheet(
            f"published: {reproduction.title}, {data}",
            ["", *published.metrics],
            [
                [row, *("-" if mean_of(cell) is None else f"{mean_of(cell):g}" for cell in cells)]
                for row, cells in rows.items()
            ],
        )
        for data, rows in published.values.items()
    ]
    return Report(
        sheets=sheets,
        plots={},
        results={
            "published": {
                data: {
                    row: dict(zip(published.metrics, map(mean_of, cells), strict=True)) for row, cells in rows.items()
                }
                for data, rows in published.values.items()
            },
            "reason": reproduction.reason,
        },
        notes=[f"Not measured: {reproduction.reason}", *reproduction.notes],
    )
