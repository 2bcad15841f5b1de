"""Clients that are slow, odd or hostile: connections end, bodies stay bodies, and others go on."""

from __future__ import annotations

import json
import logging
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import Response

from rankfall.commands import serve as command
from rankfall.serving.service import http_io, limits, rank_routes, run_service
from support.bundles import platform_bundle
from support.services import PATIENCE, Answer, Running, eventually, loaded, ranking_bundle, requests, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.serving.service.http_protocol import LimitedHttpProtocol
    from rankfall.serving.service.settings import Settings

pytestmark = pytest.mark.service
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire:
    """A connection on which anything can be said."""

    def __init__(self, port: int, **options: int) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE)
        for name, value in options.items():
            self.socket.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        self.socket.connect(("127.0.0.1", port))
        self._rest = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def say(self, *parts: bytes) -> Wire:
        for part in parts:
            self.socket.sendall(part)
        return self

    def answer(self) -> Answer:
        """The next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        while len(self._rest) < length:
            self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Answer(int(first.split()[1]), headers, body)

    def is_over(self) -> bool:
        """Wait for the end; whether nothing more came."""
        try:
            return not self._rest and not self.socket.recv(65536)
        except ConnectionResetError:  # as something that was said had not been read
            return True

    def rest(self) -> int:
        """How many bytes still come before the end."""
        size = len(self._rest)
        try:
            while part := self.socket.recv(65536):
                size += len(part)
        except ConnectionResetError:
            pass
        return size

    def _more(self) -> None:
        part = self.socket.recv(65536)
        assert part, f"the connection ended after {self._rest!r}"
        self._rest += part


def post(content: object, extra: bytes = b"", path: bytes = b"/rank") -> tuple[bytes, bytes]:
    """The headers and the body of a call."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (path, extra, len(body)), body


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(platform_bundle()) as service:
        yield service


def connections(service: Running) -> set[LimitedHttpProtocol]:
    return service.server.server_state.connections  # type: ignore[return-value]


def test_no_packet_of_an_answer_waits_for_the_client(served: Running) -> None:
    with Wire(served.port) as client:
        client.say(HEALTH.replace(b"Host: x", b"Host: localhost")).answer()
        (connection,) = [one for one in connections(served) if one.client == client.socket.getsockname()]
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# --- requests that would like another protocol --------------------------------------------------------------------


def test_who_offers_another_protocol_is_answered_in_this_one(
    served: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    expected = loaded(platform_bundle()).rank(requests()[0]).ids
    head, body = post(requests()[0], H2C)
    with Wire(served.port) as client:
        for parts in ([head + body], [head, body], [head[:50], head[50:] + body[:9], body[9:]]):
            client.say(*parts)
            assert client.answer().json["ids"] == expected
        client.say((head + body) * 30 + HEALTH)
        assert [client.answer().json["ids"] for _ in range(30)] == [expected] * 30
        assert client.answer().json == {"status": "ok"}
    assert not caplog.records


@pytest.mark.parametrize("upgrade", [H2C, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
def test_a_body_is_never_taken_for_a_request(served: Running, upgrade: bytes) -> None:
    head, body = post(HEALTH, upgrade)
    with Wire(served.port) as client:
        client.say(head)
        eventually(lambda: any(one.cycle is not None and one.cycle.more_body for one in connections(served)))
        client.say(body)
        assert client.answer().code == 400  # it is no JSON
        client.say(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.answer().json["status"] == "ready"  # the next answer is that of the next request


def test_chunks_stay_a_body_beside_an_upgrade(served: Running) -> None:
    head, body = post({"k": 2}, H2C)
    head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    with Wire(served.port) as client:
        client.say(head, b"%x\r\n%b\r\n" % (len(body), body), b"0\r\n\r\n", HEALTH)
        assert len(client.answer().json["ids"]) == 2
        assert client.answer().json == {"status": "ok"}


def test_the_service_is_no_proxy(served: Running) -> None:
    with Wire(served.port) as client:
        client.say(b"CONNECT /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HEALTH) + HEALTH)
        assert client.answer().code == 400
        assert client.is_over()


# --- connections that nobody uses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "then"),
    [
        (HEALTH, b"\r\n"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b"a"),
    ],
    ids=["an empty line", "a part of a body"],
)
def test_a_connection_ends_after_an_answer_whatever_comes(
    said: bytes, then: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.5)
    with running(platform_bundle()) as service, Wire(service.port) as client:
        client.say(said)
        assert client.answer().code == 200
        client.say(then)
        assert client.is_over()


def test_a_body_that_comes_after_the_answer_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", 1.0)
    with running(platform_bundle()) as service, Wire(service.port) as client:
        client.say(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        assert client.answer().code == 200
        client.say(b"ab")
        (connection,) = connections(service)
        eventually(lambda: connection._header_timer is not None)
        client.say(b"cd")
        eventually(lambda: connection._header_timer is None)
        assert connection.timeout_keep_alive_task is not None  # it is idle, as others are
        assert client.say(HEALTH).answer().code == 200


@pytest.mark.parametrize("wish", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_who_does_not_read_is_hung_up_on(wish: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESPONSE_SECONDS", 0.5)
    large = "a" * 30_000_000  # more than the buffers of the system take
    with running(platform_bundle()) as service:
        (route,) = [route for route in service.service.app.routes if getattr(route, "path", "") == "/health"]
        monkeypatch.setattr(route, "app", Response(large))
        with Wire(service.port, SO_RCVBUF=4096) as client:
            client.say(b"GET /health HTTP/1.1\r\nHost: x\r\n" + wish + b"\r\n")
            eventually(lambda: connections(service))
            eventually(lambda: not connections(service))
            assert client.rest() < len(large)  # it was given up, not delivered


def test_there_are_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < limits.max_connections() <= 4096
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    with running(platform_bundle()) as service:
        kept = [Wire(service.port).say(HEALTH) for _ in range(3)]
        assert [client.answer().code for client in kept] == [200] * 3
        with Wire(service.port) as client:
            refused = client.answer()
            assert refused.code == 503
            assert refused.headers["retry-after"] == "1"
            assert "connections" in refused.json["error"]
            assert client.is_over()
        kept.pop().socket.close()
        eventually(lambda: len(connections(service)) == 2)
        with Wire(service.port) as client:
            assert client.say(HEALTH).answer().code == 200
        for client in kept:
            assert client.say(HEALTH).answer().code == 200
            client.socket.close()


def test_an_idle_connection_keeps_no_bundle() -> None:
    with running(platform_bundle()) as service, Wire(service.port) as idle, service.client() as admin:
        main = service.service.slots["main"]
        assert main is not None
        bundle = weakref.ref(main.bundle)
        del main
        assert idle.say(*post(requests()[0])).answer().code == 200
        assert admin.reload(ranking_bundle()).code == 200
        eventually(lambda: bundle() is None)
        assert idle.say(HEALTH).answer().code == 200  # it is still there


# --- large bodies -------------------------------------------------------------------------------------------------


class Reading:
    """Stops the thread that reads large bodies until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.count = 0

        def parse_json(body: bytes) -> dict[str, Any]:
            if len(body) > limits.LARGE_BODY_BYTES:
                self.count += 1
                assert self.opened.wait(PATIENCE)
            return http_io.parse_json(body)

        monkeypatch.setattr(rank_routes, "parse_json", parse_json)


def large(**content: Any) -> bytes:
    return json.dumps(content).encode() + b" " * 100_000


def test_a_deadline_holds_for_bodies_that_wait_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    with running(platform_bundle()) as service, ThreadPoolExecutor(4) as pool, service.client() as client:

        def ask(**content: Any) -> Answer:
            with service.client() as client:
                return client.post("/rank", large(**content))

        try:
            patient = pool.submit(ask, k=1, deadline=60_000)
            eventually(lambda: reading.count == 1)
            assert ask(k=2, deadline=200).code == 504  # and the thread still has the one before
            usual = pool.submit(ask, k=3)
            assert client.post("/rank", {"k": 4}).code == 200
        finally:
            reading.opened.set()
        assert patient.result().code == usual.result().code == 200
        assert reading.count == 2  # who was late was not read
        assert service.service.bodies._total == service.service.bodies._queued == 0
        assert client.metric('rankfall_refused_total{reason="deadline"}') == 1


def test_only_so_many_large_bodies_wait_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    with running(platform_bundle(), max_body=150_000) as service, ThreadPoolExecutor(8) as pool:
        bodies = service.service.bodies
        monkeypatch.setattr(bodies, "_max_queued", 250_000)

        def ask() -> int:
            with service.client() as client:
                return client.post("/rank", large(k=1)).code

        try:
            waiting = [pool.submit(ask), pool.submit(ask)]
            eventually(lambda: bodies._queued > 200_000)
            assert bodies._total == bodies._queued  # what is in memory is counted until it was read
            assert ask() == 503
        finally:
            reading.opened.set()
        assert [one.result() for one in waiting] == [200, 200]
        assert ask() == 200
        with service.client() as client:
            assert client.metric('rankfall_refused_total{reason="bodies"}') == 1


def test_a_wrong_large_body_is_told_so(served: Running) -> None:
    with served.client() as client:
        assert client.post("/rank", large(k=0)).json["field"] == "k"
        assert client.post("/rank", b"[" * 100_000).code == 400
        assert client.post("/rank", large(deadline="soon")).json["field"] == "deadline"


# --- names of the service -----------------------------------------------------------------------------------------


def test_a_local_service_answers_to_local_names_alone() -> None:
    with running(platform_bundle(), local=True) as service, service.client() as client:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", f"127.0.0.1:{service.port}", "[::1]:9", "127.0.0.2"):
            assert client.call("GET", "/examples", Host=host).code == 200
        for host in ("evil.example", f"evil.example:{service.port}", "127.0.0.1.evil.example", "localhost.evil", ""):
            for path in ("/examples", "/", "/model"):
                refused = client.call("GET", path, Host=host)
                assert refused.code == 403
                assert refused.json["field"] == "host"
            assert client.post("/rank", {}, Host=host).code == 403


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("192.0.2.1", False)],
)
def test_what_listens_for_others_has_any_name(host: str, is_local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Settings] = []
    serve: Callable[..., None] = lambda settings, **options: given.append(settings)  # noqa: E731
    monkeypatch.setattr(run_service, "serve", serve)
    command.serve(platform_bundle(), host=host)
    assert [settings.local for settings in given] == [is_local]
