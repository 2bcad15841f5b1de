"""The requests of a log: their keys, the order in which they are written, and which rows belong to each of them.

Impressions are ordered by day, then by time, then by the hash of the request. Days are ordered by their first request;
days without times by name, numbers by size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import polars as pl

from rankfall._errors import RankfallError
from rankfall.data.impressions.encoding import hash_values, to_times
from rankfall.encoding import combine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec

    Integers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

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
            raise RankfallError(f"column {column!r}: found null in row {position} of a portion of the log")
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
        spec: The spec of the log.
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
            raise RankfallError(f"column {spec.time.column!r}: found null, expected a time (request {request!r})")
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
    return RankfallError(f"request {request!r} has rows with more than one value of {column!r}")


# Different streams of one seed; ordering items by their sampling keys would put the items of crowded stages first.
_SAMPLE, _ORDER, _NEGATIVE = (np.uint64(use) for use in (1, 2, 3))


def check_seed(seed: int) -> None:
    """Raise an error for a seed that the hash functions do not accept."""
    if not 0 <= seed < 2**63:
        raise RankfallError(f"seed: found {seed}, expected a whole number from 0 to 2^63 - 1")


def sample_keys(seed: int, requests: Hashes, items: Hashes) -> Hashes:
    """Return random keys of items; those with the smallest keys of a stage are sampled."""
    return combine(np.uint64(seed), _SAMPLE, requests, items)


def order_keys(seed: int, requests: Hashes, items: Hashes) -> Hashes:
    """Return random keys that order the items of an impression without any information about them."""
    return combine(np.uint64(seed), _ORDER, requests, items)


def full_stage_sample(requests: Integers, depth: Integers, keys: Hashes, sizes: Sequence[int | None]) -> Integers:
    """Return the rows of the sample, sorted by request, then by depth, then by key.

    Args:
        requests: The index of the request of each row.
        depth: The depth of each row.
        keys: The random key of each row. The rows with the smallest keys of each request and stage are kept.
        sizes: The sample size of each stage; None keeps all rows.
    """
    order = np.lexsort((keys, depth, requests))
    starts = _run_starts(requests[order], depth[order])
    lengths = np.diff(np.append(starts, len(order)))
    places = np.arange(len(order)) - np.repeat(starts, lengths)
    limits = np.array([len(order) if size is None else size for size in sizes], np.int64)
    kept: Integers = order[places < limits[depth[order]]]
    return kept


def full_stage_grades(
    requests: Integers, depth: Integers, rank: Integers, relevance: NDArray[np.float32] | None = None
) -> Integers:
    """Return the grade of each item within its request, 0 for the worst: deeper is better, then the smaller rank.

    Items of the same depth and rank have the same grade; those without a rank (-1) have the lowest of their depth.

    Args:
        requests: The index of the request of each row.
        depth: The depth of each row.
        rank: The rank of each row, -1 for none.
        relevance: For logs without a funnel, the relevance of each row, which then counts before the rank.
    """
    badness = np.where(rank < 0, np.iinfo(np.int64).max, rank)
    value = np.zeros(len(rank), np.float32) if relevance is None else relevance
    order = np.lexsort((-badness, value, depth, requests))
    first = np.zeros(len(order), np.bool_)
    first[_run_starts(requests[order])] = True
    step = np.zeros(len(order), np.int64)
    step[_run_starts(requests[order], depth[order], value[order], badness[order])] = 1
    total = np.cumsum(step)
    base = np.maximum.accumulate(np.where(first, total, 0))
    grades = np.empty(len(order), np.int64)
    grades[order] = total - base
    return grades


def draw_negatives(
    requests: Hashes, taken_request: Integers, taken_item: Integers, *, items: int, count: int, seed: int
) -> tuple[Integers, Integers]:
    """Draw `count` different items of a table for each request, excluding those that the request has.

    Args:
        requests: The hash of each request.
        taken_request: The index of a request, for each pair of a request and an item to exclude.
        taken_item: The row of the item in the table, for each of these pairs.
        items: The number of rows of the table.
        count: The number of items per request; requests get fewer if the table has not enough.
        seed: The seed.

    Returns:
        Pairs as two arrays: indices of requests, and rows of the table.
    """
    taken = np.unique(taken_request * items + taken_item)
    free = items - np.bincount(taken // items, minlength=len(requests))
    wanted = np.minimum(free, count)
    number = np.arange(len(requests))
    chosen = np.empty(0, np.int64)
    first, width = 0, count + 8
    # Draws are numbered and the first valid ones are taken, so the number of draws per round does not matter.
    while len(number):
        draws = combine(
            np.uint64(seed), _NEGATIVE, requests[number, None], np.arange(first, first + width, dtype=np.uint64)
        )
        pairs = (number[:, None] * items + (draws % np.uint64(items)).astype(np.int64)).ravel()
        fresh = _first_of_each(pairs) & ~np.isin(pairs, taken) & ~np.isin(pairs, chosen)
        pairs = np.concatenate([chosen, pairs[fresh]])
        pairs = pairs[np.argsort(pairs // items, kind="stable")]
        chosen = pairs[_place_in_run(pairs // items) < wanted[pairs // items]]
        found = np.bincount(chosen // items, minlength=len(requests))
        number = np.flatnonzero(found < wanted)
        first, width = first + width, width * 2
    return chosen // items, chosen % items


def _run_starts(*keys: NDArray[Any]) -> Integers:
    """Return where a new combination of keys begins in sorted rows."""
    if len(keys[0]) == 0:
        return np.empty(0, np.int64)
    new = np.zeros(len(keys[0]), np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _place_in_run(sorted_keys: Integers) -> Integers:
    starts = _run_starts(sorted_keys)
    return np.arange(len(sorted_keys)) - np.repeat(starts, np.diff(np.append(starts, len(sorted_keys))))


def _first_of_each(values: Integers) -> NDArray[np.bool_]:
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def stage_depths(rows: pl.DataFrame, spec: Spec) -> Integers:
    """Return the index of the deepest stage of each row.

    Raises:
        ValueError: If a row names an unknown stage or has none of the stage flags.
    """
    depth = np.zeros(len(rows), np.int64)
    refuse(bad_stages(rows, spec), rows, spec)
    if spec.stage is not None:
        names, raw = spec.stage_names, rows[spec.stage]
        if raw.dtype == pl.String:
            raw = raw.replace_strict(names, list(range(len(names))), return_dtype=pl.Int64)
        return raw.cast(pl.Int64).to_numpy()
    for index, stage in enumerate(spec.stages):
        if stage.flag is not None:
            depth[above_zero(rows[stage.flag]).to_numpy()] = index
    return depth


def above_zero(values: pl.Series) -> pl.Series:
    """Return which numbers are above 0. Null and NaN are not, although polars orders NaN above all numbers."""
    return values.cast(pl.Float64).fill_null(0).fill_nan(0) > 0


def row_name(rows: pl.DataFrame, spec: Spec, position: int) -> str:
    """Return the request and the item of a row, for error messages."""
    return f"request {rows[spec.request][position]!r}, item {rows[spec.item][position]!r}"


class BadRows(NamedTuple):
    """The rows that have a problem.

    Args:
        column: The column that has it.
        problem: What was found, and what was expected.
        mask: True for the rows that have it.
        values: The values to be shown.
        level: Whether these rows prevent the preparation.
    """

    column: str
    problem: str
    mask: pl.Series
    values: pl.Series | None = None
    level: Literal["error", "warning"] = "error"


def bad_places(rows: pl.DataFrame, columns: Iterable[str | None]) -> Iterator[BadRows]:
    """Yield the rows whose ranks or positions are neither places nor -1."""
    for column in dict.fromkeys(columns):
        if column is not None and column in rows.columns:
            places = rows[column].cast(pl.Int64).fill_null(-1)
            problem = "not a place, expected a whole number from 0 on, or -1 for none"
            yield BadRows(column, problem, (places < -1) | (places >= 2**31), rows[column])


def bad_stages(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    """Yield the rows of unknown stages, or those without any of the stage flags."""
    names = spec.stage_names
    flags = [stage.flag for stage in spec.stages if stage.flag is not None and stage.flag in rows.columns]
    if spec.stage is not None and spec.stage in rows.columns:
        raw = rows[spec.stage]
        if raw.dtype != pl.String and not raw.dtype.is_integer():
            raise RankfallError(f"column {spec.stage!r}: found {raw.dtype}, expected names or indices of stages")
        known = raw.is_in(names) if raw.dtype == pl.String else raw.is_between(0, len(names) - 1)
        allowed = ", ".join(names) if raw.dtype == pl.String else f"0 to {len(names) - 1} ({', '.join(names)})"
        yield BadRows(spec.stage, f"found an unknown stage, expected one of {allowed}", ~known.fill_null(False), raw)
    elif len(flags) == len(names):
        above = rows.select(above_zero(rows[flag]) for flag in flags)
        reached = above.select(pl.any_horizontal(pl.all())).to_series()
        yield BadRows(", ".join(flags), "found none above 0, expected the stage that the item reached", ~reached)


def bad_labels(rows: pl.DataFrame, columns: Iterable[str | None]) -> Iterator[BadRows]:
    """Yield the rows with an infinite label."""
    for column in dict.fromkeys(columns):
        if column is not None and column in rows.columns:
            infinite = rows[column].cast(pl.Float64).cast(pl.Float32, strict=False).is_infinite().fill_null(False)
            yield BadRows(column, "found an infinite number, expected finite numbers", infinite, rows[column])


def bad_inclusions(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    """Yield the rows whose probability of being drawn is none."""
    if spec.inclusion is not None and spec.inclusion in rows.columns:
        values = rows[spec.inclusion].cast(pl.Float64).fill_null(1)
        bad = ~((values > 0) & (values <= 1)) | values.is_nan()
        problem = "not a probability, expected a number above 0 and at most 1"
        yield BadRows(spec.inclusion, problem, bad, rows[spec.inclusion])


def refuse(problems: Iterable[BadRows], rows: pl.DataFrame, spec: Spec) -> None:
    """Raise an error that names the first row with one of these problems."""
    for problem in problems:
        if problem.mask.any():
            position = int(problem.mask.arg_max() or 0)
            found, _, expected = problem.problem.partition(", ")
            if problem.values is not None:
                found = f"found {problem.values[position]!r}"
            where = row_name(rows, spec, position)
            raise RankfallError(f"column {problem.column!r}: {found}, {expected} ({where})")


@dataclass(slots=True)
class Counts:
    """Counts of one part of a log; those of several parts add up."""

    rows: int = 0
    requests: int = 0
    without_relevant: int = 0  # requests without a relevant item
    logged: Counter[str] = field(default_factory=Counter)  # rows per stage
    kept: Counter[str] = field(default_factory=Counter)  # sampled rows per stage
    short: Counter[str] = field(default_factory=Counter)  # requests with fewer items than the sample size of a stage
    negatives: int = 0
    values: Counter[str] = field(default_factory=Counter)  # ids per feature
    missing: Counter[str] = field(default_factory=Counter)  # ids of missing values per feature
    unseen: Counter[str] = field(default_factory=Counter)  # ids of values that were not fitted, per feature
    numbers: Counter[str] = field(default_factory=Counter)  # numbers or vectors per feature
    missing_numbers: Counter[str] = field(default_factory=Counter)  # those with a missing number

    def __add__(self, other: Counts) -> Counts:
        """The counts of both parts together."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Counts:
        """Read the counts stored in a manifest."""
        counts: dict[str, Any] = {}
        for name, value in content.items():
            counts[name] = Counter(value) if isinstance(value, dict) else value
        return cls(**counts)

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in a manifest, in an order that does not depend on the parts."""
        return {
            name: dict(sorted(value.items())) if isinstance(value := getattr(self, name), Counter) else value
            for name in self.__slots__
        }


def stage_counts(log: ImpressionLog) -> pl.DataFrame:
    """Return what the sampler kept of each stage of a log.

    Returns:
        One row per stage: its name, its sample size, the rows that were `logged`, `kept` and `dropped`, the first two
        also per request, and as `short` the number of requests with fewer items than the sample size.
    """
    counts = log.manifest["about"]["counts"]
    names = log.spec.stage_names
    frame = pl.DataFrame(
        {
            "stage": names,
            "sample": [stage.sample for stage in log.spec.stages],
            **{what: [counts[what].get(name, 0) for name in names] for what in ("logged", "kept", "short")},
        },
        schema={"stage": pl.String, "sample": pl.Int64, "logged": pl.Int64, "kept": pl.Int64, "short": pl.Int64},
    )
    requests = max(counts["requests"], 1)
    return frame.with_columns(
        dropped=pl.col("logged") - pl.col("kept"),
        logged_per_request=pl.col("logged") / requests,
        kept_per_request=pl.col("kept") / requests,
    )
