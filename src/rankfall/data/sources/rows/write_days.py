"""Write the days of a log one after the other, each from its rows and the state after the day before."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import groupby, repeat
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.encoding import BadValueError
from rankfall.data.impressions.spec import column_of
from rankfall.data.sources.rows.incremental_merge import IncrementalMerge, distinct
from rankfall.data.sources.rows.log_sequences import event_columns, find_events
from rankfall.data.sources.rows.portions import first_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import pyarrow as pa

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.counts import Counts
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.sources.rows.log_sequences import PortionEvents, SequenceHistories
    from rankfall.data.sources.rows.log_state import LogState
    from rankfall.data.sources.rows.portions import SpooledLog, UnknownKeys
    from rankfall.data.sources.rows.request_order import Portion, RequestOrder

    WriteImpressions = Callable[[str, pa.Table], None]
    Inspect = Callable[[pa.Table, LogState], None]


def write_days(
    log: SpooledLog,
    order: RequestOrder,
    state: LogState,
    write: WriteImpressions,
    *,
    seed: int,
    on_rows: Report,
    engine: Engine,
    before_last: Callable[[LogState], None] = lambda state: None,
    inspect: Inspect = lambda impressions, state: None,
) -> None:
    """Write the impressions of all days of a spooled log.

    Args:
        log: The spooled log.
        order: Its requests and portions.
        state: The state after the day before the first one; afterwards that after the last day.
        write: Receives the name of a day and some of its impressions, in order.
        seed: Seed of the sample and of random negatives.
        on_rows: Receives the number of rows that were written.
        engine: Runs the work on the portions.
        before_last: Receives the state before the last day.
        inspect: Receives impressions before they are written, and the state of their day.
    """
    days = [(day, list(of_day)) for day, of_day in groupby(order.portions, key=lambda portion: portion.day)]
    for number, (day, of_day) in enumerate(days, start=1):
        if number == len(days):
            before_last(state)
        _add_items(log, of_day, state, engine)

        def checked(day: str, impressions: pa.Table) -> None:
            inspect(impressions, state)
            write(day, impressions)

        assembly = _Assembly(log, state.encoding, state.items.table, seed)
        _write_day(assembly, day, of_day, state, checked, on_rows, engine)
    state.unknown_requests += order.unknown


def _add_items(log: SpooledLog, portions: Sequence[Portion], state: LogState, engine: Engine) -> None:
    """Add the items of a day to the item table, with the features of their last occurrence."""
    spec = log.raw.spec
    columns = {column_of(spec, name, feature) for name, feature in spec.features.item.items()} | {spec.item}
    logged = sorted(column for column in columns if log.raw.origins[column] != "items")
    found = IncrementalMerge(partial(_last_of_each, spec.item))
    with closing(engine.map(partial(_items_of_portion, log, logged), portions)) as parts:
        for items in parts:
            found.add(items)
    items = log.with_tables(found.result(), columns)
    try:
        state.items.add_day(items, state.encoding)
    except BadValueError as error:
        raise ValueError(f"{error} (item {items.sort(spec.item)[spec.item][error.position]!r})") from None


def _items_of_portion(log: SpooledLog, columns: list[str], portion: Portion, report: Report) -> pl.DataFrame:
    return _last_of_each(log.raw.spec.item, log.rows(portion.number, columns).select(columns))


def _last_of_each(item: str, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.unique(item, keep="last", maintain_order=True)


class _Assembly(NamedTuple):
    """The inputs that all portions of a day share when their impressions are made."""

    log: SpooledLog
    encoding: Encoding
    items: pa.Table  # of the days up to this one
    seed: int


def _write_day(
    assembly: _Assembly,
    day: str,
    portions: Sequence[Portion],
    state: LogState,
    write: WriteImpressions,
    on_rows: Report,
    engine: Engine,
) -> None:
    with (
        closing(_histories(assembly.log, portions, state.histories, engine)) as histories,
        closing(engine.map(partial(_assemble, assembly), zip(portions, histories, strict=True), on_rows)) as assembled,
    ):
        for impressions, counts, unknown in assembled:
            write(day, impressions)
            state.counts += counts
            for origin, keys in unknown.items():
                known = state.unknown.get(origin, keys[:0])
                state.unknown[origin] = distinct(pl.concat([known, keys]))


def _histories(
    log: SpooledLog, portions: Sequence[Portion], histories: SequenceHistories, engine: Engine
) -> Generator[list[pl.Series]]:
    """Yield for each portion the sequences that are made of earlier feedback."""
    if not event_columns(log.raw.spec):
        yield from repeat([], len(portions))
        return
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
