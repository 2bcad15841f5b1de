"""The end of a service, of which load balancers have to hear before its sockets close."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """Hears the signals that end a process, before uvicorn does.

    From the first one on the service says that it is ending, and for some seconds it still takes requests; then uvicorn
    closes the sockets and waits for what is under way. A second one ends the process at once. Only a worker ignores
    it: it is told by the process that started it, and may be told by whoever ends all processes of a service, too.
    """

    def __init__(self, seconds: int, *, is_worker: bool) -> None:
        self.has_begun = False
        self._seconds = seconds
        self._is_worker = is_worker

    def start(self) -> None:
        """Take the place of uvicorn's handlers, which are there already, and call them later."""
        if threading.current_thread() is not threading.main_thread():
            return  # no other thread hears signals
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            close = signal.getsignal(number)
            assert callable(close)
            signal.signal(number, partial(self._hear, loop, close))

    def _hear(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[int, None], object], number: int, frame: object
    ) -> None:
        if not self.has_begun:
            self.has_begun = True
            loop.call_soon_threadsafe(self._begin, loop, partial(close, number, None))
        elif not self._is_worker:
            end_by(number)

    def _begin(self, loop: asyncio.AbstractEventLoop, close: Callable[[], object]) -> None:
        if self._seconds:
            _log.info("ending: /ready says so, and requests are taken for %d more seconds", self._seconds)
        loop.call_later(self._seconds, close)


def end_by(number: int) -> None:
    """End this process as a signal does that nobody handles."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
