"""The processes of the loop, which can be killed and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

END_SECONDS = 60.0
_SHOWN = 2000  # characters of an output in an error


class LoopProcess:
    """A command of rankfall.

    Args:
        name: What it is, for messages.
        arguments: Arguments of the command.
        output: File that receives what it prints.
    """

    def __init__(self, name: str, arguments: Sequence[str], output: Path) -> None:
        self.name = name
        self.kills = 0
        self._command = [sys.executable, "-m", "rankfall", *arguments]
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it with SIGKILL.

        Raises:
            OSError: It has ended before.
        """
        self.check()
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def check(self) -> None:
        """Raise an OSError if the command has ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        raise OSError(f"the {self.name} ended with {code}: {self._tail()}")

    def end(self) -> int | None:
        """End it with SIGTERM and return its exit code, or None if it had to be killed."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        finally:
            self._process = None

    def run(self) -> None:
        """Run the command to its end.

        Raises:
            OSError: It failed.
        """
        self.start()
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        if code:
            raise OSError(f"the {self.name} ended with {code}: {self._tail()}")

    def tracebacks(self) -> int:
        """Return the number of tracebacks in its output."""
        return self._output.read_text(errors="replace").count("Traceback (most recent call last)")

    def _tail(self) -> str:
        return self._output.read_text(errors="replace")[-_SHOWN:].strip()
