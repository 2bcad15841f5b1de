"""A sink that publishes records to a stream of NATS JetStream."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    Header,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from rankfall.serving.recording.collect import MAX_MESSAGES, RECEIVE_SECONDS
from rankfall.serving.recording.record_segments import EVENTS, SAMPLES, Message, encode
from rankfall.serving.recording.sinks import SinkError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    import pyarrow as pa
    from nats.js.client import JetStreamContext

    from rankfall.serving.recording.sinks import BrokerUrl, Kind


PASSWORD = "RANKFALL_NATS_PASSWORD"
CONNECT_SECONDS = 3.0
_ATTEMPTS = 3  # a server that refuses a user may reset the connection before its reason is read
_PING_SECONDS = 5  # after two pings without an answer a connection is closed
# What the client raises: also ValueError and EOFError, if something else than NATS answers.
ERRORS = (nats.errors.Error, OSError, ValueError, EOFError)


def subject(url: BrokerUrl, kind: str) -> str:
    """Return the subject of the messages of a kind."""
    return f"{url.name}.{kind}"


async def connect(url: BrokerUrl) -> Client:
    """Return a connection to a server, on which the stream exists.

    A connection that is lost is closed and not restored: the caller knows at any time what was confirmed.

    Args:
        url: Servers and stream.

    Raises:
        SinkError: If no server can be reached, it refuses the user, or it has no JetStream.
    """
    asyncio.get_running_loop().set_exception_handler(_on_exception)
    attempts = 0
    while True:
        attempts += 1
        try:
            return await _connect_once(url)
        except ERRORS as error:
            if attempts == _ATTEMPTS or not isinstance(error, ConnectionResetError):
                raise SinkError(f"{url}: {explained(error)}") from None


async def _connect_once(url: BrokerUrl) -> Client:
    """Return a connection, or raise what the server or the client says is wrong."""
    client, problems = Client(), deque[Exception](maxlen=1)  # the last problem that the client reported
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.connect([f"nats://{server}" for server in url.servers], **_options(url, problems))
            await ensure_stream(client, url)
    except ERRORS as error:
        await client.close()
        raise (problems[0] if problems else error) from None
    return client


def _options(url: BrokerUrl, problems: deque[Exception]) -> dict[str, Any]:
    async def on_error(error: Exception) -> None:
        problems.append(error)

    return {
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": CONNECT_SECONDS,
        "ping_interval": _PING_SECONDS,
        "error_cb": on_error,
        "name": "rankfall",
        **_credentials(url),
    }


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore the errors of connections that tasks of the client leave behind; the connection is closed then."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


def _credentials(url: BrokerUrl) -> dict[str, str]:
    password = url.password or os.environ.get(PASSWORD)
    if url.user is None:
        return {}
    # A user without a password is a token, as in other clients of NATS.
    return {"user": url.user, "password": password} if password else {"token": url.user}


async def ensure_stream(client: Client, url: BrokerUrl) -> None:
    """Create the stream if it is missing: its messages stay until they are collected, and are never discarded before.

    Raises:
        SinkError: If there is a stream of that name for other subjects.
    """
    subjects = [subject(url, kind) for kind in (SAMPLES, EVENTS)]
    jetstream = client.jetstream(timeout=CONNECT_SECONDS)
    try:
        await jetstream.stream_info(url.name)
    except nats.js.errors.NotFoundError:
        await jetstream.add_stream(
            StreamConfig(
                name=url.name,
                subjects=subjects,
                storage=StorageType.FILE,
                retention=RetentionPolicy.WORK_QUEUE,
                discard=DiscardPolicy.NEW,
            )
        )
        return
    for one in subjects:
        try:
            found = await jetstream.find_stream_name_by_subject(one)
        except nats.js.errors.NotFoundError:
            found = None
        if found != url.name:
            raise SinkError(f"the stream {url.name} does not have the subject {one}")


def explained(error: Exception) -> str:
    """Return what an error of the client means."""
    if isinstance(error, nats.errors.NoRespondersError | nats.js.errors.ServiceUnavailableError):
        return "the server has no JetStream for this account"
    if isinstance(error, nats.js.errors.APIError):
        return f"the server answered: {error.description}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__


DELIVERY_SECONDS = 3.0  # until a message that was not confirmed is given up
RECONNECT_SECONDS = 0.3
_WATCH_SECONDS = 0.1
MAX_UNCONFIRMED = 32 << 20  # bytes
_HEADERS = 512  # bytes of a message besides its payload


class NatsSink:
    """Publishes each batch as a message; implements :class:`~.sinks.Sink`.

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


CONSUMER = "rankfall-collect"
_ACKNOWLEDGE_SECONDS = 5.0


class NatsSource:
    """Reads through the durable consumer ``rankfall-collect``; implements :class:`~.collect.Source`.

    An old consumer delivers what an earlier process received and did not acknowledge after a while, and newer messages
    before. So that the order holds, each source replaces it by a consumer that begins with the first unacknowledged
    message. A stream therefore has one collector: a second one ends the first.

    Args:
        url: Servers and stream.

    Raises:
        SinkError: If no connection can be made.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self._url = url
        self._is_drained = False
        self._missed = 0
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._open())
        except BaseException:
            self._runner.close()
            raise

    def receive(self) -> list[Message]:
        found: list[Message] = self._run(self._receive())
        return found

    def is_drained(self) -> bool:
        return self._is_drained

    def take_missed(self) -> int:
        missed, self._missed = self._missed, 0
        return missed

    def acknowledge(self, messages: Sequence[Message]) -> None:
        self._run(self._acknowledge(messages))

    def close(self) -> None:
        with self._runner as runner:
            runner.run(self._client.close())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._runner.run(work)
        except ERRORS as error:
            raise SinkError(f"{self._url}: {explained(error)}") from None

    async def _open(self) -> None:
        self._client = await connect(self._url)
        try:
            jetstream = self._client.jetstream()
            await self._replace_consumer(jetstream)
            self._subscription = await jetstream.pull_subscribe_bind(CONSUMER, self._url.name)
        except ERRORS as error:
            await self._client.close()
            raise SinkError(f"{self._url}: {explained(error)}") from None

    async def _replace_consumer(self, jetstream: JetStreamContext) -> None:
        """Begin after the message up to which all were acknowledged.

        A work queue has no acknowledged messages. In other streams, if the process dies between the two requests, the
        next one begins with the first message, which may have been collected before; none is left out.
        """
        start: dict[str, Any] = {"deliver_policy": DeliverPolicy.ALL}
        stream = await jetstream.stream_info(self._url.name)
        try:
            old = await jetstream.consumer_info(self._url.name, CONSUMER)
        except nats.js.errors.NotFoundError:
            pass
        else:
            if stream.config.retention != RetentionPolicy.WORK_QUEUE and old.ack_floor and old.ack_floor.stream_seq:
                first = old.ack_floor.stream_seq + 1
                self._missed = max(0, stream.state.first_seq - first)
                start = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": first}
            await jetstream.delete_consumer(self._url.name, CONSUMER)
        config = ConsumerConfig(
            durable_name=CONSUMER,
            filter_subject=subject(self._url, "*"),
            ack_policy=AckPolicy.EXPLICIT,
            max_ack_pending=2 * MAX_MESSAGES,
            **start,
        )
        await jetstream.add_consumer(self._url.name, config)

    async def _receive(self) -> list[Message]:
        if self._client.is_closed:
            raise SinkError("the connection was lost")
        try:
            found = await self._subscription.fetch(MAX_MESSAGES, timeout=RECEIVE_SECONDS)
        except TimeoutError:
            info = await self._subscription.consumer_info()
            self._is_drained = not info.num_pending and not info.num_ack_pending
            return []
        self._is_drained = found[-1].metadata.num_pending == 0
        prefix = subject(self._url, "")
        return [
            Message(one.subject.removeprefix(prefix), (one.headers or {}).get(Header.MSG_ID.value, ""), one.data, one)
            for one in found
        ]

    async def _acknowledge(self, messages: Sequence[Message]) -> None:
        # The server processes them in this order: after the answer to the last one it has processed all.
        for message in messages[:-1]:
            await message.handle.ack()
        await messages[-1].handle.ack_sync(timeout=_ACKNOWLEDGE_SECONDS)
