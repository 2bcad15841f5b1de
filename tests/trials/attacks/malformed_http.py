"""Messages that are not HTTP, or that violate its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trials.attacks.target import exchange

if TYPE_CHECKING:
    from trials.attacks.target import Target

_HOST = b"Host: 127.0.0.1\r\n"
INVALID = {  # no service may answer any of these with success
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\n" + _HOST + b"Host: example.com\r\n\r\n",
    "another host": b"GET /health HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "another host, unknown path": b"GET /nowhere HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": b"GET /health HTTP/9.9\r\n" + _HOST + b"\r\n",
    "unknown method": b"EXPLODE /health HTTP/1.1\r\n" + _HOST + b"\r\n",
    "a proxy request": b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n" + _HOST + b"\r\n",
    "zero bytes": b"GET /health HTTP/1.1\r\n" + _HOST + b"X-Zero: a\x00b\r\n\r\n",
    "a space in a name": b"GET /health HTTP/1.1\r\n" + _HOST + b"X Name: a\r\n\r\n",
    "control characters in the path": b"GET /\x1b[2J HTTP/1.1\r\n" + _HOST + b"\r\n",
    "large headers": b"GET /health HTTP/1.1\r\n" + _HOST + b"X-Large: " + b"x" * 70_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\n" + _HOST + b"".join(b"X%d: a\r\n" % n for n in range(20_000)) + b"\r\n",
    "a long path": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
    "a chunk without a size": b"POST /rank HTTP/1.1\r\n"
    + _HOST
    + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "unknown encoding": b"POST /rank HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: gzip\r\n\r\nabc",
}


async def invalid_messages(target: Target) -> None:
    """Send every invalid message, each on its own connection."""
    for what, message in INVALID.items():
        status = await exchange(target, message)
        if 200 <= status < 300:
            target.tally.notes.append(f"a request with {what} returned {status}")
        await target.pause(0.05)
