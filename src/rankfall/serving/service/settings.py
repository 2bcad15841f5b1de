"""Settings of a service, from the options of ``rankfall serve``."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import re
import resource
import signal
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rankfall.serving.recording.recorder import ClockKind


# --- defaults of options (see `Settings`) ---------------------------------------------------------------------------

QUEUE_REQUESTS = 256  # --queue: further requests get 503 at once; a longer queue only adds waiting time
BATCH_REQUESTS = 32  # --batch: larger batches barely raise the throughput but delay every request of the batch
DEADLINE_MS = 1000  # --deadline: a request without a deadline of its own gets 504 after this time
KEEP_ALIVE_SECONDS = 75  # --keep-alive: longer than the 60 s of common load balancers, so that they close first
SAMPLE_ITEMS = 10  # --sample-items: drawn from what each stage dropped
BODY_BYTES = 1_000_000  # --max-body: larger bodies get 413 before they are read

# --- connections and headers (enforced by http_protocol, because uvicorn has no such limits) ------------------------

CONNECTIONS = 4096  # per worker, further ones get 503: connections without a bound exhaust the file descriptors
RESERVED_FILES = 128  # file descriptors that a worker keeps for anything but connections (bundles, logs, metrics)
HEADER_BYTES = 65_536  # path and headers of a request: uvicorn would collect headers in memory without end
RECEIVED_BYTES = 65_536  # read from a connection at once; what follows a request waits in memory for its response
HEADER_SECONDS = 10.0  # from the connection to complete headers: a silent client would keep its connection forever
DISCARDED_BODY_BYTES = 64_000_000  # read and dropped after a refused request, to keep the connection; then it closes
RESPONSE_SECONDS = 30.0  # for reading a response: a client that does not read would keep the response in memory
LAST_RESPONSE_SECONDS = 10.0  # for reading a response that was written before a shutdown, which waits for it
UNSENT_BYTES = 16_384  # that the kernel takes although the client cannot receive them yet: it would take 4 MB
UNREAD_BYTES = 256_000_000  # of all such responses, per worker: then the connection that has waited longest is aborted
LISTEN_BACKLOG = 2048  # connections that the kernel holds until a worker accepts them, enough for a burst

# --- bodies (enforced by http_io.BodyReader) ------------------------------------------------------------------------

BODY_SECONDS = 5.0  # for receiving a body: a slow client gets 408 and occupies no place in the queue
ALL_BODIES_BYTES = 64_000_000  # of all bodies in memory, per worker: many bodies at once get 503, not the OOM killer
LARGE_BODY_BYTES = 65_536  # larger bodies are parsed in a thread, so that other requests are not delayed
PARSE_QUEUE_BYTES = 4_000_000  # of large bodies that wait for that thread, which takes tenths of a second for them
JSON_LEVELS = 254  # of nested arrays and objects, as many as orjson serializes: requests have fewer than ten
BYTES_PER_NAME = 10  # a body may have one name, and one array or object, per 10 bytes of --max-body: requests have half
NAMED_KEY_BYTES = 10_000  # errors name the key that smaller bodies have twice: the search takes a millisecond

SHOWN_ITEMS = 10_000  # ids of one call of /items, which is answered in the event loop: they take a few milliseconds

# --- samples and events (enforced by recording.recorder) ------------------------------------------------------------

ID_LENGTH = 128  # characters of ids of requests and events
KIND_LENGTH = 64  # characters of a kind of event
ITEM_LENGTH = 1024  # characters of the id of an item in an event
EVENTS = 1_000  # of one call: they are validated in the event loop, which takes a few milliseconds
EVENT_QUEUE = 50_000  # events that wait for the disk; further calls get 503
EVENT_SECONDS = 10.0  # until events are on disk: then a call gets 503, and its client sends them again
SAMPLE_QUEUE = 20_000  # answered requests that wait to be recorded; further ones are dropped
SAMPLE_QUEUE_BYTES = 128_000_000  # of their bodies
RECORD_SECONDS = 3.0  # at shutdown, for writing the last samples and again for the last events

# --- bundles, which are first loaded by a process with these limits -------------------------------------------------

TRIAL_BYTES = 2**30  # of memory, beside that of the libraries,
TRIAL_BYTES_PER_BYTE = 8  # and this for each byte of the files
TRIAL_SECONDS = 60  # of time of the processor,
TRIAL_BYTES_PER_SECOND = 10_000_000  # and a second more for this number of bytes

# --- time and threads -----------------------------------------------------------------------------------------------

MAX_DEADLINE_MS = 60_000  # the longest deadline a request may ask for: it bounds how long old bundles stay in memory
MAX_THREADS = 4  # per worker: more compute threads only compete with the event loop of the same process
BATCH_ATTEMPTS = 3  # a batch with invalid requests is repeated without them, then its requests are computed singly
SHUTDOWN_SECONDS = MAX_DEADLINE_MS // 1000 + 15  # for requests in progress at the end, whatever their deadline
EXIT_SECONDS = 10  # after the last response: a thread that still parses, computes or loads is ended with the process
WORKER_SILENCE_SECONDS = 30  # a worker that does not react is replaced; on a busy machine workers start slowly


def shutdown_seconds(drain: int) -> int:
    """Return the time from the first signal to the end of a process, whatever it does."""
    return drain + SHUTDOWN_SECONDS + EXIT_SECONDS


def max_names(max_body: int) -> int:
    """Return the number of names that all objects of a body may have."""
    return max_body // BYTES_PER_NAME


def max_connections() -> int:
    """Return the number of connections that a worker accepts, which is lower if it may open few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files - RESERVED_FILES))


_UNLIMITED = 1 << 20  # cores


def default_threads(workers: int) -> int:
    """Return the number of compute threads per worker if `workers` processes share the cores of this machine."""
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(MAX_THREADS, cores // workers, _container_cores() // workers))


def _container_cores(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the CPU quota of the container in cores; a container that exceeds it is paused with all its requests."""
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):  # no container, or another version of cgroups
        return _UNLIMITED
    return _UNLIMITED if quota == "max" else int(quota) // int(period)


@dataclass(frozen=True)
class Settings:
    """Options of ``rankfall serve``, the same for every worker.

    Args:
        bundle: A bundle, or a directory of bundles.
        other: A second bundle for comparison, or a directory of bundles.
        threads: Number of compute threads; each computes one batch at a time.
        watch: Whether to load bundles that appear at `bundle` and `other`.
        token: Token that ``POST /reload`` requires; without one it is disabled.
        batch: Maximum number of requests per batch.
        queue: Maximum number of requests that wait.
        deadline: Default deadline of a request in milliseconds.
        drain: Seconds between the shutdown signal and the closing of the sockets.
        keep_alive: Seconds after which an idle connection is closed.
        max_body: Maximum size of a request body in bytes.
        body_seconds: Seconds in which a request body has to arrive.
        page: Whether to serve the page, ``/score`` and ``/examples``.
        local: Whether the service listens on this machine only and therefore accepts only local host names.
        samples: Directory or URL of the sink for samples and events; without one nothing is recorded.
        sample_share: Share of requests that are sampled.
        sample_items: Number of items to draw from what each stage dropped; further stages have that of the last one.
        time_window: Milliseconds by which the time of a sampled request may differ from the clock; None for any time.
        clock: The clock of what is recorded: ``wall``, or ``requests`` for the largest time of a request so far.
        shared: Directory through which several workers share their state; None for a single worker.
    """

    bundle: Path
    other: Path | None = None
    threads: int = 1
    watch: bool = False
    token: str | None = field(default=None, repr=False)
    batch: int = BATCH_REQUESTS
    queue: int = QUEUE_REQUESTS
    deadline: int = DEADLINE_MS
    drain: int = 0
    keep_alive: int = KEEP_ALIVE_SECONDS
    max_body: int = BODY_BYTES
    body_seconds: float = BODY_SECONDS
    page: bool = True
    local: bool = False
    samples: str | None = None
    sample_share: float = 1.0
    sample_items: tuple[int, ...] = (SAMPLE_ITEMS,)
    time_window: int | None = None
    clock: ClockKind = "wall"
    shared: Path | None = None

    @property
    def copies(self) -> Path | None:
        """Directory of the copies of bundle files, through which several workers share memory."""
        return None if self.shared is None else self.shared / "copies"


# Control characters (among them newlines and the beginning of terminal sequences), line and paragraph separators,
# characters that change the direction of text, and unpaired surrogates, which cannot be written as UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_INDENT = "    "  # of the lines of tracebacks
_MOST_CHARACTERS = 2000  # of a line
MOST_LINES, SECONDS = 10, 60.0  # warnings per kind and period and process


class LineFormatter(logging.Formatter):
    """Writes a record as one line with control characters escaped; tracebacks follow as indented lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (a method of logging)
        """Return the line of a record."""
        return _escaped(super().formatMessage(record).rstrip("\n"))

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Return the lines of a traceback, whose message may be text of a client."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """Return the lines of a stack."""
        return _indented(super().formatStack(stack_info))


def _escaped(text: str) -> str:
    left_out = len(text) - _MOST_CHARACTERS
    if left_out > 0:
        text = f"{text[:_MOST_CHARACTERS]}... ({left_out:,} more characters)"
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(_INDENT + _escaped(line) for line in text.split("\n"))


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # no generic class at run time
    """Writes at most `MOST_LINES` warnings or errors per `SECONDS` and place in the code, then their number."""

    def __init__(self) -> None:
        super().__init__()
        self._periods: dict[tuple[str, int], list[Any]] = {}  # by place in the code: the first warning, their number

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless it is one of too many, after the numbers of earlier ones."""
        self._write_summaries(before=record.created - SECONDS)
        if record.levelno >= logging.WARNING:
            period = self._periods.setdefault((record.pathname, record.lineno), [record, 0])
            period[1] += 1
            if period[1] > MOST_LINES:
                return
        super().emit(record)

    def close(self) -> None:
        """Write the numbers that were not written yet."""
        if not self.stream.closed:
            self._write_summaries()
        super().close()

    def _write_summaries(self, before: float = float("inf")) -> None:
        for place in [place for place, (first, _) in self._periods.items() if first.created <= before]:
            of, count = self._periods.pop(place)
            if count > MOST_LINES:
                arguments = (count - MOST_LINES, SECONDS, of.msg)
                message = "%d more warnings of this kind within %d seconds: %s"
                super().emit(logging.LogRecord(of.name, of.levelno, of.pathname, of.lineno, message, arguments, None))


def logging_settings() -> dict[str, Any]:
    """Return the settings of Python's logging: the service from INFO on, libraries from WARNING on, to stderr."""
    line = {"()": LineFormatter, "format": "%(asctime)s %(process)d %(levelname)s %(message)s"}
    handlers = {"handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": line},
        "handlers": {"stderr": {"()": LimitedHandler, "formatter": "line"}},
        "loggers": {
            "rankfall.serving.service": {**handlers, "level": "INFO"},
            "uvicorn": {**handlers, "level": "WARNING"},
            "asyncio": {**handlers, "level": "WARNING"},
        },
    }


_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Handles SIGINT and SIGTERM before uvicorn does.

    After the first signal `received` is true, and for `seconds` the service still accepts requests. Then uvicorn closes
    the sockets and waits for the requests in progress. A second signal ends the process at once, except in a worker:
    it is signalled by its parent process and possibly once more by whatever signals all processes of a service.

    The process ends at the latest `limits.shutdown_seconds` after the first signal, and `limits.EXIT_SECONDS` after the
    last response. Python would wait for its threads without end.

    Args:
        seconds: Time between the first signal and the closing of the sockets.
        is_worker: Whether this process is one of several workers.
    """

    def __init__(self, seconds: int, *, is_worker: bool) -> None:
        self.received = False
        self._seconds = seconds
        self._is_worker = is_worker

    def install(self) -> None:
        """Replace the signal handlers of uvicorn, which are called after `seconds`."""
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread handles signals
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            close = signal.getsignal(number)
            assert callable(close)
            signal.signal(number, partial(self._handle, loop, close))

    def _handle(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[int, None], object], number: int, frame: object
    ) -> None:
        if not self.received:
            self.received = True
            _end_process_after(shutdown_seconds(self._seconds))
            loop.call_soon_threadsafe(self._begin, loop, partial(close, number, None))
        elif not self._is_worker:
            exit_by_signal(number)

    def finish(self) -> None:
        """Limit the time that the process takes to end, now that all requests are answered."""
        if self.received:
            _end_process_after(EXIT_SECONDS)

    def _begin(self, loop: asyncio.AbstractEventLoop, close: Callable[[], object]) -> None:
        if self._seconds:
            _log.info("shutting down: /ready returns 503, requests are accepted for %d more seconds", self._seconds)
        loop.call_later(self._seconds, close)


def _end_process_after(seconds: float) -> None:
    """Write the stacks of all threads to standard error and end the process, if it still runs after that time.

    This needs no Python thread, so that it works while one of them does not let the others run. Open
    segments of samples and events are completed by the next reader.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


def exit_by_signal(number: int) -> None:
    """End this process with the default action of a signal."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
