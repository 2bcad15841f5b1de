"""uvicorn's HTTP protocol with the limits it lacks: headers, connections, pipelining, unread bodies and slow readers.

A connection has one request at a time. What a client sends after a request is parsed when the response is written and
the client reads it; until then the service stops reading, and the client's own buffers fill. uvicorn alone would parse
and keep every request that arrives.

`LimitedHttpProtocol` overrides methods of an internal class of uvicorn; tests check that the attributes it relies on
still exist, and pyproject.toml bounds the version of uvicorn. The numbers are in `limits`. Granian 2.8 is no
replacement: it never closes connections that send or read nothing, and as many idle ones as its limit keep all other
clients out.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, ClassVar

from httptools import HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rankfall._errors import RankfallError
from rankfall.serving.service import settings as limits

if TYPE_CHECKING:
    from collections.abc import Callable

ON_DISCONNECT = "rankfall.on_disconnect"  # key of a scope: called if the client disconnects before the response


def _response(status: bytes, error: str) -> bytes:
    """Return a response without the application, after which the connection is closed."""
    content = json.dumps({"error": error}).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, len(content)) + content


_REFUSED = _response(b"503 Service Unavailable\r\nretry-after: 1", "connections: too many are open; try again")
_INVALID = _response(
    b"400 Bad Request", f"request: expected HTTP/1.1, with a path and headers of at most {limits.HEADER_BYTES:,} bytes"
)
_CONTINUE = b"HTTP/1.1 100 "  # begins an interim response, which the response follows
_EMPTY_LINE = b"\r\n\r\n"  # ends headers and chunked bodies


class UpgradeIgnoringParser(HttpRequestParser):
    """A parser that treats a request with an Upgrade header like any other.

    httptools assumes that such a request has no body and would parse its body as the next request. Java's HTTP client
    offers HTTP/2 in this way with its first request.
    """

    def __init__(self, protocol: LimitedHttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own parser

    def feed_data(self, data: Any) -> None:
        """Parse more data."""
        while True:
            try:
                return super().feed_data(data)
            except HttpParserUpgrade as error:
                data = memoryview(data)[error.args[0] :]
                super().feed_data(self._protocol.head_without_upgrade())


class _CoalescingTransport(asyncio.Transport):
    """The transport of one response; it sends the headers with the body in one packet, so the client wakes once."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._close = close
        self._headers = b""
        self._has_headers = False

    def is_closing(self) -> bool:
        """Whether the connection is closing."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:  # type: ignore[override]  # uvicorn writes bytes only
        """Keep the headers, or write a part of the body after them."""
        if self._has_headers or data.startswith(_CONTINUE):
            self._transport.write(self._headers + data)
            self._headers = b""
        else:
            self._has_headers = True
            self._headers = data

    def close(self) -> None:
        """Write what was kept, and close."""
        if self._headers:
            self.write(b"")
        self._close()


class _ReadControl(FlowControl):
    """Flow control that does not resume reading while received data waits to be parsed."""

    has_waiting_data = False

    def resume_reading(self) -> None:
        """Resume reading unless data waits; uvicorn calls it whenever a request reads its body."""
        if not self.has_waiting_data:
            super().resume_reading()


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    # Bytes of responses that clients have not read yet, by connection, the one that has waited longest first.
    _unread: ClassVar[dict[LimitedHttpProtocol, int]] = {}

    flow: _ReadControl
    _received = b""  # data that is not completely parsed, at most two reads
    _parsed = 0  # bytes of it that are parsed
    _last_bytes = b""  # the last three bytes that were parsed, in which an empty line may begin
    _body_left = 0  # bytes of the current body that are not parsed yet, 0 if its length is unknown
    _header_bytes = 0  # of the current request
    _discarded_bytes = 0
    _closes_after_body = False  # whether the client asked to close the connection, and its body is being discarded
    _is_reading_headers = False  # whether a request has begun and its headers are incomplete
    _header_timer: asyncio.TimerHandle | None = None  # closes the connection of a silent client
    _response_timer: asyncio.TimerHandle | None = None  # aborts the connection of a client that does not read

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = UpgradeIgnoringParser(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timeout of a new connection, or refuse it if there are too many."""
        super().connection_made(transport)
        self.flow = _ReadControl(transport)
        transport.max_size = limits.RECEIVED_BYTES  # type: ignore[attr-defined]  # of asyncio, for each read
        # Without TCP_NODELAY the body of a response waits up to 40 ms for the client to acknowledge the headers.
        # asyncio sets it only for sockets that were created with an explicit protocol number.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Otherwise the kernel takes 4 MB of responses that a client does not read, and thousands are computed. Unlike
        # SO_SNDBUF this does not bound what is on its way to a distant client.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.UNSENT_BYTES)
        if len(self.connections) > limits.max_connections():
            transport.write(_REFUSED)
            self._close()
        else:
            self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data, or keep it until the response to the current request is written."""
        self._received = self._received[self._parsed :] + data
        self._parsed = 0
        self._parse()

    def _parse(self) -> None:
        """Parse the received data up to the end of a request, and stop reading if some of it has to wait."""
        while self._parsed < len(self._received) and not self._must_wait() and not self.transport.is_closing():
            part = memoryview(self._received)[self._parsed : self._end_of_part()]
            self._parsed += len(part)
            self._body_left -= min(self._body_left, len(part))
            self._last_bytes = (self._last_bytes + part[-3:])[-3:]
            super().data_received(part)  # type: ignore[arg-type]  # the parser reads any buffer
        if self._parsed < len(self._received):
            self.flow.has_waiting_data = True
            self.flow.pause_reading()
            self._unset_keepalive_if_required()  # the waiting request is answered; other timeouts apply until then
        elif self._header_timer is None and (self._is_reading_headers or self._has_no_timeout()):
            self._start_header_timer()

    def _end_of_part(self) -> int:
        """Return where the next part of the received data ends, which has the end of one request at most."""
        data, start = self._received, self._parsed
        if self._body_left:
            return start + self._body_left
        across = (self._last_bytes + data[start : start + 3]).find(_EMPTY_LINE)  # it may have begun in the last part
        if across >= 0:
            return start + across + len(_EMPTY_LINE) - len(self._last_bytes)
        found = data.find(_EMPTY_LINE, start)
        return len(data) if found < 0 else found + len(_EMPTY_LINE)

    def _must_wait(self) -> bool:
        """Whether the client has to read, or the current request has to be answered, before more data is parsed."""
        cycle = self.cycle
        is_unanswered = cycle is not None and not cycle.more_body and not cycle.response_complete
        return is_unanswered or self.flow.write_paused

    def _parse_waiting(self) -> None:
        """Parse data that waited for a response."""
        if self.flow.has_waiting_data and not self._must_wait():
            self.flow.has_waiting_data = False
            self.flow.resume_reading()
            self._parse()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and call the `ON_DISCONNECT` function of a request that is not answered yet."""
        self._stop_header_timer()
        self._stop_response_timer()
        self._unread.pop(self, None)
        cycle = self.cycle
        is_unanswered = cycle is not None and not cycle.response_complete
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if is_unanswered and ON_DISCONNECT in cycle.scope:
            cycle.scope[ON_DISCONNECT]()  # type: ignore[literal-required]  # a key of our own

    # --- parser callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Reset the counters for a new request."""
        self._header_bytes = self._discarded_bytes = 0
        self._is_reading_headers = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the path."""
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count_header_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the header timeout and start the request."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise RankfallError("not a proxy")  # the parser turns it into a 400 response
            return
        if self._must_wait():
            raise RankfallError(
                "a request before the response to the last one"
            )  # the parser turns it into a 400 response
        self._is_reading_headers = False
        self._stop_header_timer()
        self._unset_keepalive_if_required()
        if not self.url.startswith(b"/"):
            self._take_host_of_url()
        super().on_headers_complete()
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        if self.scope["method"] == "POST":  # responses to other methods may have no body
            self.cycle.transport = _CoalescingTransport(self.transport, self._close_after_body)

    def _take_host_of_url(self) -> None:
        """Replace the Host header of a request to a complete URL by the host of that URL, as RFC 9112 requires."""
        url = parse_url(self.url)
        if url.host is not None:
            host = url.host if url.port is None else b"%b:%d" % (url.host, url.port)
            self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]

    def head_without_upgrade(self) -> bytes:
        """Return the path and headers of the current request without its Upgrade header."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body, or discard a limited number of bytes after the response."""
        if self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > limits.DISCARDED_BODY_BYTES:
                self._close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Start the keep-alive timeout if the response was sent before the request was complete."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self._closes_after_body:
            self._close()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._stop_header_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _count_header_bytes(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > limits.HEADER_BYTES:
            raise RankfallError("headers too large")  # the parser turns it into a 400 response

    # --- timeouts ---------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Parse what the client has sent since, or limit the time for reading the response if it is the last one."""
        super().on_response_complete()
        self._limit_closing()
        self._parse_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP, in JSON as all errors."""
        self.transport.write(_INVALID)
        self._close()

    def _close_after_body(self) -> None:
        """Close the connection when the body is discarded: a client that still sends it would lose the response."""
        if self.cycle.more_body and not self.parser.should_keep_alive():
            self._closes_after_body = True
            self._start_response_timer()
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    def shutdown(self) -> None:
        """Close the connection after its current response."""
        super().shutdown()
        if self.transport.is_closing():
            self._stop_response_timer()
            self._start_response_timer(limits.LAST_RESPONSE_SECONDS)

    def pause_writing(self) -> None:
        """Start the response timeout when the client reads too slowly, and limit the memory of all such responses."""
        super().pause_writing()
        self._start_response_timer()
        self._unread[self] = self.transport.get_write_buffer_size()
        while sum(self._unread.values()) > limits.UNREAD_BYTES and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            del self._unread[slowest]
            slowest.transport.abort()

    def resume_writing(self) -> None:
        """Stop the response timeout when the client has read enough, and parse what it has sent since."""
        super().resume_writing()
        self._unread.pop(self, None)
        if not self.transport.is_closing():
            self._stop_response_timer()
            self._parse_waiting()

    def _has_no_timeout(self) -> bool:
        """Whether the connection is idle without a keep-alive timeout, so that nothing would ever close it."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def _close(self) -> None:
        self.transport.close()
        self._limit_closing()

    def _limit_closing(self) -> None:
        """Start the response timeout: a closing transport waits forever for the client to read the rest."""
        if self.transport.is_closing():
            self._start_response_timer()

    def _start_response_timer(self, seconds: float | None = None) -> None:
        if self._response_timer is None:
            seconds = limits.RESPONSE_SECONDS if seconds is None else seconds
            self._response_timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_response_timer(self) -> None:
        if self._response_timer is not None:
            self._response_timer.cancel()
            self._response_timer = None

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(limits.HEADER_SECONDS, self._close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
