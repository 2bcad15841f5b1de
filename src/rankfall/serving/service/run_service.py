"""Start a service and run it until it is told to end."""

from __future__ import annotations

import logging
import logging.config
import os
import shutil
import signal
import socket
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess

from rankfall.serving.service.bundle_slots import MAIN
from rankfall.serving.service.http_limits import LimitedHttp
from rankfall.serving.service.settings import LONGEST_DEADLINE
from rankfall.serving.service.shared_state import Board, load_first
from rankfall.serving.service.shutdown import SIGNALS, end_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.serving.service.settings import Settings

_log = logging.getLogger(__name__)
_GRACE = LONGEST_DEADLINE // 1000 + 15  # seconds that requests under way have at the end, whatever their deadline
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
    told_again = None
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
            told_again = _run_many(server_config(partial(_service, settings), settings, workers), listening, started)
    if told_again is not None:
        end_by(told_again)


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
        timeout_keep_alive=settings.keep_alive,
        timeout_worker_healthcheck=_SILENCE,
        timeout_graceful_shutdown=_GRACE,
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

    before = {number: signal.signal(number, end) for number in SIGNALS}
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
        self.told_again: int | None = None  # the second signal that tells the service to end

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

    def handle_int(self) -> None:
        """Ctrl+C."""
        self._end(signal.SIGINT)

    def handle_term(self) -> None:
        """Whoever looks after services wants it to end."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.should_exit.is_set():
            self.told_again = number
        self.should_exit.set()

    def terminate_all(self) -> None:
        """Tell all workers to end, and leave the sockets to them: nobody is to connect after the last has closed."""
        super().terminate_all()
        for listening in self.sockets:
            listening.close()

    def join_all(self) -> None:
        """Wait for workers that were told to end, but not if that is said a second time."""
        while self.told_again is None and any(worker.exitcode is None for worker in self.processes):
            time.sleep(0.1)
            for number in filter(SIGNALS.__contains__, self.signal_queue):
                self._end(number)
        if self.told_again is not None:
            _log.warning("told again to end: workers are killed, and what is under way is not answered")
            for worker in self.processes:
                worker.kill()
        super().join_all()


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


def _run_many(config: Config, listening: socket.socket, on_start: Callable[[], None]) -> int | None:
    """Run several workers; the signal that ended them at once, if there was one."""
    workers = _Workers(config, [listening], on_start)
    workers.run()
    if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes):
        raise ValueError("workers: they do not start, which the log above explains")
    return workers.told_again


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
