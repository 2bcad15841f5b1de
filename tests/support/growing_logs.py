"""A log of rows whose users and videos increase from day to day, with vocabularies."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import append_rows, prepare_rows
from support.row_logs import DAY, STAGES, START

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog

REQUESTS = 40  # of a day
FIRST_VIDEOS, NEW_VIDEOS = 30, 6  # of the first day, and of every later day
NAMES = [f"2024-01-{13 + number}" for number in range(5)]
SPEC = validate_spec(
    {
        "request": "request",
        "item": "video",
        "user": "user",
        "time": {"column": "time", "unit": "ms", "zone": "Asia/Shanghai"},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": name} for name in STAGES],
        "relevant": "ranked",
        "feedback": ["clicked"],
        "features": {
            "user": {"user": {"kind": "categorical", "vocabulary": True}},
            "item": {
                "video": {"kind": "categorical", "vocabulary": True, "embedding": "video"},
                "author": {"kind": "categorical", "vocabulary": {"min_count": 2}},
            },
        },
        "sequences": {"history": {"max_length": 4, "features": ["video"], "feedback": "clicked"}},
    }
)


def rows_of_day(number: int) -> pl.DataFrame:
    """Return the rows of a day. On every later day some videos, users and authors are new."""
    chance = random.Random(number)
    videos = FIRST_VIDEOS + NEW_VIDEOS * number
    rows: list[dict[str, Any]] = []
    for request in range(REQUESTS):
        user = chance.randrange(10 + 2 * number)
        shown = chance.sample(range(videos), 12)
        for place, video in enumerate(sorted(shown, key=lambda one, user=user: (one * 7 + user * 3) % 11)):  # type: ignore[misc]
            rows.append(
                {
                    "request": number * REQUESTS + request,
                    "time": START + DAY * number + 1000 * request,
                    "user": f"u{user}",
                    "video": video,
                    "author": video // 3,
                    "stage": 2 if place < 3 else 1 if place < 7 else 0,
                    "rank": place,
                    "clicked": int(place == 0),
                }
            )
    return pl.DataFrame(rows)


def write_day(folder: Path, number: int) -> Path:
    """Write the rows of a day to a file."""
    path = folder / f"{NAMES[number]}.parquet"
    rows_of_day(number).write_parquet(path)
    return path


def growing_log(out: Path, days: int, *, grow: bool = True) -> ImpressionLog:
    """Prepare the first day, and append the others."""
    out.parent.mkdir(parents=True, exist_ok=True)
    log = prepare_rows([write_day(out.parent, 0)], out, SPEC)
    for number in range(1, days):
        log = append_day(out, number, grow=grow)
    return log


def append_day(log: Path, number: int, *, grow: bool = True) -> ImpressionLog:
    """Append a day to a log."""
    return append_rows([write_day(log.parent, number)], log, grow=grow)
