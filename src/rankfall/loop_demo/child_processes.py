"""Commands that run as processes of their own, with their output in files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from rankfall._disk import make_directory, open_new

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

END_SECONDS = 120.0  # after SIGTERM: a stream finishes its batch or its bundle
LAST_LINES = 15


class ChildError(OSError):
    """A process ended, or something went wrong in it."""


class ChildProcesses:
    """Processes that end together, in the reverse order of their start.

    They are in sessions of their own, so that Ctrl-C in a terminal ends this process first, which then ends them.

    Args:
        logs: Directory of their output, one file ``NAME.log`` each.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Create the directory of the output."""
        make_directory(self._logs)
        return self

    def __exit__(self, *exception: object) -> None:
        """End all processes."""
        self._stack.close()

    def run(self, name: str, arguments: Sequence[str], pause: Callable[[], None]) -> None:
        """Run ``rankfall ARGUMENTS`` to its end; `pause` is called while it runs.

        Raises:
            ChildError: It failed.
        """
        self.start(name, arguments)
        while (code := self._processes[name].poll()) is None:
            pause()
        del self._processes[name]
        if code:
            raise self.error(name, f"ended with exit code {code}")

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start ``rankfall ARGUMENTS`` under a name."""
        with open_new(self._logs / f"{name}.log") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rankfall", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        self._stack.callback(self._end, process)

    def check(self) -> None:
        """Raise an error with the last lines of its output if a process has ended.

        Raises:
            ChildError: A process has ended.
        """
        for name, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise self.error(name, f"ended with exit code {code}")

    def error(self, name: str, problem: str) -> ChildError:
        """Return the error of a process, with the last lines of its output."""
        path = self._logs / f"{name}.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return ChildError("\n".join([f"rankfall {name} {problem}; the end of {path}:", *lines]))

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started itself, if it ended by an error


def free_port() -> int:
    """Return a port of this machine that no program listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
