"""``bench serve``: a service compared with the calls of its bundle in one process, in turns on one machine.

The service runs in a process of its own, and clients in another one send it requests over HTTP. Each client sends its
next request as soon as the last one is answered. The service runs with one compute thread, as the bundle does here, and
with its default. Turns of the services and of the bundle alternate, so that a busy period of the machine affects all of
them. Ratios are medians over the turns. The CPU time of a request excludes other processes.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall._errors import RankfallError
from rankfall.serving.bundle_files import is_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rankfall.serving import Bundle

Call = tuple[float, float, int]  # start, end and status code

TURNS = 5
SETTINGS = ((1, 1), (8, 1), (32, 1), (1, 32), (8, 32))  # number of clients, requests per call
BATCHES = (1, 8, 32)  # requests per call of the bundle; the last is the largest batch of a service
POOL = 2048  # different requests
DEADLINE = 10_000  # milliseconds, so long that slow requests are measured, too
WARM_UP = 0.2  # additional share of a turn, not measured
KEPT_EXAMPLES = 64  # of a simulated bundle; requests combine the user of one with the history of another
START_SECONDS, END_SECONDS = 120.0, 30.0
_HEAD = "POST /rank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "


@dataclass(frozen=True)
class Row:
    """Calls of some clients of a service, or of the bundle in one process."""

    name: str  # "bundle" or "service"
    threads: int  # compute threads
    clients: int
    requests_in_call: int
    requests_per_second: float
    p50_ms: float  # of a call
    p99_ms: float
    cpu_ms: float | None  # per request, of all threads; None if the system does not tell
    overhead: float | None  # p50 over that of the bundle, minus 1; None if the batches or the threads differ
    not_answered: int  # calls


@dataclass
class _Turns:
    """The turns of one setting."""

    calls: list[list[float]] = field(default_factory=list)  # milliseconds of the answered ones
    rates: list[float] = field(default_factory=list)  # requests per second
    cpu_ms: list[float] = field(default_factory=list)  # per request
    not_answered: int = 0

    def add(self, made: tuple[list[Call], float], in_call: int, seconds: float, cpu: float | None) -> None:
        calls, counted = made
        answered = [(start, end) for start, end, code in calls if code == 200]
        measured = [(end - start) * 1e3 for start, end in answered if start >= counted]
        if not measured:
            raise OSError(f"no call with {in_call} requests was answered")
        self.calls.append(measured)
        self.rates.append(sum(counted <= end < counted + seconds for _, end in answered) * in_call / seconds)
        self.not_answered += len(calls) - len(answered)
        if cpu is not None:  # known for every turn on Linux, otherwise for none
            self.cpu_ms.append(cpu * 1e3 / (len(calls) * in_call))

    def row(self, name: str, threads: int, clients: int, in_call: int, bundle: _Turns | None = None) -> Row:
        overhead = None
        if bundle is not None:
            both = zip(self.calls, bundle.calls, strict=True)
            overhead = statistics.median(percentiles(own)[0] / percentiles(other)[0] for own, other in both) - 1
        times = percentiles([one for turn in self.calls for one in turn])
        cpu = statistics.median(self.cpu_ms) if self.cpu_ms else None
        rate = statistics.median(self.rates)
        return Row(name, threads, clients, in_call, rate, *times, cpu, overhead, self.not_answered)


def steps(turns: int = TURNS) -> int:
    """Return how many times `measure` calls `report`."""
    return 2 + turns * (len(BATCHES) + len(_threads()) * len(SETTINGS))


def _threads() -> list[int]:
    from rankfall.serving.service.settings import default_threads

    return sorted({1, default_threads(workers=1)})


def measure(path: Path, *, seconds: float, report: Callable[[str], None], turns: int = TURNS) -> list[Row]:
    """Measure services of a bundle, and the bundle.

    Args:
        path: Directory of the bundle.
        seconds: Duration of a turn.
        report: Called with a description after every step.
        turns: Number of turns per setting.
    """
    from rankfall.serving import Bundle

    bundle = Bundle.load(path)
    requests = requests_like_examples(bundle, POOL)
    bodies = {in_call: call_bodies(requests, in_call) for _, in_call in SETTINGS}
    report("bundle loaded")
    alone = {size: _Turns() for size in BATCHES}
    found = {(threads, setting): _Turns() for threads in _threads() for setting in SETTINGS}
    with ExitStack() as stack:
        context = multiprocessing.get_context("forkserver")
        clients = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
        options = ["--deadline", str(DEADLINE), "--threads"]
        services = {one: stack.enter_context(running(path, [*options, str(one)])) for one in _threads()}
        report("services started")
        for _ in range(turns):
            for size in BATCHES:
                cpu = time.thread_time()  # only this thread: others of the process may draw a progress bar
                calls = bundle_calls(bundle, requests, size, seconds)
                alone[size].add(calls, size, seconds, time.thread_time() - cpu)
                report(f"bundle, {size} requests per call")
            for (threads, (count, in_call)), of_setting in found.items():
                port, service = services[threads]
                before = cpu_seconds(service)
                calls = clients.submit(send_calls, port, bodies[in_call], count, seconds).result()
                after = cpu_seconds(service)
                cpu_used = None if before is None or after is None else after - before
                of_setting.add(calls, in_call, seconds, cpu_used)
                report(f"{count} clients, {in_call} requests per call")
    rows = [of_size.row("bundle", 1, 1, size) for size, of_size in alone.items()]
    for (threads, (count, in_call)), of_setting in found.items():
        base = alone.get(count * in_call) if threads == 1 else None
        rows.append(of_setting.row("service", threads, count, in_call, base))
    return rows


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of times.

    >>> percentiles([float(time) for time in range(101)])
    (50.0, 99.0)
    """
    p50, p99 = np.percentile(times, [50, 99])
    return float(p50), float(p99)


# --- requests -----------------------------------------------------------------------------------------------------


def simulated_bundle(directory: Path, items: int, *, seed: int) -> Path:
    """Return the path of a simulated bundle in a directory; create it if it does not exist."""
    path = directory / f"simulated-{items}-{seed}"
    if is_bundle(path):
        return path
    import torch

    from rankfall.serving.export.simulated_source import simulated_source
    from rankfall.serving.export.write_bundle import write_bundle

    torch.set_num_threads(1)
    directory.mkdir(parents=True, exist_ok=True)
    write_bundle(simulated_source(items, seed=seed), path, examples=KEPT_EXAMPLES, force=True)
    return path


def requests_like_examples(bundle: Bundle, count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return requests that combine the users and the sequences of a bundle's examples at random."""
    examples = [example["request"] for example in bundle.examples()]
    if not examples:
        raise RankfallError(
            f"bundle: {bundle.path} has no examples, from which requests are made; export it with --examples"
        )
    choose = random.Random(seed)
    made = []
    for _ in range(count):
        user, other = choose.choices(examples, k=2)
        made.append({**user, **({"sequences": other["sequences"]} if "sequences" in other else {})})
    return made


def call_bodies(requests: Sequence[dict[str, Any]], in_call: int) -> list[bytes]:
    """Return complete calls of ``POST /rank`` with `in_call` requests each."""
    starts = range(0, len(requests) - in_call + 1, in_call)
    contents = requests if in_call == 1 else [{"requests": requests[start : start + in_call]} for start in starts]
    bodies = [json.dumps(content, separators=(",", ":")).encode() for content in contents]
    return [f"{_HEAD}{len(body)}\r\n\r\n".encode() + body for body in bodies]


def bundle_calls(
    bundle: Bundle, requests: Sequence[dict[str, Any]], in_call: int, seconds: float
) -> tuple[list[Call], float]:
    """Rank requests without a service, `in_call` per call; the result is that of `send_calls`."""
    starts = cycle(range(0, len(requests) - in_call + 1, in_call))
    calls, counted = list[Call](), time.perf_counter() + WARM_UP * seconds
    while (begin := time.perf_counter()) < counted + seconds:
        start = next(starts)
        bundle.rank(requests[start : start + in_call])
        calls.append((begin, time.perf_counter(), 200))
    return calls, counted


def send_calls(port: int, bodies: Sequence[bytes], clients: int, seconds: float) -> tuple[list[Call], float]:
    """Send calls to a service on this machine from some clients, each on a connection of its own.

    Args:
        port: Port of the service.
        bodies: Complete calls; every client starts at another one.
        clients: Number of clients.
        seconds: Duration after the warm-up.

    Returns:
        Start, end and status code of every call, and the time at which the warm-up ended.
    """
    counted = time.perf_counter() + WARM_UP * seconds

    def client(number: int) -> list[Call]:
        calls, place = list[Call](), number * len(bodies) // clients
        with socket.create_connection(("127.0.0.1", port)) as raw, raw.makefile("rb") as answers:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (begin := time.perf_counter()) < counted + seconds:
                raw.sendall(bodies[place % len(bodies)])
                code, length = int(answers.readline().split()[1]), 0
                while header := answers.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                answers.read(length)
                calls.append((begin, time.perf_counter(), code))
                place += 1
        return calls

    with ThreadPoolExecutor(clients) as pool:
        return [call for calls in pool.map(client, range(clients)) for call in calls], counted


# --- the service --------------------------------------------------------------------------------------------------


@contextmanager
def running(bundle: Path, options: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """Start a service on a free port, yield its port and process id when it is ready, and end it afterwards."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "rankfall", "serve", str(bundle), "--port", str(port), *options]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            ends = time.monotonic() + START_SECONDS
            while not _is_ready(port):
                if process.poll() is not None or time.monotonic() > ends:
                    output.seek(0)
                    raise OSError(f"rankfall serve did not start; its output: {output.read()[-2000:].strip()}")
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except OSError:  # it does not listen yet
        return False
    finally:
        connection.close()


def cpu_seconds(process: int) -> float | None:
    """Return the CPU time of a process, or None if the system is not Linux."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()  # the name may contain spaces
    except OSError:
        return None
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
