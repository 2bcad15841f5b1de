"""Prepare an impression log from raw rows, in memory that does not grow with the number of rows.

The steps, one module each:

1. :mod:`raw_log` opens the files and decides the origin and type of each column.
2. :mod:`request_order` reads the keys, orders the requests and cuts them into portions.
3. :mod:`portions` spools the rows by portion and joins the tables.
4. :mod:`fit` fits vocabularies, scalings and buckets to the portions of the first days.
5. :mod:`log_sequences` collects the events before each request.
6. :func:`rankfall.data.impressions.assemble.assemble` makes the impressions of a portion.
7. :class:`rankfall.data.impressions.log_writer.LogWriter` writes them.

The output depends on the rows only, not on the files they are read from, their order, the size of portions or the
number of threads. Steps that read rows are functions of some files or of a portion, which an engine maps over them in
this process or in others. Adding statistics, the histories of users and writing are done here, in order.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa

from rankfall._engine import LOCAL
from rankfall._files import fresh_directory
from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.counts import Counts
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.sampler import check_seed
from rankfall.data.impressions.schema import impression_schema
from rankfall.data.sources.problems import TooManyBadError, pointing_to_check
from rankfall.data.sources.rows.check_log import check_log
from rankfall.data.sources.rows.fit import fit_portions
from rankfall.data.sources.rows.incremental_merge import IncrementalMerge, distinct
from rankfall.data.sources.rows.log_sequences import SequenceHistories, event_columns, find_events
from rankfall.data.sources.rows.own_source import rows_of_source, with_absolute_source
from rankfall.data.sources.rows.portions import first_rows, spool_log
from rankfall.data.sources.rows.provenance import provenance, skipped_json
from rankfall.data.sources.rows.raw_log import RawLog
from rankfall.data.sources.rows.request_order import order_requests
from rankfall.data.sources.rows.row_files import RowFile, find_row_files

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import DataCheck, Findings
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.log_sequences import PortionEvents
    from rankfall.data.sources.rows.portions import SpooledLog, UnknownKeys
    from rankfall.data.sources.rows.raw_log import Tables
    from rankfall.data.sources.rows.request_order import Portion

    OnProgress = Callable[[str, int, int | None], None]

PORTION_ROWS = 2**19


def prepare_rows(
    sources: Sequence[Path | RowFile],
    out: Path,
    spec: Spec,
    *,
    items: Path | None = None,
    users: Path | None = None,
    requests: Path | None = None,
    seed: int = 0,
    fit_days: int | None = None,
    force: bool = False,
    skip_bad: int | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
    portion_rows: int = PORTION_ROWS,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, rows, total: None,
) -> ImpressionLog:
    """Prepare an impression log from a log with one row per request and item.

    Args:
        sources: Files (CSV, Parquet, Arrow) or directories of them; none if the description has a `source`.
        out: The directory to write.
        spec: The description of columns, stages and features.
        items: A table with more columns of items.
        users: A table with more columns of users.
        requests: A table with more columns of requests.
        seed: Seed of the sample and of random negatives.
        fit_days: The number of first days that vocabularies, scalings and buckets are fitted to; by default all days
            except the last.
        force: Replace an existing impression log.
        skip_bad: Check the log first and drop its bad rows, at most this many, tables included. A whole request is
            dropped if its rows contradict each other. By default the first bad row is an error.
        about: Entries that are added to the provenance in the manifest.
        portion_rows: The approximate number of rows in memory, in each process of `engine`.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the number of rows or files done, and their total if it is known.

    Raises:
        TooManyBadError: If more rows are bad than `skip_bad` allows, or a problem is not one of rows.
        ValueError: If the rows, the tables or the description contradict each other; the message says where.
    """
    check_seed(seed)
    if portion_rows < 1:
        raise ValueError(f"portion_rows: found {portion_rows}, expected at least 1")
    _check_sources(sources, spec)
    spec = with_absolute_source(spec)
    tables: Tables = {"items": items, "users": users, "requests": requests}
    with (
        fresh_directory(out, is_log, force=force) as directory,
        rows_of_source(spec, _Step("reading the source", None, on_progress), directory) as own,
    ):
        files = find_row_files(sources) if own is None else own.files
        if skip_bad is not None:
            found = _bad_rows(files, spec, tables, skip_bad, engine, on_progress, directory)
            files = [replace(file, skipped=found.skipped(str(file))) for file in files]
            tables = {origin: _without(found, path) for origin, path in tables.items()}
            about = {**about, "skipped": skipped_json(found, skip_bad)}
        with pointing_to_check("log"):
            raw = RawLog.open(spec, files, tables, _Step("reading types of text files", None, on_progress), engine)
            order = order_requests(raw, portion_rows, _Step("ordering requests", None, on_progress), engine)
        fitted = _fit_days(order.days, fit_days)
        spooled = directory / "spool"
        spooled.mkdir()
        with pointing_to_check("log"):
            log = spool_log(raw, order, spooled, _Step("sorting rows", order.rows, on_progress), engine)
            on_rows = _Step("fitting", order.rows, on_progress)
            encoding, table = fit_portions(log, order.portions, fitted, on_rows, engine)
            writer = LogWriter(directory, spec, encoding.features, _schema(raw))
            on_rows = _Step("writing", order.rows, on_progress)
            counts, unknown = _write(_Assembly(log, encoding, table, seed), order.portions, writer, on_rows, engine)
        shutil.rmtree(spooled)
        vocabularies = {name: values.to_arrow() for name, values in encoding.vocabularies.items()}
        on_file = _Step("checksums of files", sum(map(len, raw.files.values())), on_progress)
        made = provenance(
            raw, order, encoding, counts, unknown, seed=seed, fit_days=fitted, on_file=on_file, engine=engine
        )
        if own is not None:
            made["sources"] = [own.about(order.rows)]
        writer.finish(table, vocabularies, {**made, **about})
    return ImpressionLog.load(out)


def check_rows(
    sources: Sequence[Path | RowFile],
    spec: Spec,
    *,
    items: Path | None = None,
    users: Path | None = None,
    requests: Path | None = None,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, rows, total: None,
) -> DataCheck:
    """Check a log with one row per request and item: read everything, and write nothing.

    Args:
        sources: Files (CSV, Parquet, Arrow) or directories of them; none if the description has a `source`.
        spec: The description of columns, stages and features.
        items: A table with more columns of items.
        users: A table with more columns of users.
        requests: A table with more columns of requests.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the number of rows done, and their total if it is known.

    Returns:
        All problems of the log, with their number and first places.

    Raises:
        ValueError: If a file does not exist or has an unknown suffix.
    """
    _check_sources(sources, spec)
    tables: Tables = {"items": items, "users": users, "requests": requests}
    steps = partial(_Step, on_progress=on_progress)
    with rows_of_source(with_absolute_source(spec), steps("reading the source", None)) as own:
        files = sources if own is None else own.files
        check, _ = check_log(files, spec, tables, limit=0, engine=engine, on_step=steps)
    return check


def _check_sources(sources: Sequence[Path | RowFile], spec: Spec) -> None:
    if not sources and spec.source is None:
        raise ValueError("sources: found no files, and the description has no `source`; expected one of them")
    if sources and spec.source is not None:
        raise ValueError("sources: found files, and a `source` in the description; expected one of them")


def _bad_rows(
    files: Sequence[RowFile],
    spec: Spec,
    tables: Tables,
    limit: int,
    engine: Engine,
    on_progress: OnProgress,
    directory: Path,
) -> Findings:
    """Check a log; return its bad rows, of which there are at most `limit`."""
    if limit < 0:
        raise ValueError(f"skip_bad: found {limit}, expected at least 0")
    steps = partial(_Step, on_progress=on_progress)
    check, found = check_log(files, spec, tables, limit=limit, engine=engine, on_step=steps, inside=directory)
    lasting = [problem for problem in check.errors if problem.dropped is None]
    if lasting:
        first = lasting[0]
        where = f"column {first.column!r}: " if first.column else ""
        raise TooManyBadError(f"skip_bad: no dropped row solves every problem: {where}{first.problem}", check)
    if found.bad_rows > limit:
        raise TooManyBadError(f"skip_bad: found more than {limit:,} bad rows; nothing was written", check)
    if check.rows and sum(len(found.skipped(str(file))) for file in files) >= check.rows:
        raise TooManyBadError("skip_bad: every row of the log is bad", check)
    return found


def _without(found: Findings, table: Path | list[RowFile] | None) -> list[RowFile] | None:
    """Return the files of a table without its bad rows."""
    if table is None:
        return None
    files = find_row_files(table if isinstance(table, list) else [table])
    return [replace(file, skipped=found.skipped(str(file))) for file in files]


class _Step:
    """Reports the progress of one step."""

    def __init__(self, name: str, total: int | None, on_progress: OnProgress) -> None:
        self._name, self._total, self._on_progress = name, total, on_progress
        self._done = 0

    def __call__(self, rows: int) -> None:
        self._done += rows
        self._on_progress(self._name, self._done, self._total)


def _fit_days(days: Sequence[str], count: int | None) -> list[str]:
    if count is None:
        return list(days[:-1] or days)
    if not 1 <= count <= len(days):
        raise ValueError(f"fit_days: found {count}, expected 1 to {len(days)}, the number of days in the log")
    return list(days[:count])


def _schema(raw: RawLog) -> pa.Schema:
    is_text = raw.types["log", raw.spec.request] == pl.String()
    return impression_schema(raw.spec, request=pa.string() if is_text else pa.int64())


# --- writing ----------------------------------------------------------------------------------------------------


class _Assembly(NamedTuple):
    """The inputs that all portions share when their impressions are made."""

    log: SpooledLog
    encoding: Encoding
    items: pa.Table
    seed: int


def _write(
    assembly: _Assembly, portions: Sequence[Portion], writer: LogWriter, on_rows: Report, engine: Engine
) -> tuple[Counts, dict[Origin, int]]:
    """Write all portions; return their counts, and for each table the number of keys that it does not have."""
    counts = Counts()
    unknown: dict[Origin, IncrementalMerge] = {}
    with (
        closing(_histories(assembly.log, portions, engine)) as histories,
        closing(engine.map(partial(_assemble, assembly), zip(portions, histories, strict=True), on_rows)) as assembled,
    ):
        for portion, (impressions, counted, keys) in zip(portions, assembled, strict=True):
            writer.write(portion.day, impressions)
            counts += counted
            for origin, some in keys.items():
                unknown.setdefault(origin, IncrementalMerge(distinct)).add(some)
    return counts, {origin: len(keys.result()) for origin, keys in unknown.items()}


def _histories(log: SpooledLog, portions: Sequence[Portion], engine: Engine) -> Generator[list[pl.Series]]:
    """Yield for each portion the sequences that are made of earlier feedback."""
    spec = log.raw.spec
    if not event_columns(spec):
        yield from repeat([], len(portions))
        return
    histories = SequenceHistories(spec)
    with closing(engine.map(partial(_events, log), portions)) as found:
        for events in found:
            yield histories.advance(events)


def _events(log: SpooledLog, portion: Portion, report: Report) -> PortionEvents:
    spec = log.raw.spec
    rows = log.rows(portion.number, event_columns(spec))
    return find_events(spec, rows, first_rows(rows))


def _assemble(
    assembly: _Assembly, part: tuple[Portion, list[pl.Series]], report: Report
) -> tuple[pa.Table, Counts, UnknownKeys]:
    (portion, histories), log = part, assembly.log
    unknown: UnknownKeys = {}
    rows = log.rows(portion.number, unknown=unknown)
    groups = log.group(rows, portion.day)
    requests = log.sequences(portion.number, first_rows(rows)).with_columns(histories)
    assembled = assemble(
        rows, assembly.encoding, seed=assembly.seed, groups=groups, requests=requests, items=assembly.items
    )
    ((_, impressions),) = assembled.days  # a portion belongs to one day
    report(portion.rows)
    return impressions, assembled.counts, unknown
