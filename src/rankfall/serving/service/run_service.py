"""Start a service with one worker or several, and run it until it is signalled to end."""

from __future__ import annotations

import errno
import logging
import logging.config
import os
import signal
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess

from rankfall._errors import RankfallError
from rankfall.serving.service import settings as limits
from rankfall.serving.service.bundle_slots import MAIN, SharedState, load_initial_bundles
from rankfall.serving.service.http_protocol import LimitedHttpProtocol
from rankfall.serving.service.service_recording import check_recording
from rankfall.serving.service.settings import SIGNALS, exit_by_signal, logging_settings
from rankfall.storage.disk import make_directory
from rankfall.storage.files import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rankfall.serving.service.settings import Settings

_log = logging.getLogger(__name__)


def serve(settings: Settings, *, host: str, port: int, workers: int, on_start: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: Options of the service.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        workers: Number of processes.
        on_start: Called with the address and a description of the model as soon as the service responds.

    Raises:
        ValueError: If a bundle is invalid, or the workers do not start.
        OSError: If the port is in use.
    """
    logging.config.dictConfig(logging_settings())
    second_signal = None
    with _shared_directory(workers) as directory:
        settings = replace(settings, shared=directory)
        shared = SharedState(directory)
        loaded = load_initial_bundles(settings, shared)
        check_recording(settings, loaded)
        listening = listen(host, port)
        nothing = f"nothing yet, because {settings.bundle} has no valid bundle; it will serve the first one"
        started = partial(on_start, _address(listening), str(loaded.get(MAIN, nothing)))
        if workers == 1:
            from rankfall.serving.service.app import Service

            app = Service(settings, shared, loaded).app
            _run_single(server_config(app, settings), listening, started)
        else:
            del loaded  # every worker loads its own copy
            config = server_config(partial(_create_app, settings), settings, workers)
            second_signal = _run_workers(config, listening, started, limits.shutdown_seconds(settings.drain))
    if second_signal is not None:
        exit_by_signal(second_signal)


def _create_app(settings: Settings) -> Any:
    from rankfall.serving.service.app import Service  # prometheus_client reads PROMETHEUS_MULTIPROC_DIR on import

    return Service(settings).app


def server_config(app: Any, settings: Settings, workers: int = 1) -> Config:
    """Return the configuration of uvicorn for an application, or for a function that creates it in each worker."""
    return Config(
        app,
        factory=workers > 1,
        workers=workers,
        http=LimitedHttpProtocol,
        loop="asyncio",  # uvloop accepts one connection per iteration; under load new ones wait for seconds
        ws="none",
        lifespan="on",
        log_config=logging_settings(),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive,
        timeout_worker_healthcheck=limits.WORKER_SILENCE_SECONDS,
        timeout_graceful_shutdown=limits.SHUTDOWN_SECONDS,
    )


class _SingleServer(Server):
    """A server that calls a function when it is listening and handles signals."""

    def __init__(self, config: Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()


def _run_single(config: Config, listening: socket.socket, on_start: Callable[[], None]) -> None:
    server = _SingleServer(config, on_start)

    def handle(number: int, frame: object) -> None:
        server.should_exit = True  # as uvicorn's own handler, which raises the signal again at the end

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        server.run([listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers(Multiprocess):
    """Workers; one that ends unexpectedly is replaced and logged.

    Args:
        config: Configuration of uvicorn.
        sockets: Listening sockets.
        on_start: Called when the first worker is ready.
        seconds: Time in which workers end by themselves after a signal; then they are killed.
    """

    def __init__(
        self, config: Config, sockets: list[socket.socket], on_start: Callable[[], None], seconds: float
    ) -> None:
        super().__init__(config, sockets)
        self._seconds = seconds
        self._on_start: Callable[[], None] | None = on_start
        self.second_signal: int | None = None  # kills the workers

    def init_processes(self) -> None:
        resource_tracker.ensure_running()  # a helper process of Python, whose start would unblock SIGINT
        with _sigint_blocked():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        workers = [worker for worker in self.processes if worker.process.is_alive()]
        if self._on_start is not None and any(worker.is_ready(limits.WORKER_SILENCE_SECONDS) for worker in workers):
            self._on_start()
            self._on_start = None
        before = list(self.processes)
        with _sigint_blocked():
            super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=True):
            if old is not new:
                code = old.exitcode
                how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
                _log.warning("worker %s ended %s and is replaced by %s", old.pid, how, new.pid)

    def handle_int(self) -> None:
        """Handle SIGINT, for example from Ctrl+C."""
        self._request_exit(signal.SIGINT)

    def handle_term(self) -> None:
        """Handle SIGTERM, for example from a process manager."""
        self._request_exit(signal.SIGTERM)

    def _request_exit(self, number: int) -> None:
        if self.should_exit.is_set():
            self.second_signal = number
        self.should_exit.set()

    def terminate_all(self) -> None:
        """Signal all workers to end, and close the sockets here: after the last worker, no client can connect."""
        super().terminate_all()
        for listening in self.sockets:
            listening.close()

    def join_all(self) -> None:
        """Wait for the workers to end, or kill them after a second signal or when their time is over."""
        end = time.monotonic() + self._seconds + limits.EXIT_SECONDS  # they end themselves before
        while self._is_waiting(end):
            time.sleep(0.1)
            for number in filter(SIGNALS.__contains__, self.signal_queue):
                self._request_exit(number)
        alive = [worker for worker in self.processes if worker.exitcode is None]
        if alive:
            reason = "they did not end in time" if self.second_signal is None else "second signal"
            _log.warning("%s: the workers are killed, requests in progress are not answered", reason)
            for worker in alive:
                worker.kill()
        super().join_all()

    def _is_waiting(self, end: float) -> bool:
        is_alive = any(worker.exitcode is None for worker in self.processes)
        return is_alive and self.second_signal is None and time.monotonic() < end


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in workers started here: a terminal sends it to all processes, but the parent ends the workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_workers(config: Config, listening: socket.socket, on_start: Callable[[], None], seconds: float) -> int | None:
    """Run several workers; return the second signal, which killed them, or None."""
    workers = _Workers(config, [listening], on_start, seconds)
    workers.run()
    if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes):
        raise RankfallError("workers: they do not start; the log above has details")
    return workers.second_signal


@contextmanager
def _shared_directory(workers: int) -> Iterator[Path | None]:
    """Create a temporary directory for the state, metrics and bundles of several workers; None for a single worker."""
    if workers == 1:
        yield None
        return
    with scratch_directory("rankfall-serve") as path:
        make_directory(path / "copies")
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(path)  # inherited by the workers
        try:
            yield path
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: If the address or port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=limits.LISTEN_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "the address is in use; stop the other process, or use --port (0: any free port)"
        raise OSError(f"host, port: cannot listen on {host} {port}: {reason}") from None
    listening.set_inheritable(True)
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
