"""A source that reads records from a stream of NATS JetStream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header, RetentionPolicy

from rankfall.serving.recording.messages import Message
from rankfall.serving.recording.nats_connection import ERRORS, connect, explained, subject
from rankfall.serving.recording.sinks.sink import SinkError
from rankfall.serving.recording.sources.source import MAX_MESSAGES, RECEIVE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from nats.js.client import JetStreamContext

    from rankfall.serving.recording.sinks.sink_url import BrokerUrl

CONSUMER = "rankfall-collect"
_ACKNOWLEDGE_SECONDS = 5.0


class NatsSource:
    """Reads through the durable consumer ``rankfall-collect``; implements :class:`~.source.Source`.

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
