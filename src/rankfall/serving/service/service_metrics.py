"""Prometheus metrics of the service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rankfall.serving.service.bundle_slots import BundleSlots

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
    """

    def __init__(
        self, slots: BundleSlots, waiting: Callable[[], int], unrecorded: Callable[[], int], shared: Path | None
    ) -> None:
        own = CollectorRegistry()
        self._waiting = waiting
        self._unrecorded = unrecorded
        self._requests = Counter("rankfall_requests_total", "Answered requests.", ["endpoint", "code"], registry=own)
        self._seconds = Histogram(
            "rankfall_request_seconds", "Seconds per request.", ["endpoint"], buckets=_SECONDS, registry=own
        )
        self._stages = Histogram(
            "rankfall_stage_seconds", "Seconds per batch and stage.", ["stage"], buckets=_SECONDS, registry=own
        )
        self._queue = Gauge(
            "rankfall_queue_requests", "Requests in the queue.", multiprocess_mode="livesum", registry=own
        )
        self._batches = Histogram("rankfall_batch_requests", "Requests per batch.", buckets=_REQUESTS, registry=own)
        self._refused = Counter("rankfall_refused_total", "Refused requests.", ["reason"], registry=own)
        self._swaps = Counter("rankfall_swaps_total", "Bundles taken or refused.", ["result"], registry=own)
        self._samples = Counter("rankfall_samples_total", "Requests to record.", ["result"], registry=own)
        self._events = Counter("rankfall_events_total", "Events to record.", ["result"], registry=own)
        self._sink_errors = Counter(
            "rankfall_sink_errors_total", "Errors when samples or events were written.", ["kind"], registry=own
        )
        self._sample_queue = Gauge(
            "rankfall_sample_queue_requests",
            "Answered requests that wait to be recorded.",
            multiprocess_mode="livesum",
            registry=own,
        )
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

    def record_refusal(self, reason: str) -> None:
        """Count a request that was refused for lack of time or capacity."""
        self._refused.labels(reason).inc()

    def record_batch(self, requests: int, milliseconds: dict[str, float]) -> None:
        """Count a computed batch with the time of each stage."""
        self._batches.observe(requests)
        for stage, value in milliseconds.items():
            self._stages.labels(stage).observe(value / 1000)

    def record_swap(self, result: str) -> None:
        """Count a new bundle, which was ``taken`` or ``refused``."""
        self._swaps.labels(result).inc()

    def record_samples(self, result: str, requests: int) -> None:
        """Count answered requests, whose records were ``written``, ``unsampled`` or ``dropped``."""
        self._samples.labels(result).inc(requests)

    def record_events(self, result: str, events: int) -> None:
        """Count events, which were ``written`` or ``refused``."""
        self._events.labels(result).inc(events)

    def record_sink_error(self, kind: str) -> None:
        """Count an error of the sink of samples or of events."""
        self._sink_errors.labels(kind).inc()

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
