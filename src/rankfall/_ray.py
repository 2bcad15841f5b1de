"""Ray, as an engine: parts are worked on by the processors of one machine or many.

The address of a cluster stands in ``RAY_ADDRESS``; without it Ray is started on this machine. All machines of a cluster
must have the same version of rankfall, and see the same files under the same paths.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections import Counter, deque
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from rankfall._engine import Report

Part = TypeVar("Part")
Result = TypeVar("Result")

INSTALL = "pip install 'rankfall[ray]'"
ADDRESS = "RAY_ADDRESS"
STARTS = 3  # a machine that is busy may not start Ray in the time that Ray gives itself
DEATHS = 4  # of the workers of a part, after which it is given up
_PATIENCE = 10.0  # seconds for workers to end, and for a cluster to answer
_KEPT = 2  # functions that a worker keeps, as two maps may take turns
_ENVIRONMENT = {"POLARS_MAX_THREADS": "1"}  # of workers: there is one for each processor


def import_ray() -> Any:
    """Ray, or how to get it. It tells nobody that it is used, and leaves it to us to speak."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns of what it will do one day
    os.environ.setdefault("RAY_task_oom_retries", str(DEATHS - 1))  # or it tries for ever what has too little memory
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or it reports workers that die on standard output
    try:
        import ray
    except ImportError:
        raise ValueError(f"engine: Ray is not installed; {INSTALL} brings it") from None
    return ray


@contextmanager
def open_ray(**options: Any) -> Generator[Ray]:
    """Ray as it runs already in this process, or that of the cluster, or one of this machine's own until the end.

    `options` are what else ``ray.init`` takes, for one of our own.
    """
    ray = import_ray()
    with ExitStack() as stack:
        later = stack
        if not ray.is_initialized():
            address = os.environ.get(ADDRESS)
            # logs of Ray, and what it has no memory for; sockets there need short names
            place = "/tmp" if Path("/tmp").is_dir() else None
            directory = stack.enter_context(TemporaryDirectory(prefix="ray-", dir=place, ignore_cleanup_errors=True))
            later = stack.enter_context(ExitStack())
            stack.callback(ray.shutdown)
            if address:
                _connect(ray, address)
            else:
                _start(ray, directory, options)
        with closing(Ray(ray, later)) as engine:
            yield engine


def _connect(ray: Any, address: str) -> None:
    try:
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=_PATIENCE).close()  # Ray itself would try for minutes
        ray.init(address, **_quiet())
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{ADDRESS}: no cluster answers at {address!r} ({_first_line(error)})") from None


def _start(ray: Any, directory: str, options: dict[str, Any]) -> None:
    for attempt in range(1, STARTS + 1):
        try:
            ray.init("local", include_dashboard=False, _temp_dir=directory, **_quiet(), **options)
            return
        except Exception as error:  # Ray has no other name for it
            ray.shutdown()
            _end_processes(directory)
            if attempt == STARTS:
                raise ValueError(f"Ray does not start on this machine ({_first_line(error)})") from None


def _end_processes(directory: str) -> None:
    """End what a start that failed has left behind, as far as the system tells: all that speaks of the directory."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # some end by themselves
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
    """Maps functions over parts, by a worker for each processor. Functions, parts and results are pickled."""

    def __init__(self, ray: Any, later: ExitStack) -> None:
        self.ray = ray
        self.later = later  # what is left to do when nobody works any more
        # tasks would do, if they could be cancelled: that ends this process now and then (Ray 2.60)
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": DEATHS - 1}
        self._make = ray.remote(**options)(_Worker).remote
        self.workers = max(int(ray.available_resources().get("CPU", 1)), 1)  # others may use the cluster as well
        self._pool: list[Any] = []  # made when needed
        self._busy: dict[Any, Any] = {}  # the workers of parts that may not be done

    def map(
        self,
        work: Callable[[Part, Report], Result],
        parts: Iterable[Part],
        on_done: Report = lambda count: None,
    ) -> Generator[Result]:
        """What `work` returns for each of the parts, in their order."""
        shared = self.ray.put(work)
        waiting: deque[Any] = deque()
        try:
            for part in _until_error(parts):
                if isinstance(part, _Raised):
                    # as without Ray, what is wrong with earlier parts is said first
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
        """Each part with what `work` returns for it, or why there is nothing, as they get ready."""
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
        """End the workers, whatever they do."""
        for worker in self._pool:
            self.ray.kill(worker)
        self._pool, self._busy = [], {}

    def _submit(self, shared: Any, part: Any) -> Any:
        """Give a part to the worker that has least to do."""
        self._pool = self._pool or [self._make() for _ in range(self.workers)]
        if self._busy:
            done, _ = self.ray.wait(list(self._busy), num_returns=len(self._busy), timeout=0, fetch_local=False)
            for reference in done:
                del self._busy[reference]
        load = Counter(self._busy.values())
        worker = min(self._pool, key=lambda one: load[one])
        # a reference inside a list is passed on as it is, so that the worker may have its value already
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
            speaks = isinstance(error.cause, ValueError | OSError)  # others are mistakes of ours, to be traced back
            raise error.cause from (None if speaks else error)
        except errors.RayError as error:
            raise ValueError(f"Ray gave up a part of the work after {DEATHS} attempts: {_first_line(error)}") from None

    def _abandon(self, references: Iterable[Any]) -> None:
        """End the workers, if there is something that nobody waits for any more."""
        references = list(references)
        if references:
            self.close()
            self.ray.wait(references, num_returns=len(references), timeout=_PATIENCE)


class _Raised:
    """What went wrong with making parts."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _until_error(parts: Iterable[Part]) -> Iterator[Part | _Raised]:
    try:
        yield from parts
    except Exception as error:
        yield _Raised(error)


def enter(directory: str) -> None:
    """Go where the command was given, so that paths mean the same."""
    try:
        os.chdir(directory)
    except OSError:
        where = socket.gethostname()
        raise ValueError(f"{directory} is not there on {where}: Ray's machines must see the same files") from None


class _Worker:
    """A process that works on parts, one after the other."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}  # the last ones, by their references

    def do(self, directory: str, shared: list[Any], part: Any) -> tuple[Any, int]:
        """The result for a part, and how much was reported to be done."""
        enter(directory)
        done = 0

        def report(count: int) -> None:
            nonlocal done
            done += count

        return self._function(shared[0])(part, report), done

    def _function(self, reference: Any) -> Any:
        name = reference.hex()
        if name not in self._functions:
            import ray

            while len(self._functions) >= _KEPT:
                self._functions.pop(next(iter(self._functions)))
            self._functions[name] = ray.get(reference)
        return self._functions[name]
