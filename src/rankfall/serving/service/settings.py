"""Settings of a service, from the options of ``rankfall serve``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.serving.service import limits

if TYPE_CHECKING:
    from rankfall.serving.recording.clock import ClockKind

_UNLIMITED = 1 << 20  # cores


def default_threads(workers: int) -> int:
    """Return the number of compute threads per worker if `workers` processes share the cores of this machine."""
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(limits.MAX_THREADS, cores // workers, _container_cores() // workers))


def _container_cores(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the CPU quota of the container in cores; a container that exceeds it is paused with all its requests."""
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):  # no container, or another version of cgroups
        return _UNLIMITED
    return _UNLIMITED if quota == "max" else int(quota) // int(period)


@dataclass(frozen=True)
class Settings:
    """Options of ``rankfall serve``, the same for every worker.

    Args:
        bundle: A bundle, or a directory of bundles.
        other: A second bundle for comparison, or a directory of bundles.
        threads: Number of compute threads; each computes one batch at a time.
        watch: Whether to load bundles that appear at `bundle` and `other`.
        token: Token that ``POST /reload`` requires; without one it is disabled.
        batch: Maximum number of requests per batch.
        queue: Maximum number of requests that wait.
        deadline: Default deadline of a request in milliseconds.
        drain: Seconds between the shutdown signal and the closing of the sockets.
        keep_alive: Seconds after which an idle connection is closed.
        max_body: Maximum size of a request body in bytes.
        body_seconds: Seconds in which a request body has to arrive.
        page: Whether to serve the page, ``/score`` and ``/examples``.
        local: Whether the service listens on this machine only and therefore accepts only local host names.
        samples: Directory or URL of the sink for samples and events; without one nothing is recorded.
        sample_share: Share of requests that are sampled.
        sample_items: Number of items to draw from what each stage dropped; further stages have that of the last one.
        time_window: Milliseconds by which the time of a sampled request may differ from the clock; None for any time.
        clock: The clock of what is recorded: ``wall``, or ``requests`` for the largest time of a request so far.
        shared: Directory through which several workers share their state; None for a single worker.
    """

    bundle: Path
    other: Path | None = None
    threads: int = 1
    watch: bool = False
    token: str | None = field(default=None, repr=False)
    batch: int = limits.BATCH_REQUESTS
    queue: int = limits.QUEUE_REQUESTS
    deadline: int = limits.DEADLINE_MS
    drain: int = 0
    keep_alive: int = limits.KEEP_ALIVE_SECONDS
    max_body: int = limits.BODY_BYTES
    body_seconds: float = limits.BODY_SECONDS
    page: bool = True
    local: bool = False
    samples: str | None = None
    sample_share: float = 1.0
    sample_items: tuple[int, ...] = (limits.SAMPLE_ITEMS,)
    time_window: int | None = None
    clock: ClockKind = "wall"
    shared: Path | None = None

    @property
    def copies(self) -> Path | None:
        """Directory of the copies of bundle files, through which several workers share memory."""
        return None if self.shared is None else self.shared / "copies"
