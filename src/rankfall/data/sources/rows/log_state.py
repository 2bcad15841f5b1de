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
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from rankfall._errors import RankfallError
from rankfall.data.arrays import Moments
from rankfall.data.impressions.assemble import RepeatCounts
from rankfall.data.impressions.encoding import Encoding, dense_values, hash_values
from rankfall.data.impressions.items import ITEMS, VERSIONS, VOCABULARIES, GrowingItems
from rankfall.data.impressions.log import GROWTH, map_table
from rankfall.data.impressions.log_writer import write_table, write_vocabularies
from rankfall.data.impressions.requests import Counts
from rankfall.data.impressions.spec import Categorical, Dense, column_of, table_of
from rankfall.data.sources.rows.portions import POSITION, IncrementalMerge, first_rows
from rankfall.data.sources.rows.row_checks import SequenceHistories
from rankfall.data.sources.rows.row_files import RowFile
from rankfall.encoding import BadValueError, combine
from rankfall.storage.disk import make_directory, open_new, rename, sync
from rankfall.storage.files import checksum, try_to_delete, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import FeatureConfig, Spec, Vocabulary
    from rankfall.data.sources.rows.portions import Portion, RequestOrder, SpooledLog
    from rankfall.data.sources.rows.raw_log import Origin, Types

    Numbers = NDArray[np.float64]

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
    fitter = EncodingFitter(log.raw.spec)
    with closing(engine.map(partial(_portion_statistics, log, fitter), portions, on_rows)) as found:
        for statistics in found:
            fitter.add(statistics)
    return fitter.encoding()


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
    fitter = EncodingFitter(log.raw.spec, _has_vocabulary)
    with closing(engine.map(partial(_portion_statistics, log, fitter), portions)) as found:
        for statistics in found:
            fitter.add(statistics)
    return fitter.vocabularies(known)


def _portion_statistics(log: SpooledLog, fitter: EncodingFitter, portion: Portion, report: Report) -> Statistics:
    rows = log.rows(portion.number, fitter.columns)
    rows = rows.sort(POSITION, log.raw.spec.item)  # sums of floats depend on the order
    statistics = fitter.statistics(rows, first_rows(rows), portion)
    report(portion.rows)
    return statistics


@dataclass
class Statistics:
    """The statistics of a portion: counts per embedding table, sums and samples per feature."""

    counts: dict[str, pl.DataFrame] = field(default_factory=dict)
    sums: dict[str, list[Moments | Numbers]] = field(default_factory=dict)
    samples: dict[str, tuple[NDArray[np.uint64], Numbers]] = field(default_factory=dict)


class EncodingFitter:
    """Collects the statistics for an :class:`Encoding`.

    Features of items are counted per row, features of users and context per request.

    Args:
        spec: The description of the log.
        fits: Returns whether a feature is fitted.
    """

    def __init__(self, spec: Spec, fits: Callable[[FeatureConfig], bool] | None = None) -> None:
        self.spec = spec
        self._counts: dict[str, _ValueCounts] = {}  # by embedding table
        self._sums: dict[str, _Sums] = {}  # by feature
        self._samples: dict[str, _Sample] = {}
        self._features = [entry for entry in spec.features if (fits or _needs_fit)(entry[2])]
        for group, name, feature in self._features:
            key = f"{group}.{name}"
            if isinstance(feature, Categorical):
                assert feature.vocabulary is not None  # no other categorical feature is fitted
                self._counts.setdefault(table_of(group, name, feature), _ValueCounts(feature.vocabulary))
            elif isinstance(feature, Dense) and feature.standardise:
                self._sums[key] = _Sums(feature.size)
            else:
                self._samples[key] = _Sample()

    @property
    def columns(self) -> list[str]:
        """The columns of the fitted features."""
        return list(dict.fromkeys(column_of(self.spec, name, feature) for _, name, feature in self._features))

    def statistics(self, rows: pl.DataFrame, requests: pl.DataFrame, portion: Portion) -> Statistics:
        """Compute the statistics of a portion.

        Args:
            rows: The rows, sorted by request and item.
            requests: The first row of each request.
            portion: The portion that the rows belong to.
        """
        statistics = Statistics()
        counts: dict[str, list[pl.DataFrame]] = {}
        hashes: dict[bool, NDArray[np.uint64]] = {}
        for group, name, feature in self._features:
            of_item = group == "item"
            frame = rows if of_item else requests
            values, key = frame[column_of(self.spec, name, feature)], f"{group}.{name}"
            if isinstance(feature, Categorical):
                counts.setdefault(table_of(group, name, feature), []).append(_counted(values))
                continue
            assert isinstance(feature, Dense)  # times are not fitted
            numbers = self._numbers(feature, values, frame)
            if key in self._sums:
                first = portion.first_row if of_item else portion.first_request
                statistics.sums[key] = _in_blocks(numbers.reshape(len(numbers), -1), first)
            else:
                if of_item not in hashes:
                    hashes[of_item] = self._hashes(frame, of_item)
                statistics.samples[key] = _smallest(hashes[of_item], numbers)
        statistics.counts = {table: _summed(pl.concat(some)) for table, some in counts.items()}
        return statistics

    def add(self, statistics: Statistics) -> None:
        """Add the statistics of the next portion."""
        for table, counted in statistics.counts.items():
            self._counts[table].add(counted)
        for key, blocks in statistics.sums.items():
            self._sums[key].add(blocks)
        for key, (hashes, numbers) in statistics.samples.items():
            self._samples[key].add(hashes, numbers)

    def encoding(self) -> Encoding:
        """Return the encoding that fits all statistics added."""
        features = {f"{group}.{name}": feature for group, name, feature in self._features}
        return Encoding(
            self.spec,
            vocabularies=self.vocabularies(),
            scalings={key: sums.scaling() for key, sums in self._sums.items()},
            edges={key: sample.edges(_buckets(features[key])) for key, sample in self._samples.items()},
        )

    def vocabularies(self, known: Mapping[str, pl.Series] = MappingProxyType({})) -> dict[str, pl.Series]:
        """Return the values of each embedding table that get ids, without those that have one already."""
        return {table: counts.vocabulary(known.get(table)) for table, counts in self._counts.items()}

    def _numbers(self, feature: Dense, values: pl.Series, frame: pl.DataFrame) -> Numbers:
        try:
            return dense_values(feature, values)
        except BadValueError as error:
            raise RankfallError(f"{error} (request {frame[self.spec.request][error.position]!r})") from None

    def _hashes(self, frame: pl.DataFrame, of_item: bool) -> NDArray[np.uint64]:
        parts = [hash_values(frame[column]) for column in (self.spec.request, self.spec.item)[: 1 + of_item]]
        return combine(*parts)


def _needs_fit(feature: FeatureConfig) -> bool:
    scaled = isinstance(feature, Dense) and (feature.standardise or isinstance(feature.bucketize, int))
    return scaled or _has_vocabulary(feature)


def _has_vocabulary(feature: FeatureConfig) -> bool:
    return isinstance(feature, Categorical) and feature.vocabulary is not None


def _buckets(feature: FeatureConfig) -> int:
    assert isinstance(feature, Dense)
    assert isinstance(feature.bucketize, int)
    return feature.bucketize


class _ValueCounts:
    """The number of occurrences of each value."""

    def __init__(self, limits: Vocabulary) -> None:
        self._limits = limits
        self._counts = IncrementalMerge(_summed)

    def add(self, counted: pl.DataFrame) -> None:
        self._counts.add(counted)

    def vocabulary(self, known: pl.Series | None = None) -> pl.Series:
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


def _counted(values: pl.Series) -> pl.DataFrame:
    return values.drop_nulls().alias("value").value_counts(name="count").cast({"count": pl.Int64})


def _summed(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("value").agg(pl.sum("count"))


class _Sums:
    """Mean and deviation. Numbers are summed in blocks of one size, independent of where portions end."""

    def __init__(self, size: int) -> None:
        self._moments = Moments.of(np.empty((0, size)))
        self._pending = np.empty((0, size))

    def add(self, blocks: Sequence[Moments | Numbers]) -> None:
        """Add the next complete blocks and parts of blocks."""
        for block in blocks:
            if isinstance(block, Moments):
                self._moments += block
                continue
            self._pending = np.concatenate([self._pending, block])
            if len(self._pending) == _SUM_BLOCK:
                self._moments += Moments.of(self._pending)
                self._pending = self._pending[:0]

    def scaling(self) -> tuple[Numbers, Numbers]:
        scaling = (self._moments + Moments.of(self._pending)).scaling()
        return scaling.mean, scaling.deviation


def _in_blocks(numbers: Numbers, first: int) -> list[Moments | Numbers]:
    """Return the moments of complete blocks and the numbers of incomplete ones; `first` numbers come before these."""
    stops = range(_SUM_BLOCK - first % _SUM_BLOCK, len(numbers), _SUM_BLOCK)
    blocks = np.split(numbers, stops)
    return [Moments.of(block) if len(block) == _SUM_BLOCK else block for block in blocks]


class _Sample:
    """The numbers of the rows with the smallest hashes, at most `QUANTILE_SAMPLE` of them."""

    def __init__(self) -> None:
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._numbers: NDArray[Any] = np.empty(0)

    def add(self, hashes: NDArray[np.uint64], numbers: Numbers) -> None:
        hashes, numbers = np.concatenate([self._hashes, hashes]), np.concatenate([self._numbers, numbers])
        self._hashes, self._numbers = _smallest(hashes, numbers)

    def edges(self, buckets: int) -> list[float]:
        """Return the inner edges of buckets of equal counts; a value that fills several buckets gives one edge."""
        if len(self._numbers) == 0:
            return []
        edges = np.unique(np.quantile(self._numbers, np.arange(1, buckets) / buckets))
        return [float(edge) for edge in edges if edge > self._numbers.min()]  # a bucket includes its lower edge


def _smallest(hashes: NDArray[np.uint64], numbers: Numbers) -> tuple[NDArray[np.uint64], Numbers]:
    smallest = np.argsort(hashes, kind="stable")[:QUANTILE_SAMPLE]
    return hashes[smallest], numbers[smallest]


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
            _write_frame(path, frame)
        counts = {"counts": self.counts.to_json(), "unknown_requests": self.unknown_requests}
        counts |= {"repeats": self.repeats.to_json()} if self.repeats.closer or self.repeats.farther else {}
        write_file(directory / "counts.json", json.dumps(counts, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path, spec: Spec, log: ImpressionLog, days: Sequence[str]) -> Self:
        """Read a state.

        Args:
            directory: The directory of the state, beside the vocabularies.
            spec: The description of the log, with the names that its columns have when they are read.
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


def growth_entry(state: LogState) -> dict[str, Any]:
    """Return the entry of the manifest about new values of vocabularies; none if there are no such values."""
    return {GROWTH: state.growth} if state.growth else {}


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
        columns = pl.from_arrow(map_table(self._directory / "columns.arrow"))
        assert isinstance(columns, pl.DataFrame)
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


def _write_frame(path: Path, frame: pl.DataFrame) -> None:
    with open_new(path) as file:
        pa_parquet.write_table(_to_arrow(frame), file)


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
        frame = pl.from_arrow(pa_parquet.read_table(path))
        assert isinstance(frame, pl.DataFrame)
        yield path.stem, frame
