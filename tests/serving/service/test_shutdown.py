"""Shutdown of a service: /ready fails first, then the socket closes, and running calls are answered."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from rankfall.serving.service import settings as limits
from rankfall.serving.service.run_service import server_config
from rankfall.serving.service.settings import Settings
from support.bundles import platform_bundle
from support.services import HEADERS, Program, eventually, is_listening, loaded, requests, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.service
LONG = "600"  # seconds that no test waits for


def is_ready(program: Program) -> bool:
    """Return whether the service is ready, on a new connection as a load balancer does."""
    with program.client() as client:
        return client.get("/ready").code == 200


def is_stopping(program: Program) -> bool:
    """Return whether the service has received a signal."""
    try:
        return not is_ready(program)
    except ConnectionError:  # the socket is closed
        return True


def waiting_call(program: Program) -> socket.socket:
    """Open a connection and send the headers of a call, but not its body."""
    connection = socket.create_connection(("127.0.0.1", program.port), timeout=60)
    try:
        connection.sendall(HEADERS.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        if not connection.recv(100).startswith(b"HTTP/1.1 100 "):
            raise ConnectionError("the service does not wait for the body")
    except ConnectionError:  # also while the listening socket closes
        connection.close()
        raise
    return connection


def last_call(program: Program, *processes: int) -> socket.socket:
    """Stop processes of a service; return a waiting call that was sent just before the socket closed."""
    calls = [waiting_call(program)]
    for process in processes:
        os.kill(process, signal.SIGTERM)

    def is_closed() -> bool:
        try:
            calls.append(waiting_call(program))
        except ConnectionError:
            return True
        calls.pop(0).close()
        time.sleep(0.1)
        return False

    eventually(is_closed)
    return calls[0]


def finished(connection: socket.socket) -> bytes:
    """Send the body of a waiting call; return the answer, after which the service closes the connection."""
    connection.sendall(b'{"deadline": 60000}'.ljust(100))
    answer = b""
    while part := connection.recv(65536):
        answer += part
    return answer


# --- draining -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_draining_service_is_not_ready_but_still_answers(workers: int) -> None:
    expected = loaded(platform_bundle()).rank(requests()[0]).ids
    with Program(platform_bundle(), "--drain", LONG, "--workers", str(workers)) as program:
        with program.client() as kept:
            assert "connection" not in kept.get("/health").headers
            program.process.send_signal(signal.SIGTERM)
            eventually(lambda: not any(is_ready(program) for _ in range(5)))
            with program.client() as client:
                not_ready = client.get("/ready")
            assert (not_ready.code, not_ready.headers["retry-after"]) == (503, "1")
            assert "shutting down" in not_ready.json["error"]
            with program.client() as client:  # a new connection
                assert client.post("/rank", requests()[0]).json["ids"] == expected
            # A persistent connection is answered, too, and then closed.
            assert kept.get("/health").headers["connection"] == "close"
        program.process.send_signal(signal.SIGTERM)  # ends the drain
        assert program.process.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize("workers", [1, 2])
def test_socket_closes_after_draining_and_running_calls_are_answered(workers: int) -> None:
    with Program(platform_bundle(), "--drain", "1", "--workers", str(workers)) as program:
        with last_call(program, program.process.pid) as connection:
            assert finished(connection).startswith(b"HTTP/1.1 200 ")
        assert program.process.wait(60) == 0
        assert program.process.stderr is not None
        log = program.process.stderr.read()
    assert "shutting down: /ready returns 503" in log
    assert "Traceback" not in log


def test_socket_closes_at_once_without_draining() -> None:
    with Program(platform_bundle()) as program:
        with waiting_call(program) as connection:
            program.process.send_signal(signal.SIGTERM)
            eventually(lambda: not is_listening(program.port))
            assert finished(connection).startswith(b"HTTP/1.1 200 ")
        assert program.process.wait(60) == 0


def test_workers_may_receive_the_signal_too() -> None:
    with Program(platform_bundle(), "--drain", "1", "--workers", "2") as program:
        with last_call(program, *program.workers(), program.process.pid) as connection:
            assert finished(connection).startswith(b"HTTP/1.1 200 ")
        assert program.process.wait(60) == 0


# --- stopping at once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "drain"), [(1, "0"), (1, LONG), (2, LONG)])
def test_second_signal_stops_at_once(workers: int, drain: str, tmp_path: Path) -> None:
    with Program(platform_bundle(), "--drain", drain, "--workers", str(workers), TMPDIR=str(tmp_path)) as program:
        children = program.workers()
        with waiting_call(program) as connection:
            program.process.send_signal(signal.SIGTERM)
            eventually(lambda: is_stopping(program))
            assert program.process.poll() is None  # the service waits for the call
            program.process.send_signal(signal.SIGINT)
            assert program.process.wait(60) == -signal.SIGINT
            assert not connection.recv(1)
        assert not any(os.path.exists(f"/proc/{child}") for child in children)
    assert not list(tmp_path.iterdir())


def test_two_simultaneous_signals_stop_at_once() -> None:
    with Program(platform_bundle(), "--drain", LONG, "--workers", "2") as program:
        program.process.send_signal(signal.SIGTERM)
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(60) in (-signal.SIGTERM, -signal.SIGINT)


ENDLESS = """
import itertools
from rankfall.serving.service import routes
from rankfall.serving.service import settings as limits
limits.EXIT_SECONDS = 1
def parse_json(body, *, max_names):
    print("parsing", flush=True)
    for _ in itertools.count():  # as a computation that nobody can interrupt
        pass
routes.parse_json = parse_json
"""


def test_shutdown_does_not_wait_for_a_thread_that_parses() -> None:
    body = json.dumps({"deadline": 100, "exclude": [0] * 50_000}).encode()
    with Program(platform_bundle(), prelude=ENDLESS) as program:
        with program.client() as client:
            assert client.post("/rank", body).code == 504
        assert program.process.stdout is not None
        assert program.process.stdout.readline() == "parsing\n"
        code, log = program.end()
    assert code == 1
    assert "Timeout (0:00:01)!" in log  # with the stacks of the threads
    assert "in parse_json" in log


# --- limits -------------------------------------------------------------------------------------------------------


def test_shutdown_waits_for_the_longest_deadline() -> None:
    config = server_config(None, Settings(platform_bundle(), deadline=1))
    assert config.timeout_graceful_shutdown is not None
    assert config.timeout_graceful_shutdown > limits.MAX_DEADLINE_MS / 1000
    assert limits.shutdown_seconds(drain=15) == 15 + 75 + 10


def test_idle_connections_close_after_keep_alive() -> None:
    with running(platform_bundle(), keep_alive=1) as service:
        connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        assert connection.sock.recv(1) == b""  # the service closes the connection
        connection.close()
    assert server_config(None, Settings(platform_bundle())).timeout_keep_alive > 60  # as load balancers expect
