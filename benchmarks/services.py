"""What trials and benchmarks of services share: a service as a separate process, checked requests, and statistics."""

from __future__ import annotations

import http.client
import json
import math
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks.answer_check import expected_answers, model_name, wrong_unexpected_items
from benchmarks.load_client import Job, drive, write_bodies
from rankfall.benchmarks.serve import percentiles, requests_like_examples
from rankfall.serving import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.load_client import Outcome

    OnStep = Callable[[str, int, int | None], None]  # name of the step, completed amount, total amount

POOL = 2048  # different requests
CLIENTS = 32  # for finding the largest rate
CONFIDENCE = 0.95
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


# --- checked requests ---------------------------------------------------------------------------------------------


class CheckedLoad:
    """Requests and their expected answers, which are computed without a service and stored in files.

    Args:
        paths: Directories of the bundles that may be served; the first one has the examples for the requests.
        directory: Receives the files.
        on_step: Called with the name of the step, the completed and the total amount.

    Attributes:
        models: Paths of the bundles by the name of their model.
        bodies: File with the requests.
        requests: The requests.
        expected: File with the expected answers, see AnswerChecker.
    """

    def __init__(self, paths: Sequence[Path], directory: Path, *, on_step: OnStep) -> None:
        self.bodies, self.expected = directory / "bodies.jsonl", directory / "expected.json"
        bundles = [Bundle.load(path) for path in paths]
        self.requests = requests_like_examples(bundles[0], POOL)
        write_bodies(self.bodies, self.requests)
        expected: dict[str, Any] = {}
        done = 0

        def on_requests(count: int) -> None:
            nonlocal done
            on_step("computing the expected answers", done := done + count, len(paths) * POOL)

        for bundle in bundles:
            name = model_name(bundle.manifest)
            if name in expected:
                raise ValueError(f"bundle: {bundle.path} is the same as {paths[0]}, expected two different bundles")
            expected[name] = expected_answers(bundle, self.requests, on_requests)
        self.expected.write_text(json.dumps(expected))
        self.models = dict(zip(expected, paths, strict=True))

    def job(self, port: int, seconds: float, **how: Any) -> Job:
        """Return a job that sends the requests to a service and checks the answers."""
        return Job(port, str(self.bodies), seconds, expected=str(self.expected), **how)

    def largest_rate(self, port: int, seconds: float) -> float:
        """Return the answers per second of a closed loop; they are checked as they are under load."""
        found = drive(self.job(port, seconds, clients=CLIENTS, warm_up=seconds / 4))
        if not found.in_time:
            raise OSError(f"the service answered no request: {found.quoted}")
        return found.in_time / found.seconds

    def verify_unexpected(self, outcome: Outcome) -> None:
        """Let the bundles score unexpected items; count answers with different scores as wrong."""
        if not outcome.unexpected:
            return
        bundles = {name: Bundle.load(path) for name, path in self.models.items()}
        for why in wrong_unexpected_items(bundles, self.requests, outcome.unexpected):
            outcome.verdicts["tied"] -= 1
            outcome.verdicts["wrong"] = outcome.verdicts.get("wrong", 0) + 1
            outcome.quote(f"wrong, {why}")


# --- statistics ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """The median and the 99th percentile of times in milliseconds."""

    p50: float
    p99: float


def spread(times: Sequence[float]) -> Spread:
    """Return the median and the 99th percentile of times; NaN without any."""
    return Spread(*percentiles(times or [math.nan]))


@dataclass(frozen=True)
class MedianRatio:
    """The median of ratios, with an interval for the median of infinitely many turns.

    Attributes:
        value: The median.
        low: Lower end of the interval, which makes no assumption about the distribution of the ratios. None if there
            are fewer than six of them, too few for any interval.
        high: Upper end.
    """

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Return the median and the interval with two decimals."""
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"


def median_ratio(own: Sequence[float], others: Sequence[float]) -> MedianRatio:
    """Return the median of the ratios of paired measurements.

    >>> print(median_ratio([2, 4, 6, 8, 10, 12], [2] * 6))
    3.50 [1.00, 6.00]
    >>> print(median_ratio([2, 4], [2, 2]))
    1.50
    """
    ratios = sorted(one / other for one, other in zip(own, others, strict=True))
    left_out = _left_out(len(ratios))
    ends = (None, None) if left_out is None else (ratios[left_out], ratios[-1 - left_out])
    return MedianRatio(statistics.median(ratios), *ends)


def _left_out(count: int) -> int | None:
    """Return how many values at each end are outside of the interval; None if all of them do not reach the confidence.

    The number of values below the median has a binomial distribution with probability 1/2.
    """
    left_out, outside = None, 0.0
    for place in range(count // 2):
        outside += 2 * math.comb(count, place) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        left_out = place
    return left_out
