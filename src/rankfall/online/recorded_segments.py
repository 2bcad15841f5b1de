"""The segments that a service has recorded in a directory, and what they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from rankfall.serving.recording.record_schemas import EVENT_SCHEMA, EVENTS, SAMPLES, sample_schema
from rankfall.serving.recording.record_segments import CREATING, OPEN, SUFFIX, first_open, recover, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rankfall.online.log_days import LogDays
    from rankfall.serving.recording.record_segments import Segment

KINDS = (SAMPLES, EVENTS)
_SCHEMAS = {SAMPLES: [sample_schema(pa.int64()), sample_schema(pa.string())], EVENTS: [EVENT_SCHEMA]}
_DAY = "\1day"


@dataclass(frozen=True)
class SegmentContent:
    """What a segment holds.

    Attributes:
        segment: The segment.
        kind: ``"samples"`` or ``"events"``.
        records: The number of records.
        first: The smallest ``received`` of them, in milliseconds since 1970.
        last: The largest one.
        days: The smallest ``received`` of the sampled requests of each day.
        late: The number of requests of each day that were received after its limit.
        depths: The numbers of stages of the models that answered.
        has_text: Whether ids of items are text.
    """

    segment: Segment
    kind: str
    records: int
    first: int
    last: int
    days: dict[int, int] = field(default_factory=dict)
    late: Counter[int] = field(default_factory=Counter)
    depths: set[int] = field(default_factory=set)
    has_text: bool = False


def read_batches(segment: Segment, kind: str) -> Iterator[pl.DataFrame]:
    """Yield the records of a segment.

    Raises:
        ValueError: If the file was changed, or has other columns.
    """
    for batch in segment.batches():
        if not any(batch.schema.equals(schema) for schema in _SCHEMAS[kind]):
            found = ", ".join(f"{one.name} ({one.type})" for one in batch.schema)
            raise ValueError(f"{segment.path} is not a segment of {kind}: found the columns {found}")
        try:
            batch.validate(full=True)  # invalid offsets must not be dereferenced
        except pa.ArrowInvalid as error:
            raise ValueError(f"{segment.path} is not a segment of {kind}: {error}") from None
        if lacking := [one.name for one in batch.schema if not one.nullable and batch[one.name].null_count]:
            raise ValueError(f"{segment.path} is not a segment of {kind}: found no {lacking[0]} in a record")
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        yield frame


class RecordedSegments:
    """The segments of a directory in which a service writes.

    Args:
        directory: The directory, with the subdirectories ``samples`` and ``events``.
        days: The days of the log.
        on_notice: Receives a sentence for each file that is not a segment.

    Raises:
        ValueError: If there is no such directory.
    """

    def __init__(self, directory: Path, days: LogDays, on_notice: Callable[[str], None] = lambda text: None) -> None:
        if not any((directory / kind).is_dir() for kind in KINDS):
            found = "has neither samples/ nor events/" if directory.is_dir() else "is not a directory"
            raise ValueError(
                f"directory: {directory} {found}, expected a directory that 'rankfall serve --samples' writes"
            )
        self._directory, self._days, self._on_notice = directory, days, on_notice
        self._contents: dict[str, SegmentContent] = {}
        self._foreign: set[Path] = set()
        self.first_open: int | None = None  # the smallest `received` of first batches of open segments

    def refresh(self, finished: set[str], on_segment: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Find new segments, after those of dead processes were completed.

        Args:
            finished: Names of segments that need not be read.
            on_segment: Receives the number of new segments that were read, and of all new ones.

        Raises:
            ValueError: If a segment is damaged.
        """
        places = [self._directory / kind for kind in KINDS if (self._directory / kind).is_dir()]
        for place in places:
            recover(place)
        # before the complete ones are listed: a segment that is completed in between is in the list
        open_ones = [found for place in places if (found := first_open(place)) is not None]
        self.first_open = min(open_ones, default=None)
        new = []
        for place in places:
            self._note_foreign(place)
            new += [
                (segment, place.name)
                for segment in segments(place)
                if segment.path.name not in finished and segment.path.name not in self._contents
            ]
        for done, (segment, kind) in enumerate(new):
            on_segment(done, len(new))
            self._contents[segment.path.name] = self._read(segment, kind)

    def contents(self) -> list[SegmentContent]:
        """Return what the segments hold that were read, in the order of their names."""
        return [self._contents[name] for name in sorted(self._contents)]

    def existing(self, names: Iterable[str]) -> set[str]:
        """Return the names of segments that have not been deleted."""
        return {name for name in names if any((self._directory / kind / name).exists() for kind in KINDS)}

    def forget(self, names: set[str]) -> None:
        """Forget segments that need not be read again."""
        for name in names:
            self._contents.pop(name, None)

    def _read(self, segment: Segment, kind: str) -> SegmentContent:
        records, first, last, has_text = 0, 0, 0, False
        days: dict[int, int] = {}
        late: Counter[int] = Counter()
        depths: set[int] = set()
        for frame in read_batches(segment, kind):
            received = frame["received"].to_physical()
            low, high = int(received.min()), int(received.max())  # type: ignore[arg-type]  # without nulls
            first, last = (min(first, low), max(last, high)) if records else (low, high)
            records += len(frame)
            if kind == SAMPLES:
                late.update(self._late(frame))
                depths.update(frame["stage"].list.max().drop_nulls())
                has_text = frame.schema["item"] == pl.List(pl.String)
                for day, earliest in self._first_of_days(frame):
                    days[day] = min(days.get(day, earliest), earliest)
        return SegmentContent(segment, kind, records, first, last, days, late, depths, has_text)

    def _first_of_days(self, samples: pl.DataFrame) -> list[tuple[int, int]]:
        sampled = samples.filter("sampled")
        days = pl.DataFrame({_DAY: self._days.of(sampled), "received": sampled["received"].to_physical()})
        return days.group_by(_DAY).agg(pl.min("received")).rows()

    def _late(self, samples: pl.DataFrame) -> dict[int, int]:
        """Return the number of samples of each day that were received after its limit."""
        days = pl.DataFrame({_DAY: self._days.of(samples), "received": samples["received"].to_physical()})
        limits = {day: self._days.limit(day) for day in days[_DAY].unique()}
        late = days.filter(pl.col("received") > pl.col(_DAY).replace_strict(limits, return_dtype=pl.Int64))
        return dict(late[_DAY].value_counts().rows())

    def _note_foreign(self, place: Path) -> None:
        """Say once which files are ignored; refuse those that have the suffix of segments."""
        present = sorted(place.iterdir())
        complete = {segment.path for segment in segments(place)}
        for path in present:
            if path in complete or path in self._foreign or path.suffix in (OPEN, CREATING):
                continue
            if path.suffix == SUFFIX:
                raise ValueError(f"{path} has not the name of a segment: it was renamed, or another program wrote it")
            self._foreign.add(path)
            self._on_notice(f"{path} is not a segment and is ignored")
