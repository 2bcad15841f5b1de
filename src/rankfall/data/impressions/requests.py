"""The requests of a log: their keys, the order in which they are written, and which rows belong to each of them.

Impressions are ordered by day, then by time, then by the hash of the request. Days are ordered by their first request;
days without times by name, numbers by size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall.data.impressions.column_hashing import hash_values
from rankfall.data.impressions.encoding import to_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec

    Integers = NDArray[np.int64]

# columns beside those of the log, which cannot have such names
TIME, DAY, DAY_NUMBER, HASH = "\1time", "\1day", "\1day_number", "\1hash"
_FIRST_ROW, _NUMBER = "\1first_row", "\1number"


@dataclass(frozen=True, slots=True)
class RequestGroups:
    """The requests of some rows, and the request of each row.

    `table` has one row per request, in the order of the impressions: the id of the request (named as in the log),
    `TIME` in milliseconds since 1970, `DAY` and `HASH`. `first_row` is the first row of each request, `number` the
    index of the request of each row.
    """

    table: pl.DataFrame
    first_row: Integers
    number: Integers

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.table)


def group_rows(rows: pl.DataFrame, spec: Spec) -> RequestGroups:
    """Group rows of whole requests, which may come in any order.

    Raises:
        ValueError: If a request or an item has no id, or if the rows of a request disagree on its time, day or user.
    """
    for column in (spec.request, spec.item):
        if rows[column].has_nulls():
            position = int(rows[column].is_null().arg_max() or 0)
            raise ValueError(f"column {column!r}: found null in row {position} of a portion of the log")
    keys = request_keys(rows, spec).with_row_index(_FIRST_ROW)
    table = in_order(with_days(keys.unique(spec.request, keep="first"), spec), spec)
    numbers = table.select(spec.request).with_row_index(_NUMBER)
    number = rows.select(spec.request).join(numbers, on=spec.request, how="left", maintain_order="left")[_NUMBER]
    groups = RequestGroups(table, table[_FIRST_ROW].to_numpy().astype(np.int64), number.to_numpy().astype(np.int64))
    shared = [spec.time.column if spec.time else None, spec.day, spec.user]
    check_shared_values(rows, groups, [column for column in shared if column is not None], spec)
    return groups


def group_ordered_rows(rows: pl.DataFrame, spec: Spec, new_request: pl.Series, day: str) -> RequestGroups:
    """Group rows of one day whose requests were checked and ordered before.

    Args:
        rows: The rows, those of a request together, requests in their order.
        spec: The description of the log.
        new_request: True for the first row of each request.
        day: The name of the day.
    """
    first = rows.filter(new_request)
    keys = request_keys(first, spec)
    table = keys.with_columns(pl.lit(day).alias(DAY), pl.Series(HASH, hash_values(keys[spec.request])))
    starts = new_request.to_numpy()
    return RequestGroups(table, np.flatnonzero(starts), np.cumsum(starts) - 1)


def request_keys(rows: pl.DataFrame, spec: Spec) -> pl.DataFrame:
    """Return the request, `TIME` and `DAY` of each row, as far as the rows have the columns for them.

    Raises:
        ValueError: If a row has no time, or one that does not exist in the time zone of the log.
    """
    columns: list[Any] = [rows[spec.request]]
    if spec.time is None:
        columns.append(pl.lit(0, pl.Int64).alias(TIME))
    elif spec.time.column in rows.columns:
        times = to_times(rows[spec.time.column], spec.time.unit, spec.zone).dt.epoch("ms").alias(TIME)
        if times.has_nulls():
            request = rows[spec.request][int(times.is_null().arg_max() or 0)]
            raise ValueError(f"column {spec.time.column!r}: found null, expected a time (request {request!r})")
        columns.append(times)
    if spec.day is not None and spec.day in rows.columns:
        columns.append(rows[spec.day].cast(pl.String).alias(DAY))
    return rows.select(columns)


def with_days(requests: pl.DataFrame, spec: Spec) -> pl.DataFrame:
    """Add the column `DAY`, the date in the time zone of the log, unless the log names days itself."""
    if spec.day is not None:
        return requests
    times = pl.from_epoch(requests[TIME], "ms").dt.replace_time_zone("UTC").dt.convert_time_zone(spec.zone)
    return requests.with_columns(times.dt.strftime("%Y-%m-%d").alias(DAY))


def in_order(requests: pl.DataFrame, spec: Spec) -> pl.DataFrame:
    """Sort requests as they are written, and add the columns `DAY_NUMBER` and `HASH`."""
    days = sort_days(requests.group_by(DAY).agg(pl.min(TIME))).select(DAY).with_row_index(DAY_NUMBER)
    requests = requests.join(days, on=DAY, how="left")
    requests = requests.with_columns(pl.Series(HASH, hash_values(requests[spec.request])))
    return requests.sort(DAY_NUMBER, TIME, HASH, spec.request)


def sort_days(days: pl.DataFrame) -> pl.DataFrame:
    """Sort days by `TIME`, that of their first request, then by number and name (`DAY`)."""
    return days.sort(TIME, pl.col(DAY).cast(pl.Int64, strict=False), DAY)


def check_shared_values(rows: pl.DataFrame, groups: RequestGroups, columns: Iterable[str], spec: Spec) -> None:
    """Check that all rows of a request have the same value in columns that describe the request.

    Raises:
        ValueError: If a request has several values in one of the columns. Null and NaN count as the same value.
    """
    for column in columns:
        values = rows[column].fill_nan(None) if rows[column].dtype.is_float() else rows[column]
        differs = values.ne_missing(values.gather(groups.first_row).gather(groups.number))
        if differs.any():
            request = rows[spec.request].filter(differs)[0]
            raise more_than_one(request, column)


def more_than_one(request: object, column: str) -> ValueError:
    """Return the error for a request whose rows disagree on a column."""
    return ValueError(f"request {request!r} has rows with more than one value of {column!r}")
