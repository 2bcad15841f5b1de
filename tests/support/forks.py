"""Processes that tests kill and stop, and that start without importing torch.

They are forks of a server process, this file as a program, which has imported torch. Each line of its standard input
requests a fork or the exit code of one, and is answered by a line. A fork does its work and waits for its threads; then
it exits without cleaning up the interpreter, which would take another second.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from support.paths import PYTHONPATH

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
DEADLINE = 600  # seconds until a test fails
COMMAND = "rankfall.cli:main"
IMPORTED = (  # modules that training needs
    "torch._dynamo",  # by optimizers
    "pandas",  # by pyarrow, if installed
    "rankfall.cli",
    "rankfall.training.methods",
    "rankfall.studies.compare",
    "rankfall.studies.stream.run_stream",
)


class Forks:
    """Starts forks, whose output is written to files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, count()
        program = [sys.executable, __file__]
        self._server = subprocess.Popen(
            program, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate(timeout=DEADLINE)

    def start(
        self,
        *arguments: str | Path,
        call: str = COMMAND,
        first: Sequence[str] = (),
        largest_file: int | None = None,
    ) -> Fork:
        """Call ``module:function``, by default the command line, with a list of arguments in a fork.

        The server imports the modules `first` before, once for all forks. Files that the fork writes are limited to
        `largest_file` bytes.
        """
        output = [self._directory / f"{next(self._numbers)}.{name}" for name in ("out", "err")]
        request = {
            "call": call,
            "arguments": [str(argument) for argument in arguments],
            "output": [str(path) for path in output],
            "first": list(first),
            "largest_file": largest_file,
        }
        return Fork(self, self.ask(request), *output)

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request to the server and return its answer."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


class Fork:
    """A process with the part of the interface of ``subprocess.Popen`` that tests use."""

    def __init__(self, forks: Forks, pid: int, out: Path, err: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forks, self._output = forks, (out, err)

    def poll(self) -> int | None:
        """Return the exit code or the negative number of the signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask({"poll": self.pid})
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        self.send_signal(signal.SIGKILL)

    def errors(self) -> str:
        """Return the standard error so far."""
        return self._output[1].read_text()

    def children(self) -> list[int]:
        """Return the ids of its child processes."""
        found = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(child) for path in found for child in path.read_text().split()]

    def survivors(self) -> list[int]:
        """Return the ids of the processes of its session that still run after it ended."""
        running = [int(name) for name in os.listdir("/proc") if name.isdecimal() and is_alive(int(name))]
        return [pid for pid in running if pid != self.pid and _session(pid) == self.pid]

    def communicate(self) -> tuple[str, str]:
        """Wait until the process ends; return its standard output and standard error."""
        deadline = time.monotonic() + DEADLINE
        while self.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        out, err = (path.read_text() for path in self._output)
        return out, err


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not, unless other threads of it still keep its files open."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


# --- the program ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer each line of standard input; in a fork, do the work that the line requests."""
    for name in IMPORTED:
        if find_spec(name.partition(".")[0]):
            import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            _answer(_ended(request["poll"]))
            continue
        for name in request["first"]:
            import_module(name)
        child = os.fork()
        if not child:
            _end(_code_of(request))
        _answer(child)
    _end(0)


def _answer(value: int | None) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def _ended(child: int) -> int | None:
    process, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if process else None


def _code_of(request: dict[str, Any]) -> int:
    """Do the work; return the exit code of an interpreter."""
    try:
        _work(request)
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _work(request: dict[str, Any]) -> None:
    os.setsid()
    for handle, path in enumerate((os.devnull, *request["output"])):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT if handle else os.O_RDONLY)
        os.dup2(opened, handle)
        os.close(opened)
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    module, _, function = request["call"].partition(":")
    getattr(import_module(module), function)(request["arguments"])


if __name__ == "__main__":
    main()
