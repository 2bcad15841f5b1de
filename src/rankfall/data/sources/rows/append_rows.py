"""Append days of raw rows to a prepared log.

The new days are encoded with the vocabularies, scalings and bucket edges of the log, and continue its item table and
the histories of its users. Vocabularies may grow by the new values of each day. The result has the same bytes as a log
that was prepared from all rows at once and fitted to the same days.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from rankfall._disk import make_directory
from rankfall._engine import LOCAL
from rankfall.data.impressions.append import appending
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.requests import DAY, TIME, sort_days
from rankfall.data.sources.problems import pointing_to_check
from rankfall.data.sources.rows.log_state import (
    STATE,
    StoredState,
    growth_entry,
    publish_state,
    remove_other_states,
    store_state,
)
from rankfall.data.sources.rows.own_source import with_absolute_source
from rankfall.data.sources.rows.portions import spool_log
from rankfall.data.sources.rows.provenance import appended_provenance, provenance
from rankfall.data.sources.rows.raw_log import RawLog
from rankfall.data.sources.rows.request_order import order_requests
from rankfall.data.sources.rows.row_files import find_row_files
from rankfall.data.sources.rows.row_inputs import PORTION_ROWS, Step, open_inputs
from rankfall.data.sources.rows.write_days import write_days

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine
    from rankfall.data.impressions.append import LogAppender
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.request_order import RequestOrder
    from rankfall.data.sources.rows.row_files import RowFile
    from rankfall.data.sources.rows.row_inputs import OnProgress, RowInputs
    from rankfall.data.sources.rows.stored_rows import GivenTables, Source
    from rankfall.data.sources.rows.write_days import Inspect, MostNew


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
        sources: Files, directories or URLs with the rows of the new days; none if the description has a `source`.
        path: The log.
        spec: The description of the log, if its `source` has other options now; nothing else may differ.
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
            check_same_description(spec, log)
            spec = with_absolute_source(spec)
        state = StoredState(log)
        opened = partial(open_inputs, skip_bad=skip_bad, engine=engine, on_progress=on_progress)
        with opened(sources, spec, tables, appender.directory) as inputs:
            inputs = _with_newest(inputs, state) if reopen else inputs
            check_tables(log, inputs.tables)
            with pointing_to_check("log"):
                on_text = Step("reading types of text files", None, on_progress)
                raw = RawLog.open(spec, inputs.files, inputs.tables, on_text, engine, types=state.types())
                order = order_requests(raw, portion_rows, Step("ordering requests", None, on_progress), engine)
            _check_days(log, order, reopen=reopen)
            appender.reopened = list(log.days)[-1] if reopen else None
            _append(
                appender,
                state,
                raw,
                order,
                inputs,
                about,
                grow=grow,
                most_new=most_new,
                inspect=inspect,
                engine=engine,
                on_progress=on_progress,
            )
    return ImpressionLog.load(path)


def remove_leftovers(path: Path) -> None:
    """Remove what a process left in a log that died after the log had its new days."""
    with appending(path) as appender:
        if STATE in appender.log.manifest:
            remove_other_states(appender.log, appender.log.manifest[STATE])


def _append(
    appender: LogAppender,
    stored: StoredState,
    raw: RawLog,
    order: RequestOrder,
    inputs: RowInputs,
    replaced: Mapping[str, Any],
    *,
    grow: bool,
    most_new: MostNew,
    inspect: Inspect,
    engine: Engine,
    on_progress: OnProgress,
) -> None:
    """Write the new days and the new state, and make both visible."""
    about = appender.log.manifest["about"]
    spooled, directory = appender.directory / "spool", appender.directory / "state"
    make_directory(spooled)
    make_directory(directory)
    state = stored.load(raw.spec, before_newest=appender.reopened is not None)
    with pointing_to_check("log"):
        log = spool_log(raw, order, spooled, Step("sorting rows", order.rows, on_progress), engine)
        write_days(
            log,
            order,
            state,
            appender.write,
            seed=about["seed"],
            on_rows=Step("writing", order.rows, on_progress),
            engine=engine,
            growing=order.days if grow else (),
            most_new=most_new,
            before_last=lambda before: before.save(directory / "before"),
            inspect=inspect,
        )
    entry = store_state(state, log, order, directory)
    on_file = Step("checksums of files", sum(map(len, raw.files.values())), on_progress)
    made = provenance(raw, order, state, seed=about["seed"], fit_days=about["fit_days"], on_file=on_file, engine=engine)
    if inputs.own is not None:
        made["sources"] = [inputs.own.about(order.rows)]
    kept = [day for day in appender.log.days if day != appender.reopened]
    publish_state(directory, appender.log, entry)
    appender.finish(
        state.items.table,
        appended_provenance(about, {**made, **replaced, **inputs.about}, [*kept, *order.days], raw.spec),
        state.encoding,
        {STATE: entry, **growth_entry(state)},
        state.items.versions,
    )
    remove_other_states(appender.log, entry)


def check_tables(log: ImpressionLog, tables: Mapping[Origin, object]) -> None:
    """Check that new rows of a log come with the tables that have some of its columns.

    Raises:
        ValueError: If a table is missing.
    """
    for origin in sorted({origin for origin, _ in StoredState(log).types()} - {"log"}):
        if tables.get(origin) is None:
            raise ValueError(
                f"append: {log.path}: this log was prepared with --{origin}; pass the table again, which has the "
                f"{origin} of the new rows"
            )


def check_same_description(spec: Spec, log: ImpressionLog) -> None:
    """Check that a description differs from that of a log in `source` and `events` at most.

    Raises:
        ValueError: If another key differs.
    """
    ours, theirs = (some.model_dump(mode="json", exclude={"source", "events"}) for some in (spec, log.spec))
    for key, value in ours.items():
        if value != theirs[key]:
            raise ValueError(f"spec: {key} differs from the description of {log.path}, to which days are appended")


def _with_newest(inputs: RowInputs, state: StoredState) -> RowInputs:
    """Add the rows of the newest day, which the log stores, to the late ones."""
    newest = state.newest()
    tables: dict[Origin, Path | list[RowFile] | None] = dict(inputs.tables)
    if "requests" in newest:
        late = tables.get("requests")
        given = [] if late is None else late if isinstance(late, list) else [late]
        tables["requests"] = find_row_files([newest["requests"], *given])
    return inputs._replace(files=[newest["log"], *inputs.files], tables=tables)


def _check_days(log: ImpressionLog, order: RequestOrder, *, reopen: bool) -> None:
    """Check that the new days follow those of the log, and that no request is in both."""
    newest = list(log.days)[-1]
    kept = [day for day in log.days.values() if not (reopen and day.name == newest)]
    for day in order.days:
        if day in {one.name for one in kept}:
            late = "; --reopen adds late rows to the newest day" if day == newest else ""
            raise ValueError(f"append: {log.path} already has the day {day}{late}; nothing was changed")
    if reopen and newest in log.manifest["about"]["fit_days"]:
        raise ValueError(
            f"reopen: the encoding of {log.path} was fitted to {newest}, its newest day; prepare all days again"
        )
    days = [(day.name, day.manifest["first_time"]) for day in kept] + [(name, first) for name, first in order.starts]
    ordered = sort_days(pl.DataFrame(days, schema={DAY: pl.String, TIME: pl.Int64}, orient="row"))[DAY].to_list()
    if ordered != [name for name, _ in days]:
        early = next(day for day in order.days if ordered.index(day) < len(kept))
        raise ValueError(f"append: {early} is earlier than {kept[-1].name}, the newest day of {log.path}")
    last = kept[-1].manifest["last_time"] if kept else None
    follows = last is None or order.starts[0][1] >= last
    if not follows and any(sequence.feedback for sequence in log.spec.sequences.values()):
        raise ValueError(
            f"append: {order.days[0]} begins before {kept[-1].name} ends, the newest day of {log.path}; sequences of "
            "feedback need days that do not overlap"
        )
    _check_requests(log, [day.name for day in kept], order.frame[log.spec.request])


def _check_requests(log: ImpressionLog, days: Sequence[str], requests: pl.Series) -> None:
    for day in days:
        known = pl.Series(pl.from_arrow(log.days[day].table()["request"]))
        repeated = requests.filter(requests.is_in(known.cast(requests.dtype).implode()))
        if len(repeated):
            raise ValueError(f"append: request {repeated[0]!r} is already in {day} of {log.path}; nothing was changed")
