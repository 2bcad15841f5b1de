"""The rows of a raw log by portions of whole requests, complete with what tables add to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rankfall.data.rows.collect import Collector, distinct
from rankfall.data.rows.layout import uses
from rankfall.data.rows.requests import PORTION, POSITION
from rankfall.data.rows.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rankfall.data.rows.layout import Place
    from rankfall.data.rows.raw import RawLog
    from rankfall.data.rows.requests import Requests


class Portions:
    """Spools a log, then gives it back in the order in which it is written, a portion at a time."""

    def __init__(self, raw: RawLog, requests: Requests, directory: Path) -> None:
        self.raw = raw
        self.requests = requests
        self._spools: dict[Place, Spool] = {"log": Spool(directory / "rows.spool")}
        if "requests" in raw.sources:
            self._spools["requests"] = Spool(directory / "requests.spool")
        tables = [place for place in raw.sources if place not in self._spools]
        self._tables = {place: raw.table(place, raw.columns(place)) for place in tables}
        self.unknown = {place: Collector(distinct) for place in tables}  # keys of the log that tables do not have
        self._of_request = {use.column for use in uses(raw.spec) if "requests" in use.places}
        self._lists = {use.column for use in uses(raw.spec) if use.role == "sequence"}

    def fill(self, on_rows: Callable[[int], None]) -> None:
        """Read the log and the table of requests."""
        spec = self.raw.spec
        for place, spool in self._spools.items():
            where = self.requests.frame
            if place == "requests":
                where = where.select(spec.request, POSITION, PORTION)  # it has the rest itself
            for batch in self.raw.batches(place, self.raw.columns(place)):
                if place == "log":
                    batch.refuse_nulls(spec.item)
                    on_rows(len(batch.rows))
                spool.append(batch.rows.join(where, on=spec.request), PORTION)
            spool.finish()

    def close(self) -> None:
        """Remove what is on disk."""
        for spool in self._spools.values():
            spool.close()

    def rows(self, number: int, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """The rows of a portion by request: the keys and these columns, or all but lists of other tables."""
        spec = self.raw.spec
        wanted = {spec.request, spec.item, *(self.raw.places if columns is None else columns)}
        if spec.user is not None:
            wanted.add(spec.user)
        stored = [*self.raw.columns("log"), *self.requests.frame.columns]
        rows = self._spools["log"].read(number, [POSITION, *(name for name in dict.fromkeys(stored) if name in wanted)])
        assert rows is not None  # portions were made of requests that have rows
        if not rows[POSITION].is_sorted():
            rows = rows.sort(POSITION)
        rows = self.with_tables(rows, wanted)
        if added := [name for name in self._missing(rows, "requests", wanted) if name not in self._lists]:
            rows = rows.join(self._requests(number, added), on=POSITION, how="left", maintain_order="left")
        return rows

    def with_tables(self, rows: pl.DataFrame, wanted: set[str]) -> pl.DataFrame:
        """Those of the wanted columns added that tables of items and users have."""
        for place, table in self._tables.items():
            if added := self._missing(rows, place, wanted):
                rows = self._join(rows, table.select(self.raw.key(place), *added), place)
        return rows

    def first_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """One row for each request of a portion; what belongs to the request must be the same in all its rows."""
        starts = rows[POSITION].rle_id()
        first = rows[POSITION].is_first_distinct()
        requests = rows.filter(first)
        for column in self._of_request.intersection(self.raw.columns("log")).intersection(rows.columns):
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

    def _join(self, rows: pl.DataFrame, table: pl.DataFrame, place: Place) -> pl.DataFrame:
        key = self.raw.key(place)
        asked = rows.select(key).unique().drop_nulls()
        # of a table of millions only what is asked for is worth being hashed
        found = table.join(asked, on=key, how="semi")
        self.unknown[place].add(asked.join(found, on=key, how="anti"))
        return rows.join(found, on=key, how="left", maintain_order="left")

    def _requests(self, number: int, columns: list[str]) -> pl.DataFrame:
        found = self._spools["requests"].read(number, [POSITION, *columns])
        if found is None:
            types = {name: self.raw.types["requests", name] for name in columns}
            return pl.DataFrame(schema={POSITION: self.requests.frame[POSITION].dtype, **types})
        return found
