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
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from rankfall._disk import make_directory, open_new, rename, sync
from rankfall._files import checksum, write_file
from rankfall._leftovers import try_to_delete
from rankfall.data.impressions.counts import Counts
from rankfall.data.impressions.encoding import Encoding
from rankfall.data.impressions.items import GrowingItems
from rankfall.data.impressions.log import GROWTH, map_table
from rankfall.data.impressions.log_writer import write_table, write_vocabularies
from rankfall.data.impressions.repeats import RepeatCounts
from rankfall.data.impressions.schema import ITEMS, VERSIONS, VOCABULARIES
from rankfall.data.sources.rows.log_sequences import SequenceHistories
from rankfall.data.sources.rows.row_files import RowFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall.data.impressions.log import ImpressionLog
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.portions import SpooledLog
    from rankfall.data.sources.rows.raw_log import Types
    from rankfall.data.sources.rows.request_order import Portion, RequestOrder

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
            raise ValueError(
                f"append: {log.path} has no state to which days can be appended: another command wrote it; prepare it "
                "again"
            )
        self._log = log
        self._directory = log.path / STATE / entry["name"]
        for name, expected in entry["files"].items():
            path = self._directory / name
            if not path.is_file() or checksum(path) != expected:
                raise ValueError(
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
            raise ValueError(f"reopen: {self._log.path} has one day only; prepare it again with all rows of the day")
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
