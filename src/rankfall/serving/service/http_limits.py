"""uvicorn's HTTP with limits that it does not have: of headers, connections, bodies and answers that nobody reads."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HANG_UP = "rankfall.hang_up"  # in a scope: what to call if the client hangs up before it is answered
MOST_HEADERS = 65_536  # bytes of the path and the headers of a request
_SECONDS = 10.0  # in which the headers of a request have to come
_READ_SECONDS = 30.0  # in which a client has to read an answer
_UNREAD = 64_000_000  # bytes of a body that are thrown away after its request was refused
_FILES = 128  # that a worker has open beside its connections


def _most_connections() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if allowed == resource.RLIM_INFINITY else max(1, min(4096, allowed - _FILES))


MOST_CONNECTIONS = _most_connections()  # of a worker
_TOO_MANY = b'{"error":"connections: there are too many, try again"}'
_CONTINUE = b"HTTP/1.1 100 "  # which is no answer yet
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\n%b" % (len(_TOO_MANY), _TOO_MANY)
)


class PlainParser(HttpRequestParser):
    """A parser for which a request that would like another protocol is one like others.

    httptools believes that such a request has no body, and would take it for the next request. Java's client offers
    HTTP/2 with its first one.
    """

    def __init__(self, protocol: LimitedHttp) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own

    def feed_data(self, data: Any) -> None:
        """Read more."""
        while True:
            try:
                return super().feed_data(data)
            except HttpParserUpgrade as error:
                data = memoryview(data)[error.args[0] :]
                super().feed_data(self._protocol.head_without_upgrade())


class _Together(asyncio.Transport):
    """A transport for one answer whose head waits for the body: one packet, for which a client wakes once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head = b""
        self._has_begun = False

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:  # type: ignore[override]  # uvicorn writes nothing else
        """Write a part of the body, the first one with the head."""
        if self._has_begun or data.startswith(_CONTINUE):
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._has_begun = True
            self._head = data

    def close(self) -> None:
        """Write what there is, and close."""
        if self._head:
            self.write(b"")
        self._transport.close()


class LimitedHttp(HttpToolsProtocol):
    """A connection."""

    _size = 0  # bytes of headers so far
    _unread = 0
    _is_heading = False  # whether some headers of a request are there
    _patience: asyncio.TimerHandle | None = None  # with a client that says nothing
    _reading: asyncio.TimerHandle | None = None  # with a client that does not read

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.parser = PlainParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected, and has to say something."""
        super().connection_made(transport)
        # What follows the head of an answer in a second packet must not wait for the client to confirm the first, which
        # takes 40 ms. asyncio asks for that only on sockets that were made with the number of the protocol.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.write(_FULL)
            self._close()
        else:
            self._begin_patience()

    def data_received(self, data: bytes) -> None:
        """Somebody says something."""
        super().data_received(data)
        if self._patience is None and (self._is_heading or self._is_forgotten()):
            self._begin_patience()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for the answer any more."""
        self._end_patience()
        self._end_reading()
        cycle = self.cycle
        is_waiting = cycle is not None and not cycle.response_complete
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if is_waiting and HANG_UP in cycle.scope:
            cycle.scope[HANG_UP]()  # type: ignore[literal-required]  # a key of ours

    # --- what the client says -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._size = self._unread = 0
        self._is_heading = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the path."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers are there."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("not a proxy")  # which the parser turns into an answer with 400
            return
        self._is_heading = False
        self._end_patience()
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        if self.scope["method"] == "POST":  # others may have answers without a body
            self.cycle.transport = _Together(self.transport)

    def head_without_upgrade(self) -> bytes:
        """The path and the headers of the request that has just come, which is to be read as an ordinary one."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > _UNREAD:
                self._close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there, perhaps after its answer."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._end_patience()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MOST_HEADERS:
            raise ValueError("too large")  # which the parser turns into an answer with 400

    # --- how long it is waited for --------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer was written, and the connection perhaps closed."""
        super().on_response_complete()
        self._end_soon()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        super().send_400_response(msg)
        self._end_soon()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that is idle."""
        self._close()

    def shutdown(self) -> None:
        """End, as the service does."""
        super().shutdown()
        self._end_soon()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._begin_reading()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._end_reading()

    def _is_forgotten(self) -> bool:
        """Whether nothing is under way, and nothing would ever end the connection."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def _close(self) -> None:
        self.transport.close()
        self._end_soon()

    def _end_soon(self) -> None:
        """A transport that was closed still waits until everything is read, for ever."""
        if self.transport.is_closing():
            self._begin_reading()

    def _begin_reading(self) -> None:
        if self._reading is None:
            self._reading = self.loop.call_later(_READ_SECONDS, self.transport.abort)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _begin_patience(self) -> None:
        self._patience = self.loop.call_later(_SECONDS, self._close)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
