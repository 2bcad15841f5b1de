"""Prepare an impression log from raw rows, in memory that does not grow with the number of rows.

The steps, one module each:

1. :mod:`raw_log` opens the files and decides the origin and type of each column.
2. :mod:`request_order` reads the keys, orders the requests and cuts them into portions.
3. :mod:`portions` spools the rows by portion and joins the tables.
4. :mod:`fit` fits vocabularies, scalings and buckets to the portions of the first days.
5. :mod:`write_days` writes day after day: it adds the items of the day to the item table, collects the events before
   each request (:mod:`log_sequences`) and makes the impressions of each portion
   (:func:`rankfall.data.impressions.assemble.assemble`).
6. :mod:`log_state` stores what the next day depends on, so that :mod:`append_rows` can add days later.

The output depends on the rows only, not on the files they are read from, their order, the size of portions or the
number of threads. Steps that read rows are functions of some files or of a portion, which an engine maps over them in
this process or in others. Adding statistics, the histories of users and writing are done here, in order.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from rankfall._disk import delete_tree, make_directory, rename
from rankfall._engine import LOCAL
from rankfall._files import fresh_directory
from rankfall.data.impressions.items import GrowingItems
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.sampler import check_seed
from rankfall.data.impressions.schema import impression_schema
from rankfall.data.sources.problems import pointing_to_check
from rankfall.data.sources.rows.check_log import check_log
from rankfall.data.sources.rows.fit import fit_portions
from rankfall.data.sources.rows.log_sequences import SequenceHistories
from rankfall.data.sources.rows.log_state import STATE, LogState, growth_entry, store_state
from rankfall.data.sources.rows.own_source import with_absolute_source
from rankfall.data.sources.rows.portions import spool_log
from rankfall.data.sources.rows.provenance import provenance
from rankfall.data.sources.rows.raw_log import RawLog
from rankfall.data.sources.rows.request_order import order_requests
from rankfall.data.sources.rows.row_inputs import PORTION_ROWS, Step, check_sources, local_inputs, open_inputs
from rankfall.data.sources.rows.write_days import write_days

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import DataCheck
    from rankfall.data.sources.rows.portions import SpooledLog
    from rankfall.data.sources.rows.request_order import RequestOrder
    from rankfall.data.sources.rows.row_inputs import OnProgress
    from rankfall.data.sources.rows.stored_rows import GivenTables, Source
    from rankfall.data.sources.rows.write_days import Inspect


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
            (``"s3://bucket/log"``); none if the description has a `source`.
        out: The directory to write.
        spec: The description of columns, stages and features.
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
        ValueError: If the rows, the tables or the description contradict each other; the message says where.
    """
    check_seed(seed)
    if portion_rows < 1:
        raise ValueError(f"portion_rows: found {portion_rows}, expected at least 1")
    check_sources(sources, spec)
    spec = with_absolute_source(spec)
    tables: GivenTables = {"items": items, "users": users, "requests": requests}
    opened = partial(open_inputs, skip_bad=skip_bad, engine=engine, on_progress=on_progress)
    with (
        fresh_directory(out, is_log, force=force) as directory,
        opened(sources, spec, tables, directory) as inputs,
    ):
        with pointing_to_check("log"):
            raw = RawLog.open(
                spec, inputs.files, inputs.tables, Step("reading types of text files", None, on_progress), engine
            )
            order = order_requests(raw, portion_rows, Step("ordering requests", None, on_progress), engine)
        fitted = _fit_days(order.days, fit_days)
        spooled = directory / "spool"
        make_directory(spooled)
        with pointing_to_check("log"):
            log = spool_log(raw, order, spooled, Step("sorting rows", order.rows, on_progress), engine)
            of_fit = [portion for portion in order.portions if portion.day in fitted]
            on_rows = Step("fitting", sum(portion.rows for portion in of_fit), on_progress)
            encoding = fit_portions(log, of_fit, on_rows, engine)
            writer = LogWriter(directory, spec, encoding.features, _schema(raw))
            state = LogState(encoding, GrowingItems(numbered=log.needs_numbers), SequenceHistories(raw.spec))
            growing = [day for day in order.days if grow and day not in fitted]
            on_rows = Step("writing", order.rows, on_progress)
            written = partial(write_days, growing=growing, on_rows=on_rows, inspect=inspect)
            extra = _write(written, log, order, state, writer, seed=seed, engine=engine)
        delete_tree(spooled)
        writer.features = state.encoding.features
        on_file = Step("checksums of files", sum(map(len, raw.files.values())), on_progress)
        made = provenance(raw, order, state, seed=seed, fit_days=fitted, on_file=on_file, engine=engine)
        if inputs.own is not None:
            made["sources"] = [inputs.own.about(order.rows)]
        whole = {**made, **about, **inputs.about}
        writer.finish(state.items.table, state.encoding.arrays, whole, extra, state.items.versions)
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
            (``"s3://bucket/log"``); none if the description has a `source`.
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
    given: GivenTables = {"items": items, "users": users, "requests": requests}
    with local_inputs(sources, with_absolute_source(spec), given, on_progress) as (files, tables, _):
        steps = partial(Step, on_progress=on_progress)
        check, _ = check_log(files, spec, tables, limit=0, engine=engine, on_step=steps)
    return check


def _write(
    write: Callable[..., None],
    log: SpooledLog,
    order: RequestOrder,
    state: LogState,
    writer: LogWriter,
    *,
    seed: int,
    engine: Engine,
) -> dict[str, Any]:
    """Write all days and the state after them, and return the entries for the manifest."""
    stored = writer.directory / STATE / "new"
    make_directory(stored)

    def save(before: LogState) -> None:
        if len(order.days) > 1:
            before.save(stored / "before")

    write(log, order, state, writer.write, seed=seed, engine=engine, before_last=save)
    entry = store_state(state, log, order, stored)
    rename(stored, stored.with_name(entry["name"]))
    return {STATE: entry, **growth_entry(state)}


def _fit_days(days: Sequence[str], count: int | None) -> list[str]:
    if count is None:
        return list(days[:-2] or days[:1])  # the last two are for validation and testing
    if not 1 <= count <= len(days):
        raise ValueError(f"fit_days: found {count}, expected 1 to {len(days)}, the number of days in the log")
    return list(days[:count])


def _schema(raw: RawLog) -> pa.Schema:
    is_text = raw.types["log", raw.spec.request] == pl.String()
    return impression_schema(raw.spec, request=pa.string() if is_text else pa.int64())
