"""Engines: execution of work on many parts, in this process or with Ray on one or more machines.

Work that can be split into parts is written as a function of one part, and an engine maps it over the parts. Results
are returned in the order of the parts and a few at a time, so neither the output nor the memory depends on the engine.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections import Counter, deque
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from rankfall._errors import BugError, RankfallError, is_expected, located, traceback_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    Report = Callable[[int], None]  # called with the amount of work that has been completed since the last call

Name = Literal["local", "ray"]
Part = TypeVar("Part")
Result = TypeVar("Result")


class Engine(Protocol):
    """Protocol of an engine, which maps functions over parts."""

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """Yield the result of `work` for each part, in the order of the parts.

        `work` may run in any process, may run again if a process dies, and may run for later parts before the results
        of earlier ones are taken. If it raises an error, the error of the first failed part is raised here. Close the
        generator to stop early; remaining parts are then cancelled.

        Args:
            work: Function of a part and of a callback ``report(count)`` for progress.
            parts: The parts.
            on_done: Called with the counts that `work` reports.
        """
        ...


class Local:
    """Engine that processes one part after the other, in this process."""

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """Yield the result of `work` for each part; a part is processed when the previous result has been taken."""
        for part in parts:
            yield work(part, on_done)


LOCAL = Local()


@contextmanager
def open_engine(name: Name) -> Generator[Engine]:
    """Open an engine by its name. Ray is started if necessary, and stopped at the end if it was started here.

    Raises:
        ValueError: If there is no engine of this name, or Ray is not installed.
    """
    if name not in get_args(Name):
        raise RankfallError(f"engine: found {name!r}, expected local or ray")
    with nullcontext(LOCAL) if name == "local" else open_ray() as engine:
        yield engine


INSTALL = "pip install 'rankfall[ray]'"
ADDRESS = "RAY_ADDRESS"
WORKER = "RANKFALL_WORKER"  # variable with the number of a process that works beside others; it decides the GPU
STARTS = 3  # attempts: on a busy machine, Ray may exceed its own start timeout
ATTEMPTS = 4  # per part: if all its workers die, the part has failed
_TIMEOUT = 10.0  # seconds, for workers to end and for a cluster to answer
_CACHED_FUNCTIONS = 2  # per worker, since two maps may alternate
_ENVIRONMENT = {"POLARS_MAX_THREADS": "1"}  # of workers: there is one per CPU


def import_ray() -> Any:
    """Import Ray, without usage statistics and with little output. Raises ValueError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns about a future change
    os.environ.setdefault("RAY_task_oom_retries", str(ATTEMPTS - 1))  # or Ray retries for ever if memory is too small
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or Ray reports dead workers on standard output
    try:
        import ray
    except ImportError:
        raise RankfallError(f"engine: Ray is not installed; install it with {INSTALL}") from None
    return ray


@contextmanager
def open_ray(**options: Any) -> Generator[Ray]:
    """Open the Ray engine.

    It uses Ray as it runs in this process, the cluster at ``RAY_ADDRESS``, or a local instance that ends with the
    context.

    Args:
        options: Further arguments of ``ray.init`` for a local instance.
    """
    ray = import_ray()
    with ExitStack() as stack:
        cleanup = stack
        if not ray.is_initialized():
            address = os.environ.get(ADDRESS)
            # Ray's logs, spilled objects and sockets, whose paths must be short
            parent = "/tmp" if Path("/tmp").is_dir() else None
            directory = stack.enter_context(TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True))
            cleanup = stack.enter_context(ExitStack())
            stack.callback(ray.shutdown)
            if address:
                _connect(ray, address)
            else:
                _start(ray, directory, options)
        with closing(Ray(ray, cleanup)) as engine:
            yield engine


def _connect(ray: Any, address: str) -> None:
    try:
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=_TIMEOUT).close()  # Ray itself would retry for minutes
        ray.init(address, **_quiet())
    except (OSError, ValueError, RuntimeError) as error:
        raise RankfallError(f"{ADDRESS}: no cluster responds at {address!r} ({_first_line(error)})") from None


def _start(ray: Any, directory: str, options: dict[str, Any]) -> None:
    for attempt in range(1, STARTS + 1):
        try:
            ray.init("local", include_dashboard=False, _temp_dir=directory, **_quiet(), **options)
            return
        except Exception as error:  # Ray raises no more specific type
            ray.shutdown()
            _end_processes(directory)
            if attempt == STARTS:
                raise RankfallError(f"Ray cannot be started on this machine ({_first_line(error)})") from None


def _end_processes(directory: str) -> None:
    """Kill the processes that a failed start has left behind: all whose command line contains the directory."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # some processes end in the meantime
            if directory.encode() in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)


def _quiet() -> dict[str, Any]:
    return {
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
        "runtime_env": {"env_vars": _ENVIRONMENT},
    }


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Ray:
    """Engine that processes parts with one worker per CPU. Functions, parts and results are pickled."""

    def __init__(self, ray: Any, cleanup: ExitStack) -> None:
        self.ray = ray
        self.cleanup = cleanup  # runs after all workers have ended
        # actors, since cancelling tasks sometimes crashes this process (Ray 2.60)
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": ATTEMPTS - 1}
        self._create_worker = ray.remote(**options)(_Worker).remote
        self.workers = max(int(ray.available_resources().get("CPU", 1)), 1)  # other jobs may use the cluster as well
        self._pool: list[Any] = []  # created when needed
        self._busy: dict[Any, Any] = {}  # the workers of parts that may not be finished

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """Yield the result of `work` for each part, in the order of the parts."""
        shared = self.ray.put(work)
        waiting: deque[Any] = deque()
        try:
            for part in _until_error(parts):
                if isinstance(part, _Raised):
                    # as without Ray, errors of earlier parts are raised first
                    yield from self._take_all(waiting, on_done)
                    raise part.error
                waiting.append(self._submit(shared, part))
                if len(waiting) >= 2 * self.workers:
                    yield self._take(waiting, on_done)
            yield from self._take_all(waiting, on_done)
        finally:
            self._abandon(waiting)

    def each(
        self, work: Callable[[Part, Report], Result], parts: Iterable[Part], *, at_once: int | None = None
    ) -> Generator[tuple[Part, Result | Exception]]:
        """Yield each part with the result of `work`, or with its ValueError or OSError, in the order of completion."""
        shared = self.ray.put(work)
        left = deque(parts)
        running: dict[Any, Part] = {}
        try:
            while left or running:
                while left and len(running) < min(at_once or self.workers, self.workers):
                    part = left.popleft()
                    running[self._submit(shared, part)] = part
                (ready,), _ = self.ray.wait(list(running), num_returns=1)
                part = running.pop(ready)
                try:
                    yield part, self._value(ready)[0]
                except (ValueError, OSError) as error:
                    yield part, error
        finally:
            self._abandon(running)

    def close(self) -> None:
        """Kill the workers."""
        for worker in self._pool:
            self.ray.kill(worker)
        self._pool, self._busy = [], {}

    def _submit(self, shared: Any, part: Any) -> Any:
        """Submit a part to the worker with the fewest open parts."""
        self._pool = self._pool or [self._create_worker(number) for number in range(self.workers)]
        if self._busy:
            done, _ = self.ray.wait(list(self._busy), num_returns=len(self._busy), timeout=0, fetch_local=False)
            for reference in done:
                del self._busy[reference]
        load = Counter(self._busy.values())
        worker = min(self._pool, key=lambda one: load[one])
        # a reference inside a list is not resolved, so that the worker can use its cached value
        reference = worker.do.remote(os.getcwd(), [shared], part)
        self._busy[reference] = worker
        return reference

    def _take(self, waiting: deque[Any], on_done: Report) -> Any:
        value, done = self._value(waiting.popleft())
        on_done(done)
        return value

    def _take_all(self, waiting: deque[Any], on_done: Report) -> Iterator[Any]:
        while waiting:
            yield self._take(waiting, on_done)

    def _value(self, reference: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            expected = isinstance(error.cause, ValueError | OSError)  # others are bugs, which need the traceback
            raise error.cause from (None if expected else error)
        except errors.RayError as error:
            raise RankfallError(f"Ray failed to process a part in {ATTEMPTS} attempts: {_first_line(error)}") from None

    def _abandon(self, references: Iterable[Any]) -> None:
        """Kill the workers if parts are left whose results are no longer needed."""
        references = list(references)
        if references:
            self.close()
            self.ray.wait(references, num_returns=len(references), timeout=_TIMEOUT)


class _Raised:
    """An error that was raised by the iterator of parts."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _until_error(parts: Iterable[Part]) -> Iterator[Part | _Raised]:
    try:
        yield from parts
    except Exception as error:
        yield _Raised(error)


def enter(directory: str) -> None:
    """Change to the directory of the command, so that relative paths are the same."""
    try:
        os.chdir(directory)
    except OSError:
        where = socket.gethostname()
        raise RankfallError(
            f"{directory} does not exist on {where}; all machines of the Ray cluster must see the same files"
        ) from None


class _Worker:
    """A process that works on parts, one after the other."""

    def __init__(self, number: int) -> None:
        os.environ[WORKER] = str(number)
        self._functions: dict[str, Any] = {}  # the most recent ones, by their references

    def do(self, directory: str, shared: list[Any], part: Any) -> tuple[Any, int]:
        """Return the result for a part, and the sum of the counts that were reported."""
        enter(directory)
        done = 0

        def report(count: int) -> None:
            nonlocal done
            done += count

        try:
            return self._function(shared[0])(part, report), done
        except (ValueError, OSError) as error:
            if isinstance(error, RankfallError | OSError):
                raise
            if is_expected(error):
                raise RankfallError(str(error)) from None
            # Outside of this process, the error would look like a message for users.
            raise BugError(located(error), traceback_text(error)) from None

    def _function(self, reference: Any) -> Any:
        name = reference.hex()
        if name not in self._functions:
            import ray

            while len(self._functions) >= _CACHED_FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[name] = ray.get(reference)
        return self._functions[name]
