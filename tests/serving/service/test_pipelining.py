"""Several requests on one connection: answered in order, one at a time, with bounded memory if nobody reads."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import Response

from rankfall.serving.service import settings as limits
from rankfall.serving.service.http_protocol import LimitedHttpProtocol
from support.bundles import platform_bundle
from support.services import PATIENCE, Running, eventually, loaded, running
from support.wire import HEALTH, Wire, connections, post

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.service
HIGH_WATER = 65_536  # of asyncio's write buffers
DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nX-Filler: %b\r\n\r\n" % (b"a" * 30_000)  # fills buffers soon


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(platform_bundle()) as service:
        yield service


def chunked(body: bytes) -> bytes:
    """Return a call with a body in chunks, with an extension and a trailer."""
    head = b"POST /rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = b"".join(b"%x;name=value\r\n%b\r\n" % (len(part), part) for part in (body[:3], body[3:]))
    return head + parts + b"0\r\nTrailer: 1\r\n\r\n"


def ranked(k: int) -> bytes:
    return b"".join(post({"k": k}))


# --- clients that read --------------------------------------------------------------------------------------------


def test_requests_are_answered_in_order(served: Running) -> None:
    best = loaded(platform_bundle()).rank({}).ids
    sent = [
        ranked(3),
        HEALTH,
        chunked(b'{"k": 2}'),
        ranked(5),
        b"\r\n\r\n" + HEALTH,
        b"".join(post(b'{"k": ')),
        ranked(1),
    ]
    expected = [best[:3], None, best[:2], best[:5], None, "error", best[:1]]
    stream = b"".join(sent)
    ends = [place for place in range(len(stream)) if stream[place - 2 : place + 2] == b"\r\n\r\n"]
    splits = [0, *ends, *(place + 1 for place in ends), *(place - 1 for place in ends), len(stream) - 1]
    for split in splits:  # an empty line may arrive in two parts
        with Wire(served.port) as client:
            client.send(stream[:split])
            client.send(stream[split:])
            for content in expected:
                answer = client.answer()
                if content == "error":
                    assert (answer.code, list(answer.json)) == (400, ["error"])
                else:
                    assert answer.code == 200
                    assert answer.json.get("ids") == content


def test_a_request_waits_until_the_one_before_is_answered(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn would parse all requests at once, and would not notice that the client of the first disconnects."""
    most: list[tuple[int, int]] = []
    parse = LimitedHttpProtocol._parse

    def observed(protocol: LimitedHttpProtocol) -> None:
        most.append((len(protocol._received) - protocol._parsed, len(protocol.pipeline)))
        parse(protocol)

    monkeypatch.setattr(LimitedHttpProtocol, "_parse", observed)
    count = 300
    call = b"".join(post({"ids": []}, b"X-Filler: %b\r\n" % (b"a" * 2000), b"/items"))
    with Wire(served.port) as client:
        client.socket.setblocking(False)
        left, answers = call * count, b""
        while answers.count(b"HTTP/1.1 200 OK") < count:
            with suppress(BlockingIOError):
                left = left[client.socket.send(left[:1_000_000]) :] if left else left
            with suppress(BlockingIOError):
                answers += client.socket.recv(1_000_000)
    assert len(call) * count > 8 * limits.RECEIVED_BYTES
    assert max(received for received, _ in most) <= 2 * limits.RECEIVED_BYTES
    assert {waiting for _, waiting in most} == {0}


# --- clients that do not read -------------------------------------------------------------------------------------


def fill(client: Wire, call: bytes, is_full: Callable[[], bool]) -> int:
    """Send calls until the service reads no more, but at most 16 MB; return the number of complete calls."""
    data, sent = memoryview(call * (16_000_000 // len(call))), 0
    client.socket.setblocking(False)
    while sent < len(data) and not is_full():
        try:
            sent += client.socket.send(data[sent : sent + 65536])
        except BlockingIOError:
            time.sleep(0.01)
    client.socket.settimeout(PATIENCE)
    return sent // len(call)


def test_requests_of_a_client_that_does_not_read_are_bounded(served: Running) -> None:
    with served.client() as honest:
        size = len(honest.get("/openapi.json").body)
    eventually(lambda: not connections(served))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Wire(served.port, SO_RCVBUF=4096) as client:
        eventually(lambda: connections(served))
        (connection,) = connections(served)
        calls = fill(client, DOCUMENT, lambda: connection.flow.write_paused and connection.flow.has_waiting_data)
        assert calls * len(DOCUMENT) < 16_000_000  # the service stopped reading
        assert connection.flow.read_paused
        assert len(connection.pipeline) == 0
        assert len(connection._received) <= 2 * limits.RECEIVED_BYTES
        assert connection.transport.get_write_buffer_size() <= HIGH_WATER + size + 1000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
        with served.client() as honest:
            assert honest.get("/health").code == 200
        # When the client reads at last, it gets every answer.
        assert {client.answer().code for _ in range(calls)} == {200}
    eventually(lambda: not connections(served))


def test_few_answers_are_computed_for_a_client_that_does_not_read(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel alone would take 4 MB of answers."""
    computed = []
    complete = LimitedHttpProtocol.on_response_complete

    def counted(protocol: LimitedHttpProtocol) -> None:
        computed.append(protocol)
        complete(protocol)

    monkeypatch.setattr(LimitedHttpProtocol, "on_response_complete", counted)
    eventually(lambda: not connections(served))
    with Wire(served.port, SO_RCVBUF=4096) as client:
        client.send(HEALTH)
        size = len(client.answer().body) + 150  # at most, with headers
        (connection,) = connections(served)
        was_full: list[bool] = []

        def is_full() -> bool:
            was_full.append(connection.flow.write_paused and connection.flow.has_waiting_data)
            return len(was_full) > 20 and all(was_full[-20:])

        fill(client, HEALTH, is_full)
        assert len(computed) * size < 400_000


def test_a_shutdown_does_not_wait_for_a_client_that_does_not_read(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESPONSE_SECONDS", 10_000.0)
    monkeypatch.setattr(limits, "LAST_RESPONSE_SECONDS", 0.1)
    eventually(lambda: not connections(served))
    with Wire(served.port, SO_RCVBUF=4096) as client:
        eventually(lambda: connections(served))
        (connection,) = connections(served)
        fill(client, DOCUMENT, lambda: connection.flow.write_paused and connection.flow.has_waiting_data)
        connection.loop.call_soon_threadsafe(connection.shutdown)
        eventually(lambda: not connections(served))


def test_large_answers_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that has waited longest is aborted, the others are answered."""
    large = "a" * 30_000_000  # more than the buffers of the system hold
    monkeypatch.setattr(limits, "UNREAD_BYTES", 70_000_000)
    last = HEALTH.replace(b"Host", b"Connection: close\r\nHost")
    unread = LimitedHttpProtocol._unread
    with running(platform_bundle()) as service, ExitStack() as clients:
        (route,) = [route for route in service.service.app.routes if getattr(route, "path", "") == "/health"]
        monkeypatch.setattr(route, "app", Response(large))
        wires = [clients.enter_context(Wire(service.port, SO_RCVBUF=65536)) for _ in range(3)]
        for count, wire in enumerate(wires, 1):
            wire.send(last)
            eventually(lambda count=count: len(unread) == min(count, 2))  # type: ignore[misc]
        eventually(lambda: len(connections(service)) == 2)
        assert sum(unread.values()) <= limits.UNREAD_BYTES
        assert [wire.rest() > len(large) for wire in wires] == [False, True, True]
    assert not unread


def test_half_closed_connections_are_answered(served: Running) -> None:
    with Wire(served.port) as client:
        client.send(HEALTH * 3)
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.answer().code for _ in range(3)] == [200] * 3
        assert client.is_over()


def test_a_closing_connection_answers_nothing_more(served: Running) -> None:
    with Wire(served.port) as client:
        client.send(HEALTH.replace(b"Host", b"Connection: close\r\nHost") + HEALTH)
        answer: Any = client.answer()
        assert answer.headers["connection"] == "close"
        assert client.is_over()
