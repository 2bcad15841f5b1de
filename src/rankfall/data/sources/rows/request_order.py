"""The requests of a log in the order in which they are written, and the portions that are worked on at once.

This is all that is in memory of a whole log: a few words for each request.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from rankfall.data.impressions.encoding import to_times
from rankfall.data.impressions.hashing import hash_values
from rankfall.data.sources.rows.incremental_merge import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Place
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.row_files import Source

POSITION, PORTION = "\1position", "\1portion"  # names that no column of a log has
_TIME, _DAY, _ROWS, _NUMBER, _HASH = "\1time", "\1day", "\1rows", "\1number", "\1hash"
_LAST = " last"


class Portion(NamedTuple):
    """Whole requests of one day that follow one another."""

    number: int
    day: str
    rows: int
    requests: int
    first_row: int  # how many come before
    first_request: int


@dataclass(frozen=True)
class Requests:
    """Where each request goes.

    `frame` has one row a request with its id, its position in the log to be written, the number of its portion, and
    the columns that tables of requests have and the log has not, but which are needed to find portions.
    """

    frame: pl.DataFrame
    days: list[str]
    portions: list[Portion]
    rows_by_file: list[int]
    rows: int
    unknown: int  # requests that are not in the table of requests
    unused: int  # requests of the table that are not in the log


def find_requests(raw: RawLog, portion_rows: int, on_rows: Report, engine: Engine) -> Requests:
    """Read the keys of the log: its requests with their times and days, and how many rows each has."""
    found, rows_by_file = _read_keys(raw, on_rows, engine)
    unknown, unused = 0, 0
    carried: list[str] = []
    if "requests" in raw.sources:
        found, carried, unknown, unused = _join_table(raw, found)
    if raw.spec.day is None:
        times = pl.from_epoch(found[_TIME], "ms").dt.replace_time_zone("UTC").dt.convert_time_zone(raw.spec.zone)
        found = found.with_columns(times.dt.strftime("%Y-%m-%d").alias(_DAY))
    found = _in_order(found, raw.spec)
    _check_days_follow(found, raw.spec)
    before = pl.col(_ROWS).cum_sum().over(_NUMBER) - pl.col(_ROWS)
    found = found.with_columns(pl.struct(_NUMBER, before // portion_rows).rle_id().cast(pl.Int32).alias(PORTION))
    portions = _portions(found)
    return Requests(
        found.with_row_index(POSITION).select(raw.spec.request, POSITION, PORTION, *carried),
        list(dict.fromkeys(portion.day for portion in portions)),
        portions,
        rows_by_file,
        sum(rows_by_file),
        unknown,
        unused,
    )


def _portions(found: pl.DataFrame) -> list[Portion]:
    portions = found.group_by(PORTION, maintain_order=True).agg(
        pl.first(_DAY).alias("day"), pl.sum(_ROWS).alias("rows"), pl.len().cast(pl.Int64).alias("requests")
    )
    portions = portions.with_columns(
        first_row=pl.col("rows").cum_sum() - pl.col("rows"),
        first_request=pl.col("requests").cum_sum() - pl.col("requests"),
    )
    return [Portion(*values) for values in portions.rename({PORTION: "number"}).select(Portion._fields).iter_rows()]


def _in_order(found: pl.DataFrame, spec: Spec) -> pl.DataFrame:
    """Requests as they are written. Days come by their first request, without times by name, numbers by size."""
    days = found.group_by(_DAY).agg(pl.min(_TIME).alias("first"))
    days = days.sort("first", pl.col(_DAY).cast(pl.Int64, strict=False), _DAY).select(_DAY).with_row_index(_NUMBER)
    found = found.join(days, on=_DAY, how="left")
    found = found.with_columns(pl.Series(_HASH, hash_values(found[spec.request])))
    return found.sort(_NUMBER, _TIME, _HASH, spec.request)


def _check_days_follow(found: pl.DataFrame, spec: Spec) -> None:
    """What users did before is collected day by day, so that no day may begin before another ends."""
    if not any(sequence.feedback for sequence in spec.sequences.values()):
        return
    earlier = found.filter(pl.col(_TIME) < pl.col(_TIME).shift())
    if len(earlier):
        raise ValueError(
            f"column {spec.day!r}: {earlier[_DAY][0]!r} begins before the days before it end; sequences that are made "
            "of feedback need days that follow one another"
        )


# --- reading ----------------------------------------------------------------------------------------------------


def _read_keys(raw: RawLog, on_rows: Report, engine: Engine) -> tuple[pl.DataFrame, list[int]]:
    found = Collector(partial(_by_request, raw.spec.request))
    rows_by_file: list[int] = []
    with closing(engine.map(partial(_keys_of, raw), raw.parts("log"), on_rows)) as parts:
        for keys, rows in parts:
            rows_by_file += rows
            if keys is not None:
                found.add(keys)
    if not any(rows_by_file):
        raise ValueError(f"{_listed(source.path for source in raw.sources['log'])}: there are no rows")
    requests = found.result()
    for name, word in ((_TIME, "time"), (_DAY, "day")):
        different = requests.filter(pl.col(name) != pl.col(name + _LAST)) if name in requests.columns else requests[:0]
        if len(different):
            raise ValueError(f"request {different[raw.spec.request].min()!r} has rows of more than one {word}")
    return requests, rows_by_file


def _keys_of(raw: RawLog, sources: Sequence[Source], report: Report) -> tuple[pl.DataFrame | None, list[int]]:
    """The requests of some files, none if there are no rows, and the number of rows of each file."""
    found = Collector(partial(_by_request, raw.spec.request))
    columns = _key_columns(raw, "log")
    rows = dict.fromkeys((source.path for source in sources), 0)
    for batch in raw.batches("log", columns, sources):
        for column in columns:
            batch.refuse_nulls(column)
        found.add(_keys(batch.rows, raw.spec).with_columns(pl.lit(1, pl.Int64).alias(_ROWS)))
        rows[batch.source.path] += len(batch.rows)
        report(len(batch.rows))
    return found.result() if any(rows.values()) else None, list(rows.values())


def _by_request(request: str, keys: pl.DataFrame) -> pl.DataFrame:
    """One row a request: its rows, and the first and the last of its times and days, which should be the same."""
    facts = [name for name in (_TIME, _DAY) if name in keys.columns]
    last = [pl.max(name + _LAST if name + _LAST in keys.columns else name).alias(name + _LAST) for name in facts]
    return keys.group_by(request).agg(pl.sum(_ROWS), *(pl.min(name) for name in facts), *last)


def _key_columns(raw: RawLog, place: Place) -> list[str]:
    """The columns that decide where a request goes, of those that stand there."""
    spec = raw.spec
    named = [spec.time.column if spec.time else None, spec.day]
    return [spec.request, *dict.fromkeys(column for column in named if column and raw.places[column] == place)]


def _keys(rows: pl.DataFrame, spec: Spec) -> pl.DataFrame:
    """The request, time and day of each row, as far as the rows have them."""
    columns: list[Any] = [rows[spec.request]]
    if spec.time is None:
        columns.append(pl.lit(0, pl.Int64).alias(_TIME))
    elif spec.time.column in rows.columns:
        columns.append(to_times(rows[spec.time.column], spec.time.unit, spec.zone).dt.epoch("ms").alias(_TIME))
    if spec.day is not None and spec.day in rows.columns:
        columns.append(rows[spec.day].cast(pl.String).alias(_DAY))
    return rows.select(columns)


def _join_table(raw: RawLog, found: pl.DataFrame) -> tuple[pl.DataFrame, list[str], int, int]:
    """Add what only the table of requests knows about when and where a request belongs."""
    request = raw.spec.request
    carried = _key_columns(raw, "requests")[1:]
    user = raw.spec.user
    if user is not None and raw.places[user] == "requests" and user not in carried:
        carried.append(user)
    table = raw.table("requests", [request, *carried])
    unused = len(table.join(found, on=request, how="anti"))
    known = table.select(request, pl.lit(True).alias("\1known"), *carried)
    found = found.join(known, on=request, how="left")
    unknown = found["\1known"].null_count()
    for column in carried:
        if found[column].has_nulls() and column != user:
            missing = found.filter(pl.col(column).is_null())[request].min()
            path = raw.sources["requests"][0].path
            raise ValueError(f"{path}: column {column!r}: found nothing for the request {missing!r}")
    facts = _keys(found.select(request, *carried), raw.spec).drop(request)
    return found.with_columns(facts.get_columns()), carried, unknown, unused


def _listed(paths: Iterable[Path]) -> str:
    shown = [str(path) for path in paths]
    return ", ".join(shown) if len(shown) <= 3 else f"{shown[0]} and {len(shown) - 1} more files"
