"""Clients that take their time: with headers, with bodies, with reading, or with saying anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trials.attacks.target import get

if TYPE_CHECKING:
    from trials.attacks.target import Target

_INTERVAL = 0.5  # seconds between two bytes
_BYTES = 80  # per attempt: 40 s, longer than any timeout of the service but keep-alive
_HEADERS = b"POST /rank HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
_UNREAD = 100  # large responses that a slow reader asks for
_TINY_BUFFER = 4096


async def slow_headers(target: Target) -> None:
    """Send headers byte by byte."""
    await _send_slowly(target, b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"x" * 100)


async def slow_bodies(target: Target) -> None:
    """Send headers at once and the body byte by byte."""
    await _send_slowly(target, _HEADERS, b'{"user":{"' + b"x" * 100)


async def slow_readers(target: Target) -> None:
    """Ask for many large responses and read them byte by byte."""
    async with target.connected(receive_buffer=_TINY_BUFFER) as connection:
        await connection.send(get("/openapi.json") * _UNREAD, requests=_UNREAD)
        for _ in range(_BYTES):
            if not await connection.receive(1):
                return
            await target.pause(_INTERVAL)


async def idle_connections(target: Target) -> None:
    """Connect, send nothing, and wait until the service closes the connection."""
    async with target.connected() as connection:
        await connection.response()


async def _send_slowly(target: Target, first: bytes, rest: bytes) -> None:
    """Send some bytes at once and others one by one; the service answers or closes the connection meanwhile."""
    async with target.connected() as connection, connection.answering() as answer:
        if first:
            await connection.send(first)
        for place in range(_BYTES):
            if answer.done():
                return
            await connection.send(rest[place : place + 1])
            await target.pause(_INTERVAL)
