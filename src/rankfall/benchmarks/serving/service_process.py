"""`rankfall serve` as a separate process, with its CPU time and memory."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

START_SECONDS = 120.0
END_SECONDS = 30.0
MB = 2**20


class Service:
    """A running service on this machine."""

    def __init__(self, process: subprocess.Popen[str], port: int, token: str, output: IO[str]) -> None:
        self.port = port
        self.token = token
        self._process = process
        self._output = output

    def call(self, method: str, path: str, body: Any = None, *, timeout: float = 60.0) -> tuple[int, Any]:
        """Send a request with the token; return the status code and the content of the response."""
        return call_service(self.port, method, path, body, token=self.token, timeout=timeout)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, negative for a signal; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Return what the process has printed so far."""
        return os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0).decode(errors="replace")

    def end(self, seconds: float) -> float | None:
        """Send SIGTERM; return the seconds until the process has ended, or None after it had to be killed."""
        begin = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        return time.perf_counter() - begin

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all its processes, or None if the system is not Linux."""
        try:
            ticks = sum(sum(map(int, _stat(process)[11:13])) for process in self._processes())
        except OSError:
            return None
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> tuple[float, float] | None:
        """Return the resident megabytes of its processes, with and without mapped files; None if it has ended."""
        try:
            found = [_status(process) for process in self._processes()]
        except OSError:
            return None
        if any("VmRSS" not in one for one in found):  # ended, but not yet waited for
            return None
        return sum(one["VmRSS"] for one in found) / 1024, sum(one["RssAnon"] for one in found) / 1024

    def _processes(self) -> list[int]:
        """Return the ids of the process and its descendants."""
        found = [self._process.pid]
        for process in found:  # the list grows during the loop
            for children in Path(f"/proc/{process}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        return found


def call_service(
    port: int, method: str, path: str, body: Any = None, *, token: str = "", timeout: float = 60.0
) -> tuple[int, Any]:
    """Send a request to a service on this machine; return the status code and the content of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    is_json = (answer.getheader("content-type") or "").startswith("application/json")
    return answer.status, json.loads(content) if is_json else content.decode()


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()  # the name may contain anything


def _status(process: int) -> dict[str, int]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines) if " kB" in value}


@contextmanager
def running(bundle: Path, options: Sequence[str] = ()) -> Iterator[Service]:
    """Start a service on a free port, yield it when it is ready, and end it afterwards."""
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "rankfall", "serve", str(bundle), "--port", str(port), *options]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env=os.environ | {"RANKFALL_TOKEN": token}
        )
        service = Service(process, port, token, output)
        try:
            _wait_until_ready(service)
            yield service
        finally:
            service.end(END_SECONDS)


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_until_ready(service: Service) -> None:
    ends = time.monotonic() + START_SECONDS
    while not service.ended and time.monotonic() < ends:
        try:
            if service.call("GET", "/ready")[0] == 200:
                return
        except OSError:  # it does not listen yet
            pass
        time.sleep(0.1)
    raise OSError(
        f"rankfall serve was not ready within {START_SECONDS:.0f} s; its output: {service.output()[-2000:].strip()}"
    )


class MemoryMonitor:
    """Records the memory of a service every second in a thread."""

    def __init__(self, service: Service, interval: float = 1.0) -> None:
        self._service = service
        self._interval = interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)
        self.samples: list[tuple[float, float, float]] = []  # seconds, megabytes, megabytes without mapped files

    def __enter__(self) -> MemoryMonitor:
        self._begin = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _record(self) -> None:
        while True:
            memory = self._service.memory()
            if memory is not None:
                self.samples.append((time.perf_counter() - self._begin, *memory))
            if self._done.wait(self._interval):
                return
