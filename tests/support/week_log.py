"""Logs of some days of a week, to which tests add days."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rankfall.data.impressions.items import impression_schema, item_schema
from rankfall.data.impressions.log import appending
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import features_of
from support.logs import ROWS, as_table, item_columns, random_day, spec, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from support.logs import Columns

WEEK = [f"2024-01-{13 + number}" for number in range(7)]


def day_of(number: int, impressions: int = 40) -> Columns:
    """Return the content of a day, which depends only on its number."""
    return random_day(np.random.default_rng(number), number, impressions)


def log_of(path: Path, numbers: range | list[int], **options: Any) -> Path:
    """Write a log of some days of the week."""
    return write_log(path, {WEEK[number]: day_of(number, **options) for number in numbers}).path


def add_day(log: Path, number: int) -> None:
    """Append a day to a log."""
    with appending(log) as growth:
        schema = impression_schema(growth.log.spec, request=pa.int64())
        growth.write(WEEK[number], as_table(day_of(number), schema))
        growth.finish(as_table(item_columns(), item_schema(growth.log.spec)), growth.log.manifest["about"])


def drop_day(log: Path, number: int) -> Path:
    """Add the directory of a day to a log without changing the manifest; return the directory."""
    described = spec()
    schema = impression_schema(described, request=pa.int64())
    scratch = log.parent / "scratch"
    writer = LogWriter(scratch, described, features_of(described, ROWS), schema)
    writer.write(WEEK[number], as_table(day_of(number), schema))
    writer.close()
    place = log / "days" / WEEK[number]
    shutil.move(scratch / "days" / WEEK[number], place)
    shutil.rmtree(scratch)
    return place
