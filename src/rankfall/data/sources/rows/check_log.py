"""Check a raw log: read everything, write nothing, and list every problem with its number and its first places.

The steps, each in memory that does not grow with the number of rows:

1. files and columns: files that cannot be read, missing columns, columns of a wrong type; what depends on them is left
   out of the following steps
2. the tables of items, users and requests
3. rows, each by itself (:func:`check_rows`); the keys of good rows are spooled to a temporary directory
4. requests: rows that contradict each other; requests are read in portions that are chosen by their hash

A problem of a row is solved by dropping the row. If rows of a request contradict each other, none of them is known to
be right, so the whole request is dropped; only rows that are equal in every column are reduced to the first of them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from rankfall.data.impressions.encoding import parse_times
from rankfall.data.impressions.log_writer import DAY_NAME
from rankfall.data.impressions.requests import (
    DAY,
    TIME,
    BadRows,
    bad_inclusions,
    bad_labels,
    bad_places,
    bad_stages,
    with_days,
)
from rankfall.data.impressions.spec import Categorical, Dense, column_of
from rankfall.data.sources.problems import USE_MISSING, DataCheck, Findings, Kind, Place
from rankfall.data.sources.rows.portions import write_spool
from rankfall.data.sources.rows.raw_log import RawLog, column_uses, time_units
from rankfall.data.sources.rows.row_files import ROW
from rankfall.storage.files import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import FeatureConfig, Spec
    from rankfall.data.sources.problems import Dropped, Unit
    from rankfall.data.sources.rows.portions import RowSpool
    from rankfall.data.sources.rows.raw_log import Origin, RowBatch
    from rankfall.data.sources.rows.row_files import InvalidRow, RowFile

_FILE, _PORTION, _CONTENT, _DEPTH, _BOTH = "\1file", "\1portion", "\1content", "\1depth", "\1both"
_BAD = "\1bad"
_JOINED: tuple[Origin, ...] = ("requests", "items", "users")  # the table of requests may have the users
_PORTION_BYTES = 2**26  # of files, for each portion of requests
_FIRST_YEAR, _LAST_YEAR = 631_152_000_000, 4_102_444_800_000  # 1990 and 2100; other years may be due to a wrong unit
_SEED = 20_240_113  # of hashes, equal in all processes


def check_log(
    files: Mapping[Origin, list[RowFile]],
    spec: Spec,
    *,
    limit: int,
    engine: Engine,
    on_step: Callable[[str, int | None], Report],
    inside: Path | None = None,
) -> tuple[DataCheck, Findings]:
    """Check a raw log.

    Args:
        files: The files of the log and of the tables that are joined.
        spec: The spec of the log.
        limit: The number of bad rows that are remembered for dropping.
        engine: Runs the work on files and portions.
        on_step: Returns the function that receives the progress of a step, from its name and its total.
        inside: The directory of the temporary directory, which all processes of `engine` can read; by default that of
            the system.

    Returns:
        The problems, and the findings with the rows to be dropped.
    """
    found = Findings(limit)

    def add(column: str | None, message: str, files: Sequence[RowFile]) -> None:
        places = [Place(str(file)) for file in files]
        found.add(Kind("error", column, message, "files" if files else "columns"), max(len(files), 1), places)

    raw = RawLog.open(spec, files, on_step("reading types of text files", None), engine, add)
    if not raw.types or spec.item not in raw.origins or not raw.files["log"]:
        return DataCheck(0, found.problems()), found  # rows cannot be told apart
    unknown = [
        name
        for name, unit in time_units(raw.spec).items()
        if unit is None and name in raw.origins and raw.types[raw.origins[name], name] == pl.Int64()
    ]
    for column in unknown:
        add(column, "found whole numbers, for which `unit` must be s, ms or us", [])
    raw = raw.without(unknown)
    found.order = {str(file): number for number, file in enumerate(raw.files["log"])}
    tables_of: list[Origin] = [origin for origin in raw.files if origin != "log"]
    joined = {origin: _check_table(raw, origin, found) for origin in tables_of}
    portions = 1 + sum(file.path.stat().st_size for file in raw.files["log"]) // _PORTION_BYTES
    with scratch_directory("rankfall-check", inside) as directory:
        of_rows = _RowCheck(raw, joined, directory, portions, limit)
        rows = 0
        spools: list[RowSpool] = []
        with closing(engine.map(of_rows.files, raw.parts("log"), on_step("checking rows", None))) as results:
            for findings, count, spool in results:
                found.merge(findings)
                rows += count
                spools.append(spool)
        of_requests = _RequestCheck(raw, spools, limit)
        days: list[pl.DataFrame] = []
        on_rows = on_step("checking requests", rows)
        with closing(engine.map(of_requests.portion, range(portions), on_rows)) as found_of:
            for findings, of_portion in found_of:
                found.merge(findings)
                days.append(of_portion)
    if not rows and not found.found:
        add(None, "found no rows", raw.files["log"])
    # histories are built day by day
    if spec.day is not None and spec.time is not None and any(one.feedback for one in spec.sequences.values()):
        spans = pl.concat(days).group_by(DAY).agg(pl.min("first"), pl.max("last")).sort("first", DAY)
        early = spans.filter(pl.col("first") < pl.col("last").shift())
        if len(early):
            problem = (
                "found days that begin before an earlier one ends; sequences of feedback need days without overlap"
            )
            places = [Place(f"day {name}") for name in early[DAY].head(3)]
            found.add(Kind("error", spec.day, problem, "days"), len(early), places)
    return DataCheck(rows, found.problems(), found.bad_rows), found


# --- rows -------------------------------------------------------------------------------------------------------


def _batches(raw: RawLog, origin: Origin, file: RowFile, found: Findings) -> Iterator[RowBatch]:
    """Read the rows of a file. What cannot be read is reported instead of raising an error."""

    def on_invalid(row: InvalidRow) -> None:
        found.add(Kind("error", None, row.problem, "rows", "row"), 1, [Place(str(file), row.row + 1, row.found)])
        found.drop(str(file), [row.row])

    seen = 0
    try:
        for batch in raw.batches(origin, raw.columns(origin), [file], on_invalid):
            seen += len(batch.rows)
            yield batch
    except ValueError as error:
        problem = f"the file {str(error).removeprefix(str(file)).lstrip(': ')}"
        found.add(Kind("error", None, problem, "files"), 1, [Place(str(file), None, f"after row {seen:,}")])


def _report(batch: RowBatch, problems: Iterable[BadRows], found: Findings, raw: RawLog | None = None) -> pl.Series:
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
    found.drop(str(batch.file), batch.numbers.filter(bad))
    return bad


def _place(batch: RowBatch, position: int, problem: BadRows) -> Place:
    found = None if problem.values is None else _shown(problem.values[position])
    return Place(str(batch.file), batch.numbers[position] + 1, found)


def _place_in_table(raw: RawLog, origin: Origin, batch: RowBatch, position: int, problem: BadRows) -> Place:
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
    key, files = raw.key(origin), raw.files[origin]
    lists = [use.column for use in column_uses(raw.spec) if use.role == "sequence"]
    kept = [name for name in raw.columns(origin) if name not in lists]
    schema = {name: raw.types[origin, name] for name in kept}
    parts = [pl.DataFrame(schema={ROW: pl.Int64, **schema, _BAD: pl.Boolean, _FILE: pl.Int32})]
    for number, file in enumerate(files):
        for batch in _batches(raw, origin, file, found):
            missing = BadRows(key, "found no value, expected an id", batch.rows[key].is_null())
            bad = _report(batch, [*batch.lost, missing, *check_sequences(batch.rows, raw.spec)], found)
            rows = batch.rows.select(batch.numbers, *kept)
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


@dataclass(frozen=True)
class _RowCheck:
    """Checks rows by themselves, in any process."""

    raw: RawLog
    tables: Mapping[Origin, pl.DataFrame]
    directory: Path
    portions: int
    limit: int

    def files(self, part: Sequence[RowFile], report: Report) -> tuple[Findings, int, RowSpool]:
        """Check the rows of some files and spool the keys of good ones."""
        found = Findings(self.limit)
        rows = 0

        def good() -> Iterator[pl.DataFrame]:
            nonlocal rows
            for file in part:
                for batch in _batches(self.raw, "log", file, found):
                    rows += len(batch.rows)
                    yield self._check(batch, found)
                    report(len(batch.rows))

        spool = write_spool(self.directory, good(), _PORTION)
        return found, rows, spool

    def _check(self, batch: RowBatch, found: Findings) -> pl.DataFrame:
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
        # the check of requests needs keys, and the columns that a request has in common: hashes, and texts to be shown
        columns = {
            _FILE: pl.lit(file, pl.Int32),
            TIME: pl.col(TIME) if TIME in rows.columns else pl.lit(0, pl.Int64),
            _CONTENT: pl.struct(_hashed(rows, name) for name in raw.columns("log")).hash(_SEED),
            _PORTION: (pl.col(spec.request).hash(_SEED) % self.portions).cast(pl.Int32),
            _DEPTH: pl.col(spec.stage).hash(_SEED) if spec.stage in rows.columns else pl.lit(0, pl.UInt64),
        }
        if spec.day is not None and spec.day in rows.columns:
            columns[DAY] = pl.col(spec.day).cast(pl.String)
        shared = {f"\1{name}": _hashed(rows, name) for name in _shared(raw)}
        shared |= {f"\2{name}": _text(rows, name) for name in _shared(raw)}
        rank = [spec.rank] if spec.rank in rows.columns else []
        keys = rows.select(batch.numbers, *dict.fromkeys([spec.request, spec.item, *rank]), **columns, **shared)
        return keys.filter(~bad)


def _hashed(rows: pl.DataFrame, name: str) -> pl.Expr:
    value = pl.col(name).fill_nan(None) if rows[name].dtype.is_float() else pl.col(name)
    return value.hash(_SEED).alias(name)


def _text(rows: pl.DataFrame, name: str) -> pl.Expr:
    is_list = isinstance(rows[name].dtype, pl.List)
    value = pl.col(name).cast(pl.List(pl.String)).list.join(", ") if is_list else pl.col(name).cast(pl.String)
    return value.str.head(60)


def _shared(raw: RawLog) -> list[str]:
    """Return the columns of the log, beside times and days, that all rows of a request have in common."""
    keys = {raw.spec.request, raw.spec.day, raw.spec.time.column if raw.spec.time else None}
    of_request = [use.column for use in column_uses(raw.spec) if "requests" in use.origins]
    return [name for name in dict.fromkeys(of_request) if raw.origins.get(name) == "log" and name not in keys]


# --- rows by themselves -----------------------------------------------------------------------------------------


def check_rows(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    """Yield what is wrong in rows of a log, to which the columns of the tables are joined.

    The conditions are those under which the preparation stops, or reads a value as another one.

    Args:
        rows: The rows with typed columns, null in place of what could not be converted, and `TIME` if there are times.
        spec: The spec; columns that it names and the rows have not are not checked.
    """
    yield from _keys(rows, spec)
    yield from bad_stages(rows, spec)
    yield from bad_places(rows, (spec.rank, spec.position))
    yield from bad_inclusions(rows, spec)
    labels = [column for column in (spec.relevant.column, *spec.feedback, spec.truth) if column in rows.columns]
    yield from bad_labels(rows, labels)
    for column in dict.fromkeys(filter(None, labels)):
        missing = rows[column].cast(pl.Float64).is_nan().fill_null(False)
        yield BadRows(column, "found NaN, which is read as 0", missing, rows[column], "warning")
    if (relevant := spec.relevant.column) is not None and relevant in rows.columns:
        values = rows[relevant]
        yield BadRows(relevant, "found no value, which is read as 0", values.is_null(), None, "warning")
        negative = (values < 0).fill_null(False)
        yield BadRows(relevant, "found a negative relevance, which is read as 0", negative, values, "warning")
    yield from _features(rows, spec)
    yield from check_sequences(rows, spec)


def _keys(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    for column in (spec.request, spec.item):
        yield BadRows(column, "found no value, expected an id", rows[column].is_null())
    if spec.day is not None and spec.day in rows.columns:
        days = rows[spec.day].cast(pl.String)
        yield BadRows(spec.day, "found no value, expected the name of a day", days.is_null())
        named = days.str.contains(f"^(?:{DAY_NAME.pattern})$").fill_null(True)
        yield BadRows(spec.day, "found another name, expected letters, digits, '_' and '-'", ~named, days)
    if spec.time is not None and TIME in rows.columns:
        yield BadRows(spec.time.column, "found no value, expected a time", rows[TIME].is_null())
        far = (rows[TIME] < _FIRST_YEAR) | (rows[TIME] >= _LAST_YEAR)
        problem = "found years before 1990 or after 2099; is the unit right"
        shown = pl.from_epoch(rows[TIME], "ms").dt.strftime("%Y-%m-%d %H:%M")
        yield BadRows(spec.time.column, problem, far.fill_null(False), shown, "warning")
    if spec.user is not None and spec.user in rows.columns:
        yield BadRows(
            spec.user, "found no user; such requests have no history", rows[spec.user].is_null(), None, "warning"
        )


def _features(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    for _, name, feature in spec.features:
        column = column_of(spec, name, feature)
        if column not in rows.columns:
            continue
        values = rows[column]
        if isinstance(feature, Categorical):
            yield from _negative(values, values, feature)
        elif isinstance(feature, Dense):
            yield from _numbers(values, feature)


def _numbers(values: pl.Series, feature: Dense) -> Iterator[BadRows]:
    if feature.size > 1:
        wrong = (values.list.len() != feature.size).fill_null(False)
        yield BadRows(values.name, f"wrong number of values, expected lists of {feature.size}", wrong, values)
        finite = values.list.eval(pl.element().is_finite().fill_null(False)).list.all()
        missing = ~finite.fill_null(False) & ~wrong
    else:
        missing = ~values.cast(pl.Float64).is_finite().fill_null(False)
    if feature.missing is None:
        problem = f"found no number, NaN or infinity, expected numbers, or {USE_MISSING} in the spec"
        yield BadRows(values.name, problem, missing, values)


def _negative(values: pl.Series, used: pl.Series, feature: FeatureConfig) -> Iterator[BadRows]:
    """Yield the rows with a negative number among those that are used, which may be lists."""
    if isinstance(feature, Categorical) and feature.num_buckets is not None:
        problem = f"found a negative number, expected whole numbers from 0 to {feature.num_buckets - 1}"
        least = used.list.min() if isinstance(used.dtype, pl.List) else used.cast(pl.Int64)
        yield BadRows(values.name, problem, (least < 0).fill_null(False), values)


def check_sequences(rows: pl.DataFrame, spec: Spec) -> Iterator[BadRows]:
    """Yield the rows whose sequences are wrong, as far as the rows have their columns."""
    for name, sequence in spec.sequences.items():
        lengths: dict[str, pl.Series] = {}
        for feature_name, column in (sequence.columns or {}).items():
            if column not in rows.columns:
                continue
            lists = rows[column].list.tail(sequence.max_length)
            lengths[column] = lists.list.len().fill_null(0)
            yield from _negative(rows[column], lists, spec.features.item[feature_name])
        for column, length in list(lengths.items())[1:]:
            first = next(iter(lengths))
            problem = f"not as many events as {first!r} has (sequences.{name})"
            yield BadRows(column, problem, length != lengths[first], length)


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
        rows = pl.DataFrame(pa.Table.from_batches(pieces))
        report(len(rows))
        spec = self.raw.spec
        rows = rows.sort(_FILE, ROW)
        first = _is_first(rows, spec.request, spec.item, _CONTENT)  # of rows that are equal in every column
        again = rows.filter(~first)
        self._add(found, spec.item, "duplicate row, equal in every column", again, "row")
        _drop(again, self.raw.files["log"], found)
        rows = rows.filter(first)
        again_in_request = ~_is_first(rows, spec.request, spec.item)
        bad = self._several_values(rows, found) | _same_request(rows[spec.request], again_in_request)
        problem = "found an item twice in a request, with different values"
        self._add(found, spec.item, problem, rows.filter(again_in_request), "request", spec.item)
        dropped = rows.filter(bad)
        found.requests += dropped[spec.request].n_unique()
        _drop(dropped, self.raw.files["log"], found)
        rows = rows.filter(~bad)
        if spec.rank is not None and spec.rank in rows.columns:
            ranked = rows.filter(pl.col(spec.rank) >= 0)
            again = ranked.filter(~_is_first(ranked, spec.request, _DEPTH, spec.rank))
            problem = "found a rank twice in a stage of a request; such items count as equal"
            self._add(found, spec.rank, problem, again, None, spec.rank)
        days = with_days(rows, spec) if spec.day is None else rows
        if DAY not in days.columns:
            return found, empty
        days = days.group_by(DAY).agg(pl.min(TIME).alias("first"), pl.max(TIME).alias("last"))
        return found, days.select(empty.columns)

    def _several_values(self, rows: pl.DataFrame, found: Findings) -> pl.Series:
        """Return the rows of requests with several times, days, users or values of the context."""
        spec = self.raw.spec
        columns = {f"\1{name}": (name, pl.col(f"\2{name}")) for name in _shared(self.raw)}  # and their texts
        if DAY in rows.columns:
            columns |= {DAY: (spec.day or "", pl.col(DAY))}
        if spec.time is not None:
            times = pl.from_epoch(TIME, "ms").dt.replace_time_zone("UTC").dt.convert_time_zone(spec.zone)
            columns |= {TIME: (spec.time.column, times.dt.strftime("%Y-%m-%d %H:%M:%S%.f%:z"))}
            if spec.day is None:
                rows = with_days(rows, spec)
                columns |= {DAY: (spec.time.column, pl.col(DAY))}
        bad = pl.Series([False]).new_from_index(0, len(rows))
        for column, (name, value) in columns.items():
            first = pl.col(column).first().over(spec.request)
            differs = rows.select(pl.col(column).ne_missing(first)).to_series()
            if not differs.any():
                continue
            of_request = _same_request(rows[spec.request], differs)
            problem = f"found more than one {'day' if column == DAY else 'value'} in the rows of a request"
            text = value.fill_null("nothing")
            both = pl.format("{} and {}", text.first().over(spec.request), text).alias(_BOTH)
            self._add(found, name, problem, rows.with_columns(both).filter(differs), "request", _BOTH)
            bad = bad | of_request
        return bad

    def _add(
        self,
        found: Findings,
        column: str,
        problem: str,
        rows: pl.DataFrame,
        dropped: Dropped | None,
        shown: str | None = None,
    ) -> None:
        """Report rows, or the requests of rows, with a column to show; nothing is dropped because of a warning."""
        request = self.raw.spec.request
        if dropped == "request":
            rows = rows.unique(request, keep="first", maintain_order=True)
        if not len(rows):
            return
        places = [
            Place(
                str(self.raw.files["log"][row[_FILE]]),
                row[ROW] + 1,
                None if shown is None else str(row[shown]),
                str(row[request]),
            )
            for row in rows.head(3).iter_rows(named=True)
        ]
        unit: Unit = "requests" if dropped == "request" else "rows"
        found.add(Kind("error" if dropped else "warning", column, problem, unit, dropped), len(rows), places)


def _is_first(rows: pl.DataFrame, *columns: str) -> pl.Series:
    """Return which rows are the first with their values in these columns."""
    return rows.select(pl.struct(columns).is_first_distinct()).to_series()


def _same_request(requests: pl.Series, mask: pl.Series) -> pl.Series:
    """Return the rows of all requests of which a row is chosen."""
    return requests.is_in(requests.filter(mask).unique().implode())
