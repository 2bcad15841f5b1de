"""Clients that send request after request on one connection without reading a response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trials.attacks.target import CHUNK, get, post

if TYPE_CHECKING:
    from trials.attacks.target import Target

RATE = 1_000_000  # bytes per second of one connection
SECONDS = 30.0  # per attempt
_TINY_BUFFER = 4096  # bytes that the kernel receives for a client that does not read


async def unread_health(target: Target) -> None:
    """Send `GET /health` and read nothing."""
    await _send_without_reading(target, get("/health"))


async def unread_rank(target: Target) -> None:
    """Send `POST /rank` and read nothing."""
    await _send_without_reading(target, post("/rank", target.request))


async def _send_without_reading(target: Target, request: bytes) -> None:
    count = max(1, CHUNK // len(request))
    async with target.connected(receive_buffer=_TINY_BUFFER) as connection:
        await target.send_steadily(
            connection, request * count, bytes_per_second=RATE, seconds=SECONDS * target.pace, requests=count
        )
