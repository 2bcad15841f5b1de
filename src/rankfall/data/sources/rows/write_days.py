"""Write the days of a log one after the other, each from its rows and the state after the day before."""

from __future__ import annotations

from contextlib import closing
from datetime import date, timedelta
from functools import partial
from itertools import groupby, pairwise, repeat
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.assemble import assemble, logged_values
from rankfall.data.impressions.compatibility import depends_on_request
from rankfall.data.impressions.items import FEATURE, item_table, items_on
from rankfall.data.impressions.log import PER_REQUEST
from rankfall.data.impressions.spec import Categorical, column_of
from rankfall.data.sources.rows.log_state import event_columns, find_events, new_values
from rankfall.data.sources.rows.portions import IncrementalMerge, distinct, first_rows
from rankfall.encoding import BadValueError
from rankfall.storage.files import about_file

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Mapping, Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.requests import Counts
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.problems import Findings
    from rankfall.data.sources.rows.log_state import Events, LogState, SequenceHistories
    from rankfall.data.sources.rows.portions import Portion, RequestOrder, SpooledLog, UnknownKeys
    from rankfall.data.sources.rows.raw_log import RawLog
    from rankfall.data.sources.rows.row_files import RowFile

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
    spec = log.raw.spec
    days = [(day, list(of_day)) for day, of_day in groupby(order.portions, key=lambda portion: portion.day)]
    for number, (day, of_day) in enumerate(days, start=1):
        if number == len(days):
            before_last(state)
        if day in growing:
            known = state.encoding.vocabularies
            found = new_values(log, of_day, known, engine)
            state.grow(day, {name: new.head(most_new(name, len(known[name]), len(new))) for name, new in found.items()})
        _add_items(log, day, of_day, state, engine)

        versions = state.items.versions if spec.negatives else None
        items = items_on(state.items.table, versions, day)
        work = partial(_assemble, log, state.encoding, items, seed)
        sample: list[pa.Table] = []
        with (
            closing(_histories(log, of_day, state.histories, engine)) as histories,
            closing(engine.map(work, zip(of_day, histories, strict=True), on_rows)) as results,
        ):
            for impressions, counts, unknown in results:
                inspect(impressions, state)
                write(day, impressions)
                sample.append(impressions[: REPEATS_OF - sum(map(len, sample))])
                state.counts += counts
                for origin, keys in unknown.items():
                    before = state.unknown.get(origin, keys[:0])
                    state.unknown[origin] = distinct(pl.concat([before, keys]))
        first = pa.concat_tables(sample)
        features = [f"{FEATURE}{name}" for name in spec.features.item]
        state.repeats.add(logged_values(first, "item"), ((name, logged_values(first, name)) for name in features))
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
        raise RankfallError(f"{error} (item {items.sort(column)[column][error.position]!r})") from None


def _items_of_portion(log: SpooledLog, columns: list[str], portion: Portion, report: Report) -> pl.DataFrame:
    return _ends_of_each(log.raw.spec.item, log.rows(portion.number, columns).select(columns))


def _ends_of_each(item: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first and the last row of each item, in order."""
    return rows.filter(pl.col(item).is_first_distinct() | pl.col(item).is_last_distinct())


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


def _events(log: SpooledLog, portion: Portion, report: Report) -> Events:
    spec = log.raw.spec
    rows = log.rows(portion.number, event_columns(spec))
    return find_events(spec, rows, first_rows(rows))


def _assemble(
    log: SpooledLog,
    encoding: Encoding,
    items: pa.Table,
    seed: int,
    part: tuple[Portion, list[pl.Series]],
    report: Report,
) -> tuple[pa.Table, Counts, UnknownKeys]:
    portion, histories = part
    unknown: UnknownKeys = {}
    rows = log.rows(portion.number, unknown=unknown)
    groups = log.group(rows, portion.day)
    requests = log.sequences(portion.number, first_rows(rows)).with_columns(histories)
    assembled = assemble(rows, encoding, seed=seed, groups=groups, requests=requests, items=items)
    ((_, impressions),) = assembled.days  # a portion belongs to one day
    report(portion.rows)
    return impressions, assembled.counts, unknown


def provenance(
    raw: RawLog,
    requests: RequestOrder,
    state: LogState,
    own: Mapping[str, Any] | None,
    *,
    seed: int,
    fit_days: Sequence[str],
    on_file: Report,
    engine: Engine,
) -> dict[str, Any]:
    """Describe the sources of a log, the settings and fitted values of its preparation, and what became of the rows.

    Args:
        raw: The raw log.
        requests: The order of its requests.
        state: The state after the last day, with its encoding and counts.
        own: The entry about the source of the spec, if it has one.
        seed: The seed of the sampler.
        fit_days: The days that the encoding was fitted to.
        on_file: Receives 1 for each file whose checksum was computed.
        engine: Runs the work on the files.
    """
    given = {origin: [file for file in files if not file.typed] for origin, files in raw.files.items()}
    with closing(engine.map(_about_file, (file for files in given.values() for file in files), on_file)) as found:
        files = {origin: [next(found) for _ in files] for origin, files in given.items()}
    rows_by_file = [rows for file, rows in zip(raw.files["log"], requests.rows_by_file, strict=True) if not file.typed]
    sources = [about | {"rows": rows} for about, rows in zip(files.pop("log"), rows_by_file, strict=True)]
    encoding, counts = state.encoding, state.counts
    unknown = {origin: len(keys) for origin, keys in state.unknown.items()}
    features = state.repeats.per_request()
    if raw.spec.negatives and features:
        raise RankfallError(
            f"negatives: {depends_on_request(features)}, so no items can be added to lists; expected 0, or item "
            "features that an item has for all requests of a day"
        )
    return {
        "command": "prepare rows",
        "sources": sources if own is None else [{**own, "rows": requests.rows}],
        "tables": files,
        "seed": seed,
        "fit_days": list(fit_days),
        "scalings": {
            key: {"mean": list(mean), "deviation": list(deviation)}
            for key, (mean, deviation) in encoding.scalings.items()
        },
        "edges": dict(encoding.edges),
        "hashed": _hashed_types(raw),
        "counts": counts.to_json(),
        "dropped": {
            "beyond the sample": {name: counts.logged[name] - counts.kept[name] for name in sorted(counts.logged)}
        },
        "unseen_shares": {
            name: unseen / counts.values[name] for name, unseen in sorted(counts.unseen.items()) if unseen
        },
        "unknown": {**unknown, **({"requests": state.unknown_requests} if "requests" in raw.files else {})},
        "unused_requests": requests.unused,
        "empty_days": [] if raw.spec.day is not None else _gaps(requests.days),
        **({PER_REQUEST: features} if features else {}),
    }


def appended_provenance(
    before: Mapping[str, Any], made: Mapping[str, Any], days: Sequence[str], spec: Spec
) -> dict[str, Any]:
    """Return the provenance of a log after days were appended.

    Args:
        before: The provenance before.
        made: The provenance of the new days, with the counts of all days.
        days: All days of the log, in order.
        spec: The spec of the log.
    """
    tables = {origin: list(files) for origin, files in before["tables"].items()}
    for origin, files in made["tables"].items():
        known = tables.setdefault(origin, [])
        known += [file for file in files if file not in known]
    combined = {
        **{key: value for key, value in before.items() if key != PER_REQUEST},  # decided anew on all days
        **made,
        "command": before["command"],
        "sources": before["sources"] + made["sources"],
        "tables": tables,
        "unused_requests": before["unused_requests"] + made["unused_requests"],
        "empty_days": [] if spec.day is not None else _gaps(days),
    }
    if "skipped" in before and "skipped" in made:
        both = (before["skipped"], made["skipped"])
        combined["skipped"] = {key: both[0][key] + both[1][key] for key in both[0]}
    return combined


def skipped_json(found: Findings, limit: int) -> dict[str, Any]:
    """Describe the bad rows that were dropped.

    Args:
        found: The bad rows and their problems.
        limit: The number of rows that might have been dropped.
    """
    return {
        "limit": limit,
        "rows": found.bad_rows,
        "requests": found.requests,
        "problems": [problem.to_json() for problem in found.problems() if problem.dropped is not None],
    }


def _hashed_types(raw: RawLog) -> dict[str, str]:
    """Return whether hashes were computed from text or numbers; 7 and "7" have different ones, also when serving."""
    found = {}
    for group, name, feature in raw.spec.features:
        if isinstance(feature, Categorical) and feature.hash_bucket_size is not None:
            column = column_of(raw.spec, name, feature)
            is_text = raw.types[raw.origins[column], column] == pl.String()
            found[f"{group}.{name}"] = "text" if is_text else "numbers"
    return found


def _about_file(file: RowFile, report: Report) -> dict[str, Any]:
    about = about_file(file.path)
    report(1)
    return {**about, "path": str(file)}


def _gaps(days: Sequence[str]) -> list[str]:
    """Return the dates between the first and the last day that have no rows."""
    dates = [date.fromisoformat(day) for day in days]
    return [str(one + timedelta(n)) for one, other in pairwise(dates) for n in range(1, (other - one).days)]
