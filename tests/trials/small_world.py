"""A small log from before the first request of a trial, its spec and tables, and a stream that trains on it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

ITEMS, USERS = 400, 80
STAGES = ("missed", "outranked", "answered")
KINDS = ("click", "seconds")  # of events; the log has the sums of their values
QUOTAS = (16, 8)
DAY_MS = 86_400_000
FIRST_DAY = 1_704_067_200_000  # 2024-01-01 00:00 UTC
_PAST_DAYS = 2
_OF_STAGE = 8  # past items per stage and request
_TOPICS = ("news", "sport", "film", "food", "music")
_SPEC = {
    "request": "request",
    "item": "item",
    "user": "user",
    "time": {"column": "at", "zone": "UTC"},
    "stage": "stage",
    "rank": "rank",
    "stages": [{"name": name} for name in STAGES],
    "relevant": {"column": "click"},
    "feedback": list(KINDS),
    "position": "place",
    "inclusion": "drawn",
    "features": {
        "user": {
            "user": {"kind": "categorical", "vocabulary": True},
            "age": {"kind": "dense", "standardise": True, "missing": 30},
        },
        "context": {
            "hour": {"kind": "time", "part": "hour"},
            "page": {"kind": "categorical", "num_buckets": 5},
        },
        "item": {
            "item": {"kind": "categorical", "vocabulary": True, "embedding": "item"},
            "topic": {"kind": "categorical", "vocabulary": True},
            "price": {"kind": "dense", "log1p": True, "standardise": True},
        },
    },
    "sequences": {"history": {"max_length": 8, "features": ["item"], "columns": {"item": "past_items"}}},
}
_MODEL = {"hidden": [8], "dim": 4}
_STREAM = {
    "relevant": 3,
    "stages": [
        {"name": "retrieval", "quota": QUOTAS[0], "model": {"kind": "two_tower", **_MODEL}},
        {"name": "ranking", "quota": QUOTAS[1], "model": {"kind": "din", "attention": 4, **_MODEL}},
    ],
    "training": {"batch": 64},
    "methods": {"bce": {"objective": {"name": "bce", "min_depth": 0}}},
}


@dataclass(frozen=True)
class World:
    """Paths of a trial."""

    directory: Path

    @property
    def log(self) -> Path:
        """The log that the joiner extends."""
        return self.directory / "log"

    @property
    def past(self) -> Path:
        """A copy of the log as it was before the trial."""
        return self.directory / "past"

    @property
    def spec(self) -> Path:
        """The spec of the log."""
        return self.directory / "spec.yaml"

    @property
    def items(self) -> Path:
        """The table of items."""
        return self.directory / "items.parquet"

    @property
    def config(self) -> Path:
        """The configuration of the stream."""
        return self.directory / "stream.yaml"

    @property
    def stream(self) -> Path:
        """The directory of the stream."""
        return self.directory / "stream"

    @property
    def bundles(self) -> Path:
        """The directory of bundles that the stream writes and the service watches."""
        return self.stream / "bundles" / "bce"

    @property
    def records(self) -> Path:
        """The directory in which the service records."""
        return self.directory / "records"

    @property
    def first_time(self) -> int:
        """The time of the first request, in milliseconds since 1970."""
        return FIRST_DAY + _PAST_DAYS * DAY_MS


def make_world(directory: Path, *, past_requests: int) -> World:
    """Write the log, its spec and tables, and the configuration of the stream; the stream is not run.

    Args:
        directory: Receives the files.
        past_requests: Requests of each past day.
    """
    from rankfall.data.impressions.spec import validate_spec
    from rankfall.data.sources.rows.prepare_rows import prepare_rows

    world = World(directory)
    write_file(world.spec, json.dumps(_SPEC))  # JSON is YAML
    write_file(world.config, json.dumps({"data": {"path": str(world.log)}, **_STREAM}))
    _item_table().write_parquet(world.items)
    rows = directory / "past.parquet"
    _past_rows(past_requests).write_parquet(rows)
    for log in (world.log, world.past):
        prepare_rows([rows], log, validate_spec(_SPEC), items=world.items)
    return world


def random_body(chance: random.Random, time: int) -> dict[str, Any]:
    """Return the features of a request at a time in milliseconds."""
    return {
        "time": datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds"),
        "user": {"user": f"u{chance.randrange(USERS)}", "age": chance.choice([None, 20, 30.5, 41])},
        "context": {"page": chance.randrange(5)},
        "sequences": {"history": [{"item": chance.randrange(ITEMS)} for _ in range(chance.randrange(8))]},
    }


def _item_table() -> pl.DataFrame:
    import polars as pl

    items = list(range(ITEMS))
    topics = [_TOPICS[item % len(_TOPICS)] for item in items]
    return pl.DataFrame({"item": items, "topic": topics, "price": [1.0 + item % 37 for item in items]})


def _past_rows(requests: int) -> pl.DataFrame:
    """Return rows of the days before the trial, as another system logged them."""
    import polars as pl

    chance = random.Random(0)
    rows = []
    for number in range(_PAST_DAYS * requests):
        time = FIRST_DAY + number * DAY_MS // requests
        body = random_body(chance, time)
        shared = {
            "request": f"past-{number}",
            "at": time,
            **body["user"],
            **body["context"],
            "past_items": [event["item"] for event in body["sequences"]["history"]],
        }
        for place, item in enumerate(chance.sample(range(ITEMS), 3 * _OF_STAGE)):
            depth, rank = divmod(place, _OF_STAGE)
            clicked = depth == len(STAGES) - 1 and chance.random() < 0.4
            rows.append(
                {
                    **shared,
                    "item": item,
                    "stage": STAGES[depth],
                    "rank": rank,
                    "place": rank if depth == len(STAGES) - 1 else None,
                    "click": float(clicked),
                    "seconds": 1.5 * clicked,
                    "drawn": 1.0 if depth == len(STAGES) - 1 else 0.1,
                }
            )
    schema: dict[str, Any] = {"at": pl.Int64, "age": pl.Float64, "place": pl.Int64, "past_items": pl.List(pl.Int64)}
    frame = pl.DataFrame(rows, schema_overrides=schema, infer_schema_length=None)
    return frame.with_columns(pl.col("at").cast(pl.Datetime("ms", "UTC")))
