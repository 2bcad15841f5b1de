"""Sizes of data beside published ones, and published tables that cannot be measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rankfall.data import ImpressionLoader, ImpressionLog, RankingData
from rankfall.data.lists.list_loader import Lists
from rankfall.reproductions.paper_schema import mean_of
from rankfall.reproductions.task import Report, sheet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankfall.data.impressions.loader import Impressions
    from rankfall.reproductions.data import ListData
    from rankfall.reproductions.paper_schema import ListStatistics, LogStatistics, PublishedOnly
    from rankfall.reproductions.task import Task


def list_statistics(reproduction: ListStatistics, task: Task) -> Report:
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
        sheets=[sheet(reproduction.title, ["data set", *reproduction.published.metrics], rows)],
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


BATCH = 1024


@dataclass(slots=True)
class StageStatistics:
    """Statistics of one stage, the deepest that its items reached.

    Attributes:
        users: Users with an item of the stage.
        impressions: Impressions with an item of the stage.
        items: Items of the stage per such impression.
        lowest: Lowest label; the higher, the better.
        highest: Highest label.
    """

    users: int
    impressions: int
    items: float
    lowest: int
    highest: int


def log_statistics(reproduction: LogStatistics, task: Task) -> Report:
    """Count over all days that the other reproductions use."""
    data = task.log(reproduction.platform)
    log = ImpressionLog.load(data.path)
    days = [*data.train, data.valid, data.test]
    loader = ImpressionLoader(log, days, batch=BATCH, shuffle=False, labels="published")
    found = stage_statistics(loader, log.spec.stage_names, log.spec.user)
    published, figures = reproduction.published.only
    columns = ["stage", "users", "impressions", "items per impression", "lowest label", "highest label"]
    ours = [
        [name, f"{one.users:,}", f"{one.impressions:,}", f"{one.items:.4g}", f"{one.lowest}", f"{one.highest}"]
        for name, one in reversed(found.items())
    ]
    printed = [
        [name, *("" if value is None else f"{value:,}" for value in cells)]
        for name, cells in reproduction.published.values[published].items()
    ]
    return Report(
        sheets=[
            sheet(f"{reproduction.title} here: {data.name}, {len(days)} days", columns, ours),
            sheet(f"published: {reproduction.title}, {published}", columns, printed),
        ],
        plots={},
        results={
            "stages": {name: asdict(one) for name, one in found.items()},
            "published": {"title": reproduction.title, "figures": figures},
            "data": data.summary(),
        },
        notes=reproduction.notes,
    )


def stage_statistics(
    batches: Iterable[Impressions], stages: Sequence[str], user: str | None
) -> dict[str, StageStatistics]:
    """Return the statistics of each stage; users are counted by the feature `user`, 0 if there is none."""
    users: dict[str, set[int]] = {name: set() for name in stages}
    found: dict[str, StageStatistics] = {}
    items = dict.fromkeys(stages, 0)
    for batch in batches:
        for depth, name in enumerate(stages):
            here = batch.mask & (batch.depth == depth)
            having = here.any(-1)
            if not having.any():
                continue
            grades = batch.grade[here]
            lowest, highest = int(grades.min()), int(grades.max())
            one = found.setdefault(name, StageStatistics(0, 0, 0.0, lowest, highest))
            one.impressions += int(having.sum())
            one.lowest, one.highest = min(one.lowest, lowest), max(one.highest, highest)
            items[name] += int(here.sum())
            if user in batch.user:
                users[name].update(batch.user[user][having].tolist())
    for name, one in found.items():
        one.users, one.items = len(users[name]), items[name] / one.impressions
    return found


def published_only(reproduction: PublishedOnly, task: Task) -> Report:  # all drivers have the same arguments
    """Show the table."""
    published = reproduction.published.printed()
    sheets = [
        sheet(
            f"published: {reproduction.title}, {data}",
            ["", *reproduction.published.metrics],
            [[row, *("-" if one is None else f"{one:g}" for one in cells.values())] for row, cells in rows.items()],
        )
        for data, rows in published.items()
    ]
    return Report(
        sheets=sheets,
        plots={},
        results={"published": published, "reason": reproduction.reason},
        notes=[f"Not measured: {reproduction.reason}", *reproduction.notes],
    )
