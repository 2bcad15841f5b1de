"""Prepare an impression log from raw rows, in memory that does not grow with the number of rows.

The steps:

1. :mod:`raw_log` opens the files and decides the origin and type of each column.
2. :mod:`portions` reads the keys, orders the requests, cuts them into portions, spools the rows by portion and joins
   the tables.
3. :mod:`log_state` fits vocabularies, scalings and buckets to the portions of the first days.
4. :mod:`write_days` writes day after day: it adds the items of the day to the item table, collects the events before
   each request and makes the impressions of each portion
   (:func:`rankfall.data.impressions.assemble.assemble`).
5. :mod:`log_state` stores what the next day depends on, so that :func:`append_rows` can add days later.

The output depends on the rows only, not on the files they are read from, their order, the size of portions or the
number of threads. Steps that read rows are functions of some files or of a portion, which an engine maps over them in
this process or in others. Adding statistics, the histories of users and writing are done here, in order.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa

from rankfall._engine import LOCAL
from rankfall._errors import RankfallError
from rankfall.data.impressions.items import GrowingItems, impression_schema
from rankfall.data.impressions.log import ImpressionLog, appending, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.requests import DAY, TIME, check_seed, sort_days
from rankfall.data.sources.problems import TooManyBadError, pointing_to_check
from rankfall.data.sources.rows.check_log import check_log
from rankfall.data.sources.rows.log_state import (
    STATE,
    LogState,
    SequenceHistories,
    StoredState,
    entries,
    fit_portions,
    publish_state,
    remove_other_states,
    store_state,
)
from rankfall.data.sources.rows.portions import order_requests, spool_log
from rankfall.data.sources.rows.raw_log import RawLog
from rankfall.data.sources.rows.stored_rows import local_rows, rows_of_source, with_absolute_source
from rankfall.data.sources.rows.write_days import appended_provenance, provenance, skipped_json, write_days
from rankfall.storage.disk import delete_tree, make_directory, rename
from rankfall.storage.files import fresh_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import DataCheck
    from rankfall.data.sources.rows.portions import RequestOrder
    from rankfall.data.sources.rows.raw_log import Origin
    from rankfall.data.sources.rows.row_files import RowFile
    from rankfall.data.sources.rows.stored_rows import GivenTables, Source
    from rankfall.data.sources.rows.write_days import Inspect, MostNew

    OnProgress = Callable[[str, int, int | None], None]

PORTION_ROWS = 2**19


class RowInputs(NamedTuple):
    """The files of rows and tables without bad rows, the source they come from, and entries for the provenance."""

    files: dict[Origin, list[RowFile]]
    own: dict[str, Any] | None
    about: dict[str, Any]


@contextmanager
def open_inputs(
    sources: Sequence[Source],
    spec: Spec,
    tables: GivenTables,
    directory: Path | None,
    *,
    skip_bad: int | None,
    engine: Engine,
    on_progress: OnProgress,
) -> Iterator[RowInputs]:
    """Find the files of a log, or call the source that its spec names, and drop bad rows.

    Args:
        sources: Files, directories or URLs of rows.
        spec: The spec of the log.
        tables: The tables that are joined.
        directory: Directory of temporary files; None: that of the system.
        skip_bad: The largest number of bad rows to drop; None does not check the rows.
        engine: Runs the work on files and portions.
        on_progress: Receives the progress of each step.
    """
    if not sources and spec.source is None:
        raise RankfallError("sources: found no files, and the spec has no `source`; expected one of them")
    if sources and spec.source is not None:
        raise RankfallError("sources: found files, and a `source` in the spec; expected one of them")
    steps = partial(Step, on_progress=on_progress)
    with (
        rows_of_source(spec, steps("reading the source", None), directory) as (own_files, own),
        local_rows(sources, tables, steps, directory) as files,
    ):
        files["log"] += own_files
        if skip_bad is None:
            yield RowInputs(files, own, {})
            return
        if skip_bad < 0:
            raise RankfallError(f"skip_bad: found {skip_bad}, expected at least 0")
        check, found = check_log(files, spec, limit=skip_bad, engine=engine, on_step=steps, inside=directory)
        lasting = [problem for problem in check.errors if problem.dropped is None]
        if lasting:
            first = lasting[0]
            where = f"column {first.column!r}: " if first.column else ""
            raise TooManyBadError(f"skip_bad: no dropped row solves every problem: {where}{first.problem}", check)
        if found.bad_rows > skip_bad:
            raise TooManyBadError(
                f"skip_bad: found {found.bad_rows:,} bad rows, expected at most {skip_bad:,}; nothing was written",
                check,
            )
        if check.rows and sum(len(found.skipped(str(file))) for file in files["log"]) >= check.rows:
            raise TooManyBadError("skip_bad: every row of the log is bad", check)
        good = {
            origin: [replace(file, skipped=found.skipped(str(file))) for file in some] for origin, some in files.items()
        }
        yield RowInputs(good, own, {"skipped": skipped_json(found, skip_bad)})


class Step:
    """Reports the progress of one step."""

    def __init__(self, name: str, total: int | None, on_progress: OnProgress) -> None:
        self._name, self._total, self._on_progress = name, total, on_progress
        self._done = 0

    def __call__(self, rows: int) -> None:
        self._done += rows
        self._on_progress(self._name, self._done, self._total)


def prepare_rows(
    sources: Sequence[Source],
    out: Path,
    spec: Spec,
    *,
    items: Path | str | None = None,
    users: Path | str | None = None,
    requests: Path | str | None = None,
    seed: int = 0,
    fit_days: int | None = None,
    grow: bool = False,
    force: bool = False,
    skip_bad: int | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
    inspect: Inspect = lambda impressions, state: None,
    portion_rows: int = PORTION_ROWS,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, rows, total: None,
) -> ImpressionLog:
    """Prepare an impression log from a log with one row per request and item.

    Args:
        sources: Files (CSV, JSON lines, Parquet, Arrow), directories of them, or their URLs as text
            (``"s3://bucket/log"``); none if the spec has a `source`.
        out: The directory to write.
        spec: Columns, stages and features of the log.
        items: A table with more columns of items.
        users: A table with more columns of users.
        requests: A table with more columns of requests.
        seed: Seed of the sample and of random negatives.
        fit_days: The number of first days that vocabularies, scalings and buckets are fitted to; by default all days
            except the last two, at least one.
        grow: Add the new values of later days to the vocabularies, day by day.
        force: Replace an existing impression log.
        skip_bad: Check the log first and drop its bad rows, at most this many, tables included. A whole request is
            dropped if its rows contradict each other. By default the first bad row is an error.
        about: Entries that are added to the provenance in the manifest.
        inspect: Receives impressions, and the state of their day, before they are written; if it raises an error,
            there will be no log.
        portion_rows: The approximate number of rows in memory, in each process of `engine`.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the number of rows or files done, and their total if it is known.

    Raises:
        TooManyBadError: If more rows are bad than `skip_bad` allows, or a problem is not one of rows.
        ValueError: If the rows, the tables or the spec contradict each other; the message says where.
    """
    check_seed(seed)
    if portion_rows < 1:
        raise RankfallError(f"portion_rows: found {portion_rows}, expected at least 1")
    spec = with_absolute_source(spec)
    tables: GivenTables = {"items": items, "users": users, "requests": requests}
    opened = partial(open_inputs, skip_bad=skip_bad, engine=engine, on_progress=on_progress)
    with (
        fresh_directory(out, is_log, force=force) as directory,
        opened(sources, spec, tables, directory) as inputs,
    ):
        with pointing_to_check("log"):
            raw = RawLog.open(spec, inputs.files, Step("reading types of text files", None, on_progress), engine)
            order = order_requests(raw, portion_rows, Step("ordering requests", None, on_progress), engine)
        fitted = _fit_days(order.days, fit_days)
        spooled = directory / "spool"
        make_directory(spooled)
        with pointing_to_check("log"):
            log = spool_log(raw, order, spooled, Step("sorting rows", order.rows, on_progress), engine)
            of_fit = [portion for portion in order.portions if portion.day in fitted]
            on_rows = Step("fitting", sum(portion.rows for portion in of_fit), on_progress)
            encoding = fit_portions(log, of_fit, on_rows, engine)
            is_text = raw.types["log", raw.spec.request] == pl.String()
            schema = impression_schema(raw.spec, request=pa.string() if is_text else pa.int64())
            writer = LogWriter(directory, spec, encoding.features, schema)
            state = LogState(encoding, GrowingItems(numbered=log.needs_numbers), SequenceHistories(raw.spec))
            stored = directory / STATE / "new"
            make_directory(stored)
            write_days(
                log,
                order,
                state,
                writer.write,
                seed=seed,
                on_rows=Step("writing", order.rows, on_progress),
                engine=engine,
                growing=[day for day in order.days if grow and day not in fitted],
                before_last=lambda before: before.save(stored / "before") if len(order.days) > 1 else None,
                inspect=inspect,
            )
            entry = store_state(state, log, order, stored)
            rename(stored, stored.with_name(entry["name"]))
        delete_tree(spooled)
        writer.features = state.encoding.features
        on_file = Step("checksums of files", sum(map(len, raw.files.values())), on_progress)
        made = provenance(raw, order, state, inputs.own, seed=seed, fit_days=fitted, on_file=on_file, engine=engine)
        whole = {**made, **about, **inputs.about}
        writer.finish(state.items.table, state.encoding.arrays, whole, entries(state, entry), state.items.versions)
    return ImpressionLog.load(out)


def check_rows(
    sources: Sequence[Source],
    spec: Spec,
    *,
    items: Path | str | None = None,
    users: Path | str | None = None,
    requests: Path | str | None = None,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, rows, total: None,
) -> DataCheck:
    """Check a log with one row per request and item: read everything, and write nothing.

    Args:
        sources: Files (CSV, JSON lines, Parquet, Arrow), directories of them, or their URLs as text
            (``"s3://bucket/log"``); none if the spec has a `source`.
        spec: Columns, stages and features of the log.
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
    given: GivenTables = {"items": items, "users": users, "requests": requests}
    steps = partial(Step, on_progress=on_progress)
    spec = with_absolute_source(spec)
    with open_inputs(sources, spec, given, None, skip_bad=None, engine=engine, on_progress=on_progress) as inputs:
        return check_log(inputs.files, spec, limit=0, engine=engine, on_step=steps)[0]


def _fit_days(days: Sequence[str], count: int | None) -> list[str]:
    if count is None:
        return list(days[:-2] or days[:1])  # the last two are for validation and testing
    if not 1 <= count <= len(days):
        raise RankfallError(f"fit_days: found {count}, expected 1 to {len(days)}, the number of days in the log")
    return list(days[:count])


def append_rows(
    sources: Sequence[Source],
    path: Path,
    *,
    spec: Spec | None = None,
    items: Path | str | None = None,
    users: Path | str | None = None,
    requests: Path | str | None = None,
    reopen: bool = False,
    grow: bool = False,
    most_new: MostNew = lambda table, known, found: found,
    skip_bad: int | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
    inspect: Inspect = lambda impressions, state: None,
    portion_rows: int = PORTION_ROWS,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, rows, total: None,
) -> ImpressionLog:
    """Append new days to a log that :func:`prepare_rows` wrote.

    Args:
        sources: Files, directories or URLs with the rows of the new days; none if the spec has a `source`.
        path: The log.
        spec: The spec of the log, if its `source` has other options now; nothing else may differ.
        items: A table with more columns of items, if the log was prepared with one.
        users: A table with more columns of users, if the log was prepared with one.
        requests: A table with more columns of the new requests, if the log was prepared with one.
        reopen: The rows may also be late rows of the newest day, which is written again with them.
        grow: Give new values of vocabularies ids behind the known ones, day by day. By default they count as never
            seen.
        most_new: Returns how many new values of an embedding table get ids on a day, the most frequent ones, from the
            name of the table, its number of values and that of the new ones.
        skip_bad: Check the rows first and drop bad ones, at most this many.
        about: Entries of the provenance in the manifest that are replaced; tables are added to the present ones.
        inspect: Receives impressions, and the state of their day, before the log has them; if it raises an error, the
            log stays as it is.
        portion_rows: The approximate number of rows in memory, in each process of `engine`.
        engine: Runs the work on files and portions.
        on_progress: Receives the name of a step, the number of rows or files done, and their total if it is known.

    Raises:
        TooManyBadError: If more rows are bad than `skip_bad` allows, or a problem is not one of rows.
        ValueError: If the log has one of the days, or the rows do not fit the log; the message says where.
    """
    tables: GivenTables = {"items": items, "users": users, "requests": requests}
    with appending(path) as appender:
        log = appender.log
        if spec is None:
            spec = log.spec
        else:
            check_same_spec(spec, log)
            spec = with_absolute_source(spec)
        stored = StoredState(log)
        opened = partial(open_inputs, skip_bad=skip_bad, engine=engine, on_progress=on_progress)
        with opened(sources, spec, tables, appender.directory) as inputs:
            files = inputs.files
            for origin, file in stored.newest().items() if reopen else ():  # late rows are added to these
                files[origin] = [file, *files.get(origin, [])]
            check_tables(log, files)
            with pointing_to_check("log"):
                on_text = Step("reading types of text files", None, on_progress)
                raw = RawLog.open(spec, files, on_text, engine, types=stored.types())
                order = order_requests(raw, portion_rows, Step("ordering requests", None, on_progress), engine)
            _check_days(log, order, reopen=reopen)
            appender.reopened = list(log.days)[-1] if reopen else None
            before = log.manifest["about"]
            spooled, directory = appender.directory / "spool", appender.directory / "state"
            make_directory(spooled)
            make_directory(directory)
            state = stored.load(raw.spec, before_newest=reopen)
            with pointing_to_check("log"):
                rows = spool_log(raw, order, spooled, Step("sorting rows", order.rows, on_progress), engine)
                write_days(
                    rows,
                    order,
                    state,
                    appender.write,
                    seed=before["seed"],
                    on_rows=Step("writing", order.rows, on_progress),
                    engine=engine,
                    growing=order.days if grow else (),
                    most_new=most_new,
                    before_last=lambda one: one.save(directory / "before"),
                    inspect=inspect,
                )
            entry = store_state(state, rows, order, directory)
            on_file = Step("checksums of files", sum(map(len, raw.files.values())), on_progress)
            fitted = before["fit_days"]
            made = provenance(
                raw, order, state, inputs.own, seed=before["seed"], fit_days=fitted, on_file=on_file, engine=engine
            )
            days = [*(day for day in log.days if day != appender.reopened), *order.days]
            publish_state(directory, log, entry)
            appender.finish(
                state.items.table,
                appended_provenance(before, {**made, **about, **inputs.about}, days, raw.spec),
                state.encoding,
                entries(state, entry),
                state.items.versions,
            )
            remove_other_states(log, entry)
    return ImpressionLog.load(path)


def remove_leftovers(path: Path) -> None:
    """Remove what a process left in a log that died after the log had its new days."""
    with appending(path) as appender:
        if STATE in appender.log.manifest:
            remove_other_states(appender.log, appender.log.manifest[STATE])


def check_tables(log: ImpressionLog, tables: Mapping[Origin, object]) -> None:
    """Check that new rows of a log come with the tables that have some of its columns.

    Raises:
        ValueError: If a table is missing.
    """
    for origin in sorted({origin for origin, _ in StoredState(log).types()} - {"log"}):
        if tables.get(origin) is None:
            raise RankfallError(
                f"append: {log.path}: this log was prepared with --{origin}; pass the table again, which has the "
                f"{origin} of the new rows"
            )


def check_same_spec(spec: Spec, log: ImpressionLog) -> None:
    """Check that a spec differs from that of a log in `source` and `events` at most.

    Raises:
        ValueError: If another key differs.
    """
    ours, theirs = (some.model_dump(mode="json", exclude={"source", "events"}) for some in (spec, log.spec))
    for key, value in ours.items():
        if value != theirs[key]:
            raise RankfallError(f"spec: {key} differs from the spec of {log.path}, to which days are appended")


def _check_days(log: ImpressionLog, order: RequestOrder, *, reopen: bool) -> None:
    """Check that the new days follow those of the log, and that no request is in both."""
    newest = list(log.days)[-1]
    kept = [day for day in log.days.values() if not (reopen and day.name == newest)]
    for day in order.days:
        if day in {one.name for one in kept}:
            late = "; --reopen adds late rows to the newest day" if day == newest else ""
            raise RankfallError(f"append: {log.path} already has the day {day}{late}; nothing was changed")
    if reopen and newest in log.manifest["about"]["fit_days"]:
        raise RankfallError(
            f"reopen: the encoding of {log.path} was fitted to {newest}, its newest day; prepare all days again"
        )
    days = [(day.name, day.manifest["first_time"]) for day in kept] + [(name, first) for name, first in order.starts]
    ordered = sort_days(pl.DataFrame(days, schema={DAY: pl.String, TIME: pl.Int64}, orient="row"))[DAY].to_list()
    if ordered != [name for name, _ in days]:
        early = next(day for day in order.days if ordered.index(day) < len(kept))
        raise RankfallError(f"append: {early} is earlier than {kept[-1].name}, the newest day of {log.path}")
    last = kept[-1].manifest["last_time"] if kept else None
    follows = last is None or order.starts[0][1] >= last
    if not follows and any(sequence.feedback for sequence in log.spec.sequences.values()):
        raise RankfallError(
            f"append: {order.days[0]} begins before {kept[-1].name} ends, the newest day of {log.path}; sequences of "
            "feedback need days that do not overlap"
        )
    requests = order.frame[log.spec.request]
    for one in kept:
        known = pl.Series(pl.from_arrow(one.table()["request"]))
        repeated = requests.filter(requests.is_in(known.cast(requests.dtype).implode()))
        if len(repeated):
            raise RankfallError(
                f"append: request {repeated[0]!r} is already in {one.name} of {log.path}; nothing was changed"
            )
