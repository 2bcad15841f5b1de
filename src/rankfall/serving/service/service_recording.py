"""What a worker records: samples of the requests it answers, and the events that clients report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from rankfall._errors import RankfallError
from rankfall.encoding import BadValueError
from rankfall.serving.recording.record_segments import EVENTS, SAMPLES
from rankfall.serving.recording.recorder import (
    Clock,
    EventWriter,
    Recorder,
    ServedRequest,
    sample_requests,
    sampling_key,
)
from rankfall.serving.recording.sinks import open_sink, shown_target
from rankfall.serving.service import settings as limits
from rankfall.serving.service.http_io import invalid_field, invalid_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rankfall.serving.bundle import Bundle, Ranking
    from rankfall.serving.service.bundle_slots import BundleSlots, ServedBundle
    from rankfall.serving.service.settings import Settings


def check_recording(settings: Settings, loaded: Mapping[str, ServedBundle]) -> None:
    """Check that a service can record what its options ask for, before it starts.

    Raises:
        ValueError: The options do not fit the bundles.
        OSError: The sink cannot be written.
    """
    if settings.samples is None:
        return
    counts = settings.sample_items
    for served in loaded.values():
        stages = len(served.bundle.stages)
        if len(counts) not in (1, stages):
            found = ",".join(map(str, counts))
            raise RankfallError(
                f"sample-items: found {found}, expected one number, or {stages} numbers for the stages "
                f"{', '.join(served.bundle.names)} of {served.bundle.path}"
            )
    try:
        sink = open_sink(settings.samples)
        try:
            sink.check()
            sampling_key(settings.samples)  # before several workers need it
        finally:
            sink.close()
    except OSError as error:
        raise OSError(f"samples: {shown_target(settings.samples)} cannot be written ({error})") from None
    except ValueError as error:
        raise RankfallError(f"samples: {error}") from None


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The requests of a call that is recorded when it is answered.

    Args:
        ids: Ids of the requests.
        features: The requests.
        times: Their times in milliseconds since 1970.
        sampled: Which of them are sampled.
        seeds: A random number for each of them.
        size: Bytes of the body.
    """

    ids: list[str]
    features: list[dict[str, Any]]
    times: list[int]
    sampled: NDArray[np.bool_]
    seeds: NDArray[np.uint64]
    size: int


class ServiceRecording:
    """Records the requests and events of a worker.

    Args:
        settings: Options of the service, with a sink.
        metrics: Metrics of this worker.
    """

    def __init__(self, settings: Settings, metrics: ServiceMetrics) -> None:
        assert settings.samples is not None
        self._target = settings.samples
        self._share, self._window = settings.sample_share, settings.time_window
        self._key = sampling_key(settings.samples)
        self._counts = settings.sample_items
        self._metrics = metrics
        self._recorder: Recorder | None = None
        self._events: EventWriter | None = None
        self.clock = Clock(settings.clock)

    def start(self) -> None:
        """Open the sinks, one for each thread, and start the threads."""
        metrics = self._metrics
        self._recorder = Recorder(
            open_sink(self._target),
            count=partial(metrics.record_written, SAMPLES),
            counts=self._counts,
            max_requests=limits.SAMPLE_QUEUE,
            max_bytes=limits.SAMPLE_QUEUE_BYTES,
        )
        self._events = EventWriter(
            open_sink(self._target),
            self.clock,
            count=partial(metrics.record_written, EVENTS),
            max_events=limits.EVENT_QUEUE,
        )
        self._recorder.start()
        self._events.start()

    def stop(self) -> None:
        """Write what is queued, and complete the segments."""
        for writer in (self._recorder, self._events):
            if writer is not None:
                writer.stop(limits.RECORD_SECONDS)

    @property
    def is_working(self) -> bool:
        """Whether both threads are running."""
        return all(writer is not None and writer.is_working for writer in (self._recorder, self._events))

    @property
    def waiting(self) -> int:
        """Number of answered requests that wait to be recorded."""
        return 0 if self._recorder is None else self._recorder.waiting

    @property
    def events(self) -> EventWriter:
        """Writes events; available after the start."""
        assert self._events is not None
        return self._events

    def set_missing_times(self, requests: Sequence[dict[str, Any]]) -> None:
        """Give requests without a time that of the clock, so that their records have all that their answers depend on.

        Raises:
            ApiError: The clock of requests has no time yet.
        """
        for place, features in enumerate(requests):
            if features.get("time") is None:
                now = self.now(f"requests[{place}].time")
                features["time"] = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")

    def now(self, field: str) -> int:
        """Return the time of the clock, for a field that has none, in milliseconds since 1970.

        Raises:
            ApiError: The clock of requests has no time yet.
        """
        now = self.clock.now()
        if now is None:
            raise invalid_value(field, None, "a time, as no request had one that the clock could have")
        return now

    def prepare(self, bundle: Bundle, ids: list[str], features: list[dict[str, Any]], size: int) -> RecordedCall:
        """Return what has to be known of the requests of a call to record them, and advance the clock.

        Args:
            bundle: The bundle that ranks.
            ids: Ids of the requests.
            features: The requests, which have times.
            size: Bytes of the body.

        Raises:
            ApiError: A time is not valid.
        """
        try:
            times = bundle.read_times([one["time"] for one in features])
        except BadValueError as error:
            raise invalid_field(f"requests[{error.position}].time: {error}") from None
        self.clock.advance(max(times))
        sampled, seeds = sample_requests(ids, self._share, self._key)
        now = self.clock.now()
        if self._window is not None and now is not None:  # other requests are answered and counted, but not sampled
            sampled &= np.abs(np.array(times, np.int64) - now) <= self._window
        return RecordedCall(ids, features, times, sampled, seeds, size)

    def record(self, call: RecordedCall, served: ServedBundle, rankings: Sequence[Ranking]) -> None:
        """Queue the records of an answered call; returns at once."""
        assert self._recorder is not None
        columns = call.ids, call.times, call.features, rankings, call.seeds.tolist()
        size = call.size // len(rankings)
        received = self.clock.now()
        assert received is not None  # because the requests have times
        self._recorder.put(
            [
                ServedRequest(request, time, received, served.model, served.bundle, features, ranking.trail, seed, size)
                for request, time, features, ranking, seed in zip(*columns, strict=True)
            ]
        )


MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PAGE_FILES = (".css", ".js", ".svg", ".html")


disable_created_metrics()  # type: ignore[no-untyped-call]  # with several workers there are none, either


class ServiceMetrics:
    """Metrics of this worker; those of several workers are stored in files and summed.

    Args:
        slots: The bundles that are served.
        waiting: Returns the number of requests in the queue.
        unrecorded: Returns the number of answered requests that wait to be recorded.
        shared: Directory of the metric files of several workers; None for a single worker.

    Attributes:
        refused: Requests that were refused for lack of time or capacity, by reason.
        swaps: New bundles by what became of them, ``taken`` or ``refused``.
    """

    def __init__(
        self, slots: BundleSlots, waiting: Callable[[], int], unrecorded: Callable[[], int], shared: Path | None
    ) -> None:
        own = CollectorRegistry()
        self._waiting = waiting
        self._unrecorded = unrecorded

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rankfall_{name}_total", text, labels, registry=own)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"rankfall_{name}", text, multiprocess_mode="livesum", registry=own)

        def histogram(name: str, text: str, *labels: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(f"rankfall_{name}", text, labels, buckets=buckets, registry=own)

        self._requests = counter("requests", "Answered requests.", "endpoint", "code")
        self._seconds = histogram("request_seconds", "Seconds per request.", "endpoint")
        self._stages = histogram("stage_seconds", "Seconds per batch and stage.", "stage")
        self._queue = gauge("queue_requests", "Requests in the queue.")
        self._batches = histogram("batch_requests", "Requests per batch.", buckets=_REQUESTS)
        self.refused = counter("refused", "Refused requests.", "reason")
        self.swaps = counter("swaps", "Bundles taken or refused.", "result")
        self._written = {
            SAMPLES: counter("samples", "Requests to record.", "result"),
            EVENTS: counter("events", "Events to record.", "result"),
        }
        self._sink_errors = counter("sink_errors", "Errors when samples or events were written.", "kind")
        self._sample_queue = gauge("sample_queue_requests", "Answered requests that wait to be recorded.")
        self._registry = own
        if shared is not None:
            _remove_dead_workers(shared)
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry, str(shared))  # type: ignore[no-untyped-call]
        self._registry.register(_ModelInfo(slots))

    def record_request(self, endpoint: str, code: int, seconds: float) -> None:
        """Count an answered request; the files of the page share the endpoint ``page``."""
        if endpoint == "/" or endpoint.endswith(_PAGE_FILES):
            endpoint = "page"
        self._requests.labels(endpoint, str(code)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def record_batch(self, requests: int, milliseconds: dict[str, float]) -> None:
        """Count a computed batch with the time of each stage."""
        self._batches.observe(requests)
        for stage, value in milliseconds.items():
            self._stages.labels(stage).observe(value / 1000)

    def record_written(self, kind: str, result: str, records: int) -> None:
        """Count samples or events by what happened to them, or ``errors`` of their sink."""
        if result == "errors":
            self._sink_errors.labels(kind).inc(records)
        elif records:
            self._written[kind].labels(result).inc(records)

    def update_queue(self) -> None:
        """Set the gauges of the queues."""
        self._queue.set(self._waiting())
        self._sample_queue.set(self._unrecorded())

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        self.update_queue()
        return generate_latest(self._registry)


class _ModelInfo(Collector):
    """The models that are served now; a replaced model disappears."""

    def __init__(self, slots: BundleSlots) -> None:
        self._slots = slots

    def collect(self) -> Iterable[Any]:
        family = GaugeMetricFamily("rankfall_model_info", "The model of a slot.", labels=["slot", "model"])
        for slot, model in self._slots.models().items():
            family.add_metric([slot, model], 1)
        return [family]


def _remove_dead_workers(shared: Path) -> None:
    """Remove the gauge files of workers that have ended, whose queues no longer exist."""
    for file in shared.glob("gauge_live*_*.db"):
        try:
            os.kill(int(file.stem.rpartition("_")[2]), 0)
        except (ProcessLookupError, PermissionError):  # another user's process may have the same number now
            file.unlink(missing_ok=True)
