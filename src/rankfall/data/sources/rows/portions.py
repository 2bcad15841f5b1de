"""The rows of a raw log in portions of whole requests, joined with the columns of the tables."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.items import item_numbers
from rankfall.data.impressions.requests import (
    DAY,
    DAY_NUMBER,
    TIME,
    check_shared_values,
    group_ordered_rows,
    in_order,
    more_than_one,
    request_keys,
    with_days,
)
from rankfall.data.sources.rows.raw_log import column_uses
from rankfall.storage.disk import open_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.requests import RequestGroups
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.raw_log import Origin, RawLog
    from rankfall.data.sources.rows.row_files import RowFile

    UnknownKeys = dict[Origin, pl.DataFrame]  # keys of the log that the tables do not have

_MERGE_AT = 2**20  # pending rows that trigger a merge


class IncrementalMerge:
    """A table that is reduced by `merge` while its parts are added.

    Args:
        merge: Reduces a table. It must give the same result for a whole table as for its reduced parts together.
    """

    def __init__(self, merge: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._merge = merge
        self._parts: list[pl.DataFrame] = []
        self._pending = 0
        self._merge_at = _MERGE_AT

    def add(self, part: pl.DataFrame) -> None:
        """Add rows; the order of parts is kept."""
        self._parts.append(self._merge(part))
        self._pending += len(self._parts[-1])
        if self._pending > self._merge_at:
            merged = self.result()
            self._parts, self._pending = [merged], len(merged)
            self._merge_at = max(_MERGE_AT, 2 * len(merged))

    def result(self) -> pl.DataFrame:
        """Return the reduced table of all parts."""
        return self._merge(pl.concat(self._parts))


def distinct(frame: pl.DataFrame) -> pl.DataFrame:
    """Return every row once, in the order of first occurrence."""
    return frame.unique(maintain_order=True)


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
    portions = found.group_by(PORTION, maintain_order=True).agg(
        pl.first(DAY).alias("day"), pl.sum(_ROWS).alias("rows"), pl.len().cast(pl.Int64).alias("requests")
    )
    portions = portions.with_columns(
        first_row=pl.col("rows").cum_sum() - pl.col("rows"),
        first_request=pl.col("requests").cum_sum() - pl.col("requests"),
    ).rename({PORTION: "number"})
    return RequestOrder(
        found.with_row_index(POSITION).select(raw.spec.request, POSITION, PORTION, *carried),
        found.group_by(DAY, maintain_order=True).agg(pl.min(TIME)).rows(),
        [Portion(*values) for values in portions.select(Portion._fields).iter_rows()],
        rows_by_file,
        sum(rows_by_file),
        unknown,
        unused,
    )


def _check_days_follow(found: pl.DataFrame, spec: Spec) -> None:
    """Check that no day begins before an earlier one ends, because histories are built day by day."""
    if not any(sequence.feedback for sequence in spec.sequences.values()):
        return
    earlier = found.filter(pl.col(TIME) < pl.col(TIME).shift())
    if len(earlier):
        raise RankfallError(
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
        first, *others = map(str, raw.files["log"])
        names = f"{first} and {len(others)} more files" if len(others) > 2 else ", ".join([first, *others])
        raise RankfallError(f"{names}: found no rows")
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
            raise RankfallError(f"{path}: column {column!r}: found no value for the request {missing!r}")
    keys = request_keys(found.select(request, *carried), raw.spec).drop(request)
    return found.with_columns(keys.get_columns()), carried, unknown, unused


@dataclass(frozen=True)
class RowSpool:
    """A file of pieces, each with rows of one portion. Only the index of the pieces is in memory."""

    path: Path
    columns: list[str]
    pieces: NDArray[np.int64]  # record batches of the file, sorted by portion
    portions: NDArray[np.int64]  # the portion of each of them

    def read(self, portion: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        """Read columns of the rows of a portion, in no particular order."""
        first, last = np.searchsorted(self.portions, [portion, portion + 1])
        if first == last:
            return []
        chosen = [self.columns.index(name) for name in columns]
        # read instead of mapped: mapped pages would stay in memory as long as there is free memory
        with pa.OSFile(str(self.path), "rb") as file:
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=chosen))
            return [reader.get_batch(number).select(list(columns)) for number in self.pieces[first:last].tolist()]


def write_spool(directory: Path, batches: Iterable[pl.DataFrame], portion: str) -> RowSpool:
    """Write rows to a new file.

    Args:
        directory: Where the file is written. Its name is unique, so work that is repeated after a crash does not
            overwrite it.
        batches: The rows.
        portion: The column with the portion of each row, which is not written.
    """
    path = directory / f"{uuid.uuid4().hex}.spool"
    columns: list[str] = []
    portions: list[int] = []
    writer: Any = None
    with ExitStack() as stack:
        file = stack.enter_context(open_new(path))
        for rows in batches:
            if not rows[portion].is_sorted():
                rows = rows.sort(portion)
            runs = rows[portion].rle().struct.unnest()
            table = rows.drop(portion).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                columns = table.column_names
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = stack.enter_context(pa.ipc.new_file(file, table.schema, options=options))
            start = 0
            for number, length in zip(runs["value"].to_list(), runs["len"].to_list(), strict=True):
                # `table` is in one chunk, so each piece becomes one record batch
                writer.write_table(table.slice(start, length))
                portions.append(number)
                start += length
    of_piece = np.array(portions, np.int64)
    pieces = np.argsort(of_piece, kind="stable")
    return RowSpool(path, columns, pieces, of_piece[pieces])


def spool_log(raw: RawLog, requests: RequestOrder, directory: Path, on_rows: Report, engine: Engine) -> SpooledLog:
    """Write the rows of the log and of the table of requests to files from which portions can be read.

    Args:
        raw: The raw log.
        requests: The position and portion of each request.
        directory: Where the files are written.
        on_rows: Receives the number of rows of the log that were written.
        engine: Runs the work on the files.
    """
    log = SpooledLog(raw, requests)
    frame = requests.frame
    frames: dict[Origin, Any] = {"log": frame.to_arrow()}  # the processes of one machine share its memory
    if "requests" in raw.files:
        frames["requests"] = frame.select(raw.spec.request, POSITION, PORTION).to_arrow()
    parts = [(origin, files) for origin in frames for files in raw.parts(origin)]
    with closing(engine.map(partial(_spool, raw, frames, directory), parts, on_rows)) as spools:
        for (origin, _), (spool, needs_numbers) in zip(parts, spools, strict=True):
            log.spools.setdefault(origin, []).append(spool)
            log.needs_numbers |= needs_numbers
    return log


def _spool(
    raw: RawLog,
    frames: dict[Origin, pa.Table],
    directory: Path,
    part: tuple[Origin, Sequence[RowFile]],
    report: Report,
) -> tuple[RowSpool, bool]:
    """Return the spooled rows of some files, and whether an id of an item is not int32."""
    origin, files = part
    frame = pl.DataFrame(frames[origin])
    needs_numbers = False

    def batches() -> Iterator[pl.DataFrame]:
        nonlocal needs_numbers
        for batch in raw.batches(origin, raw.columns(origin), files):
            if origin == "log":
                needs_numbers |= item_numbers(batch.rows[raw.spec.item].drop_nulls()) is None
                batch.check_not_null(raw.spec.item)
                report(len(batch.rows))
            yield batch.rows.join(frame, on=raw.spec.request)

    return write_spool(directory, batches(), PORTION), needs_numbers


class SpooledLog:
    """A spooled log that is read one portion at a time, by any process that can read its files."""

    def __init__(self, raw: RawLog, requests: RequestOrder) -> None:
        self.raw = raw
        self.spools: dict[Origin, list[RowSpool]] = {}
        self.needs_numbers = False  # whether an id of an item is not int32
        self._stored = list(dict.fromkeys([*raw.columns("log"), *requests.frame.columns]))
        self._position = requests.frame[POSITION].dtype
        tables = [origin for origin in raw.files if origin not in ("log", "requests")]
        self._tables = {origin: raw.table(origin, raw.columns(origin)) for origin in tables}
        of_request = {use.column for use in column_uses(raw.spec) if "requests" in use.origins}
        checked = key_columns(raw, "log")  # by order_requests
        self._shared = [name for name in raw.columns("log") if name in of_request and name not in checked]
        self._lists = {use.column for use in column_uses(raw.spec) if use.role == "sequence"}

    def rows(
        self, number: int, columns: Iterable[str] | None = None, unknown: UnknownKeys | None = None
    ) -> pl.DataFrame:
        """Read the rows of a portion in the order of its requests.

        Args:
            number: The portion.
            columns: The columns to read besides the keys; by default all except the lists of the table of requests.
            unknown: Receives the keys that the tables do not have.
        """
        spec = self.raw.spec
        wanted = {spec.request, spec.item, *(self.raw.origins if columns is None else columns)}
        if spec.user is not None:
            wanted.add(spec.user)
        rows = self._read("log", number, [POSITION, *(name for name in self._stored if name in wanted)])
        assert rows is not None  # every portion consists of requests with rows
        if not rows[POSITION].is_sorted():
            rows = rows.sort(POSITION)
        rows = self.with_tables(rows, wanted, unknown)
        if added := [name for name in self._missing(rows, "requests", wanted) if name not in self._lists]:
            rows = rows.join(self._requests(number, added), on=POSITION, how="left", maintain_order="left")
        return rows

    def with_tables(self, rows: pl.DataFrame, wanted: set[str], unknown: UnknownKeys | None = None) -> pl.DataFrame:
        """Join the wanted columns of the item table and the user table."""
        for origin, table in self._tables.items():
            if added := self._missing(rows, origin, wanted):
                key = self.raw.key(origin)
                keys = rows.select(key).unique().drop_nulls()
                # a table may have millions of rows; only those that occur here are hashed for the join
                found = table.select(key, *added).join(keys, on=key, how="semi")
                if unknown is not None:
                    unknown[origin] = keys.join(found, on=key, how="anti")
                rows = rows.join(found, on=key, how="left", maintain_order="left")
        return rows

    def stored_rows(self, origin: Origin, number: int) -> pl.DataFrame | None:
        """Return the rows of a portion as they were read, in an order that does not depend on the files.

        Args:
            origin: The log or the table of requests.
            number: The portion.
        """
        if origin not in self.spools:
            return None
        columns = self.raw.columns(origin)
        rows = self._read(origin, number, [POSITION, *columns])
        if rows is None:
            return None
        return rows.sort(POSITION, *([self.raw.spec.item] if origin == "log" else [])).select(columns)

    def group(self, rows: pl.DataFrame, day: str) -> RequestGroups:
        """Group the rows of a portion, and check that the rows of a request agree on what describes the request.

        Raises:
            ValueError: If a request has several values in one of these columns.
        """
        groups = group_ordered_rows(rows, self.raw.spec, rows[POSITION].is_first_distinct(), day)
        check_shared_values(rows, groups, self._shared, self.raw.spec)
        return groups

    def sequences(self, number: int, requests: pl.DataFrame) -> pl.DataFrame:
        """Read the lists of the table of requests, as columns ``sequence.NAME.FEATURE``.

        Args:
            number: The portion.
            requests: One row per request of the portion.
        """
        names = {
            f"sequence.{name}.{feature}": column
            for name, sequence in self.raw.spec.sequences.items()
            for feature, column in (sequence.columns or {}).items()
            if self.raw.origins[column] == "requests"
        }
        keys = requests.select(self.raw.spec.request, POSITION)
        if names:
            lists = self._requests(number, list(dict.fromkeys(names.values())))
            lists = lists.select(POSITION, *(pl.col(column).alias(name) for name, column in names.items()))
            keys = keys.join(lists, on=POSITION, how="left", maintain_order="left")
        return keys.drop(POSITION)

    def _missing(self, rows: pl.DataFrame, origin: Origin, wanted: set[str]) -> list[str]:
        """Return the wanted columns that a table has and the rows have not."""
        missing = wanted - {*rows.columns}
        return [name for name, found in self.raw.origins.items() if found == origin and name in missing]

    def _requests(self, number: int, columns: list[str]) -> pl.DataFrame:
        found = self._read("requests", number, [POSITION, *columns])
        if found is None:
            types = {name: self.raw.types["requests", name] for name in columns}
            return pl.DataFrame(schema={POSITION: self._position, **types})
        return found

    def _read(self, origin: Origin, number: int, columns: list[str]) -> pl.DataFrame | None:
        pieces = [piece for spool in self.spools[origin] for piece in spool.read(number, columns)]
        if not pieces:
            return None
        frame = pl.DataFrame(pa.Table.from_batches(pieces))
        return frame.rechunk()


def first_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first row of each request of a portion."""
    return rows.filter(rows[POSITION].is_first_distinct())
