"""Many connections: opened and dropped at once, or kept after a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trials.attacks.target import get

if TYPE_CHECKING:
    from trials.attacks.target import Target

_BURST = 100  # connections of one attempt
_KEPT_SECONDS = 20.0


async def dropped_connections(target: Target) -> None:
    """Open many connections at once; reset half of them and close the others, all without a complete request."""
    await asyncio.gather(*(_drop(target, number) for number in range(_BURST)))


async def kept_connections(target: Target) -> None:
    """Send one request and keep the connection idle."""
    async with target.connected() as connection:
        await connection.send(get("/health"), requests=1)
        await connection.response()
        await target.pause(_KEPT_SECONDS)


async def _drop(target: Target, number: int) -> None:
    async with target.connected() as connection:
        await connection.send(b"GET /health HTTP/1.1\r\n")
        if number % 2:
            connection.reset()
