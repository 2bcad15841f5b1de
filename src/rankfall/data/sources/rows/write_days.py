"""Write the days of a log one after the other, each from its rows and the state after the day before."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import groupby, repeat
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import pyarrow as pa

from rankfall.data.impressions.assemble import assemble
from rankfall.data.impressions.encoding import BadValueError
from rankfall.data.impressions.items import FEATURE, item_table, items_on
from rankfall.data.impressions.repeats import logged_values
from rankfall.data.impressions.spec import column_of
from rankfall.data.sources.rows.fit import new_values
from rankfall.data.sources.rows.incremental_merge import IncrementalMerge, distinct
from rankfall.data.sources.rows.log_sequences import event_columns, find_events
from rankfall.data.sources.rows.portions import first_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.counts import Counts
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.sources.rows.log_sequences import PortionEvents, SequenceHistories
    from rankfall.data.sources.rows.log_state import LogState
    from rankfall.data.sources.rows.portions import SpooledLog, UnknownKeys
    from rankfall.data.sources.rows.request_order import Portion, RequestOrder

    WriteImpressions = Callable[[str, pa.Table], None]
    Inspect = Callable[[pa.Table, LogState], None]
    MostNew = Callable[[str, int, int], int]

REPEATS_OF = 1000  # first impressions of a day on which repeated values of items are compared


def write_days(
    log: SpooledLog,
    order: RequestOrder,
    state: LogState,
    write: WriteImpressions,
    *,
    seed: int,
    on_rows: Report,
    engine: Engine,
    growing: Container[str] = (),
    most_new: MostNew = lambda table, known, found: found,
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
        growing: The days whose new values are added to the vocabularies.
        most_new: Returns how many new values of a vocabulary get ids on a day, from its name and both sizes.
        before_last: Receives the state before the last day.
        inspect: Receives impressions before they are written, and the state of their day.
    """
    days = [(day, list(of_day)) for day, of_day in groupby(order.portions, key=lambda portion: portion.day)]
    for number, (day, of_day) in enumerate(days, start=1):
        if number == len(days):
            before_last(state)
        if day in growing:
            known = state.encoding.vocabularies
            found = new_values(log, of_day, known, engine)
            state.grow(day, {name: new.head(most_new(name, len(known[name]), len(new))) for name, new in found.items()})
        _add_items(log, day, of_day, state, engine)

        def checked(day: str, impressions: pa.Table) -> None:
            inspect(impressions, state)
            write(day, impressions)

        versions = state.items.versions if log.raw.spec.negatives else None
        assembly = _Assembly(log, state.encoding, items_on(state.items.table, versions, day), seed)
        _write_day(assembly, day, of_day, state, checked, on_rows, engine)
    state.unknown_requests += order.unknown


def _add_items(log: SpooledLog, day: str, portions: Sequence[Portion], state: LogState, engine: Engine) -> None:
    """Add the items of a day to the item table, with the features of their first and last rows."""
    spec = log.raw.spec
    columns = {column_of(spec, name, feature) for name, feature in spec.features.item.items()} | {spec.item}
    logged = sorted(column for column in columns if log.raw.origins[column] != "items")
    found = IncrementalMerge(partial(_ends_of_each, spec.item))
    with closing(engine.map(partial(_items_of_portion, log, logged), portions)) as parts:
        for items in parts:
            found.add(items)
    ends = log.with_tables(found.result(), columns)
    last, first = (_encoded(ends.unique(spec.item, keep=which), state.encoding) for which in ("last", "first"))
    state.items.add_day(day, last, first, spec.item)


def _encoded(items: pl.DataFrame, encoding: Encoding) -> pa.Table:
    try:
        return item_table(items, encoding)
    except BadValueError as error:
        column = encoding.spec.item
        raise ValueError(f"{error} (item {items.sort(column)[column][error.position]!r})") from None


def _items_of_portion(log: SpooledLog, columns: list[str], portion: Portion, report: Report) -> pl.DataFrame:
    return _ends_of_each(log.raw.spec.item, log.rows(portion.number, columns).select(columns))


def _ends_of_each(item: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first and the last row of each item, in order."""
    return rows.filter(pl.col(item).is_first_distinct() | pl.col(item).is_last_distinct())


class _Assembly(NamedTuple):
    """The inputs that all portions of a day share when their impressions are made."""

    log: SpooledLog
    encoding: Encoding
    items: pa.Table  # of the days up to this one, from which random negatives are drawn
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
        sample: list[pa.Table] = []
        for impressions, counts, unknown in assembled:
            write(day, impressions)
            sample.append(impressions[: REPEATS_OF - sum(map(len, sample))])
            state.counts += counts
            for origin, keys in unknown.items():
                known = state.unknown.get(origin, keys[:0])
                state.unknown[origin] = distinct(pl.concat([known, keys]))
    first = pa.concat_tables(sample)
    features = [f"{FEATURE}{name}" for name in assembly.encoding.spec.features.item]
    state.repeats.add(logged_values(first, "item"), ((name, logged_values(first, name)) for name in features))


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
