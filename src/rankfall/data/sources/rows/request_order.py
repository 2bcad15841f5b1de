"""The requests of a raw log in the order in which they are written, and the portions that are processed at once.

The table of requests is the only thing that is kept in memory for a whole log: a few words per request.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall.data.impressions.requests import DAY, DAY_NUMBER, TIME, in_order, more_than_one, request_keys, with_days
from rankfall.data.sources.rows.incremental_merge import IncrementalMerge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.row_files import RowFile

POSITION, PORTION = "\1position", "\1portion"  # names that no column of a log has
_ROWS, _KNOWN = "\1rows", "\1known"
_LAST = " last"


class Portion(NamedTuple):
    """Consecutive whole requests of one day."""

    number: int
    day: str
    rows: int
    requests: int
    first_row: int  # the number of rows in earlier portions
    first_request: int


@dataclass(frozen=True)
class RequestOrder:
    """The position of each request in the log to be written.

    `frame` has one row per request: its id, its position, the number of its portion, and the key columns that only the
    table of requests has.
    """

    frame: pl.DataFrame
    starts: list[tuple[str, int]]  # the days and the times of their first requests
    portions: list[Portion]
    rows_by_file: list[int]
    rows: int
    unknown: int  # requests of the log that are not in the table of requests
    unused: int  # requests of the table that are not in the log

    @property
    def days(self) -> list[str]:
        """The names of the days, in order."""
        return [day for day, _ in self.starts]


def key_columns(raw: RawLog, origin: Origin) -> list[str]:
    """Return the columns read from there that decide the position of a request: its id, time and day."""
    spec = raw.spec
    columns = [spec.time.column if spec.time else None, spec.day]
    return [spec.request, *dict.fromkeys(column for column in columns if column and raw.origins[column] == origin)]


def order_requests(raw: RawLog, portion_rows: int, on_rows: Report, engine: Engine) -> RequestOrder:
    """Read the keys of the log, order its requests and cut them into portions.

    Args:
        raw: The raw log.
        portion_rows: The approximate number of rows of a portion.
        on_rows: Receives the number of rows that were read.
        engine: Runs the work on the files.

    Raises:
        ValueError: If the log has no rows, or if a request has no time or rows of several times or days.
    """
    found, rows_by_file = _read_keys(raw, on_rows, engine)
    unknown, unused = 0, 0
    carried: list[str] = []
    if "requests" in raw.files:
        found, carried, unknown, unused = _join_table(raw, found)
    found = in_order(with_days(found, raw.spec), raw.spec)
    _check_days_follow(found, raw.spec)
    before = pl.col(_ROWS).cum_sum().over(DAY_NUMBER) - pl.col(_ROWS)
    found = found.with_columns(pl.struct(DAY_NUMBER, before // portion_rows).rle_id().cast(pl.Int32).alias(PORTION))
    portions = _portions(found)
    return RequestOrder(
        found.with_row_index(POSITION).select(raw.spec.request, POSITION, PORTION, *carried),
        found.group_by(DAY, maintain_order=True).agg(pl.min(TIME)).rows(),
        portions,
        rows_by_file,
        sum(rows_by_file),
        unknown,
        unused,
    )


def _portions(found: pl.DataFrame) -> list[Portion]:
    portions = found.group_by(PORTION, maintain_order=True).agg(
        pl.first(DAY).alias("day"), pl.sum(_ROWS).alias("rows"), pl.len().cast(pl.Int64).alias("requests")
    )
    portions = portions.with_columns(
        first_row=pl.col("rows").cum_sum() - pl.col("rows"),
        first_request=pl.col("requests").cum_sum() - pl.col("requests"),
    )
    return [Portion(*values) for values in portions.rename({PORTION: "number"}).select(Portion._fields).iter_rows()]


def _check_days_follow(found: pl.DataFrame, spec: Spec) -> None:
    """Check that no day begins before an earlier one ends, because histories are built day by day."""
    if not any(sequence.feedback for sequence in spec.sequences.values()):
        return
    earlier = found.filter(pl.col(TIME) < pl.col(TIME).shift())
    if len(earlier):
        raise ValueError(
            f"column {spec.day!r}: {earlier[DAY][0]!r} begins before an earlier day ends; sequences of feedback need "
            "days that do not overlap"
        )


# --- reading ----------------------------------------------------------------------------------------------------


def _read_keys(raw: RawLog, on_rows: Report, engine: Engine) -> tuple[pl.DataFrame, list[int]]:
    """Read the keys of all files: one row per request, and the number of rows of each file."""
    found = IncrementalMerge(partial(_by_request, raw.spec.request))
    rows_by_file: list[int] = []
    with closing(engine.map(partial(_keys_of_files, raw), raw.parts("log"), on_rows)) as parts:
        for keys, rows in parts:
            rows_by_file += rows
            if keys is not None:
                found.add(keys)
    if not any(rows_by_file):
        raise ValueError(f"{_listed(raw.files['log'])}: found no rows")
    requests = found.result()
    for name, column in ((TIME, raw.spec.time.column if raw.spec.time else ""), (DAY, raw.spec.day or "")):
        differing = requests.filter(pl.col(name) != pl.col(name + _LAST)) if name in requests.columns else requests[:0]
        if len(differing):
            raise more_than_one(differing[raw.spec.request].min(), column)
    return requests, rows_by_file


def _keys_of_files(raw: RawLog, files: Sequence[RowFile], report: Report) -> tuple[pl.DataFrame | None, list[int]]:
    """Read the keys of some files: one row per request, or None without rows, and the number of rows of each file."""
    found = IncrementalMerge(partial(_by_request, raw.spec.request))
    columns = key_columns(raw, "log")
    rows = dict.fromkeys((file.path for file in files), 0)
    for batch in raw.batches("log", columns, files):
        for column in columns:
            batch.check_not_null(column)
        found.add(request_keys(batch.rows, raw.spec).with_columns(pl.lit(1, pl.Int64).alias(_ROWS)))
        rows[batch.file.path] += len(batch.rows)
        report(len(batch.rows))
    return found.result() if any(rows.values()) else None, list(rows.values())


def _by_request(request: str, keys: pl.DataFrame) -> pl.DataFrame:
    """Reduce keys to one row per request: its rows, and the first and last of its times and days."""
    names = [name for name in (TIME, DAY) if name in keys.columns]
    last = [pl.max(name + _LAST if name + _LAST in keys.columns else name).alias(name + _LAST) for name in names]
    return keys.group_by(request).agg(pl.sum(_ROWS), *(pl.min(name) for name in names), *last)


def _join_table(raw: RawLog, found: pl.DataFrame) -> tuple[pl.DataFrame, list[str], int, int]:
    """Add the key columns and the user that only the table of requests has."""
    request = raw.spec.request
    carried = key_columns(raw, "requests")[1:]
    user = raw.spec.user
    if user is not None and raw.origins[user] == "requests" and user not in carried:
        carried.append(user)
    table = raw.table("requests", [request, *carried])
    unused = len(table.join(found, on=request, how="anti"))
    known = table.select(request, pl.lit(True).alias(_KNOWN), *carried)
    found = found.join(known, on=request, how="left")
    unknown = found[_KNOWN].null_count()
    for column in carried:
        if found[column].has_nulls() and column != user:
            missing = found.filter(pl.col(column).is_null())[request].min()
            path = raw.files["requests"][0]
            raise ValueError(f"{path}: column {column!r}: found no value for the request {missing!r}")
    keys = request_keys(found.select(request, *carried), raw.spec).drop(request)
    return found.with_columns(keys.get_columns()), carried, unknown, unused


def _listed(files: Iterable[RowFile]) -> str:
    shown = [str(file) for file in files]
    return ", ".join(shown) if len(shown) <= 3 else f"{shown[0]} and {len(shown) - 1} more files"
