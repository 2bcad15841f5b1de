"""A sink that publishes records to a stream of NATS JetStream."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import Header

from rankfall.serving.recording.messages import encode
from rankfall.serving.recording.nats_connection import (
    CONNECT_SECONDS,
    ERRORS,
    connect,
    ensure_stream,
    explained,
    subject,
)
from rankfall.serving.recording.sinks.sink import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.client import Client

    from rankfall.serving.recording.sinks.sink import Kind
    from rankfall.serving.recording.sinks.sink_url import BrokerUrl

DELIVERY_SECONDS = 3.0  # until a message that was not confirmed is given up
RECONNECT_SECONDS = 0.3
_WATCH_SECONDS = 0.1
MAX_UNCONFIRMED = 32 << 20  # bytes
_HEADERS = 512  # bytes of a message besides its payload


class NatsSink:
    """Publishes each batch as a message; implements :class:`~.sink.Sink`.

    A thread holds the connection and restores it. Without a connection, `write` raises at once. A message that was not
    confirmed because the connection was lost is published again with the same id, by which the server recognizes it.

    Args:
        url: Servers and stream.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self._url = url
        self._name = os.urandom(8).hex()
        self._numbers = itertools.count()
        self._changed = threading.Condition()  # protects what follows
        self._connection: _Connection | None = None
        self._problem = ""
        self._unconfirmed = 0  # bytes
        self._lost = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"sink {url}", daemon=True)
        self._closing = asyncio.Event()
        self._thread.start()

    def check(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._connection or self._problem, CONNECT_SECONDS + 1)
        self._connected()

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        connection = self._connected()
        try:
            parts = encode(batch, connection.client.max_payload - _HEADERS)
        except ValueError as error:
            raise SinkError(f"{self._url}: {error}") from None
        messages = [_Message(subject(self._url, kind), f"{self._name}-{next(self._numbers)}", *part) for part in parts]
        if durable:
            asyncio.run_coroutine_threadsafe(self._deliver_all(messages), self._loop).result()
            return
        size = sum(len(message.payload) for message in messages)
        with self._changed:
            if self._unconfirmed and self._unconfirmed + size > MAX_UNCONFIRMED:
                raise SinkError(f"{self._url}: {self._unconfirmed:,} bytes were not confirmed yet")
            self._unconfirmed += size
        for message in messages:
            asyncio.run_coroutine_threadsafe(self._deliver_or_lose(message), self._loop)

    def tick(self) -> None:
        """Do nothing: the thread does what is due."""

    def take_lost(self) -> int:
        with self._changed:
            lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._unconfirmed, DELIVERY_SECONDS + 1)
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _connected(self) -> _Connection:
        with self._changed:
            if self._connection is None:
                raise SinkError(self._problem or f"{self._url}: not connected yet")
            return self._connection

    # The methods below run in the thread of the connection.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stay_connected())

    async def _stay_connected(self) -> None:
        closing = asyncio.ensure_future(self._closing.wait())
        while not self._closing.is_set():
            try:
                connection = _Connection(await connect(self._url))
            except (SinkError, OSError) as error:  # OSError: of a connection that is closed after an error
                self._set(None, str(error))
                await asyncio.wait({closing}, timeout=RECONNECT_SECONDS)
                continue
            self._set(connection, "")
            # The client does not call back if an error interrupts its closing, so ask it.
            while not (self._closing.is_set() or connection.client.is_closed):
                await asyncio.wait({closing}, timeout=_WATCH_SECONDS)
            connection.lost.set_result(None)
            self._set(None, f"{self._url}: the connection was lost")
            await connection.client.close()

    def _set(self, connection: _Connection | None, problem: str) -> None:
        with self._changed:
            self._connection, self._problem = connection, problem
            self._changed.notify_all()

    async def _deliver_all(self, messages: list[_Message]) -> None:
        await asyncio.gather(*map(self._deliver, messages))

    async def _deliver_or_lose(self, message: _Message) -> None:
        lost = message.records
        try:
            await self._deliver(message)
            lost = 0
        except SinkError:
            pass  # it is counted
        finally:
            with self._changed:
                self._lost += lost
                self._unconfirmed -= len(message.payload)
                self._changed.notify_all()

    async def _deliver(self, message: _Message) -> None:
        """Publish a message until the server confirms it.

        Raises:
            SinkError: If the server refuses it, or does not confirm it within DELIVERY_SECONDS.
        """
        problem = "not confirmed in time"
        try:
            async with asyncio.timeout(DELIVERY_SECONDS):
                while True:
                    if self._connection is not None:
                        try:
                            return await self._publish(self._connection, message)
                        except nats.js.errors.APIError as error:
                            raise SinkError(f"{self._url}: {explained(error)}") from None
                        except ERRORS as error:
                            problem = explained(error)
                    await asyncio.sleep(RECONNECT_SECONDS / 3)
        except TimeoutError:
            raise SinkError(self._problem or f"{self._url}: {problem}") from None

    async def _publish(self, connection: _Connection, message: _Message) -> None:
        """Publish a message once, and wait until it is confirmed or the connection is lost."""
        publishing = asyncio.ensure_future(self._request(connection.client, message))
        try:
            await asyncio.wait({publishing, connection.lost}, return_when=asyncio.FIRST_COMPLETED)
            if not publishing.done():
                raise nats.errors.ConnectionClosedError
            await publishing
        finally:
            publishing.cancel()

    async def _request(self, client: Client, message: _Message) -> None:
        try:
            await client.jetstream().publish(
                message.subject,
                message.payload,
                timeout=DELIVERY_SECONDS,
                stream=self._url.name,
                headers={Header.MSG_ID.value: message.id},
            )
        except nats.js.errors.NoStreamResponseError:  # the stream was deleted, or the server is starting
            await ensure_stream(client, self._url)
            raise


@dataclass(frozen=True, slots=True)
class _Message:
    subject: str
    id: str
    payload: bytes
    records: int  # their number


class _Connection:
    """A connection, and a future that is done when it is lost."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
