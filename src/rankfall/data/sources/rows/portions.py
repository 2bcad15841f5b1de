"""The rows of a raw log by portions of whole requests, complete with what tables add to them."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from rankfall.data.sources.rows.columns import uses
from rankfall.data.sources.rows.request_order import PORTION, POSITION
from rankfall.data.sources.rows.row_spool import write_spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.sources.rows.columns import Place
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.request_order import Requests
    from rankfall.data.sources.rows.row_files import Source
    from rankfall.data.sources.rows.row_spool import Spool

    Unknown = dict[Place, pl.DataFrame]  # keys of the log that tables do not have


def spool_log(raw: RawLog, requests: Requests, directory: Path, on_rows: Report, engine: Engine) -> Portions:
    """Write the rows of the log, and those of the table of requests, to files from which portions can be read."""
    portions = Portions(raw, requests)
    where = requests.frame
    frames: dict[Place, Any] = {"log": where.to_arrow()}  # of which processes of one machine share the memory
    if "requests" in raw.sources:
        frames["requests"] = where.select(raw.spec.request, POSITION, PORTION).to_arrow()  # it has the rest itself
    parts = [(place, sources) for place in frames for sources in raw.parts(place)]
    with closing(engine.map(partial(_spool, raw, frames, directory), parts, on_rows)) as spools:
        for (place, _), spool in zip(parts, spools, strict=True):
            portions.spools.setdefault(place, []).append(spool)
    return portions


def _spool(
    raw: RawLog,
    frames: dict[Place, pa.Table],
    directory: Path,
    part: tuple[Place, Sequence[Source]],
    report: Report,
) -> Spool:
    place, sources = part
    where = pl.from_arrow(frames[place])
    assert isinstance(where, pl.DataFrame)

    def batches() -> Iterator[pl.DataFrame]:
        for batch in raw.batches(place, raw.columns(place), sources):
            if place == "log":
                batch.refuse_nulls(raw.spec.item)
                report(len(batch.rows))
            yield batch.rows.join(where, on=raw.spec.request)

    return write_spool(directory, batches(), PORTION)


class Portions:
    """A log that was spooled, a portion at a time. Whoever has it, in any process, can read the files."""

    def __init__(self, raw: RawLog, requests: Requests) -> None:
        self.raw = raw
        self.spools: dict[Place, list[Spool]] = {}
        self._stored = list(dict.fromkeys([*raw.columns("log"), *requests.frame.columns]))
        self._position = requests.frame[POSITION].dtype
        tables = [place for place in raw.sources if place not in ("log", "requests")]
        self._tables = {place: raw.table(place, raw.columns(place)) for place in tables}
        self._of_request = {use.column for use in uses(raw.spec) if "requests" in use.places}
        self._lists = {use.column for use in uses(raw.spec) if use.role == "sequence"}

    def rows(self, number: int, columns: Iterable[str] | None = None, unknown: Unknown | None = None) -> pl.DataFrame:
        """The rows of a portion by request: the keys and these columns, or all but lists of other tables.

        `unknown` gets the keys that tables do not have.
        """
        spec = self.raw.spec
        wanted = {spec.request, spec.item, *(self.raw.places if columns is None else columns)}
        if spec.user is not None:
            wanted.add(spec.user)
        rows = self._read("log", number, [POSITION, *(name for name in self._stored if name in wanted)])
        assert rows is not None  # portions were made of requests that have rows
        if not rows[POSITION].is_sorted():
            rows = rows.sort(POSITION)
        rows = self.with_tables(rows, wanted, unknown)
        if added := [name for name in self._missing(rows, "requests", wanted) if name not in self._lists]:
            rows = rows.join(self._requests(number, added), on=POSITION, how="left", maintain_order="left")
        return rows

    def with_tables(self, rows: pl.DataFrame, wanted: set[str], unknown: Unknown | None = None) -> pl.DataFrame:
        """Those of the wanted columns added that tables of items and users have."""
        for place, table in self._tables.items():
            if added := self._missing(rows, place, wanted):
                key = self.raw.key(place)
                asked = rows.select(key).unique().drop_nulls()
                # of a table of millions only what is asked for is worth being hashed
                found = table.select(key, *added).join(asked, on=key, how="semi")
                if unknown is not None:
                    unknown[place] = asked.join(found, on=key, how="anti")
                rows = rows.join(found, on=key, how="left", maintain_order="left")
        return rows

    def first_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """One row for each request of a portion; what belongs to the request must be the same in all its rows."""
        starts = rows[POSITION].rle_id()
        first = rows[POSITION].is_first_distinct()
        requests = rows.filter(first)
        for column in (name for name in self.raw.columns("log") if name in self._of_request and name in rows.columns):
            values = rows[column].fill_nan(None) if rows[column].dtype.is_float() else rows[column]
            differs = values.ne_missing(values.filter(first).gather(starts))
            if differs.any():
                request = rows[self.raw.spec.request].filter(differs)[0]
                raise ValueError(f"request {request!r} has rows of more than one {column}")
        return requests

    def sequences(self, number: int, requests: pl.DataFrame) -> pl.DataFrame:
        """The lists that the table of requests has, as ``sequence.NAME.FEATURE``, for each of the requests."""
        names = {
            f"sequence.{name}.{feature}": column
            for name, sequence in self.raw.spec.sequences.items()
            for feature, column in (sequence.columns or {}).items()
            if self.raw.places[column] == "requests"
        }
        keys = requests.select(self.raw.spec.request, POSITION)
        if names:
            lists = self._requests(number, list(dict.fromkeys(names.values())))
            lists = lists.select(POSITION, *(pl.col(column).alias(name) for name, column in names.items()))
            keys = keys.join(lists, on=POSITION, how="left", maintain_order="left")
        return keys.drop(POSITION)

    def _missing(self, rows: pl.DataFrame, place: Place, wanted: set[str]) -> list[str]:
        """The columns that a table has to add."""
        return [name for name in self.raw.places if self.raw.places[name] == place and name in wanted - {*rows.columns}]

    def _requests(self, number: int, columns: list[str]) -> pl.DataFrame:
        found = self._read("requests", number, [POSITION, *columns])
        if found is None:
            types = {name: self.raw.types["requests", name] for name in columns}
            return pl.DataFrame(schema={POSITION: self._position, **types})
        return found

    def _read(self, place: Place, number: int, columns: list[str]) -> pl.DataFrame | None:
        pieces = [piece for spool in self.spools[place] for piece in spool.read(number, columns)]
        if not pieces:
            return None
        frame = pl.from_arrow(pa.Table.from_batches(pieces))
        assert isinstance(frame, pl.DataFrame)
        return frame.rechunk()
