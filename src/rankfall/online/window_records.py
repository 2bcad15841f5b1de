"""The records that decide on one day, on disk in parts by the hash of their request.

A part has all samples and events of its requests, so that parts are joined one after the other, and only one is in
memory. Parts are ranges of hashes: their number has no influence on the order of what is written.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from rankfall._errors import RankfallError
from rankfall.data.impressions.encoding import hash_values
from rankfall.data.sources.rows.portions import write_spool
from rankfall.online.request_columns import DAY, HASH
from rankfall.serving.recording.record_segments import (
    CREATING,
    EVENT_SCHEMA,
    EVENTS,
    OPEN,
    SAMPLES,
    SCHEMAS,
    SUFFIX,
    first_open,
    recover,
    sample_schema,
    segments,
)
from rankfall.storage.disk import make_directory, open_new

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence
    from pathlib import Path

    from rankfall.data.sources.rows.portions import RowSpool
    from rankfall.online.join_state import LogDays
    from rankfall.online.request_columns import ServedRequests
    from rankfall.serving.recording.record_segments import Segment


KINDS = (SAMPLES, EVENTS)
_DAY, _SAMPLED = "\1day", "sampled"


@dataclass
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
    records: int = 0
    first: int = 0
    last: int = 0
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
        if not any(batch.schema.equals(schema) for schema in SCHEMAS[kind]):
            found = ", ".join(f"{one.name} ({one.type})" for one in batch.schema)
            raise RankfallError(f"{segment.path} is not a segment of {kind}: found the columns {found}")
        try:
            batch.validate(full=True)  # invalid offsets must not be dereferenced
        except pa.ArrowInvalid as error:
            raise RankfallError(f"{segment.path} is not a segment of {kind}: {error}") from None
        if lacking := [one.name for one in batch.schema if not one.nullable and batch[one.name].null_count]:
            raise RankfallError(f"{segment.path} is not a segment of {kind}: found no {lacking[0]} in a record")
        yield _frame(batch)


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
            raise RankfallError(
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
        content = SegmentContent(segment, kind)
        for frame in read_batches(segment, kind):
            received = frame["received"].to_physical()
            low, high = int(received.min()), int(received.max())  # type: ignore[arg-type]  # without nulls
            content.first = min(content.first, low) if content.records else low
            content.last = max(content.last, high) if content.records else high
            content.records += len(frame)
            if kind == SAMPLES:
                of_frame = pl.DataFrame({_DAY: self._days.of(frame), "received": received, _SAMPLED: frame[_SAMPLED]})
                limits = {day: self._days.limit(day) for day in of_frame[_DAY].unique()}
                limit = pl.col(_DAY).replace_strict(limits, return_dtype=pl.Int64)
                content.late.update(dict(of_frame.filter(pl.col("received") > limit)[_DAY].value_counts().rows()))
                content.depths.update(frame["stage"].list.max().drop_nulls())
                content.has_text = frame.schema["item"] == pl.List(pl.String)
                for day, earliest in of_frame.filter(_SAMPLED).group_by(_DAY).agg(pl.min("received")).rows():
                    content.days[day] = min(content.days.get(day, earliest), earliest)
        return content

    def _note_foreign(self, place: Path) -> None:
        """Say once which files are ignored; refuse those that have the suffix of segments."""
        present = sorted(place.iterdir())
        complete = {segment.path for segment in segments(place)}
        for path in present:
            if path in complete or path in self._foreign or path.suffix in (OPEN, CREATING):
                continue
            if path.suffix == SUFFIX:
                raise RankfallError(
                    f"{path} has not the name of a segment: it was renamed, or another program wrote it"
                )
            self._foreign.add(path)
            self._on_notice(f"{path} is not a segment and is ignored")


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
                yield _marked(_frame(carried.get_batch(number)), days, carried=True)
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
        if SAMPLES in window.carried:
            carried = pa.ipc.open_file(pa.memory_map(str(window.carried[SAMPLES]))).schema
            has_text |= carried.field("item").type.value_type != pa.int64()
        schemas = {SAMPLES: sample_schema(pa.string() if has_text else pa.int64()), EVENTS: EVENT_SCHEMA}
        self._empty = {kind: _frame(schema.empty_table()).pipe(_marked, days) for kind, schema in schemas.items()}
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
        return _frame(pa.Table.from_batches(pieces)).rechunk()


def _marked(frame: pl.DataFrame, days: LogDays, *, carried: bool = False) -> pl.DataFrame:
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


def _frame(records: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(records)
    assert isinstance(frame, pl.DataFrame)
    return frame


_EVENT_ORDER = ("request", "id", "received", "item", "kind", "value", "time")
GRACE = 600_000  # milliseconds by which the record of a request may be written after one of its events


@dataclass
class DayCounts:
    """What became of the records of a day; the report of the day has these fields."""

    requests: int = 0
    sampled: int = 0
    items: int = 0
    events: int = 0
    repeated_requests: int = 0
    repeated_events: int = 0
    unsampled_events: int = 0
    unused_events: Counter[str] = field(default_factory=Counter)  # by kind
    late_requests: Counter[int] = field(default_factory=Counter)  # by day
    late_events: Counter[int] = field(default_factory=Counter)
    capped: int = 0
    models: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class MatchedPart:
    """The records of a part after matching.

    Attributes:
        samples: The sampled requests of the day, in the order of their hashes.
        events: The events of these requests, each once, in a fixed order.
        later_samples: Requests of later days.
        later_events: Events of these requests, if they were sampled, and those whose requests may follow.
        unknown: Events of requests that were never served, each once.
        served: `HASH`, `DAY` and ``sampled`` of the requests that were received in this window.
    """

    samples: pl.DataFrame
    events: pl.DataFrame
    later_samples: pl.DataFrame
    later_events: pl.DataFrame
    unknown: pl.DataFrame
    served: pl.DataFrame


def match_records(part: Part, day: int, limit: int, earlier: ServedRequests, counts: DayCounts) -> MatchedPart:
    """Decide on the records of a part.

    Of several records with the id of one request, the first counts: the one that was received first, and of those the
    smallest by its content. The same holds for events of a request with the same id.

    Args:
        part: The records.
        day: The day that is closed.
        limit: Its limit. What was received shortly before it may belong to a request that is recorded later.
        earlier: The requests of earlier windows.
        counts: Receives the numbers of the records.
    """
    requests = _first_of_each_request(part.samples, earlier, counts)
    of_day = requests.filter(pl.col(DAY) == day)
    counts.requests += len(of_day)
    counts.sampled += int(of_day[_SAMPLED].sum())
    counts.late_requests.update(dict(requests.filter(pl.col(DAY) < day)[DAY].value_counts().rows()))
    events = _with_requests(part.events, requests, earlier)
    is_settled = pl.col("received").to_physical() <= limit - GRACE
    unknown, unsettled = (events.filter(pl.col(DAY).is_null() & settled) for settled in (is_settled, ~is_settled))
    counts.unsampled_events += len(events.filter(~pl.col(_SAMPLED)))
    sampled = events.filter(_SAMPLED)
    counts.late_events.update(dict(sampled.filter(pl.col(DAY) < day)[DAY].value_counts().rows()))
    used = sampled.filter(pl.col(DAY) == day)
    distinct = _first_of_each_event(used)
    counts.repeated_events += len(used) - len(distinct)
    return MatchedPart(
        samples=of_day.filter(_SAMPLED),
        events=distinct,
        later_samples=requests.filter(pl.col(DAY) > day),
        later_events=pl.concat([sampled.filter(pl.col(DAY) > day), unsettled]),
        unknown=_first_of_each_event(unknown),
        served=requests.filter(~pl.col(CARRIED)).select(HASH, DAY, _SAMPLED),
    )


def _first_of_each_request(samples: pl.DataFrame, earlier: ServedRequests, counts: DayCounts) -> pl.DataFrame:
    """Return one record per request, in the order of hashes."""
    new = samples.filter(~pl.col(CARRIED))
    is_known = pl.Series(earlier.find(new[HASH].to_numpy()).served)
    first = new.filter(~is_known)
    if (repeated := first["request"].is_duplicated()).any():
        several = first.filter(repeated)
        # these are few: sort them by their content, and keep the first one of each request
        records = several.drop(HASH, DAY, CARRIED).with_columns(pl.col("received", "time").to_physical()).to_dicts()
        content = pl.Series([json.dumps(record, sort_keys=True) for record in records], dtype=pl.String)
        smallest = several.select("request", "received", content.alias(_DAY)).with_row_index(_PART)
        chosen = smallest.sort("received", _DAY, _PART).unique("request", keep="first")[_PART]
        first = pl.concat([first.filter(~repeated), several[chosen]])
    counts.repeated_requests += len(new) - len(first)
    return pl.concat([samples.filter(CARRIED), first]).sort(HASH, "request")


def _with_requests(events: pl.DataFrame, requests: pl.DataFrame, earlier: ServedRequests) -> pl.DataFrame:
    """Add `DAY` and ``sampled`` of the requests of events, null for requests that were never served."""
    joined = events.join(requests.select("request", DAY, _SAMPLED), on="request", how="left", maintain_order="left")
    missing = joined[DAY].is_null()
    if not missing.any():
        return joined
    rest = joined.filter(missing)
    served, day, sampled = earlier.find(rest[HASH].to_numpy())
    found = [
        pl.when(pl.Series(served)).then(pl.Series(of)).alias(name) for name, of in ((DAY, day), (_SAMPLED, sampled))
    ]
    return pl.concat([joined.filter(~missing), rest.with_columns(found)])


def _first_of_each_event(events: pl.DataFrame) -> pl.DataFrame:
    """Return each event of a request once, in an order that does not depend on that of the segments."""
    return events.sort(_EVENT_ORDER).unique(["request", "id"], keep="first", maintain_order=True)


# events
UNKNOWN_REQUEST = "event: unknown request"
OTHER_ITEM = "event: item not in the sample"
EVENT_VALUE = "event: value out of range"
OF_APART = "event: request set apart"
# requests
REQUEST_ID = "request: id"
REQUEST_TIME = "request: time in the future"
REQUEST_VALUE = "request: value"
REQUEST_STAGES = "request: number of stages"
USER_REQUESTS = "request: too many of one user"
PARITY = "request: parity"
CLIENT_PARITY = "request: parity, sent by the client"

Reasons = dict[int, tuple[str, str]]  # reason and detail, by the place of a request

MOST_STORED = 100_000  # records of a reason and day
MOST_EXAMPLES = 5
_STORED = ("reason", "request", "id", "item", "kind", "value", "time", "received", "detail")


@dataclass
class Quarantine:
    """What is set apart while a day is closed."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    _frames: list[pl.DataFrame] = field(default_factory=list)

    def add(self, reason: str, records: pl.DataFrame, details: Sequence[str] | None = None) -> None:
        """Set records apart.

        Args:
            reason: One of the reasons above.
            records: Samples or events.
            details: What is wrong with each of them.
        """
        if not len(records):
            return
        is_event = "kind" in records.columns
        names = [name for name in _STORED if name in records.columns and (is_event or name != "item")]
        kept = records.select(names).with_columns(
            pl.lit(reason).alias("reason"),
            pl.Series("detail", details, pl.String) if details else pl.lit("").alias("detail"),
        )
        kept = kept.head(max(0, MOST_STORED - self.counts[reason]))
        shown = self.examples.setdefault(reason, [])
        for one in kept.head(MOST_EXAMPLES - len(shown)).iter_rows(named=True):
            of = f"event {one['id']!r} of request" if is_event else "request"
            shown.append(f"{of} {one['request']!r}" + (f": {one['detail']}" if one["detail"] else ""))
        self.counts[reason] += len(records)
        self._frames.append(kept)

    def write(self, path: Path) -> None:
        """Write what is stored, in an order that does not depend on how records were read."""
        if self._frames:
            stored = pl.concat(self._frames, how="diagonal")
            stored = stored.select(name for name in _STORED if name in stored.columns)
            with open_new(path) as file:
                ordered = stored.sort(stored.columns).rechunk()
                pa_parquet.write_table(ordered.to_arrow(compat_level=pl.CompatLevel.oldest()), file)
