"""Bodies at the size limit and beyond, without an end, in tiny chunks, and of another length than declared."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rankfall.serving.service.settings import BODY_BYTES
from trials.attacks.target import CHUNK, exchange, post

if TYPE_CHECKING:
    from trials.attacks.target import Target

RATE = 1_000_000  # bytes per second
SECONDS = 10.0  # per attempt
_HEAD = b"POST /rank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


async def at_the_limit(target: Target) -> None:
    """Send a valid request that is as large as bodies may be."""
    await exchange(target, post("/rank", _with_excluded(target.request)))


async def over_the_limit(target: Target) -> None:
    """Send a complete body that is one byte too large."""
    await exchange(target, post("/rank", b" " * (BODY_BYTES + 1)))


async def endless_length(target: Target) -> None:
    """Declare a petabyte and begin to send it."""
    head = _HEAD + b"Content-Length: 1000000000000000\r\n\r\n"
    await _send_on(target, head, b" " * CHUNK, RATE)


async def endless_chunks(target: Target) -> None:
    """Send chunks that never end."""
    await _send_on(target, _CHUNKED, b"%x\r\n%b\r\n" % (CHUNK, b" " * CHUNK), RATE)


async def tiny_chunks(target: Target) -> None:
    """Send chunks of a single byte, each of which costs the service far more than it costs the client."""
    await _send_on(target, _CHUNKED, b"1\r\n \r\n" * (CHUNK // 12), RATE // 5)


async def wrong_lengths(target: Target) -> None:
    """Declare fewer bytes than are sent, two lengths, a length beside chunks, or a length that is no number."""
    declared = b"Content-Length: 10\r\n", b"Content-Length: 10\r\nContent-Length: 20\r\n", b"Content-Length: -1\r\n"
    both = b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n"
    for lengths in (*declared, both):
        await exchange(target, _HEAD + lengths + b"\r\n" + target.request)


async def missing_rest(target: Target) -> None:
    """Declare more bytes than are sent, and disconnect."""
    async with target.connected() as connection:
        await connection.send(_HEAD + b"Content-Length: 900000\r\n\r\n" + target.request, requests=1)
        await target.pause(1.0)
        connection.reset()


async def _send_on(target: Target, head: bytes, data: bytes, rate: int) -> None:
    """Send data at a rate, also after the response."""
    async with target.connected() as connection, connection.answering():
        await connection.send(head, requests=1)
        await target.send_steadily(connection, data, bytes_per_second=rate, seconds=SECONDS * target.pace)


@cache
def _with_excluded(request: bytes) -> bytes:
    """Return a request that excludes as many items as fit."""
    head, tail = request.rstrip()[:-1] + b',"exclude":[', b"]}"
    count = (BODY_BYTES - len(head) - len(tail)) // 11
    excluded = b",".join(b"%d" % (10**9 + number) for number in range(count))
    return (head + excluded + tail).ljust(BODY_BYTES)
