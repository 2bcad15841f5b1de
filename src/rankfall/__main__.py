"""The program ``rankfall``, also ``python -m rankfall``."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import NoReturn


class _ClosedOutput(io.TextIOBase):
    """Standard output that was closed, as by ``>&-``: a command that has a result to print fails with a message."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed, the result cannot be printed")


def _replace_closed() -> None:
    """Take the numbers of closed standard streams, which would become those of the next files that are opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8")  # messages are dropped


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends the process at once, without a traceback."""
    _replace_closed()
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as in the background
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    from rankfall.cli import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, frame: object) -> NoReturn:
    """End the process where an exception would pass through half-imported modules, some of which replace it."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
