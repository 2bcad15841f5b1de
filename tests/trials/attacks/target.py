"""The service under attack as an attempt sees it: raw connections, counters, and a limit on the attacker's CPU time."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.load_client import LOST

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

CHUNK = 32_768  # bytes per send of a client with a limited rate
_READ = 65_536
_MOST_RECEIVED = 16_000_000  # bytes of one response
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset instead of waiting for unsent data


@dataclass
class Tally:
    """What one attack has done, and what the service returned."""

    attempts: int = 0
    connections: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    responses: dict[int, int] = field(default_factory=dict)  # by status code, LOST if the connection was closed
    notes: list[str] = field(default_factory=list)  # defects that an attempt has found

    def respond(self, code: int, count: int = 1) -> None:
        """Count a response."""
        self.responses[code] = self.responses.get(code, 0) + count


class Throttle:
    """Keeps the CPU time of this process below a share of one core.

    Args:
        share: The share.
        wall: Clock in seconds.
        cpu: CPU time of this process in seconds.
    """

    def __init__(
        self,
        share: float,
        *,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._share = share
        self._wall, self._cpu = wall, cpu
        self._wall_start, self._cpu_start = wall(), cpu()

    @property
    def used(self) -> tuple[float, float]:
        """CPU and wall seconds since the start."""
        return self._cpu() - self._cpu_start, self._wall() - self._wall_start

    def delay(self) -> float:
        """Return the seconds after which the CPU time is back at its share."""
        cpu, wall = self.used
        return max(0.0, cpu / self._share - wall)


class Connection:
    """A socket without buffers of its own, so that nothing is read unless an attempt reads."""

    def __init__(self, raw: socket.socket, tally: Tally) -> None:
        self._raw = raw
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self._received = b""

    async def send(self, data: bytes, *, requests: int = 0) -> None:
        """Send data, and count the requests that it completes."""
        await self._loop.sock_sendall(self._raw, data)
        self._tally.sent_bytes += len(data)
        self._tally.requests += requests

    async def receive(self, size: int = _READ) -> bytes:
        """Receive some bytes; none if the service has closed the connection."""
        data = await self._loop.sock_recv(self._raw, size)
        self._tally.received_bytes += len(data)
        return data

    async def response(self) -> int:
        """Read one response without chunks, count it, and return its status code; LOST if there is none."""
        head = await self._until(lambda: self._received.find(b"\r\n\r\n") + 4)
        status = int(self._received[9:12]) if head else LOST
        if head:
            length = self._received[:head].lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            end = head + int(length or 0)
            await self._until(lambda: end if len(self._received) >= end else 0)
            self._received = self._received[end:]
        self._tally.respond(status)
        return status

    async def _until(self, find_end: Callable[[], int]) -> int:
        """Receive until the end of a part is found; return it, or 0 if the connection ends first."""
        while (end := find_end()) < 4:
            try:
                data = await self.receive()
            except ConnectionError:
                return 0
            if not data or len(self._received) > _MOST_RECEIVED:
                return 0
            self._received += data
        return end

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[asyncio.Task[int]]:
        """Read a response while the attempt goes on sending; the connection may end after the response."""
        answer = asyncio.create_task(self.response())
        try:
            with suppress(ConnectionError):  # the service has closed the connection, with or without a response
                yield answer
            await answer
        finally:
            answer.cancel()
            await asyncio.wait([answer])

    def reset(self) -> None:
        """Close the connection with a reset."""
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._raw.close()


@dataclass(frozen=True)
class BundleFiles:
    """Directories of bundles.

    Attributes:
        watched: The directory in which the service looks for bundles.
        served: The bundle in it that the service has loaded.
        original: An unchanged copy of that bundle.
        bad: Invalid bundles.
    """

    watched: Path
    served: Path
    original: Path
    bad: list[Path]


@dataclass
class Target:
    """A service under attack.

    Attributes:
        port: Port on 127.0.0.1.
        request: Body of a valid ``POST /rank``.
        token: Token of ``POST /reload``.
        bundles: Directories that the attacker may change.
        pace: Factor of all intervals; less than 1 for short tests.
        throttle: Limit on the CPU time of the attacker.
        dice: Choices of the attacker.
        tally: Counters of the attack that uses this object.
    """

    port: int
    request: bytes
    token: str
    bundles: BundleFiles
    pace: float
    throttle: Throttle
    dice: random.Random
    tally: Tally

    @asynccontextmanager
    async def connected(self, *, receive_buffer: int | None = None) -> AsyncIterator[Connection]:
        """Open a connection, optionally with a small receive buffer of the kernel, and close it afterwards."""
        with socket.socket() as raw:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
            self.tally.connections += 1
            yield Connection(raw, self.tally)

    async def pause(self, seconds: float) -> None:
        """Wait, and longer if the attacker has used too much CPU time."""
        await asyncio.sleep(max(seconds * self.pace, self.throttle.delay()))

    async def send_steadily(
        self, connection: Connection, data: bytes, *, bytes_per_second: float, seconds: float, requests: int = 0
    ) -> None:
        """Send the same data again and again at a rate; it takes longer if the service stops reading."""
        for _ in range(max(1, round(seconds * bytes_per_second / len(data)))):
            await connection.send(data, requests=requests)
            await self.pause(len(data) / bytes_per_second)


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a complete POST request with JSON content."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def get(path: str) -> bytes:
    """Return a complete GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def exchange(target: Target, message: bytes) -> int:
    """Send a message on a new connection and return the status code of its response."""
    async with target.connected() as connection, connection.answering() as answer:
        await connection.send(message, requests=1)
    return answer.result()
