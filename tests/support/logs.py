"""Random impression logs, written without `prepare`, for tests of code that reads logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions.items import impression_schema, item_schema
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import Spec, features_of, validate_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Columns = dict[str, list[Any]]  # of a day, one entry per impression

ITEMS = 40
ROWS = {"user.id": 32, "context.hour": 26, "video": ITEMS + 2, "item.author": 302}
SPEC: dict[str, Any] = {
    "user": "user",
    "time": {"column": "time", "unit": "ms", "zone": "Asia/Shanghai"},
    "stage": "stage",
    "rank": "rank",
    "stages": [{"name": "dropped", "sample": 4}, {"name": "ranked", "sample": 3}, {"name": "shown", "sample": 2}],
    "relevant": "shown",
    "feedback": ["click", "like"],
    "negatives": 2,
    "features": {
        "user": {
            "id": {"kind": "categorical", "num_buckets": 30},
            "taste": {"kind": "dense", "size": 3},
        },
        "context": {"hour": {"kind": "time", "part": "hour"}, "load": {"kind": "dense"}},
        "item": {
            "video": {"kind": "categorical", "vocabulary": True, "embedding": "video"},
            "author": {"kind": "categorical", "hash_bucket_size": 300},
            "price": {"kind": "dense", "standardise": True},
        },
    },
    "sequences": {"history": {"max_length": 8, "features": ["video", "author"], "feedback": "click"}},
}
DAYS = ("2024-01-13", "2024-01-14", "2024-01-15")
DAY_MS = 86_400_000
FIRST_MS = 1_705_075_200_000  # midnight of the first day in Shanghai


def random_day(rng: np.random.Generator, number: int, impressions: int) -> Columns:
    """Return a valid day: full stages, the deepest relevant, ranks, histories, all features."""
    depth = np.array([-1] * 2 + [0] * 4 + [1] * 3 + [2] * 2)
    columns: Columns = {name: [] for name in impression_schema(spec(), request=pa.int64()).names}
    for place in range(impressions):
        order = rng.permutation(len(depth))
        items = rng.choice(ITEMS, len(depth), replace=False)
        events = rng.integers(0, ITEMS, rng.integers(0, 9))
        one = {
            "request": number * 1_000_000 + place,
            "time": FIRST_MS + number * DAY_MS + place * (DAY_MS // impressions),
            "user.id": rng.integers(2, ROWS["user.id"]),
            "user.taste": rng.normal(size=3),
            "context.hour": rng.integers(2, ROWS["context.hour"]),
            "context.load": rng.normal(),
            "sequence.history.video": events + 2,
            "sequence.history.author": rng.integers(2, ROWS["item.author"], len(events)),
            "item": items,
            "item.video": items + 2,
            "item.author": (items * 7) % 300 + 2,
            "item.price": rng.normal(size=len(depth)),
            "depth": depth[order],
            "rank": np.where(depth[order] < 0, -1, order),
            "relevance": (depth[order] == 2).astype(float),
            "grade": grades(depth[order], order),
            "feedback.click": (rng.random(len(depth)) < 0.3).astype(float),
            "feedback.like": (rng.random(len(depth)) < 0.1) * 2.5,
            "left_out": sorted(set(range(ITEMS)) - set(items.tolist()))[: place % 3],
        }
        for column, value in one.items():
            columns[column].append(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return columns


def grades(depth: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return grades: deeper is better, then the smaller rank; random negatives share the lowest grade."""
    keys = [(int(d), 0 if d < 0 else -int(r)) for d, r in zip(depth, rank, strict=True)]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    return np.array([places[key] for key in keys])


def spec(**changes: Any) -> Spec:
    """Return the spec of the random logs with some keys changed."""
    return validate_spec(SPEC | changes)


def item_columns() -> Columns:
    """Return the table of items of the random logs."""
    items = list(range(ITEMS))
    return {
        "item": items,
        "item.video": [item + 2 for item in items],
        "item.author": [item * 7 % 300 + 2 for item in items],
        "item.price": [item / 10 for item in items],
    }


def write_log(
    path: Path,
    days: dict[str, Columns],
    *,
    description: Spec | None = None,
    items: Columns | None = None,
    request: pa.DataType | None = None,
) -> ImpressionLog:
    """Write days as a log; the writer does not check that lists of a row have equal lengths."""
    described = description or spec()
    path.mkdir()
    schema = impression_schema(described, request=request or pa.int64())
    writer = LogWriter(path, described, features_of(described, ROWS), schema)
    for day, columns in days.items():
        writer.write(day, as_table(columns, schema))
    schema = item_schema(described)
    writer.finish(as_table(items or item_columns(), schema), {"video": pa.array(["a", "b"])}, {"source": "test"})
    return ImpressionLog.load(path)


def as_table(columns: Columns, schema: pa.Schema) -> pa.Table:
    """Return lists of values as a table of a schema."""
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def random_log(
    path: Path,
    *,
    impressions: int = 50,
    seed: int = 0,
    change: Callable[[dict[str, Columns]], None] = lambda days: None,
    **options: Any,
) -> ImpressionLog:
    """Write a valid log of three days after applying `change`."""
    rng = np.random.default_rng(seed)
    days = {day: random_day(rng, number, impressions) for number, day in enumerate(DAYS)}
    change(days)
    return write_log(path, days, **options)
