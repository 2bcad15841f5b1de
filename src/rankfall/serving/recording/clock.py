"""The clock of a service, whose time recorded samples and events have."""

from __future__ import annotations

import threading
import time
from typing import Literal

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
