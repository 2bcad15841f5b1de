"""Sizes of prepared ranking lists and the range of their labels, beside those of published data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.data import RankingData
from rankfall.data.lists.list_loader import Lists
from rankfall.reproductions.paper_schema import mean_of
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.reproductions.list_data import ListData
    from rankfall.reproductions.paper_schema import ListStatistics
    from rankfall.reproductions.task import Task


def run(reproduction: ListStatistics, task: Task) -> Report:
    """Prepare the lists as the paper did and count them."""
    data = task.lists(reproduction.protocol)
    measured = statistics(data)
    published = {
        row: [mean_of(cell) or 0 for cell in cells]
        for rows in reproduction.published.values.values()
        for row, cells in rows.items()
    }
    rows = [[f"here, {data.name}", *_texts(measured)], [], *([row, *_texts(cells)] for row, cells in published.items())]
    return Report(
        sheets=[Sheet(reproduction.title, ["data set", *reproduction.published.metrics], rows)],
        plots={},
        results={
            "measured": dict(zip(reproduction.published.metrics, measured, strict=True)),
            "published": published,
            "data": data.summary(),
        },
        notes=reproduction.notes,
    )


def statistics(data: ListData) -> list[int]:
    """Return documents to train on and to test, the shortest and longest list, the lowest and highest label."""
    stored, fold = RankingData.load(data.path), next(iter(data.folds.values()))
    train, test = (Lists([stored[split] for split in fold[role]]) for role in ("train", "test"))
    both = (train, test)
    return [
        train.rows,
        test.rows,
        min(int(lists.lengths.min()) for lists in both),
        max(int(lists.lengths.max()) for lists in both),
        min(int(lists.labels.min()) for lists in both),
        max(int(lists.labels.max()) for lists in both),
    ]


def _texts(cells: Sequence[float]) -> list[str]:
    return [f"{cell:,.0f}" for cell in cells]
