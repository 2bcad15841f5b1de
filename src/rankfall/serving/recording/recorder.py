"""Record answered requests in a thread of its own, which never delays an answer."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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


class GuardedSink:
    """Calls a sink. Of several failed writes in a row the first one is logged.

    Args:
        sink: Takes the records.
        kind: Kind of the records.
        count_error: Called after each error.
    """

    def __init__(self, sink: Sink, kind: Kind, count_error: Callable[[], None]) -> None:
        self._sink = sink
        self._kind: Kind = kind
        self._count_error = count_error
        self._is_failing = False
        self.take_lost = sink.take_lost

    def write(self, batch: pa.RecordBatch, *, durable: bool) -> OSError | None:
        """Write records; return the error if the sink did not take them."""
        try:
            self._sink.write(self._kind, batch, durable=durable)
        except OSError as error:
            self._count_error()
            if not self._is_failing:
                _log.warning("%s cannot be written: %s", self._kind, error)
            self._is_failing = True
            return error
        if self._is_failing:
            _log.warning("%s are written again", self._kind)
        self._is_failing = False
        return None

    def tick(self) -> None:
        """Let the sink do what is due."""
        self._guard(self._sink.tick)

    def close(self) -> None:
        """Close the sink."""
        self._guard(self._sink.close)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # the thread that calls the sink has to go on
            self._count_error()
            _log.warning("%s: %s", self._kind, error, exc_info=not isinstance(error, OSError))


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
        yield _batch(requests, _samples(requests, counts))


def _samples(served: Sequence[ServedRequest], counts: Sequence[int]) -> list[Sample | None]:
    given = [(one.trail, one.seed) for one in served if one.trail is not None]
    drawn = iter(draw_samples([trail for trail, _ in given], np.array([seed for _, seed in given], np.uint64), counts))
    return [None if one.trail is None else next(drawn) for one in served]


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
    given = [sample for sample in samples if sample is not None]
    has_item = [sample.rows != NO_ITEM for sample in given]
    counts = iter([int(np.count_nonzero(has)) for has in has_item])
    lengths = [0 if sample is None else next(counts) for sample in samples]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    is_null = pa.array([sample is None for sample in samples])

    def column(name: str, of_samples: str) -> pa.Array:
        kind = schema.field(name).type
        parts = [getattr(sample, of_samples)[has] for sample, has in zip(given, has_item, strict=True)]
        values = np.concatenate(parts) if parts else np.empty(0, np.int64)
        found = bundle.items.id_array(values) if name == "item" else pa.array(values)
        return pa.ListArray.from_arrays(offsets, found.cast(kind.value_type), type=kind, mask=is_null)

    names = {"item": "rows", "stage": "stages", "rank": "ranks", "score": "scores", "inclusion": "inclusion"}
    return [column(name, of_samples) for name, of_samples in names.items()]


def _body(features: dict[str, Any]) -> str:
    """Return a request as canonical JSON: sorted keys, no spaces."""
    given = {key: features[key] for key in _BODY if features.get(key) is not None}
    return orjson.dumps(given, option=orjson.OPT_SORT_KEYS).decode()


_SECONDS = 0.2  # between writes: what was answered meanwhile is one batch, as small ones cost as much as large ones
_MOST_AT_ONCE = 1024  # requests of a batch


class Recorder:
    """A bounded queue of answered requests, and the thread that writes them to a sink.

    Requests that do not fit into the queue, or that the sink does not take, are dropped and counted.

    Args:
        sink: Takes the records.
        count: Called with ``written``, ``unsampled`` or ``dropped`` and a number of requests.
        count_error: Called after each error of the sink.
        counts: Number of items to draw from what each stage dropped.
        max_requests: Requests that may wait.
        max_bytes: Memory that they may take.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        count: Callable[[str, int], None],
        count_error: Callable[[], None],
        counts: Sequence[int],
        max_requests: int,
        max_bytes: int,
    ) -> None:
        self._sink = GuardedSink(sink, SAMPLES, count_error)
        self._count = count
        self._counts = counts
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._lock = threading.Lock()  # of the queue
        self._queue: list[ServedRequest] = []
        self._bytes = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankfall-samples", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._queue)

    def put(self, served: Sequence[ServedRequest]) -> None:
        """Queue answered requests, or drop them if the queue is full. Returns at once."""
        size = sum(one.memory for one in served)
        with self._lock:
            is_full = len(self._queue) + len(served) > self._max_requests or self._bytes + size > self._max_bytes
            if not is_full:
                self._queue += served
                self._bytes += size
        if is_full:
            self._count("dropped", len(served))

    @property
    def is_working(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """Write what is queued, close the sink and stop the thread; wait at most `seconds` for it."""
        self._stopping.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("samples: the sink did not take the last samples within %g seconds", seconds)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_SECONDS):
            self._write_queued()
            self._sink.tick()
        self._write_queued()
        self._sink.close()
        self._count("dropped", self._sink.take_lost())

    def _write_queued(self) -> None:
        with self._lock:
            served, self._queue, self._bytes = self._queue, [], 0
        for start in range(0, len(served), _MOST_AT_ONCE):
            self._write(served[start : start + _MOST_AT_ONCE])
        self._count("dropped", self._sink.take_lost())

    def _write(self, served: Sequence[ServedRequest]) -> None:
        left = len(served)
        try:
            for batch in sample_batches(served, self._counts):
                left -= len(batch)
                error = self._sink.write(batch, durable=False)
                self._count_batch(batch, is_written=error is None)
        except Exception:  # later requests may succeed
            _log.exception("samples of %d requests cannot be recorded", left)
            self._count("dropped", left)

    def _count_batch(self, batch: pa.RecordBatch, *, is_written: bool) -> None:
        sampled = batch["sampled"].true_count
        if is_written:
            self._count("written", sampled)
            self._count("unsampled", len(batch) - sampled)
        else:
            self._count("dropped", len(batch))


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


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits until its events are written."""

    events: Sequence[Event]
    future: asyncio.Future[None]


class EventWriter:
    """A bounded queue of events, and the thread that writes them to a sink.

    Args:
        sink: Takes the records.
        clock: The clock of the service.
        count: Called with ``written`` or ``refused`` and a number of events.
        count_error: Called after each error of the sink.
        max_events: Events that may wait.
    """

    def __init__(
        self,
        sink: Sink,
        clock: Clock,
        *,
        count: Callable[[str, int], None],
        count_error: Callable[[], None],
        max_events: int,
    ) -> None:
        self._sink = GuardedSink(sink, EVENTS, count_error)
        self._clock = clock
        self._count = count
        self._max_events = max_events
        self._changed = threading.Condition()  # protects the queue
        self._queue: list[_Waiting] = []
        self._waiting = 0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="rankfall-events", daemon=True)

    def start(self) -> None:
        """Start the thread; calls of :meth:`write` wait in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def write(self, events: Sequence[Event]) -> None:
        """Return when the events are durable.

        Raises:
            QueueFullError: Too many events wait.
            OSError: The sink did not take them.
        """
        waiting = _Waiting(events, asyncio.get_running_loop().create_future())
        with self._changed:
            is_full = self._waiting + len(events) > self._max_events or self._stopping
            if not is_full:
                self._queue.append(waiting)
                self._waiting += len(events)
                self._changed.notify()
        if is_full:
            self._count("refused", len(events))
            raise QueueFullError
        await waiting.future

    @property
    def is_working(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """Write what is queued, close the sink and stop the thread; wait at most `seconds` for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("events: the sink did not take the last events within %g seconds", seconds)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping, _TICK_SECONDS)
                waiting, self._queue, is_stopping = self._queue, [], self._stopping
            if waiting:
                self._commit(waiting)
            self._sink.tick()
        self._sink.close()

    def _commit(self, waiting: Sequence[_Waiting]) -> None:
        """Write the events of all calls that wait, and tell them."""
        events = [event for one in waiting for event in one.events]
        error: Exception | None
        try:
            error = self._sink.write(self._batch(events), durable=True)
        except Exception as unexpected:
            _log.exception("%d events cannot be written", len(events))
            error = unexpected
        self._count("written" if error is None else "refused", len(events))
        with self._changed:
            self._waiting -= len(events)
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, and with it all connections
            self._loop.call_soon_threadsafe(_resolve, [one.future for one in waiting], error)

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
