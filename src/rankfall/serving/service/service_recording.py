"""What a worker records: samples of the requests it answers, and the events that clients report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.encoding import BadValueError
from rankfall.serving.recording.clock import Clock
from rankfall.serving.recording.event_writer import EventWriter
from rankfall.serving.recording.record_schemas import EVENTS, SAMPLES
from rankfall.serving.recording.recorder import Recorder
from rankfall.serving.recording.request_sampling import sample_requests, sampling_key
from rankfall.serving.recording.sample_records import ServedRequest
from rankfall.serving.recording.sinks import open_sink
from rankfall.serving.recording.sinks.sink_url import shown_target
from rankfall.serving.service import limits
from rankfall.serving.service.http_io import invalid_field, invalid_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rankfall.serving.bundle import Bundle
    from rankfall.serving.rankings import Ranking
    from rankfall.serving.service.bundle_slots import ServedBundle
    from rankfall.serving.service.service_metrics import ServiceMetrics
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
            raise ValueError(
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
        raise ValueError(f"samples: {error}") from None


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
            count=metrics.record_samples,
            count_error=lambda: metrics.record_sink_error(SAMPLES),
            counts=self._counts,
            max_requests=limits.SAMPLE_QUEUE,
            max_bytes=limits.SAMPLE_QUEUE_BYTES,
        )
        self._events = EventWriter(
            open_sink(self._target),
            self.clock,
            count=metrics.record_events,
            count_error=lambda: metrics.record_sink_error(EVENTS),
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
        return RecordedCall(ids, features, times, sampled & self._is_near(times), seeds, size)

    def _is_near(self, times: list[int]) -> NDArray[np.bool_]:
        """Return which times are near the clock. Other requests are answered and counted, but not sampled."""
        now = self.clock.now()
        if self._window is None or now is None:
            return np.ones(len(times), np.bool_)
        return np.abs(np.array(times, np.int64) - now) <= self._window

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
