"""Slow, unusual and hostile clients: limits of connections and bodies, upgrades, host names."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import socket
import threading
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import Response

from rankfall.commands import serve as command
from rankfall.serving.service import http_io as json_bodies
from rankfall.serving.service import routes, run_service
from rankfall.serving.service import settings as limits
from rankfall.serving.service.settings import MOST_LINES, SECONDS, LimitedHandler, LineFormatter, logging_settings
from support.bundles import platform_bundle
from support.services import PATIENCE, Answer, Running, eventually, loaded, ranking_bundle, requests, running
from support.wire import HEALTH, Wire, connections, post

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.serving.service.settings import Settings

pytestmark = pytest.mark.service
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(platform_bundle()) as service:
        yield service


def test_answers_are_sent_without_delay(served: Running) -> None:
    with Wire(served.port) as client:
        client.send(HEALTH.replace(b"Host: x", b"Host: localhost")).answer()
        (connection,) = [one for one in connections(served) if one.client == client.socket.getsockname()]
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# --- requests that would like another protocol --------------------------------------------------------------------


def test_upgrade_to_another_protocol_is_ignored(
    served: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    expected = loaded(platform_bundle()).rank(requests()[0]).ids
    head, body = post(requests()[0], H2C)
    with Wire(served.port) as client:
        for parts in ([head + body], [head, body], [head[:50], head[50:] + body[:9], body[9:]]):
            client.send(*parts)
            assert client.answer().json["ids"] == expected
        client.send((head + body) * 30 + HEALTH)
        assert [client.answer().json["ids"] for _ in range(30)] == [expected] * 30
        assert client.answer().json == {"status": "ok"}
    assert not caplog.records


@pytest.mark.parametrize("upgrade", [H2C, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
def test_body_is_not_parsed_as_a_request(served: Running, upgrade: bytes) -> None:
    head, body = post(HEALTH, upgrade)
    with Wire(served.port) as client:
        client.send(head)
        eventually(lambda: any(one.cycle is not None and one.cycle.more_body for one in connections(served)))
        client.send(body)
        assert client.answer().code == 400  # not JSON
        client.send(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.answer().json["status"] == "ready"  # the answer to the second request


def test_chunked_body_with_an_upgrade_header(served: Running) -> None:
    head, body = post({"k": 2}, H2C)
    head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    with Wire(served.port) as client:
        client.send(head, b"%x\r\n%b\r\n" % (len(body), body), b"0\r\n\r\n", HEALTH)
        assert len(client.answer().json["ids"]) == 2
        assert client.answer().json == {"status": "ok"}


def test_connect_is_refused(served: Running) -> None:
    with Wire(served.port) as client:
        client.send(b"CONNECT /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HEALTH) + HEALTH)
        assert client.answer().code == 400
        assert client.is_over()


@pytest.mark.parametrize(
    "sent",
    [b"HELLO\r\n\r\n", b"GET /health HTTP/1.1\r\na: %b\r\n\r\n" % (b"b" * 100_000)],
    ids=["no HTTP", "long header"],
)
def test_malformed_http_is_answered_in_json(served: Running, sent: bytes) -> None:
    with Wire(served.port) as client:
        answer = client.send(sent).answer()
        assert (answer.code, list(answer.json)) == (400, ["error"])
        assert client.is_over()


@pytest.mark.parametrize("size", [2_000_000, 20_000_000])
def test_large_body_of_a_client_that_closes_is_answered(served: Running, size: int) -> None:
    """urllib asks to close the connection, and reads the answer after it has sent the body."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.port}/rank", b" " * size, {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE)
    with refused.value as answer:
        assert (answer.code, list(json.load(answer))) == (413, ["error"])


def test_body_after_the_last_answer_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISCARDED_BODY_BYTES", 1_000_000)
    head = b"POST /rank HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with running(platform_bundle()) as service, Wire(service.port) as client:
        assert client.send(head + b"Content-Length: 9000000\r\n\r\n").answer().code == 413
        with suppress(ConnectionError):
            client.send(b" " * 5_000_000)
        eventually(lambda: not connections(service))


# --- unused connections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "then"),
    [
        (HEALTH, b"\r\n"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b"a"),
    ],
    ids=["an empty line", "a part of a body"],
)
def test_connection_closes_after_the_last_answer(sent: bytes, then: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.5)
    with running(platform_bundle()) as service, Wire(service.port) as client:
        client.send(sent)
        assert client.answer().code == 200
        client.send(then)
        assert client.is_over()


def test_body_after_the_answer_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_SECONDS", 1.0)
    with running(platform_bundle()) as service, Wire(service.port) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        assert client.answer().code == 200
        client.send(b"ab")
        (connection,) = connections(service)
        eventually(lambda: connection._header_timer is not None)
        client.send(b"cd")
        eventually(lambda: connection._header_timer is None)
        assert connection.timeout_keep_alive_task is not None  # the connection is idle again
        assert client.send(HEALTH).answer().code == 200


@pytest.mark.parametrize("wish", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_client_that_does_not_read_is_disconnected(wish: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESPONSE_SECONDS", 0.5)
    large = "a" * 30_000_000  # more than the buffers of the system hold
    with running(platform_bundle()) as service:
        (route,) = [route for route in service.service.app.routes if getattr(route, "path", "") == "/health"]
        monkeypatch.setattr(route, "app", Response(large))
        with Wire(service.port, SO_RCVBUF=4096) as client:
            client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n" + wish + b"\r\n")
            eventually(lambda: connections(service))
            eventually(lambda: not connections(service))
            assert client.rest() < len(large)  # the server stopped sending


def test_number_of_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < limits.max_connections() <= 4096
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    with running(platform_bundle()) as service:
        kept = [Wire(service.port).send(HEALTH) for _ in range(3)]
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
            assert client.send(HEALTH).answer().code == 200
        for client in kept:
            assert client.send(HEALTH).answer().code == 200
            client.socket.close()


def test_idle_connection_does_not_keep_a_bundle_alive() -> None:
    with running(platform_bundle()) as service, Wire(service.port) as idle, service.client() as admin:
        main = service.service.slots["main"]
        assert main is not None
        bundle = weakref.ref(main.bundle)
        del main
        assert idle.send(*post(requests()[0])).answer().code == 200
        assert admin.reload(ranking_bundle()).code == 200
        eventually(lambda: bundle() is None)
        assert idle.send(HEALTH).answer().code == 200  # still connected


# --- large bodies -------------------------------------------------------------------------------------------------


class Reading:
    """Blocks the thread that parses large bodies until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.count = 0

        parse = json_bodies.parse_json

        def parse_json(body: bytes, *, max_names: int) -> dict[str, Any]:
            if len(body) > limits.LARGE_BODY_BYTES:
                self.count += 1
                assert self.opened.wait(PATIENCE)
            return parse(body, max_names=max_names)

        monkeypatch.setattr(routes, "parse_json", parse_json)


def large(**content: Any) -> bytes:
    return json.dumps(content).encode() + b" " * 100_000


def test_deadline_includes_the_wait_for_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    with running(platform_bundle()) as service, ThreadPoolExecutor(4) as pool, service.client() as client:

        def ask(**content: Any) -> Answer:
            with service.client() as client:
                return client.post("/rank", large(**content))

        try:
            patient = pool.submit(ask, k=1, deadline=60_000)
            eventually(lambda: reading.count == 1)
            assert ask(k=2, deadline=200).code == 504  # while the thread parses the previous body
            usual = pool.submit(ask, k=3)
            assert client.post("/rank", {"k": 4}).code == 200
        finally:
            reading.opened.set()
        assert patient.result().code == usual.result().code == 200
        assert reading.count == 2  # the late body was not parsed
        assert service.service.bodies._total == service.service.bodies._queued == 0
        assert client.metric('rankfall_refused_total{reason="deadline"}') == 1


def test_number_of_large_bodies_that_wait_for_parsing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
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
            assert bodies._total == bodies._queued  # bodies in memory are counted until they are parsed
            assert ask() == 503
        finally:
            reading.opened.set()
        assert [one.result() for one in waiting] == [200, 200]
        assert ask() == 200
        with service.client() as client:
            assert client.metric('rankfall_refused_total{reason="bodies"}') == 1


def test_error_in_a_large_body_is_reported(served: Running) -> None:
    with served.client() as client:
        assert client.post("/rank", large(k=0)).json["field"] == "k"
        assert client.post("/rank", b"[" * 100_000).code == 400
        assert client.post("/rank", large(deadline="soon")).json["field"] == "deadline"


# --- names of the service -----------------------------------------------------------------------------------------


def test_local_service_accepts_only_local_host_names() -> None:
    with running(platform_bundle(), local=True) as service, service.client() as client:
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", f"127.0.0.1:{service.port}", "[::1]:9", "127.0.0.2"):
            assert client.call("GET", "/examples", Host=host).code == 200
        for host in ("evil.example", f"evil.example:{service.port}", "127.0.0.1.evil.example", "localhost.evil"):
            for path in ("/examples", "/", "/model"):
                refused = client.call("GET", path, Host=host)
                assert refused.code == 403
                assert refused.json["field"] == "host"
            assert client.post("/rank", {}, Host=host).code == 403


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("192.0.2.1", False)],
)
def test_public_service_accepts_any_host_name(host: str, is_local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Settings] = []
    serve: Callable[..., None] = lambda settings, **options: given.append(settings)  # noqa: E731
    monkeypatch.setattr(run_service, "serve", serve)
    command.serve(bundle=platform_bundle(), host=host)
    assert [settings.local for settings in given] == [is_local]


ONE_HOST = b"Host: localhost\r\n"
BAD_HOSTS = {
    "none": (b"", "host: found no Host header, expected one"),
    "two": (ONE_HOST * 2, "host: found 2 Host headers, expected one"),
    "two that differ": (ONE_HOST + b"Host: evil.example\r\n", "host: found 2 Host headers, expected one"),
    "empty": (b"Host:\r\n", "host: found '', expected a name or address"),
    "markup": (b"Host: a<b>\r\n", "host: found 'a<b>', expected a name or address"),
    "path": (b"Host: localhost/x\r\n", "host: found 'localhost/x', expected a name or address"),
}


@pytest.mark.parametrize("line", [b"GET /health", b"GET /unknown", b"PUT /rank", b"OPTIONS *", b"GET http://x/health"])
@pytest.mark.parametrize(("headers", "message"), BAD_HOSTS.values(), ids=BAD_HOSTS)
def test_requests_need_one_valid_host(served: Running, line: bytes, headers: bytes, message: str) -> None:
    if line.startswith(b"GET http") and headers.count(b"Host") == 1:
        pytest.skip("the host of the URL replaces the header")
    with Wire(served.port) as client:
        answer = client.send(line + b" HTTP/1.1\r\n" + headers + b"\r\n").answer()
        assert answer.code == 400
        assert answer.json == {"error": message, "field": "host"}
        assert client.is_over()


def test_old_clients_need_no_host(served: Running) -> None:
    with Wire(served.port) as client:
        answer = client.send(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer()
        assert (answer.code, answer.headers["connection"]) == (200, "close")
        assert client.is_over()


def test_host_of_a_complete_url_is_the_one_that_counts() -> None:
    with running(platform_bundle(), local=True) as service, Wire(service.port) as client:
        for url, code in ((b"http://evil.example/health", 403), (b"http://localhost:9/health", 200)):
            assert client.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % url).answer().code == code
        for path in (b"/unknown", b"/rank"):
            assert client.send(b"GET %b HTTP/1.1\r\nHost: evil.example\r\n\r\n" % path).answer().code == 403


FRAMINGS = {
    "both lengths": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "list of lengths": b"Content-Length: 2, 2\r\n\r\n{}",
    "signed length": b"Content-Length: +2\r\n\r\n{}",
    "space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "folded line": b"Content-Length:\r\n 2\r\n\r\n{}",
    "unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked and more": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "line feeds": b"X: 1\n\n",
    "huge chunk": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "trailers without end": b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: %b\r\n" % (b"a" * 70_000),
}


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
def test_ambiguous_bodies_are_refused(served: Running, framing: bytes) -> None:
    with Wire(served.port) as client:
        client.send(b"POST /rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + framing)
        client.send(HEALTH)  # would be smuggled
        head = client.socket.recv(65536)
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"200 OK" not in head + client.all()


def test_compressed_transfer_is_refused(served: Running) -> None:
    with Wire(served.port) as client:
        head, _ = post({}, b"Transfer-Encoding: gzip, chunked\r\n")
        answer = client.send(head.replace(b"Content-Length: 2\r\n", b"") + b"0\r\n\r\n").answer()
        assert answer.code == 501
        assert "transfer-encoding: found 'gzip, chunked'" in answer.json["error"]


# --- log lines ----------------------------------------------------------------------------------------------------

FORGED = "x\n2026-01-01 00:00:00,000 1 INFO forged \x1b[31m\r\x00\x85\u2028\u202e"


def test_log_lines_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with running(platform_bundle()) as service, service.client() as client:
        refused = client.reload(Path(f"/nowhere/{FORGED.replace(chr(0), '')}"))
        assert refused.code == 409
        assert "forged" in refused.json["error"]
    log = capsys.readouterr().err
    (line,) = [line for line in log.split("\n") if "forged" in line]
    assert "main keeps its bundle, another was refused" in line
    assert "x\\n2026-01-01 00:00:00,000 1 INFO forged \\x1b[31m\\r\\x85\\u2028\\u202e" in line
    assert line.isprintable()


def test_tracebacks_in_the_log_are_indented() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("failed: %s", FORGED, stack_info=True)
    first, *others = stream.getvalue().removesuffix("\n").split("\n")
    assert first.startswith("ERROR failed: x\\n2026")
    assert all(line.startswith("    ") for line in others)
    assert all(line.isprintable() for line in [first, *others])


def test_malformed_requests_cannot_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with running(platform_bundle()) as service:
        for _ in range(MOST_LINES + 15):
            with Wire(service.port) as client:
                assert client.send(b"no HTTP\r\n\r\n").answer().code == 400
        logging.config.dictConfig(logging_settings())  # which closes the handlers, as the end of the process does
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.endswith("WARNING Invalid HTTP request received.")]) == MOST_LINES
    (rest,) = [line for line in lines if "more warnings" in line]
    assert rest.endswith("WARNING 15 more warnings of this kind within 60 seconds: Invalid HTTP request received.")


def test_warnings_are_limited_per_kind_and_period() -> None:
    handler = LimitedHandler()
    handler.setStream(stream := io.StringIO())

    def write(line: int, second: float, level: int = logging.WARNING) -> list[str]:
        record = logging.LogRecord("service", level, "file.py", line, "line %d", (line,), None)
        record.created = second
        before = len(stream.getvalue())
        handler.emit(record)
        return stream.getvalue()[before:].splitlines()

    assert [write(1, second) for second in range(MOST_LINES + 3)] == [["line 1"]] * MOST_LINES + [[]] * 3
    assert write(2, 20) == ["line 2"]  # another kind
    assert [write(3, 21, logging.INFO) for _ in range(2 * MOST_LINES)] == [["line 3"]] * (2 * MOST_LINES)
    assert write(1, SECONDS - 1) == []
    assert write(1, SECONDS) == [f"4 more warnings of this kind within {SECONDS:.0f} seconds: line %d", "line 1"]
    assert write(1, SECONDS + 1) == ["line 1"]
    handler.close()
    assert stream.getvalue().endswith("line 1\n")  # nothing was left out since


def test_long_lines_of_the_log_are_cut() -> None:
    record = logging.LogRecord("service", logging.WARNING, "file.py", 1, "%s", ("\x1b" * 10**6,), None)
    line = LineFormatter("%(message)s").format(record)
    assert line.endswith("\\x1b... (998,000 more characters)")
    assert len(line) < 10_000
