"""What Prometheus is told."""

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

    from rankfall.serving.service.bundle_slots import Slots

KIND = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)
_FILES = (".css", ".js", ".svg", ".html")
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


disable_created_metrics()  # type: ignore[no-untyped-call]  # several workers have none, either


class Metrics:
    """Counters of this worker; several workers keep theirs in files of a directory and are added up."""

    def __init__(self, slots: Slots, waiting: Callable[[], int], shared: Path | None) -> None:
        own = CollectorRegistry()
        self._waiting = waiting
        self._requests = Counter(
            "rankfall_requests_total", "Calls that were answered.", ["endpoint", "code"], registry=own
        )
        self._seconds = Histogram(
            "rankfall_request_seconds", "Seconds of a call.", ["endpoint"], buckets=_SECONDS, registry=own
        )
        self._stages = Histogram(
            "rankfall_stage_seconds", "Seconds of a batch in a stage.", ["stage"], buckets=_SECONDS, registry=own
        )
        self._queue = Gauge("rankfall_queue_requests", "Requests that wait.", multiprocess_mode="livesum", registry=own)
        self._batches = Histogram("rankfall_batch_requests", "Requests of a batch.", buckets=_REQUESTS, registry=own)
        self._refused = Counter("rankfall_refused_total", "Calls that were refused.", ["reason"], registry=own)
        self._swaps = Counter("rankfall_swaps_total", "Bundles that were offered.", ["result"], registry=own)
        self._registry = own
        if shared is not None:
            _forget_the_dead(shared)
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry, str(shared))  # type: ignore[no-untyped-call]
        self._registry.register(_Models(slots))

    def call(self, endpoint: str, code: int, seconds: float) -> None:
        """A call was answered."""
        if endpoint == "/" or endpoint.endswith(_FILES):
            endpoint = "page"  # all of its files, which tell nothing one by one
        self._requests.labels(endpoint, str(code)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def refused(self, reason: str) -> None:
        """A call was refused for no fault of its own."""
        self._refused.labels(reason).inc()

    def batch(self, requests: int, milliseconds: dict[str, float]) -> None:
        """A batch was answered."""
        self._batches.observe(requests)
        for stage, took in milliseconds.items():
            self._stages.labels(stage).observe(took / 1000)

    def swap(self, result: str) -> None:
        """A bundle was taken, or refused."""
        self._swaps.labels(result).inc()

    def look(self) -> None:
        """Note how long the line is."""
        self._queue.set(self._waiting())

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        self.look()
        return generate_latest(self._registry)


class _Models(Collector):
    """The models that are served now; those of the past leave no trace."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def collect(self) -> Iterable[Any]:
        family = GaugeMetricFamily("rankfall_model_info", "The model of a slot.", labels=["slot", "model"])
        for slot, model in self._slots.models().items():
            family.add_metric([slot, model], 1)
        return [family]


def _forget_the_dead(shared: Path) -> None:
    """Remove what workers that are gone said of themselves: they have no line any more."""
    for file in shared.glob("gauge_live*_*.db"):
        try:
            os.kill(int(file.stem.rpartition("_")[2]), 0)
        except (ProcessLookupError, PermissionError):  # somebody else's process may have the number now
            file.unlink(missing_ok=True)
