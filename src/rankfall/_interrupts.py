"""Signals that end work at a suitable point instead of at once."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stoppable(
    on_signal: Callable[[], object], *, patient: bool = False, signals: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[Callable[[], int]]:
    """Defer signals, so that the work inside can stop at a suitable point.

    Args:
        on_signal: Called at the first signal.
        patient: Ignore further signals; otherwise the second one raises KeyboardInterrupt.
        signals: The signals, by default SIGINT and SIGTERM.

    Yields:
        A function that returns the number of the received signal, or 0.
    """
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if received and patient:
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)
        on_signal()

    previous = {number: signal.signal(number, handle) for number in signals}
    try:
        yield lambda: received[0] if received else 0
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def stop_at_ctrl_c(stop: Callable[[], object] | None) -> Iterator[Callable[[], int]]:
    """Yield a function that says whether to stop: the caller's, or one that returns true after Ctrl-C.

    Only the main thread receives Ctrl-C. A program that handles SIGINT itself keeps its handler.
    """
    in_charge = threading.current_thread() is threading.main_thread()
    if stop is not None:
        asked = stop
        yield lambda: int(bool(asked()))
    elif in_charge and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with stoppable(lambda: None, signals=[signal.SIGINT]) as received:
            yield received
    else:
        yield lambda: 0
