"""The rows of a raw log in portions of whole requests, joined with the columns of the tables."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from rankfall.data.impressions.items import item_numbers
from rankfall.data.impressions.requests import check_shared_values, group_ordered_rows
from rankfall.data.sources.rows.columns import column_uses
from rankfall.data.sources.rows.request_order import PORTION, POSITION, key_columns
from rankfall.data.sources.rows.row_spool import write_spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.requests import RequestGroups
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.request_order import RequestOrder
    from rankfall.data.sources.rows.row_files import RowFile
    from rankfall.data.sources.rows.row_spool import RowSpool

    UnknownKeys = dict[Origin, pl.DataFrame]  # keys of the log that the tables do not have


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
    frame = pl.from_arrow(frames[origin])
    assert isinstance(frame, pl.DataFrame)
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
        frame = pl.from_arrow(pa.Table.from_batches(pieces))
        assert isinstance(frame, pl.DataFrame)
        return frame.rechunk()


def first_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first row of each request of a portion."""
    return rows.filter(rows[POSITION].is_first_distinct())
