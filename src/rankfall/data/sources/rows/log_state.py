"""What the next day of a log depends on besides its rows, and how a log stores it.

::

    LOG/state/NAME/columns.arrow             the types of the columns of the source, without rows
    LOG/state/NAME/vocabularies/TABLE.arrow  values with ids
    LOG/state/NAME/after/                    the state after the newest day, from which days are appended
    LOG/state/NAME/before/                   the state before the newest day, from which that day can be written again,
    LOG/state/NAME/newest/ORIGIN.parquet     and the rows of the newest day

    STATE/items.arrow                        the item table
    STATE/item_versions.arrow                earlier versions of items, if there are any
    STATE/histories/SEQUENCE.parquet         the last events of every user
    STATE/unknown/ORIGIN.parquet             keys that a joined table did not have
    STATE/counts.json                        counts of rows, requests and values

A day that is written again keeps the ids of its values, also if late rows would have given them in another order.
Tables with nulls are Parquet files: Arrow files have arbitrary bytes in place of nulls. `NAME` depends on the content.
The manifest of the log names the valid state, so a log whose preparation was killed still has the state of its
manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from rankfall._errors import RankfallError
from rankfall.data.arrays import Moments
from rankfall.data.impressions.assemble import EventHistory, RepeatCounts
from rankfall.data.impressions.encoding import Encoding, dense_values, hash_values
from rankfall.data.impressions.items import ITEMS, VERSIONS, VOCABULARIES, GrowingItems
from rankfall.data.impressions.log import GROWTH, map_table
from rankfall.data.impressions.log_writer import write_table, write_vocabularies
from rankfall.data.impressions.requests import TIME, Counts, above_zero, request_keys
from rankfall.data.impressions.spec import Categorical, Dense, column_of, table_of
from rankfall.data.sources.rows.portions import POSITION, IncrementalMerge, first_rows
from rankfall.data.sources.rows.row_files import RowFile
from rankfall.encoding import BadValueError, combine
from rankfall.storage.disk import make_directory, open_new, rename, sync
from rankfall.storage.files import checksum, try_to_delete, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec, Vocabulary
    from rankfall.data.sources.rows.portions import Portion, RequestOrder, SpooledLog
    from rankfall.data.sources.rows.raw_log import Origin, Types

    Numbers = NDArray[np.float64]
    Fits = dict[tuple[str, str], "_Vocabulary | _Scaling | _Edges"]

_SUM_BLOCK = 2**16  # rows that are summed at once
QUANTILE_SAMPLE = 2**17  # rows from which the edges of buckets are computed


def fit_portions(log: SpooledLog, portions: Sequence[Portion], on_rows: Report, engine: Engine) -> Encoding:
    """Fit the encoding of a log.

    Args:
        log: The spooled log.
        portions: The portions that the encoding is fitted to.
        on_rows: Receives the number of rows that were read.
        engine: Runs the work on the portions.
    """
    fits = _fitted(log, portions, on_rows, engine)
    found: dict[str, dict[str, Any]] = {"vocabularies": {}, "scalings": {}, "edges": {}}
    for (kind, name), fit in fits.items():
        found[kind][name] = fit.result()
    return Encoding(log.raw.spec, **found)


def new_values(
    log: SpooledLog, portions: Sequence[Portion], known: Mapping[str, pl.Series], engine: Engine
) -> dict[str, pl.Series]:
    """Return the values of some portions that vocabularies do not have, in the order of their future ids.

    Values need `min_count` occurrences in these portions, and a vocabulary does not grow beyond `max_size`.

    Args:
        log: The spooled log.
        portions: The portions, usually of one day.
        known: The vocabulary of each embedding table.
        engine: Runs the work on the portions.
    """
    fits = _fitted(log, portions, lambda rows: None, engine, only_vocabularies=True)
    return {name: fit.result(known.get(name)) for (_, name), fit in fits.items() if isinstance(fit, _Vocabulary)}


def _fitted(
    log: SpooledLog, portions: Sequence[Portion], on_rows: Report, engine: Engine, *, only_vocabularies: bool = False
) -> Fits:
    """Return what was fitted to some portions, by the argument of :class:`Encoding` and the table or feature."""
    fits: Fits = {}
    uses: list[_Use] = []
    for group, name, feature in log.raw.spec.features:
        use = partial(_Use, column_of(log.raw.spec, name, feature), group == "item")
        if isinstance(feature, Categorical) and feature.vocabulary is not None:
            uses.append(use(("vocabularies", table_of(group, name, feature))))
            fits.setdefault(uses[-1].key, _Vocabulary(feature.vocabulary))
        elif isinstance(feature, Dense) and feature.standardise and not only_vocabularies:
            uses.append(use(("scalings", f"{group}.{name}")))
            fits[uses[-1].key] = _Scaling(feature)
        elif isinstance(feature, Dense) and isinstance(feature.bucketize, int) and not only_vocabularies:
            uses.append(use(("edges", f"{group}.{name}")))
            fits[uses[-1].key] = _Edges(feature, feature.bucketize)
    with closing(engine.map(partial(_portion_parts, log, fits, uses), portions, on_rows)) as parts:
        for part in chain.from_iterable(parts):
            fits[part[0]].add(part[1])
    return fits


class _Use(NamedTuple):
    """A column that something is fitted to."""

    column: str
    per_row: bool  # as features of items; those of users and context are fitted to requests
    key: tuple[str, str]


def _portion_parts(
    log: SpooledLog, fits: Fits, uses: Sequence[_Use], portion: Portion, report: Report
) -> list[tuple[tuple[str, str], Any]]:
    """Return what the rows of a portion add to each fit."""
    keys = [log.raw.spec.request, log.raw.spec.item]
    rows = log.rows(portion.number, [use.column for use in uses]).sort(POSITION, keys[1])  # sums depend on the order
    requests = first_rows(rows)
    found = []
    for use in uses:
        frame, first = (rows, portion.first_row) if use.per_row else (requests, portion.first_request)
        try:
            part = fits[use.key].part(frame[use.column], frame.select(keys[: 1 + use.per_row]), first)
        except BadValueError as error:
            raise RankfallError(f"{error} (request {frame[keys[0]][error.position]!r})") from None
        found.append((use.key, part))
    report(portion.rows)
    return found


class _Vocabulary:
    """The values of an embedding table that get ids, by their number of occurrences."""

    def __init__(self, limits: Vocabulary) -> None:
        self._limits = limits
        self._counts = IncrementalMerge(_summed)

    def part(self, values: pl.Series, keys: pl.DataFrame, first: int) -> pl.DataFrame:
        """Return the number of occurrences of each value."""
        return values.drop_nulls().alias("value").value_counts(name="count").cast({"count": pl.Int64})

    def add(self, part: pl.DataFrame) -> None:
        """Add the next portion."""
        self._counts.add(part)

    def result(self, known: pl.Series | None = None) -> pl.Series:
        """Return the values that get ids: the most frequent first, values of equal frequency sorted.

        Values of one hash get one id, that of the first: bundles find values by their hashes, and clients could choose
        text of the same hash.

        Args:
            known: Values that have ids already. They count for the largest size.
        """
        frequent, taken = self._counts.result().filter(pl.col("count") >= self._limits.min_count), 0
        if known is not None:
            frequent, taken = frequent.join(known.to_frame("value"), on="value", how="anti"), len(known)
        ordered = frequent.sort("count", "value", descending=[True, False])["value"]
        if ordered.dtype == pl.String:  # hashes of different integers differ
            hashes = pl.Series(hash_values(ordered if known is None else pl.concat([known, ordered])))
            ordered = ordered.filter(hashes.is_first_distinct().tail(len(ordered)))
        most = self._limits.max_size
        return ordered if most is None else ordered.head(max(0, most - taken))


def _summed(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("value").agg(pl.sum("count"))


class _Scaling:
    """Mean and deviation. Numbers are summed in blocks of one size, independent of where portions end."""

    def __init__(self, feature: Dense) -> None:
        self._feature = feature
        self._pending = np.empty((0, feature.size))
        self._moments = Moments.of(self._pending)

    def part(self, values: pl.Series, keys: pl.DataFrame, first: int) -> list[Moments | Numbers]:
        """Return the moments of complete blocks and the numbers of others; `first` numbers come before these."""
        numbers = dense_values(self._feature, values).reshape(len(values), -1)
        blocks = np.split(numbers, range(_SUM_BLOCK - first % _SUM_BLOCK, len(numbers), _SUM_BLOCK))
        return [Moments.of(block) if len(block) == _SUM_BLOCK else block for block in blocks]

    def add(self, part: Sequence[Moments | Numbers]) -> None:
        """Add the next portion."""
        for block in part:
            if isinstance(block, Moments):
                self._moments += block
                continue
            self._pending = np.concatenate([self._pending, block])
            if len(self._pending) == _SUM_BLOCK:
                self._moments += Moments.of(self._pending)
                self._pending = self._pending[:0]

    def result(self) -> tuple[Numbers, Numbers]:
        """Return the mean and the deviation of each number."""
        scaling = (self._moments + Moments.of(self._pending)).scaling()
        return scaling.mean, scaling.deviation


class _Edges:
    """The edges of buckets, from the rows with the smallest hashes, at most `QUANTILE_SAMPLE` of them."""

    def __init__(self, feature: Dense, buckets: int) -> None:
        self._feature, self._buckets = feature, buckets
        self._sample: tuple[NDArray[np.uint64], Numbers] = (np.empty(0, np.uint64), np.empty(0))

    def part(self, values: pl.Series, keys: pl.DataFrame, first: int) -> tuple[NDArray[np.uint64], Numbers]:
        """Return the sample of a portion: hashes and numbers."""
        hashes = combine(*(hash_values(column) for column in keys.get_columns()))
        numbers = dense_values(self._feature, values)
        smallest = np.argsort(hashes, kind="stable")[:QUANTILE_SAMPLE]
        return hashes[smallest], numbers[smallest]

    def add(self, part: tuple[NDArray[np.uint64], Numbers]) -> None:
        """Add the next portion."""
        hashes, numbers = (np.concatenate(both) for both in zip(self._sample, part, strict=True))
        smallest = np.argsort(hashes, kind="stable")[:QUANTILE_SAMPLE]
        self._sample = hashes[smallest], numbers[smallest]

    def result(self) -> list[float]:
        """Return the inner edges of buckets of equal counts; a value that fills several buckets gives one edge."""
        numbers = self._sample[1]
        if len(numbers) == 0:
            return []
        edges = np.unique(np.quantile(numbers, np.arange(1, self._buckets) / self._buckets))
        return [float(edge) for edge in edges if edge > numbers.min()]  # a bucket includes its lower edge


# --- histories --------------------------------------------------------------------------------------------------

_NO_PLACE = 2**62  # of items without a position or rank, which come last


Events = tuple[pl.DataFrame, dict[str, pl.DataFrame]]  # user and time of each request, and events by sequence


class SequenceHistories:
    """One history per sequence of feedback. Portions go through :meth:`advance` in their order.

    Args:
        spec: The spec of the log.
        events: The events of earlier days by sequence, as :meth:`events` returned them.
    """

    def __init__(self, spec: Spec, events: Mapping[str, pl.DataFrame] = MappingProxyType({})) -> None:
        self._histories = {
            name: EventHistory(
                sequence.max_length,
                [f"sequence.{name}.{feature}" for feature in sequence.features],
                events.get(name),
                ties=["request", "item"],
            )
            for name, sequence in spec.sequences.items()
            if sequence.feedback is not None
        }

    def events(self) -> dict[str, pl.DataFrame]:
        """Return the events of each sequence that later requests may need."""
        found = {name: history.events for name, history in self._histories.items()}
        return {name: events for name, events in found.items() if events is not None}

    def advance(self, events: Events) -> list[pl.Series]:
        """Return the columns ``sequence.NAME.FEATURE`` of the requests of the next portion."""
        columns: list[pl.Series] = []
        requests, of_sequence = events[0].with_row_index("place"), events[1]
        known = requests.drop_nulls()  # requests without a user have no history
        for name, history in self._histories.items():
            found = history.advance(known["user"], known["time"], of_sequence[name])
            found = requests.join(found.with_columns(known["place"]), on="place", how="left", maintain_order="left")
            columns += found.select(history.columns).get_columns()
        return columns


def event_columns(spec: Spec) -> list[str]:
    """Return the columns from which events are made; none if no sequence is made of feedback."""
    columns: list[str] = []
    for sequence in spec.sequences.values():
        if sequence.feedback is not None:
            assert spec.time is not None  # validated by the spec
            columns += [spec.time.column, sequence.feedback, *_place_columns(spec)]
            columns += [column_of(spec, name, spec.features.item[name]) for name in sequence.features]
    return list(dict.fromkeys(columns))


def find_events(spec: Spec, rows: pl.DataFrame, requests: pl.DataFrame) -> Events:
    """Find the events in the rows of a portion.

    Args:
        spec: The spec of the log.
        rows: The rows, with the columns of :func:`event_columns`.
        requests: The first row of each request.
    """
    assert spec.user is not None  # validated by the spec
    user, place = pl.col(spec.user), pl.lit(0, pl.Int64)
    for column in _place_columns(spec):
        place = pl.when(pl.col(column) >= 0).then(pl.col(column)).otherwise(_NO_PLACE)
    found: dict[str, pl.DataFrame] = {}
    for name, sequence in spec.sequences.items():
        if sequence.feedback is not None:
            events = rows.filter(above_zero(rows[sequence.feedback]) & user.is_not_null())
            found[name] = events.select(
                user=user,
                time=request_keys(events, spec)[TIME],
                order=place,
                request=pl.col(spec.request),
                item=pl.col(spec.item),
                **{
                    f"sequence.{name}.{feature}": pl.col(column_of(spec, feature, spec.features.item[feature]))
                    for feature in sequence.features
                },
            )
    return requests.select(user=user, time=request_keys(requests, spec)[TIME]), found


def _place_columns(spec: Spec) -> list[str]:
    """Return the column that orders the items of a request, if the log has one."""
    return [column for column in (spec.position, spec.rank) if column is not None][:1]


# --- state ------------------------------------------------------------------------------------------------------

STATE = "state"
_GROUP_ROWS = 2**18  # of a stored day that are in memory and in one group of its file
_SEPARATOR = "."  # between origin and column; no origin has one


@dataclass
class LogState:
    """The state of a log after one of its days."""

    encoding: Encoding
    items: GrowingItems
    histories: SequenceHistories
    counts: Counts = field(default_factory=Counts)
    unknown: dict[Origin, pl.DataFrame] = field(default_factory=dict)  # keys that a table did not have
    unknown_requests: int = 0  # requests that the table of requests did not have
    growth: dict[str, dict[str, int]] = field(default_factory=dict)  # new values by day and embedding table
    repeats: RepeatCounts = field(default_factory=RepeatCounts)  # of item features that change during a day

    def grow(self, day: str, found: Mapping[str, pl.Series]) -> None:
        """Give new values of a day ids behind those of the known ones.

        Args:
            day: The day.
            found: The new values of each embedding table, in the order of their ids.
        """
        new = {table: values for table, values in found.items() if len(values)}
        if not new:
            return
        known = self.encoding.vocabularies
        grown = {table: pl.concat([known[table], values.cast(known[table].dtype)]) for table, values in new.items()}
        self.encoding = replace(self.encoding, vocabularies={**known, **grown})
        counts = Counter(self.growth.get(day, {})) + Counter({table: len(values) for table, values in new.items()})
        self.growth[day] = dict(sorted(counts.items()))

    def save(self, directory: Path) -> None:
        """Write the state to a new directory."""
        make_directory(directory)
        write_table(directory / ITEMS, self.items.table.combine_chunks())
        if self.items.versions is not None:
            write_table(directory / VERSIONS, self.items.versions)
        frames = {f"histories/{name}": events for name, events in self.histories.events().items()}
        frames |= {f"unknown/{origin}": keys.sort(keys.columns) for origin, keys in self.unknown.items()}
        for name, frame in frames.items():
            path = directory / f"{name}.parquet"
            make_directory(path.parent)
            with open_new(path) as file:
                pa_parquet.write_table(_to_arrow(frame), file)
        counts = {"counts": self.counts.to_json(), "unknown_requests": self.unknown_requests}
        counts |= {"repeats": self.repeats.to_json()} if self.repeats.closer or self.repeats.farther else {}
        write_file(directory / "counts.json", json.dumps(counts, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path, spec: Spec, log: ImpressionLog, days: Sequence[str]) -> Self:
        """Read a state.

        Args:
            directory: The directory of the state, beside the vocabularies.
            spec: The spec of the log, with the names that its columns have when they are read.
            log: The log, which has what was fitted to its first days.
            days: The days up to this state.
        """
        items, file = map_table(directory / ITEMS), directory / VERSIONS
        versions = map_table(file) if file.is_file() else None
        tables = {table: directory.parent / VOCABULARIES / f"{table}.arrow" for table in log.manifest[VOCABULARIES]}
        vocabularies = {table: pl.Series(pl.from_arrow(map_table(path)["value"])) for table, path in tables.items()}
        fitted = Encoding.of_log(log)
        counts = json.loads((directory / "counts.json").read_text(encoding="utf-8"))
        return cls(
            Encoding(spec, vocabularies, fitted.scalings, fitted.edges),
            GrowingItems(numbered="id" in items.column_names, table=items, versions=versions, days=days),
            SequenceHistories(spec, dict(_frames(directory / "histories"))),
            Counts.from_json(counts["counts"]),
            dict(_frames(directory / "unknown")),  # type: ignore[arg-type]  # the files are named by origins
            counts["unknown_requests"],
            {day: dict(tables) for day, tables in log.manifest.get(GROWTH, {}).items()},
            RepeatCounts.from_json(counts.get("repeats", {})),
        )


def store_state(state: LogState, log: SpooledLog, order: RequestOrder, directory: Path) -> dict[str, Any]:
    """Write the state of a log after its newest day.

    Args:
        state: The state after the newest day.
        log: The spooled log, with the rows of the newest day.
        order: The order of its requests.
        directory: The directory of the state, which may have the state before the newest day.

    Returns:
        The entry in the manifest: the name of the state, and the checksums of its files.
    """
    state.save(directory / "after")
    write_vocabularies(directory, state.encoding.arrays)
    columns = {_SEPARATOR.join(which): kind for which, kind in sorted(log.raw.types.items())}
    write_table(directory / "columns.arrow", _to_arrow(pl.DataFrame(schema=columns)))
    newest = order.days[-1]
    _store_rows(log, [portion for portion in order.portions if portion.day == newest], directory / "newest")
    files = {
        str(path.relative_to(directory)): checksum(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }
    content = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return {"name": f"{newest}-{content[:12]}", "files": files}


def entries(state: LogState, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the manifest about the stored state and, if there are any, new values of vocabularies."""
    return {STATE: entry, GROWTH: state.growth} if state.growth else {STATE: entry}


def publish_state(directory: Path, log: ImpressionLog, entry: Mapping[str, Any]) -> None:
    """Move a new state into a log, before the manifest of the log names it."""
    path = log.path / STATE / entry["name"]
    if path.exists():  # of a process that died before the manifest was written; its name stands for its content
        return
    for file in (*directory.rglob("*"), directory):
        sync(file)
    rename(directory, path)
    sync(path.parent)


def remove_other_states(log: ImpressionLog, entry: Mapping[str, Any]) -> None:
    """Remove the states that the manifest of a log does not name any more; warn if one cannot be removed."""
    for path in (log.path / STATE).iterdir():
        if path.name != entry["name"]:
            try_to_delete(path)


def _store_rows(log: SpooledLog, portions: Sequence[Portion], directory: Path) -> None:
    """Write the rows of some portions, in an order that does not depend on the files they came from."""
    make_directory(directory)
    origins: tuple[Origin, ...] = ("log", "requests")
    for origin in origins:
        parts = (log.stored_rows(origin, portion.number) for portion in portions)
        _write_frames(directory / f"{origin}.parquet", (part for part in parts if part is not None))


class StoredState:
    """The state that a log stores.

    Raises:
        ValueError: If the log has none, or one of its files is missing or was changed.
    """

    def __init__(self, log: ImpressionLog) -> None:
        entry = log.manifest.get(STATE)
        if entry is None:
            raise RankfallError(
                f"append: {log.path} has no state to which days can be appended: another command wrote it; prepare it "
                "again"
            )
        self._log = log
        self._directory = log.path / STATE / entry["name"]
        for name, expected in entry["files"].items():
            path = self._directory / name
            if not path.is_file() or checksum(path) != expected:
                raise RankfallError(
                    f"append: {path} is missing or has changed since it was written; prepare the log again"
                )

    def types(self) -> Types:
        """Return the types of the columns of the source."""
        columns = pl.DataFrame(map_table(self._directory / "columns.arrow"))
        return {tuple(name.split(_SEPARATOR, 1)): kind for name, kind in columns.schema.items()}  # type: ignore[misc]

    def load(self, spec: Spec, *, before_newest: bool) -> LogState:
        """Return the state after the newest day, or that before it."""
        directory = self._directory / ("before" if before_newest else "after")
        if not directory.is_dir():
            raise RankfallError(f"reopen: {self._log.path} has one day only; prepare it again with all rows of the day")
        days = list(self._log.days)
        return LogState.load(directory, spec, self._log, days[:-1] if before_newest else days)

    def newest(self) -> dict[Origin, RowFile]:
        """Return the rows of the newest day."""
        day = list(self._log.days)[-1]
        return {
            path.stem: RowFile(path, label=f"the stored rows of {day}", typed=True)
            for path in sorted((self._directory / "newest").glob("*.parquet"))
        }


def _write_frames(path: Path, frames: Iterator[pl.DataFrame]) -> None:
    """Write frames as one file; its groups of rows do not depend on how the rows are split into frames."""
    first = next(frames, None)
    if first is None:
        return
    with open_new(path) as file, pa_parquet.ParquetWriter(file, _to_arrow(first[:0]).schema) as writer:
        rest = first[:0]
        for frame in chain([first], frames):
            rest = pl.concat([rest, frame])
            while len(rest) >= _GROUP_ROWS:
                writer.write_table(_to_arrow(rest[:_GROUP_ROWS]))
                rest = rest[_GROUP_ROWS:]
        if len(rest):
            writer.write_table(_to_arrow(rest))


def _to_arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())


def _frames(directory: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    for path in sorted(directory.glob("*.parquet")):
        frame = pl.DataFrame(pa_parquet.read_table(path))
        yield path.stem, frame
