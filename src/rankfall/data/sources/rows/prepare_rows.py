"""From raw logs to impressions, in memory that does not grow with the number of rows.

The keys are read first: they tell which requests there are, and portions of whole requests are cut in the order in
which requests will be written. Then the log is spooled by portions, everything that is fitted is fitted to the portions
of the first days, and portion after portion becomes impressions. What is written depends on the rows alone, not on
the files they come in, their order, the size of portions or the number of threads.

All that looks at rows is a function of some files or of a portion, which an engine maps over them in this process or
in others. In order, and here, are done: adding up what portions teach, the histories of users, and writing.
"""

from __future__ import annotations

import shutil
from contextlib import closing
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
from rankfall.data.impressions.log import ImpressionLog, LogWriter, impression_schema, is_log
from rankfall.data.impressions.sampler import check_seed
from rankfall.data.sources.rows.fit import fit_portions
from rankfall.data.sources.rows.incremental_merge import Collector, distinct
from rankfall.data.sources.rows.log_sequences import Histories, event_columns, find_events
from rankfall.data.sources.rows.portions import spool_log
from rankfall.data.sources.rows.provenance import Written, about_rows
from rankfall.data.sources.rows.raw_log import RawLog
from rankfall.data.sources.rows.request_order import find_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.encoding import Encoding
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Place
    from rankfall.data.sources.rows.log_sequences import Events
    from rankfall.data.sources.rows.portions import Portions, Unknown
    from rankfall.data.sources.rows.request_order import Portion
    from rankfall.data.sources.rows.row_files import Source

    OnProgress = Callable[[str, int, int | None], None]

PORTION_ROWS = 2**19


def prepare_rows(
    sources: Sequence[Path | Source],
    out: Path,
    spec: Spec,
    *,
    items: Path | None = None,
    users: Path | None = None,
    requests: Path | None = None,
    seed: int = 0,
    fit_days: int | None = None,
    force: bool = False,
    about: Mapping[str, Any] = MappingProxyType({}),
    portion_rows: int = PORTION_ROWS,
    engine: Engine = LOCAL,
    on_progress: OnProgress = lambda step, rows, total: None,
) -> ImpressionLog:
    """Turn a log with one row for each request and item into an impression log.

    `sources` are files (CSV, Parquet, Arrow) or directories of them; `items`, `users` and `requests` are tables that
    add columns. Vocabularies, scalings and buckets are fitted to the first `fit_days` days, by default to all but the
    last. `about` is added to what the manifest says of how the log was made. About `portion_rows` rows are in memory at
    a time, in each process of `engine`. `on_progress` hears the name of a step, how many rows or files are done and of
    how many, if that is known.
    """
    check_seed(seed)
    if portion_rows < 1:
        raise ValueError(f"portion_rows: found {portion_rows}, expected at least 1")
    with fresh_directory(out, is_log, force=force) as directory:
        tables: dict[Place, Path | None] = {"items": items, "users": users, "requests": requests}
        raw = RawLog.open(spec, sources, tables, _Step("looking at text", None, on_progress), engine)
        found = find_requests(raw, portion_rows, _Step("finding requests", None, on_progress), engine)
        fitted_on = _fit_days(found.days, fit_days)
        spooled = directory / "spool"
        spooled.mkdir()
        portions = spool_log(raw, found, spooled, _Step("sorting rows", found.rows, on_progress), engine)
        on_rows = _Step("fitting", found.rows, on_progress)
        encoding, table = fit_portions(portions, found.portions, fitted_on, on_rows, engine)
        writer = LogWriter(directory, spec, encoding.features, _schema(raw))
        on_rows = _Step("writing", found.rows, on_progress)
        written = _write(_Assembly(portions, encoding, table, seed), found.portions, writer, on_rows, engine)
        shutil.rmtree(spooled)
        vocabularies = {name: values.to_arrow() for name, values in encoding.vocabularies.items()}
        on_file = _Step("checksums of files", sum(map(len, raw.sources.values())), on_progress)
        made = about_rows(raw, found, encoding, written, seed=seed, fit_days=fitted_on, on_file=on_file, engine=engine)
        writer.finish(table, vocabularies, {**made, **about})
    return ImpressionLog.load(out)


class _Step:
    """Tells how far a step is."""

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
    """What is needed to make impressions of a portion."""

    portions: Portions
    encoding: Encoding
    items: pa.Table
    seed: int


def _write(
    assembly: _Assembly, portions: Sequence[Portion], writer: LogWriter, on_rows: Report, engine: Engine
) -> Written:
    counts = Counts()
    unknown: dict[Place, Collector] = {}
    with (
        closing(_histories(assembly.portions, portions, engine)) as histories,
        closing(engine.map(partial(_assemble, assembly), zip(portions, histories, strict=True), on_rows)) as assembled,
    ):
        for portion, (impressions, counted, keys) in zip(portions, assembled, strict=True):
            writer.write(portion.day, impressions)
            counts += counted
            for place, some in keys.items():
                unknown.setdefault(place, Collector(distinct)).add(some)
    return Written(counts, {place: len(keys.result()) for place, keys in unknown.items()})


def _histories(portions: Portions, parts: Sequence[Portion], engine: Engine) -> Generator[list[pl.Series]]:
    """Of each portion the sequences that are made of what happened before."""
    spec = portions.raw.spec
    if not event_columns(spec):
        yield from repeat([], len(parts))
        return
    histories = Histories(spec)
    with closing(engine.map(partial(_events, portions), parts)) as found:
        for events in found:
            yield histories.advance(events)


def _events(portions: Portions, portion: Portion, report: Report) -> Events:
    spec = portions.raw.spec
    rows = portions.rows(portion.number, event_columns(spec))
    return find_events(spec, rows, portions.first_rows(rows))


def _assemble(
    assembly: _Assembly, part: tuple[Portion, list[pl.Series]], report: Report
) -> tuple[pa.Table, Counts, Unknown]:
    (portion, histories), portions = part, assembly.portions
    unknown: Unknown = {}
    rows = portions.rows(portion.number, unknown=unknown)
    extra = portions.sequences(portion.number, portions.first_rows(rows)).with_columns(histories)
    assembled = assemble(rows, assembly.encoding, seed=assembly.seed, requests=extra, items=assembly.items)
    ((_, impressions),) = assembled.days  # a portion is of one day
    report(portion.rows)
    return impressions, assembled.counts, unknown
