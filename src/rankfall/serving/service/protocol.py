"""uvicorn's HTTP with limits that it does not have: of headers, of idle connections, of bodies that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

HANG_UP = "rankfall.hang_up"  # in a scope: what to call if the client hangs up before it is answered
MOST_HEADERS = 65_536  # bytes of the path and the headers of a request
_SECONDS = 10.0  # in which the headers of a request have to come
_UNREAD = 64_000_000  # bytes of a body that are thrown away after its request was refused


class LimitedHttp(HttpToolsProtocol):
    """A connection."""

    _size = 0  # bytes of headers so far
    _unread = 0
    _is_heading = False  # whether some headers of a request are there
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected, and has to say something."""
        super().connection_made(transport)
        self._begin_patience()

    def data_received(self, data: bytes) -> None:
        """Somebody says something."""
        super().data_received(data)
        if self._is_heading and self._patience is None:
            self._begin_patience()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for the answer any more."""
        self._end_patience()
        cycle = self.cycle
        is_waiting = cycle is not None and not cycle.response_complete
        super().connection_lost(exc)
        if is_waiting and HANG_UP in cycle.scope:
            cycle.scope[HANG_UP]()  # type: ignore[literal-required]  # a key of ours

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
        self._is_heading = False
        self._end_patience()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > _UNREAD:
                self.transport.close()
        super().on_body(body)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MOST_HEADERS:
            raise ValueError("too large")  # which the parser turns into an answer with 400

    def _begin_patience(self) -> None:
        self._patience = self.loop.call_later(_SECONDS, self.transport.close)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
