"""Write answered requests and events to sinks, in threads of their own.

Samples of answered requests never delay an answer, and are dropped and counted if they cannot be written. Calls that
report events wait until these are durable.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.serving.drawing import draw_samples
from rankfall.serving.recording.record_segments import EVENT_SCHEMA, EVENTS, SAMPLES, sample_schema
from rankfall.serving.recording.sinks import parse_sink
from rankfall.serving.request_encoder import NO_ITEM
from rankfall.storage.disk import make_directory
from rankfall.storage.files import locked, write_file
from rankfall.storage.trust import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rankfall.serving.bundle import Bundle, Trail
    from rankfall.serving.drawing import Sample
    from rankfall.serving.recording.sinks import Kind, Sink


_log = logging.getLogger(__name__)


Entry = TypeVar("Entry")


class RecordQueue(Generic[Entry]):
    """A bounded queue of records, and the thread that writes them to a sink.

    Of several failed writes in a row the first one is logged.

    Args:
        kind: Kind of the records.
        sink: Takes the records.
        count: Called with what happened to some records, and their number; with ``errors`` for errors of the sink.
        seconds: Time between writes.
        max_records: Records that may wait or be written at a time.
        max_bytes: Memory that they may take.
    """

    def __init__(
        self,
        kind: Kind,
        sink: Sink,
        *,
        count: Callable[[str, int], None],
        seconds: float,
        max_records: int,
        max_bytes: float = inf,
    ) -> None:
        self._kind: Kind = kind
        self._sink = sink
        self._count = count
        self._seconds = seconds
        self._max_records, self._max_bytes = max_records, max_bytes
        self._lock = threading.Lock()  # of the queue
        self._queue: list[Entry] = []
        self._records = self._bytes = 0  # of entries that wait or are written
        self._is_failing = self._is_stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rankfall-{kind}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of records that are not written yet."""
        return self._records

    @property
    def is_working(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """Write what is queued, close the sink and stop the thread; wait at most `seconds` for it."""
        with self._lock:
            self._is_stopping = True
        self._wake.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("%s: the sink did not take the last %s within %g seconds", self._kind, self._kind, seconds)

    def _put(self, entries: Sequence[Entry], records: int, size: int) -> bool:
        """Queue entries with a number of records and bytes if there is room for all; return whether there was."""
        with self._lock:
            is_full = self._records + records > self._max_records or self._bytes + size > self._max_bytes
            if is_full or self._is_stopping:
                return False
            self._queue += entries
            self._records += records
            self._bytes += size
        return True

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(self._seconds)
            self._wake.clear()
            with self._lock:
                entries, self._queue, is_last = self._queue, [], self._is_stopping
                records, size = self._records, self._bytes
            if entries:
                error = self._write(entries)
                with self._lock:
                    self._records -= records
                    self._bytes -= size
                self._finish(entries, error)
            self._guard(self._sink.tick)
            self._count("dropped", self._sink.take_lost())
        self._guard(self._sink.close)
        self._count("dropped", self._sink.take_lost())

    def _write(self, entries: list[Entry]) -> Exception | None:
        """Write the records of entries, and count them; return the error if there was one."""
        raise NotImplementedError

    def _finish(self, entries: list[Entry], error: Exception | None) -> None:
        """Tell who waits for entries that they were written, or why not."""

    def _write_batch(self, batch: pa.RecordBatch, *, durable: bool) -> OSError | None:
        """Write records; return the error if the sink did not take them."""
        try:
            self._sink.write(self._kind, batch, durable=durable)
        except OSError as error:
            self._count("errors", 1)
            if not self._is_failing:
                _log.warning("%s cannot be written: %s", self._kind, error)
            self._is_failing = True
            return error
        if self._is_failing:
            _log.warning("%s are written again", self._kind)
        self._is_failing = False
        return None

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # the thread has to go on
            self._count("errors", 1)
            _log.warning("%s: %s", self._kind, error, exc_info=not isinstance(error, OSError))


# --- samples ------------------------------------------------------------------------------------------------------

_BODY = ("time", "user", "context", "sequences")


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """An answered request.

    Args:
        request: Its id.
        time: Its time in milliseconds since 1970.
        received: The clock of the service when it was answered. Events of the request are received later, so that no
            limit of a day separates them from a sample that is written after them.
        model: The model that answered.
        bundle: The bundle of the model.
        features: Time, user, context and sequences as the client sent them.
        trail: What the stages did with it; None if it is not sampled.
        seed: A random number for its draws.
        size: Bytes of its body.
    """

    request: str
    time: int
    received: int
    model: str
    bundle: Bundle
    features: dict[str, Any]
    trail: Trail | None
    seed: int
    size: int

    @property
    def memory(self) -> int:
        """About the number of bytes that it takes in memory."""
        return self.size + (0 if self.trail is None else self.trail.trails.bytes_each)


def sample_batches(served: Sequence[ServedRequest], counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Draw samples and yield the records of answered requests; those of one bundle in a row are one batch.

    Args:
        served: The requests.
        counts: Number of items to draw from what each stage dropped.
    """
    for _, of_bundle in groupby(served, key=lambda one: id(one.bundle)):
        requests = list(of_bundle)
        trails = [one.trail for one in requests if one.trail is not None]
        seeds = np.array([one.seed for one in requests if one.trail is not None], np.uint64)
        drawn = iter(draw_samples(trails, seeds, counts))
        yield _batch(requests, [None if one.trail is None else next(drawn) for one in requests])


def _batch(served: Sequence[ServedRequest], samples: Sequence[Sample | None]) -> pa.RecordBatch:
    bundle = served[0].bundle
    schema = sample_schema(pa.string() if bundle.items.lookup.is_text else pa.int64())
    model, path = served[0].model, str(bundle.path.resolve())
    is_sampled = [sample is not None for sample in samples]
    columns = {
        "request": [one.request for one in served],
        "time": [one.time for one in served],
        "received": [one.received for one in served],
        "sampled": is_sampled,
        "model": [model if sampled else None for sampled in is_sampled],
        "bundle": [path if sampled else None for sampled in is_sampled],
        "body": [_body(one.features) if sampled else None for one, sampled in zip(served, is_sampled, strict=True)],
    }
    arrays = [pa.array(values, schema.field(name).type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays([*arrays, *_lists(samples, bundle, schema)], schema=schema)


def _lists(samples: Sequence[Sample | None], bundle: Bundle, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of items, which are null for requests without a sample."""
    has_item = [np.empty(0, np.bool_) if sample is None else sample.rows != NO_ITEM for sample in samples]
    offsets = pa.array(np.cumsum([0, *map(np.count_nonzero, has_item)]), pa.int32())
    is_null = pa.array([sample is None for sample in samples])
    lists = []
    names = {"item": "rows", "stage": "stages", "rank": "ranks", "score": "scores", "inclusion": "inclusion"}
    for name, of_samples in names.items():
        kind, found = schema.field(name).type, zip(samples, has_item, strict=True)
        parts = [getattr(sample, of_samples)[has] for sample, has in found if sample is not None]
        values = np.concatenate(parts) if parts else np.empty(0, np.int64)
        array = bundle.items.id_array(values) if name == "item" else pa.array(values)
        lists.append(pa.ListArray.from_arrays(offsets, array.cast(kind.value_type), type=kind, mask=is_null))
    return lists


def _body(features: dict[str, Any]) -> str:
    """Return a request as canonical JSON: sorted keys, no spaces."""
    given = {key: features[key] for key in _BODY if features.get(key) is not None}
    return orjson.dumps(given, option=orjson.OPT_SORT_KEYS).decode()


_SECONDS = 0.2  # between writes: what was answered meanwhile is one batch, as small ones cost as much as large ones
_MOST_AT_ONCE = 1024  # requests of a batch


class Recorder(RecordQueue[ServedRequest]):
    """Writes answered requests, of which it draws samples; drops and counts those that cannot be written.

    Args:
        sink: Takes the records.
        count: Called with ``written``, ``unsampled``, ``dropped`` or ``errors``, and a number.
        counts: Number of items to draw from what each stage dropped.
        max_requests: Requests that may wait.
        max_bytes: Memory that they may take.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        count: Callable[[str, int], None],
        counts: Sequence[int],
        max_requests: int,
        max_bytes: int,
    ) -> None:
        super().__init__(SAMPLES, sink, count=count, seconds=_SECONDS, max_records=max_requests, max_bytes=max_bytes)
        self._counts = counts

    def put(self, served: Sequence[ServedRequest]) -> None:
        """Queue answered requests, or drop them if the queue is full. Returns at once."""
        if not self._put(served, len(served), sum(one.memory for one in served)):
            self._count("dropped", len(served))

    def _write(self, entries: list[ServedRequest]) -> Exception | None:
        error: Exception | None = None
        for start in range(0, len(entries), _MOST_AT_ONCE):
            part = entries[start : start + _MOST_AT_ONCE]
            left = len(part)
            try:
                for batch in sample_batches(part, self._counts):
                    left -= len(batch)
                    error = self._write_batch(batch, durable=False)
                    if error is None:
                        sampled = batch["sampled"].true_count
                        self._count("written", sampled)
                        self._count("unsampled", len(batch) - sampled)
                    else:
                        self._count("dropped", len(batch))
            except Exception:  # later requests may succeed
                _log.exception("samples of %d requests cannot be recorded", left)
                self._count("dropped", left)
        return error


# --- events -------------------------------------------------------------------------------------------------------

MAX_TIME = 10**13 - 1  # milliseconds since 1970, in the year 2286: names of segments have 13 digits
ClockKind = Literal["wall", "requests"]


class Clock:
    """The wall clock, or the largest time that a request carried so far. It may be used by any number of threads.

    Args:
        kind: ``wall``, or ``requests`` for simulations and replays, whose times are not today's.
    """

    def __init__(self, kind: ClockKind = "wall") -> None:
        self._is_wall = kind == "wall"
        self._latest: int | None = None
        self._lock = threading.Lock()

    def now(self) -> int | None:
        """Return the time in milliseconds since 1970; None before the first request of a clock of requests."""
        return time.time_ns() // 1_000_000 if self._is_wall else self._latest

    def advance(self, milliseconds: int) -> None:
        """Take note of the time of a request."""
        if not self._is_wall:
            with self._lock:
                latest = milliseconds if self._latest is None else max(self._latest, milliseconds)
                self._latest = max(0, min(latest, MAX_TIME))


_TICK_SECONDS = 0.1


class Event(NamedTuple):
    """Something that a user did with an item of an answer; see :data:`~.record_segments.EVENT_SCHEMA`."""

    id: str
    request: str
    item: str
    kind: str
    value: float
    time: int


class QueueFullError(Exception):
    """So many events wait to be written that no more are taken."""


class _Call(NamedTuple):
    """A call that waits until its events are written."""

    events: Sequence[Event]
    future: asyncio.Future[None]


class EventWriter(RecordQueue[_Call]):
    """Writes events durably, those of all calls that wait at once.

    Args:
        sink: Takes the records.
        clock: The clock of the service.
        count: Called with ``written``, ``refused`` or ``errors``, and a number.
        max_events: Events that may wait.
    """

    def __init__(self, sink: Sink, clock: Clock, *, count: Callable[[str, int], None], max_events: int) -> None:
        super().__init__(EVENTS, sink, count=count, seconds=_TICK_SECONDS, max_records=max_events)
        self._clock = clock

    async def write(self, events: Sequence[Event]) -> None:
        """Return when the events are durable.

        Raises:
            QueueFullError: Too many events wait.
            OSError: The sink did not take them.
        """
        call = _Call(events, asyncio.get_running_loop().create_future())
        if not self._put([call], len(events), 0):
            self._count("refused", len(events))
            raise QueueFullError
        self._wake.set()
        await call.future

    def _write(self, entries: list[_Call]) -> Exception | None:
        events = [event for call in entries for event in call.events]
        error: Exception | None
        try:
            error = self._write_batch(self._batch(events), durable=True)
        except Exception as unexpected:
            _log.exception("%d events cannot be written", len(events))
            error = unexpected
        self._count("written" if error is None else "refused", len(events))
        return error

    def _finish(self, entries: list[_Call], error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it all connections
            entries[0].future.get_loop().call_soon_threadsafe(_resolve, [call.future for call in entries], error)

    def _batch(self, events: Sequence[Event]) -> pa.RecordBatch:
        now = self._clock.now()
        received = max(0, min(MAX_TIME, max(event.time for event in events))) if now is None else now
        columns = [*zip(*events, strict=True), [received] * len(events)]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)],
            schema=EVENT_SCHEMA,
        )


def _resolve(futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():  # the call has ended
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


# --- which requests are sampled -----------------------------------------------------------------------------------

_BITS = 53  # of a random number as a float
KEY, _KEY_BYTES = "sampling.key", 32


def sampling_key(target: str) -> bytes:
    """Return the secret of a sink, which is created once, so that workers and restarts sample the same requests.

    It is in the directory of the records, or for brokers in the user's directory of states. Only the owner can read it.

    Args:
        target: A directory or the URL of a broker.

    Raises:
        OSError: If it cannot be read or written.
        ValueError: If the file was changed.
    """
    place = parse_sink(target)
    path = (place if isinstance(place, Path) else state_directory()) / KEY
    if not path.exists():
        make_directory(path.parent)
        with locked(path.with_suffix(".lock"), wait=True):
            if not path.exists():
                write_file(path, secrets.token_bytes(_KEY_BYTES), mode=0o600)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise RankfallError(f"{path} has {len(key)} bytes, expected {_KEY_BYTES}; delete it to create another key")
    return key


def sample_requests(requests: Sequence[str], share: float, key: bytes) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return which requests are sampled, and a seed for each of them.

    Both are keyed hashes of the id, so that the same request is sampled in the same way by every process.

    Args:
        requests: Ids of requests.
        share: The share of requests to sample, 0 to 1.
        key: The secret.
    """
    digests = [hashlib.blake2b(one.encode(), digest_size=16, key=key).digest() for one in requests]
    numbers = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
    uniform = (numbers[:, 0] >> np.uint64(64 - _BITS)) * 2.0**-_BITS
    return uniform < share, numbers[:, 1]
