"""What a service is told at its start."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

LONGEST_DEADLINE = 60_000  # milliseconds
_MANY = 1 << 20  # cores, for which there is no limit
_MOST_THREADS = 4  # that are of use beside the one of the same process that reads and writes


def share_of_cores(workers: int) -> int:
    """The threads of a worker if several share the cores that this process may use."""
    knows = hasattr(os, "sched_getaffinity")  # Linux does
    cores = len(os.sched_getaffinity(0)) if knows else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, cores // workers, _quota() // workers))


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that a container may keep busy; beyond that it is stopped for some time, and with it all requests."""
    try:
        most, period = file.read_text().split()
    except (OSError, ValueError):  # no container of this sort
        return _MANY
    return _MANY if most == "max" else int(most) // int(period)


@dataclass(frozen=True)
class Settings:
    """The options of ``rankfall serve``, for every worker; times are in milliseconds, sizes in bytes."""

    bundle: Path
    other: Path | None = None
    threads: int = 1  # that compute, each a batch of its own
    watch: bool = False
    token: str | None = field(default=None, repr=False)
    batch: int = 32
    queue: int = 256
    deadline: int = 1000
    drain: int = 0  # seconds in which it says that it ends and still takes requests
    keep_alive: int = 75  # seconds that a connection may be idle
    max_body: int = 1_000_000
    body_seconds: float = 5.0  # in which a body has to come
    page: bool = True
    local: bool = False  # whether only those of this machine can reach it, who call it localhost
    shared: Path | None = None  # the directory in which several workers tell each other what they serve
