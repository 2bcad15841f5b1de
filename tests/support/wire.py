"""Raw connections to a service."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from support.services import PATIENCE, Answer

if TYPE_CHECKING:
    from rankfall.serving.service.http_protocol import LimitedHttpProtocol
    from support.services import Running

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire:
    """A connection that sends and receives raw bytes."""

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

    def send(self, *parts: bytes) -> Wire:
        for part in parts:
            self.socket.sendall(part)
        return self

    def answer(self) -> Answer:
        """Return the next answer."""
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
        """Wait until the connection closes; return whether no more bytes arrived."""
        try:
            return not self._rest and not self.socket.recv(65536)
        except ConnectionResetError:  # the server had not read everything
            return True

    def rest(self) -> int:
        """Return the number of bytes until the connection closes."""
        return len(self.all())

    def all(self) -> bytes:
        """Return the bytes until the connection closes."""
        parts = [self._rest]
        with suppress(ConnectionResetError):  # the server had not read everything
            while part := self.socket.recv(65536):
                parts.append(part)
        return b"".join(parts)

    def _more(self) -> None:
        part = self.socket.recv(65536)
        assert part, f"the connection ended after {self._rest!r}"
        self._rest += part


def post(content: object, extra: bytes = b"", path: bytes = b"/rank") -> tuple[bytes, bytes]:
    """Return the headers and the body of a call."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (path, extra, len(body)), body


def connections(service: Running) -> set[LimitedHttpProtocol]:
    return service.server.server_state.connections  # type: ignore[return-value]
