"""Graceful shutdown: load balancers see that ``/ready`` fails before the sockets close, and the process always ends."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

from rankfall.serving.service import limits

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Handles SIGINT and SIGTERM before uvicorn does.

    After the first signal `received` is true, and for `seconds` the service still accepts requests. Then uvicorn closes
    the sockets and waits for the requests in progress. A second signal ends the process at once, except in a worker:
    it is signalled by its parent process and possibly once more by whatever signals all processes of a service.

    The process ends at the latest `limits.shutdown_seconds` after the first signal, and `limits.EXIT_SECONDS` after the
    last response. Python would wait for its threads without end.

    Args:
        seconds: Time between the first signal and the closing of the sockets.
        is_worker: Whether this process is one of several workers.
    """

    def __init__(self, seconds: int, *, is_worker: bool) -> None:
        self.received = False
        self._seconds = seconds
        self._is_worker = is_worker

    def install(self) -> None:
        """Replace the signal handlers of uvicorn, which are called after `seconds`."""
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread handles signals
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            close = signal.getsignal(number)
            assert callable(close)
            signal.signal(number, partial(self._handle, loop, close))

    def _handle(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[int, None], object], number: int, frame: object
    ) -> None:
        if not self.received:
            self.received = True
            _end_process_after(limits.shutdown_seconds(self._seconds))
            loop.call_soon_threadsafe(self._begin, loop, partial(close, number, None))
        elif not self._is_worker:
            exit_by_signal(number)

    def finish(self) -> None:
        """Limit the time that the process takes to end, now that all requests are answered."""
        if self.received:
            _end_process_after(limits.EXIT_SECONDS)

    def _begin(self, loop: asyncio.AbstractEventLoop, close: Callable[[], object]) -> None:
        if self._seconds:
            _log.info("shutting down: /ready returns 503, requests are accepted for %d more seconds", self._seconds)
        loop.call_later(self._seconds, close)


def _end_process_after(seconds: float) -> None:
    """Write the stacks of all threads to standard error and end the process, if it still runs after that time.

    This needs no Python thread, so that it works while one of them does not let the others run. Open
    segments of samples and events are completed by the next reader.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


def exit_by_signal(number: int) -> None:
    """End this process with the default action of a signal."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
