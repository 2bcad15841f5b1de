"""Bytes that are sent to the service without an HTTP library, from requests that are almost right to noise."""

from __future__ import annotations

import re
import socket
from errno import ECONNRESET, ENOTCONN, EPIPE
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from fuzz.damage import byte_changes, damaged
from support.services import PATIENCE

if TYPE_CHECKING:
    from support.services import Running

_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
_REFUSED_FOR_LOAD = {503, 504}  # the only answers of 500 and above that a client may cause

_LONG = "LONG"  # stands for more bytes than headers may have, so that a case stays small

_METHODS = ["GET", "POST", "POST", "POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "post", "G T", "", "\x00"]
_PATHS = [
    "/health", "/ready", "/rank", "/rank", "/rank", "/score", "/items", "/examples", "/model", "/metrics", "/reload",
    "/events", "/events",
    "/", "/rank?a=1", "/%2e%2e/etc", "/%ff%00", "*", "http://other/rank", "//rank", "/a b", "/" + _LONG, "",
]  # fmt: skip
_VERSIONS = ["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/11", "http/1.1", ""]
_HEADERS = [
    "Host: localhost", "Host: localhost", "Host: other.example", "Host:", "Host: a\r\nHost: b", "host : localhost",
    "Content-Type: application/json", "Content-Type: application/json", "Content-Type: text/plain", "Content-Type: ;;;",
    "Content-Length: {n}", "Content-Length: {n}", "Content-Length: {n}", "Content-Length: -1", "Content-Length: +5",
    "Content-Length: 0x10", "Content-Length: 1e3", "Content-Length: 5, 5", "Content-Length: 99999999999999999999",
    "Content-Length: 2", "Content-Length:", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: gzip", "Transfer-Encoding: \x0bchunked", "Transfer-Encoding : chunked", "Expect: 100-continue",
    "Expect: x", "Connection: close", "Connection: keep-alive, upgrade", "Upgrade: websocket", "Upgrade: h2c",
    "Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13", "Content-Encoding: gzip", "Authorization: Bearer x",
    "Authorization: Bearer \xff", "X-A: " + "a" * 9000, "X-A: b\r\n folded", "no colon", ": no name", "X-\x00: b",
    "X: \x00", "Origin: null", "X-Request-Id: \x1b[31m", "Accept: */*",
]  # fmt: skip
_BODIES = [
    b"", b"{}", b'{"k": 3}', b'{"requests": [{}, {}]}', b'{"k": 1, "k": 2}', b"[" * 2000, b"null", b"\xff\xfe",
    b'{"k":', b'{"candidates": [1, "x", null]}', b'{"path": "/etc/passwd"}', b"2\r\n{}\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\n{}", b'{"request": "\\u0000"}', b'{"events": [{}, 3]}',
    b'{"events": [{"id": "a", "request": "b", "item": 7, "kind": "click", "value": 1e308, "time": "2024-01-15"}]}',
    b"-1\r\n{}\r\n0\r\n\r\n", b"2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n", b"2\n{}\n0\n\n", b"GET /health HTTP/1.1\r\n\r\n",
]  # fmt: skip


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    body = draw(st.sampled_from(_BODIES))
    line = " ".join(draw(st.sampled_from(part)) for part in (_METHODS, _PATHS, _VERSIONS))
    headers = draw(st.lists(st.sampled_from(_HEADERS), max_size=6))
    if draw(st.booleans()):  # otherwise hardly any request gets as far as its body
        headers = ["Host: localhost", "Content-Type: application/json", "Content-Length: {n}", *headers[:1]]
    end = draw(st.sampled_from(["\r\n"] * 6 + ["\n", "\r"]))
    text = end.join([line, *headers, "", ""]).replace("{n}", str(len(body)))
    return text.encode("latin-1") + body


def http_cases() -> st.SearchStrategy[bytes]:
    """Return a strategy of what a client sends on one connection."""
    streams = st.lists(_requests(), min_size=1, max_size=3).map(b"".join)
    return st.one_of(streams, st.builds(damaged, streams, byte_changes(most=3)), st.binary(max_size=200))


def send_raw(content: bytes, served: Running) -> list[int]:
    """Send bytes and return the codes of the answers; the service then still answers others."""
    sent = content.replace(_LONG.encode(), b"a" * 70_000)
    codes = [int(code) for code in _STATUS.findall(_answers(sent, served.port))]
    assert all(code < 500 or code in _REFUSED_FOR_LOAD for code in codes), codes
    with served.client() as client:
        assert client.get("/health").code == 200
    return codes


def _answers(content: bytes, port: int) -> bytes:
    """Return everything that the service answers until it closes the connection."""
    found = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                found += part
        except OSError as error:  # the service may hang up on nonsense
            if error.errno not in (ECONNRESET, EPIPE, ENOTCONN):
                raise
    return bytes(found)
