"""The program ``rankfall``, also ``python -m rankfall``."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends the process at once, without a traceback."""
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
