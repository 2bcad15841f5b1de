"""Check a raw log: read everything, write nothing, and list every problem with its number and its first places.

The steps, each in memory that does not grow with the number of rows:

1. files and columns: files that cannot be read, missing columns, columns of a wrong type; what depends on them is left
   out of the following steps
2. the tables of items, users and requests
3. rows, each by itself (:mod:`row_checks`); the keys of good rows are spooled to a temporary directory
4. requests: rows that contradict each other; requests are read in portions that are chosen by their hash

A problem of a row is solved by dropping the row. If rows of a request contradict each other, none of them is known to
be right, so the whole request is dropped; only rows that are equal in every column are reduced to the first of them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import pyarrow as pa

from rankfall.data.impressions.encoding import parse_times
from rankfall.data.impressions.requests import DAY, TIME, BadRows, with_days
from rankfall.data.sources.problems import DataCheck, Findings, Kind, Place
from rankfall.data.sources.rows.portions import write_spool
from rankfall.data.sources.rows.raw_log import RawLog, column_uses, time_units
from rankfall.data.sources.rows.row_checks import check_rows, check_sequences
from rankfall.data.sources.rows.row_files import ROW, convert, is_lost
from rankfall.storage.files import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import Dropped, Unit
    from rankfall.data.sources.rows.portions import RowSpool
    from rankfall.data.sources.rows.raw_log import OnProblem, Origin, Tables
    from rankfall.data.sources.rows.row_files import InvalidRow, RowFile

_FILE, _PORTION, _CONTENT, _DEPTH = "\1file", "\1portion", "\1content", "\1depth"
_BAD = "\1bad"
_JOINED: tuple[Origin, ...] = ("requests", "items", "users")  # the table of requests may have the users
_PORTION_BYTES = 2**26  # of files, for each portion of requests
_SEED = 20_240_113  # of hashes, equal in all processes


def check_log(
    sources: Sequence[Path | RowFile],
    spec: Spec,
    tables: Tables,
    *,
    limit: int,
    engine: Engine,
    on_step: Callable[[str, int | None], Report],
    inside: Path | None = None,
) -> tuple[DataCheck, Findings]:
    """Check a raw log.

    Args:
        sources: Files or directories with the rows of the log.
        spec: The description of the log.
        tables: The files of the tables that are joined.
        limit: The number of bad rows that are remembered for dropping.
        engine: Runs the work on files and portions.
        on_step: Returns the function that receives the progress of a step, from its name and its total.
        inside: The directory of the temporary directory, which all processes of `engine` can read; by default that of
            the system.

    Returns:
        The problems, and the findings with the rows to be dropped.
    """
    found = Findings(limit)
    raw = RawLog.open(spec, sources, tables, on_step("reading types of text files", None), engine, _collector(found))
    if not raw.types or spec.item not in raw.origins or not raw.files["log"]:
        return DataCheck(0, found.problems()), found  # rows cannot be told apart
    raw = _without_units(raw, found)
    found.order = {str(file): number for number, file in enumerate(raw.files["log"])}
    joined: dict[Origin, pl.DataFrame] = {}
    for origin in raw.files:
        if origin != "log":
            joined[origin] = _check_table(raw, origin, found)
    with scratch_directory("rankfall-check", inside) as directory:
        of_rows = _RowCheck(raw, joined, directory, _portions(raw), limit)
        rows = 0
        spools: list[RowSpool] = []
        with closing(engine.map(of_rows.files, raw.parts("log"), on_step("checking rows", None))) as results:
            for result in results:
                found.merge(result.findings)
                rows += result.rows
                spools += result.spools
        of_requests = _RequestCheck(raw, spools, limit)
        days: list[pl.DataFrame] = []
        on_rows = on_step("checking requests", rows)
        with closing(engine.map(of_requests.portion, range(of_rows.portions), on_rows)) as found_of:
            for findings, of_portion in found_of:
                found.merge(findings)
                days.append(of_portion)
    if not rows and not found.found:
        paths = [Place(str(file)) for file in raw.files["log"]]
        found.add(Kind("error", None, "found no rows", "files"), len(paths), paths)
    _check_days(raw.spec, pl.concat(days), found)
    return DataCheck(rows, found.problems(), found.bad_rows), found


def _collector(found: Findings) -> OnProblem:
    """Return the function that counts problems of files and columns."""

    def add(column: str | None, message: str, files: Sequence[RowFile]) -> None:
        places = [Place(str(file)) for file in files]
        found.add(Kind("error", column, message, "files" if files else "columns"), max(len(files), 1), places)

    return add


def _without_units(raw: RawLog, found: Findings) -> RawLog:
    """Report columns of times that are whole numbers of an unknown unit, and leave them out."""
    unknown = [
        name
        for name, unit in time_units(raw.spec).items()
        if unit is None and raw.types[raw.origins[name], name] == pl.Int64()
    ]
    for column in unknown:
        found.add(Kind("error", column, "found whole numbers, for which `unit` must be s, ms or us", "columns"), 1, [])
    return raw.without(unknown) if unknown else raw


def _portions(raw: RawLog) -> int:
    size = sum(file.path.stat().st_size for file in raw.files["log"])
    return 1 + size // _PORTION_BYTES


# --- rows -------------------------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Rows of a file with typed columns, their indices in the column `ROW`, and what could not be converted."""

    file: RowFile
    rows: pl.DataFrame
    lost: list[BadRows]


def _batches(raw: RawLog, origin: Origin, columns: Sequence[str], file: RowFile, found: Findings) -> Iterator[_Batch]:
    """Read the rows of a file. What cannot be read or converted is reported instead of raising an error."""

    def on_invalid(row: InvalidRow) -> None:
        found.add(Kind("error", None, row.problem, "rows", "row"), 1, [Place(str(file), row.row + 1, row.found)])
        found.drop(str(file), [row.row])

    seen = 0
    try:
        for frame in file.batches([ROW, *raw.stored_names(columns)], on_invalid):
            seen += len(frame)
            yield _typed(raw, origin, columns, file, frame)
    except ValueError as error:
        problem = f"the file {str(error).removeprefix(f'{file} ')}"
        found.add(Kind("error", None, problem, "files"), 1, [Place(str(file), None, f"after row {seen:,}")])


def _typed(raw: RawLog, origin: Origin, columns: Sequence[str], file: RowFile, frame: pl.DataFrame) -> _Batch:
    typed, lost, units = [frame[ROW]], [], time_units(raw.spec)
    for name in columns:
        values = frame[raw.stored.get(name, name)].alias(name)
        changed, expected = convert(values, raw.types[origin, name], raw.spec.zone, units.get(name))
        typed.append(changed.alias(name))
        if (mask := is_lost(values, changed)).any():
            lost.append(BadRows(name, f"found other values, expected {expected}", mask, values))
    return _Batch(file, pl.DataFrame(typed), lost)


def _report(batch: _Batch, problems: Iterable[BadRows], found: Findings, raw: RawLog | None = None) -> pl.Series:
    """Count the problems of rows; return which rows have an error.

    Args:
        batch: The rows.
        problems: Their problems.
        found: Receives the problems.
        raw: The log, if columns of tables were joined to the rows; the places of their problems are in the tables.
    """
    nowhere = pl.Series([False]).new_from_index(0, len(batch.rows))
    bad, reported = nowhere, dict[str, pl.Series]()
    for problem in problems:
        # a value that could not be converted is missing for the other checks, but is one problem only
        mask = problem.mask & ~reported.get(problem.column, nowhere)
        if not mask.any():
            continue
        is_error = problem.level == "error"
        origin = "log" if raw is None else raw.origins.get(problem.column, "log")
        places = [
            _place(batch, position, problem)
            if raw is None or origin == "log" or not raw.files[origin]  # a table without its key is not joined
            else _place_in_table(raw, origin, batch, position, problem)
            for position in mask.arg_true()[:3]
        ]
        kind = Kind(problem.level, problem.column, problem.problem, "rows", "row" if is_error else None)
        found.add(kind, int(mask.sum()), places)
        if is_error:
            reported[problem.column] = reported.get(problem.column, nowhere) | mask
            bad = bad | mask
    found.drop(str(batch.file), batch.rows[ROW].filter(bad))
    return bad


def _place(batch: _Batch, position: int, problem: BadRows) -> Place:
    found = None if problem.values is None else _shown(problem.values[position])
    return Place(str(batch.file), batch.rows[ROW][position] + 1, found)


def _place_in_table(raw: RawLog, origin: Origin, batch: _Batch, position: int, problem: BadRows) -> Place:
    """Return the place of a value that a table has, or lacks, for a row of the log."""
    key, is_there = raw.key(origin), batch.rows[f"{_BAD}{origin}"][position] is not None
    found = "nothing" if problem.values is None else _shown(problem.values[position])
    return Place(
        str(raw.files[origin][0]),
        None,
        f"{key} {batch.rows[key][position]!r}: {found if is_there else 'not in the table'}",
    )


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value.to_list() if isinstance(value, pl.Series) else value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- tables -----------------------------------------------------------------------------------------------------


def _check_table(raw: RawLog, origin: Origin, found: Findings) -> pl.DataFrame:
    """Check a table; return its columns, without lists, and in `_BAD` which of its rows have an error."""
    key, columns, files = raw.key(origin), raw.columns(origin), raw.files[origin]
    lists = [use.column for use in column_uses(raw.spec) if use.role == "sequence"]
    kept = [name for name in columns if name not in lists]
    schema = {name: raw.types[origin, name] for name in kept}
    parts = [pl.DataFrame(schema={ROW: pl.Int64, **schema, _BAD: pl.Boolean, _FILE: pl.Int32})]
    for number, file in enumerate(files):
        for batch in _batches(raw, origin, columns, file, found):
            missing = BadRows(key, "found no value, expected an id", batch.rows[key].is_null())
            bad = _report(batch, [*batch.lost, missing, *check_sequences(batch.rows, raw.spec)], found)
            rows = batch.rows.select(ROW, *kept)
            parts.append(rows.with_columns(bad.alias(_BAD), pl.lit(number, pl.Int32).alias(_FILE)))
    table = pl.concat(parts).drop_nulls(key)
    again = table.filter(pl.col(key).is_duplicated())
    if len(again):
        first = again.select(_FILE, ROW, key).head(3).rows()
        places = [Place(str(files[number]), row + 1, _shown(value)) for number, row, value in first]
        found.add(Kind("error", key, "found an id twice in the table", "rows", "row"), len(again), places)
        _drop(again, files, found)
        table = table.with_columns(pl.col(_BAD) | pl.col(key).is_duplicated())
    return table.drop(ROW, _FILE).unique(key)


def _drop(rows: pl.DataFrame, files: Sequence[RowFile], found: Findings) -> None:
    for (number,), some in rows.group_by(_FILE):
        found.drop(str(files[int(str(number))]), some[ROW])


# --- the log ----------------------------------------------------------------------------------------------------


class _PartResult(NamedTuple):
    findings: Findings
    rows: int
    spools: list[RowSpool]


@dataclass(frozen=True)
class _RowCheck:
    """Checks rows by themselves, in any process."""

    raw: RawLog
    tables: Mapping[Origin, pl.DataFrame]
    directory: Path
    portions: int
    limit: int

    def files(self, part: Sequence[RowFile], report: Report) -> _PartResult:
        """Check the rows of some files and spool the keys of good ones."""
        found = Findings(self.limit)
        rows = 0

        def good() -> Iterator[pl.DataFrame]:
            nonlocal rows
            for file in part:
                for batch in _batches(self.raw, "log", self.raw.columns("log"), file, found):
                    rows += len(batch.rows)
                    yield self._check(batch, found)
                    report(len(batch.rows))

        spool = write_spool(self.directory, good(), _PORTION)
        return _PartResult(found, rows, [spool] if len(spool.pieces) else [])

    def _check(self, batch: _Batch, found: Findings) -> pl.DataFrame:
        """Report the problems of rows; return the keys of the others."""
        raw, spec = self.raw, self.raw.spec
        rows = batch.rows
        problems = list(batch.lost)
        for origin in sorted(self.tables, key=_JOINED.index):
            table, key = self.tables[origin], raw.key(origin)
            rows = rows.join(table.rename({_BAD: f"{_BAD}{origin}"}), on=key, how="left", maintain_order="left")
            problem = f"found an id whose row in the table of {origin} is wrong"
            problems.append(BadRows(key, problem, rows[f"{_BAD}{origin}"].fill_null(False), rows[key]))
        if spec.time is not None and spec.time.column in rows.columns:
            times = parse_times(rows[spec.time.column], spec.time.unit, spec.zone).dt.epoch("ms")
            rows = rows.with_columns(times.alias(TIME))
        bad = _report(batch._replace(rows=rows), [*problems, *check_rows(rows, spec)], found, raw)
        file = next(number for number, one in enumerate(raw.files["log"]) if one.path == batch.file.path)
        return self._keys(rows, file).filter(~bad)

    def _keys(self, rows: pl.DataFrame, file: int) -> pl.DataFrame:
        """Return what the check of requests needs: keys, and hashes of the columns that a request has in common."""
        raw, spec = self.raw, self.raw.spec
        columns = {
            _FILE: pl.lit(file, pl.Int32),
            TIME: pl.col(TIME) if TIME in rows.columns else pl.lit(0, pl.Int64),
            _CONTENT: pl.struct(_hashed(raw, rows, name) for name in raw.columns("log")).hash(_SEED),
            _PORTION: (pl.col(spec.request).hash(_SEED) % self.portions).cast(pl.Int32),
            _DEPTH: pl.col(spec.stage).hash(_SEED) if spec.stage in rows.columns else pl.lit(0, pl.UInt64),
        }
        if spec.day is not None and spec.day in rows.columns:
            columns[DAY] = pl.col(spec.day).cast(pl.String)
        shared = {f"\1{name}": _hashed(raw, rows, name) for name in _shared(raw)}
        rank = [spec.rank] if spec.rank in rows.columns else []
        return rows.select(*dict.fromkeys([spec.request, spec.item, ROW, *rank]), **columns, **shared)


def _hashed(raw: RawLog, rows: pl.DataFrame, name: str) -> pl.Expr:
    value = pl.col(name).fill_nan(None) if rows[name].dtype.is_float() else pl.col(name)
    return value.hash(_SEED).alias(name)


def _shared(raw: RawLog) -> list[str]:
    """Return the columns of the log, beside times and days, that all rows of a request have in common."""
    keys = {raw.spec.request, raw.spec.day, raw.spec.time.column if raw.spec.time else None}
    of_request = [use.column for use in column_uses(raw.spec) if "requests" in use.origins]
    return [name for name in dict.fromkeys(of_request) if raw.origins[name] == "log" and name not in keys]


# --- requests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RequestCheck:
    """Checks the rows of requests against each other, one portion of requests at a time."""

    raw: RawLog
    spools: Sequence[RowSpool]
    limit: int

    def portion(self, number: int, report: Report) -> tuple[Findings, pl.DataFrame]:
        """Return the findings of a portion, and the first and last time of each of its days."""
        found = Findings(self.limit)
        pieces = [piece for spool in self.spools for piece in spool.read(number, spool.columns)]
        empty = pl.DataFrame(schema={DAY: pl.String, "first": pl.Int64, "last": pl.Int64})
        if not pieces:
            return found, empty
        rows = pl.from_arrow(pa.Table.from_batches(pieces))
        assert isinstance(rows, pl.DataFrame)
        report(len(rows))
        rows = self._without_repeated(rows.sort(_FILE, ROW), found)
        bad = self._several_values(rows, found) | self._repeated_items(rows, found)
        dropped = rows.filter(bad)
        found.requests += dropped[self.raw.spec.request].n_unique()
        _drop(dropped, self.raw.files["log"], found)
        rows = rows.filter(~bad)
        self._repeated_ranks(rows, found)
        days = with_days(rows, self.raw.spec) if self.raw.spec.day is None else rows
        if DAY not in days.columns:
            return found, empty
        days = days.group_by(DAY).agg(pl.min(TIME).alias("first"), pl.max(TIME).alias("last"))
        return found, days.select(empty.columns)

    def _without_repeated(self, rows: pl.DataFrame, found: Findings) -> pl.DataFrame:
        """Leave out rows that repeat an earlier one in every column."""
        first = _is_first(rows, self.raw.spec.request, self.raw.spec.item, _CONTENT)
        again = rows.filter(~first)
        self._add(found, self.raw.spec.item, "found a row again, with the same values in every column", again, "row")
        _drop(again, self.raw.files["log"], found)
        return rows.filter(first)

    def _several_values(self, rows: pl.DataFrame, found: Findings) -> pl.Series:
        """Return the rows of requests with several times, days, users or values of the context."""
        spec = self.raw.spec
        columns = {f"\1{name}": name for name in _shared(self.raw)}
        if DAY in rows.columns:
            columns |= {DAY: spec.day or ""}
        if spec.time is not None:
            columns |= {TIME: spec.time.column}
            if spec.day is None:
                rows = with_days(rows, spec)
                columns |= {DAY: spec.time.column}
        bad = pl.Series([False]).new_from_index(0, len(rows))
        for column, name in columns.items():
            first = pl.col(column).first().over(spec.request)
            differs = rows.select(pl.col(column).ne_missing(first)).to_series()
            if not differs.any():
                continue
            of_request = _same_request(rows[spec.request], differs)
            problem = f"found more than one {'day' if column == DAY else 'value'} in the rows of a request"
            self._add(found, name, problem, rows.filter(differs), "request")
            bad = bad | of_request
        return bad

    def _repeated_items(self, rows: pl.DataFrame, found: Findings) -> pl.Series:
        """Return the rows of requests that have an item twice, with different values."""
        spec = self.raw.spec
        again = ~_is_first(rows, spec.request, spec.item)
        self._add(
            found, spec.item, "found an item twice in a request, with different values", rows.filter(again), "request"
        )
        return _same_request(rows[spec.request], again)

    def _repeated_ranks(self, rows: pl.DataFrame, found: Findings) -> None:
        spec = self.raw.spec
        if spec.rank is None or spec.rank not in rows.columns:
            return
        ranked = rows.filter(pl.col(spec.rank) >= 0)
        again = ranked.filter(~_is_first(ranked, spec.request, _DEPTH, spec.rank))
        if len(again):
            problem = "found a rank twice in a stage of a request; such items count as equal"
            places = [self._place(row, str(row[spec.rank])) for row in again.head(3).iter_rows(named=True)]
            found.add(Kind("warning", spec.rank, problem, "rows"), len(again), places)

    def _add(self, found: Findings, column: str, problem: str, rows: pl.DataFrame, dropped: Dropped) -> None:
        """Report rows, or the requests of rows."""
        if dropped == "request":
            rows = rows.unique(self.raw.spec.request, keep="first", maintain_order=True)
        if len(rows):
            unit: Unit = "requests" if dropped == "request" else "rows"
            places = [self._place(row) for row in rows.head(3).iter_rows(named=True)]
            found.add(Kind("error", column, problem, unit, dropped), len(rows), places)

    def _place(self, row: Mapping[str, object], value: str | None = None) -> Place:
        file = self.raw.files["log"][int(str(row[_FILE]))]
        return Place(str(file), int(str(row[ROW])) + 1, value, str(row[self.raw.spec.request]))


def _is_first(rows: pl.DataFrame, *columns: str) -> pl.Series:
    """Return which rows are the first with their values in these columns."""
    return rows.select(pl.struct(columns).is_first_distinct()).to_series()


def _same_request(requests: pl.Series, mask: pl.Series) -> pl.Series:
    """Return the rows of all requests of which a row is chosen."""
    return requests.is_in(requests.filter(mask).unique().implode())


# --- days -------------------------------------------------------------------------------------------------------


def _check_days(spec: Spec, days: pl.DataFrame, found: Findings) -> None:
    """Report days that begin before an earlier one ends, if histories are built day by day."""
    if spec.day is None or spec.time is None or not any(one.feedback for one in spec.sequences.values()):
        return
    days = days.group_by(DAY).agg(pl.min("first"), pl.max("last")).sort("first", DAY)
    early = days.filter(pl.col("first") < pl.col("last").shift())
    if len(early):
        problem = "found days that begin before an earlier one ends; sequences of feedback need days without overlap"
        places = [Place(f"day {name}") for name in early[DAY].head(3)]
        found.add(Kind("error", spec.day, problem, "days"), len(early), places)
