"""Samples and events in a stream of NATS JetStream: a sink that publishes them, and a source that reads them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextlib import suppress
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

from rankfall.serving.recording import sinks
from rankfall.serving.recording.collect import MAX_MESSAGES, RECEIVE_SECONDS
from rankfall.serving.recording.record_segments import EVENTS, SAMPLES, Message
from rankfall.serving.recording.sinks import BrokerSink, SinkError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from concurrent.futures import Future

    from nats.js.client import JetStreamContext

    from rankfall.serving.recording.sinks import BrokerUrl, Kind


PASSWORD = "RANKFALL_NATS_PASSWORD"
CONSUMER = "rankfall-collect"
CONNECT_SECONDS = 3.0
RECONNECT_SECONDS = 0.3
_WATCH_SECONDS = 0.1
_ACKNOWLEDGE_SECONDS = 5.0
_HEADERS = 512  # bytes of a message besides its payload
_ATTEMPTS = 10  # a server that refuses a user may reset the connection before its reason is read
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

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ignore the errors of connections that tasks of the client leave behind; the connection is closed then."""
        if not isinstance(context.get("exception"), OSError):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(on_exception)
    password = url.password or os.environ.get(PASSWORD)
    credentials = {}
    if url.user is not None:  # without a password it is a token, as in other clients of NATS
        credentials = {"user": url.user, "password": password} if password else {"token": url.user}
    problems = deque[Exception](maxlen=1)  # the last problem that the client reported

    async def on_error(error: Exception) -> None:
        problems.append(error)

    for attempt in range(1, _ATTEMPTS + 1):
        client = Client()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    [f"nats://{server}" for server in url.servers],
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=CONNECT_SECONDS,  # type: ignore[arg-type]  # it takes any number
                    ping_interval=_PING_SECONDS,
                    error_cb=on_error,
                    name="rankfall",
                    **credentials,  # type: ignore[arg-type]
                )
                await ensure_stream(client, url)
            return client
        except ERRORS as error:
            await client.close()
            found = problems.popleft() if problems else error
            if attempt == _ATTEMPTS or not isinstance(found, ConnectionResetError):
                raise SinkError(f"{url}: {explained(found)}") from None
    raise AssertionError("the last attempt returns or raises")


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


class NatsSink(BrokerSink):
    """Publishes messages, and publishes those that were not confirmed again with the same id, which the server knows.

    A thread holds the connection and restores it. Without a connection, `write` raises at once.

    Args:
        url: Servers and stream.
    """

    def __init__(self, url: BrokerUrl) -> None:
        super().__init__(url)
        self._changed = threading.Condition()  # protects what follows
        self._client: Client | None = None
        self._problem = f"{url}: not connected yet"
        self._has_tried = False
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink {url}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._has_tried, CONNECT_SECONDS + 1)
        self._max_message()

    def _max_message(self) -> int:
        with self._changed:
            if self._client is None:
                raise SinkError(self._problem)
            return self._client.max_payload - _HEADERS

    def _deliver(self, kind: Kind, id: str, payload: bytes) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self._publish(subject(self._url, kind), id, payload), self._loop)

    def _disconnect(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    # --- in the thread of the connection ----------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stay_connected())

    async def _stay_connected(self) -> None:
        closing = asyncio.ensure_future(self._closing.wait())
        while not self._closing.is_set():
            try:
                client = await connect(self._url)
            except (SinkError, OSError) as error:  # OSError: of a connection that is closed after an error
                self._set(None, str(error))
                await asyncio.wait({closing}, timeout=RECONNECT_SECONDS)
                continue
            self._set(client, f"{self._url}: the connection was lost")
            # The client does not call back if an error interrupts its closing, so ask it.
            while not (self._closing.is_set() or client.is_closed):
                await asyncio.wait({closing}, timeout=_WATCH_SECONDS)
            self._set(None, self._problem)
            await client.close()

    def _set(self, client: Client | None, problem: str) -> None:
        with self._changed:
            self._client, self._problem, self._has_tried = client, problem, True
            self._changed.notify_all()

    async def _publish(self, subject: str, id: str, payload: bytes) -> None:
        """Publish a message until the server confirms it; raise a SinkError if it refuses it, or not in time."""
        problem = "not confirmed in time"
        try:
            async with asyncio.timeout(sinks.DELIVERY_SECONDS):
                while True:
                    client = self._client
                    if client is not None:
                        try:
                            await client.jetstream().publish(
                                subject,
                                payload,
                                timeout=sinks.DELIVERY_SECONDS / 3,  # also if the connection is lost meanwhile
                                stream=self._url.name,
                                headers={Header.MSG_ID.value: id},
                            )
                            return
                        except nats.js.errors.NoStreamResponseError as error:  # deleted, or the server is starting
                            problem = explained(error)
                            with suppress(*ERRORS):
                                await ensure_stream(client, self._url)
                        except nats.js.errors.APIError as error:
                            raise SinkError(f"{self._url}: {explained(error)}") from None
                        except ERRORS as error:
                            problem = explained(error)
                    await asyncio.sleep(RECONNECT_SECONDS / 3)
        except TimeoutError:
            raise SinkError(f"{self._url}: {problem}" if self._client else self._problem) from None


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
