"""The records that decide on one day, on disk in parts by the hash of their request.

A part has all samples and events of its requests, so that parts are joined one after the other, and only one is in
memory. Parts are ranges of hashes: their number has no influence on the order of what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from rankfall._disk import make_directory
from rankfall.data.impressions.column_hashing import hash_values
from rankfall.data.sources.rows.row_spool import write_spool
from rankfall.online.recorded_segments import read_batches
from rankfall.online.served_requests import DAY, HASH
from rankfall.serving.recording.record_schemas import EVENT_SCHEMA, EVENTS, SAMPLES, sample_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence
    from pathlib import Path

    from rankfall.data.sources.rows.row_spool import RowSpool
    from rankfall.online.log_days import LogDays
    from rankfall.online.recorded_segments import SegmentContent

CARRIED = "\1carried"  # whether a record was left over when the day before was closed
_PART = "\1part"
_SAMPLES_PER_PART, _EVENTS_PER_PART = 2**15, 2**19
_MOST_PARTS = 2**10
_BUFFERED = 2**26  # bytes of records that are split into parts at once


@dataclass(frozen=True)
class Window:
    """Records that decide on a day: those received until its limit that did not decide on an earlier day.

    Attributes:
        contents: The segments that have some of them.
        after: The limit of the day that was closed before, None if there is none.
        until: The limit of the day.
        seen: Names of segments whose records until `after` have been used; what another segment has from that time
            was written too late.
        carried: Files of records of this day and later ones that were received before, by their kind.
    """

    contents: Sequence[SegmentContent]
    after: int | None
    until: int
    seen: Container[str]
    carried: dict[str, Path]

    def frames(self, kind: str, days: LogDays) -> Iterator[pl.DataFrame]:
        """Yield the records of a kind, with `HASH`, `CARRIED` and, for samples, `DAY`."""
        if kind in self.carried:
            carried = pa.ipc.open_file(pa.memory_map(str(self.carried[kind])))
            for number in range(carried.num_record_batches):
                frame = pl.from_arrow(carried.get_batch(number))
                assert isinstance(frame, pl.DataFrame)
                yield _marked(frame, days, carried=True)
        for content in self.contents:
            if content.kind != kind or content.first > self.until:
                continue
            is_seen = content.segment.path.name in self.seen
            for frame in read_batches(content.segment, kind):
                received = pl.col("received").to_physical()
                inside = received <= self.until
                if is_seen and self.after is not None:
                    inside &= received > self.after
                if len(chosen := frame.filter(inside)):
                    yield _marked(chosen, days, carried=False)

    def count(self, kind: str) -> int:
        """Return about how many records of a kind there are."""
        return sum(content.records for content in self.contents if content.kind == kind and content.first <= self.until)


class Part(NamedTuple):
    """The records of some requests."""

    samples: pl.DataFrame
    events: pl.DataFrame


class WindowSpool:
    """The records of a window by part.

    Args:
        window: The records.
        days: The days of the log.
        directory: An existing directory for the files.
        on_records: Receives numbers of records that were read.
    """

    def __init__(self, window: Window, days: LogDays, directory: Path, on_records: Callable[[int], None]) -> None:
        make_directory(directory)
        needed = max(window.count(SAMPLES) / _SAMPLES_PER_PART, window.count(EVENTS) / _EVENTS_PER_PART, 1)
        self._bits = min(int(np.ceil(np.log2(needed))), _MOST_PARTS.bit_length() - 1)
        has_text = any(content.has_text for content in window.contents)
        self._empty = {
            SAMPLES: _empty(sample_schema(pa.string() if has_text else pa.int64())),
            EVENTS: _empty(EVENT_SCHEMA),
        }
        if SAMPLES in window.carried and not has_text:
            carried = pa.ipc.open_file(pa.memory_map(str(window.carried[SAMPLES]))).schema
            if carried.field("item").type.value_type != pa.int64():
                self._empty[SAMPLES] = _empty(sample_schema(pa.string()))
        self._spools = {
            kind: write_spool(directory, self._split(window.frames(kind, days), kind, on_records), _PART)
            for kind in (SAMPLES, EVENTS)
        }

    def __len__(self) -> int:
        """The number of parts."""
        return int(2**self._bits)

    def __iter__(self) -> Iterator[Part]:
        """Yield the parts in the order of hashes."""
        for number in range(len(self)):
            yield Part(*(self._read(kind, self._spools[kind], number) for kind in (SAMPLES, EVENTS)))

    def _split(
        self, frames: Iterator[pl.DataFrame], kind: str, on_records: Callable[[int], None]
    ) -> Iterator[pl.DataFrame]:
        """Yield the records with the number of their part, many at a time."""
        for frame in _merged(frames, self._empty[kind].schema):
            on_records(len(frame))
            part = frame[HASH].to_numpy() >> np.uint64(64 - self._bits) if self._bits else np.zeros(len(frame))
            yield frame.with_columns(pl.Series(_PART, part.astype(np.int64)))

    def _read(self, kind: str, spool: RowSpool, number: int) -> pl.DataFrame:
        pieces = spool.read(number, spool.columns)
        if not pieces:
            return self._empty[kind]
        frame = pl.from_arrow(pa.Table.from_batches(pieces))
        assert isinstance(frame, pl.DataFrame)
        return frame.rechunk()


def _marked(frame: pl.DataFrame, days: LogDays, *, carried: bool) -> pl.DataFrame:
    columns = [pl.Series(HASH, hash_values(frame["request"])), pl.lit(carried).alias(CARRIED)]
    if "sampled" in frame.columns:
        columns.append(pl.Series(DAY, days.of(frame)))
    return frame.with_columns(columns)


def _merged(frames: Iterator[pl.DataFrame], schema: pl.Schema) -> Iterator[pl.DataFrame]:
    """Yield the records of small frames together, with ids of items of one type."""
    held: list[pl.DataFrame] = []
    size = 0.0
    for frame in frames:
        held.append(frame if frame.schema == schema else frame.cast(schema))
        size += frame.estimated_size()
        if size >= _BUFFERED:
            yield pl.concat(held, rechunk=True)
            held, size = [], 0.0
    if held:
        yield pl.concat(held, rechunk=True)


def _empty(schema: pa.Schema) -> pl.DataFrame:
    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    columns = [pl.lit(None, pl.UInt64).alias(HASH), pl.lit(None, pl.Boolean).alias(CARRIED)]
    if "sampled" in frame.columns:
        columns.append(pl.lit(None, pl.Int32).alias(DAY))
    return frame.with_columns(columns)
