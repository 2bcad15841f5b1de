"""Start a service and run it until it is told to end."""

from __future__ import annotations

import logging
import logging.config
import os
import shutil
import signal
import socket
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess

from rankfall.serving.service.board import Board, load_first
from rankfall.serving.service.protocol import LimitedHttp
from rankfall.serving.service.slots import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.serving.service.settings import Settings

_log = logging.getLogger(__name__)
_KEEP_ALIVE = 30  # seconds that a connection may be idle
_GRACE = 15  # seconds that requests under way have at the end, beyond their deadline
_SILENCE = 30  # seconds after which a worker that says nothing is replaced; on a busy machine they start slowly
_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "rankfall.serving.service": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
    },
}


def serve(settings: Settings, *, host: str, port: int, workers: int, on_start: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `on_start` hears the address and what answers there, as soon as it does.

    A bundle that is not good and a port that is taken are errors, before anybody can connect.
    """
    logging.config.dictConfig(_LOGGING)
    with _shared(workers) as shared:
        settings = replace(settings, shared=shared)
        board = Board(shared)
        loaded = load_first(settings, board)
        listening = listen(host, port)
        waits = f"nothing yet, as {settings.bundle} has no good bundle; it takes the first that comes"
        started = partial(on_start, _address(listening), str(loaded.get(MAIN, waits)))
        if workers == 1:
            from rankfall.serving.service.app import Service

            _run_one(server_config(Service(settings, board, loaded), settings), listening, started)
        else:
            del loaded  # every worker loads its own
            _run_many(server_config(partial(_service, settings), settings, workers), listening, started)


def _service(settings: Settings) -> Any:
    from rankfall.serving.service.app import Service  # after the process knows where its metrics are kept

    return Service(settings)


def server_config(app: Any, settings: Settings, workers: int = 1) -> Config:
    """How uvicorn runs a service, or several workers that are made by a function."""
    return Config(
        app,
        factory=workers > 1,
        workers=workers,
        http=LimitedHttp,
        loop="asyncio",  # uvloop accepts one connection a turn, so that under load new ones wait for seconds
        ws="none",
        lifespan="on",
        log_config=_LOGGING,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_worker_healthcheck=_SILENCE,
        timeout_graceful_shutdown=_GRACE + settings.deadline // 1000,
    )


class _Alone(Server):
    """A server that says when it can be asked; by then it hears signals."""

    def __init__(self, config: Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()


def _run_one(config: Config, listening: socket.socket, on_start: Callable[[], None]) -> None:
    server = _Alone(config, on_start)

    def end(number: int, frame: object) -> None:
        server.should_exit = True  # as uvicorn's own handler, which repeats the signal when all is done

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run([listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers(Multiprocess):
    """Workers that are replaced when they die, which is logged."""

    def __init__(self, config: Config, sockets: list[socket.socket], on_start: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._on_start: Callable[[], None] | None = on_start

    def init_processes(self) -> None:
        resource_tracker.ensure_running()  # Python's own helper, whose start would undo what follows
        with _no_interrupts():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        self._say_when_started()
        before = list(self.processes)
        with _no_interrupts():
            super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=True):
            if old is not new:
                _log.warning("worker %s ended %s and is replaced by %s", old.pid, _how(old.exitcode), new.pid)

    def _say_when_started(self) -> None:
        """One worker that can be asked is enough."""
        if self._on_start is None:
            return
        if any(worker.process.is_alive() and worker.is_ready(_SILENCE) for worker in self.processes):
            self._on_start()
            self._on_start = None


def _how(code: int | None) -> str:
    return f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Workers that start here do not hear Ctrl+C, which a terminal sends to all; this process tells them to end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_many(config: Config, listening: socket.socket, on_start: Callable[[], None]) -> None:
    workers = _Workers(config, [listening], on_start)
    workers.run()
    if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes):
        raise ValueError("workers: they do not start, which the log above explains")


@contextmanager
def _shared(workers: int) -> Iterator[Path | None]:
    """A directory for several workers, which is gone when they are."""
    if workers == 1:
        yield None
        return
    path = Path(tempfile.mkdtemp(prefix="rankfall-serve-"))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(path)  # which workers inherit
    try:
        yield path
    finally:
        del os.environ["PROMETHEUS_MULTIPROC_DIR"]
        shutil.rmtree(path, ignore_errors=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"host, port: {host} {port} cannot be listened at: {error.strerror or error}") from None
    listening.set_inheritable(True)
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
