"""Samples and events in a topic of Kafka: a sink that produces them, and a source that reads them in order."""

from __future__ import annotations

import re
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from rankfall._errors import RankfallError
from rankfall.serving.recording import sinks
from rankfall.serving.recording.collect import MAX_MESSAGES, RECEIVE_SECONDS
from rankfall.serving.recording.record_segments import Message
from rankfall.serving.recording.sinks import BrokerSink, SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import confluent_kafka

    from rankfall.serving.recording.sinks import BrokerUrl, Kind


KIND, ID = "rankfall-kind", "rankfall-id"  # headers of messages
GROUP = "rankfall-collect"
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 1.0  # between attempts while no broker can be reached
MAX_MESSAGE = 900_000  # bytes; brokers accept a million by default
_MAX_AHEAD = 1000  # messages of a partition that wait for earlier ones of others
_PARTITION_SECONDS = 60.0  # between looks for new partitions
_REASONS = (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._AUTHENTICATION)


class BrokerState:
    """What a client has reported.

    Attributes:
        problem: Why no broker can be reached, or "".
        reason: Why the last broker could not be reached.
        is_fatal: Whether the client cannot be used any more.
    """

    def __init__(self) -> None:
        self.problem = self.reason = ""
        self.is_fatal = False

    def on_error(self, error: KafkaError) -> None:
        """Take an error that the client reports when it is polled."""
        self.is_fatal = self.is_fatal or error.fatal()
        if error.code() in _REASONS:
            self.reason = explained(error)
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self.problem = self.reason or explained(error)


def connect(make: Any, url: BrokerUrl, state: BrokerState, own: dict[str, Any]) -> Any:
    """Return a client.

    Args:
        make: `Producer` or `Consumer`.
        url: Servers, and the file of properties in its query.
        state: Receives the errors that the client reports.
        own: Settings of this kind of client.

    Raises:
        ValueError: If the file of properties cannot be read, or librdkafka refuses a property.
    """
    values = {
        "client.id": "rankfall",
        **(_properties(Path(url.query["properties"])) if "properties" in url.query else {}),
        "bootstrap.servers": ",".join(url.servers),
        "error_cb": state.on_error,
        "log_level": 0,  # problems reach `state`
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": 10_000,
        **own,
    }
    try:
        return make(values)
    except KafkaException as error:
        raise RankfallError(f"properties: {error.args[0].str()}") from None


def _properties(path: Path) -> dict[str, str]:
    """Read a file with a line ``name=value`` per property, as the tools of Kafka do."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RankfallError(f"properties: {path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise RankfallError(f"properties: {path}, line {number}: expected name=value")
        found[name.strip()] = value.strip()
    return found


def find_partitions(client: Any, url: BrokerUrl, state: BrokerState, *, seconds: float = CONNECT_SECONDS) -> list[int]:
    """Return the partitions of the topic; brokers may create it now.

    Args:
        client: A producer or consumer.
        url: The topic.
        state: What the client reports.
        seconds: Time to wait for an answer.

    Raises:
        SinkError: If no broker can be reached, or there is no such topic.
    """
    state.problem = ""
    deadline = time.monotonic() + seconds
    while True:
        try:
            topic = client.list_topics(url.name, timeout=min(seconds, 0.5)).topics[url.name]
            break
        except KafkaException as error:
            client.poll(0)  # passes errors to `state`
            if state.problem or time.monotonic() >= deadline:
                state.problem = state.problem or state.reason or explained(error.args[0])
                raise SinkError(f"{url}: {state.problem}") from None
    if topic.error is not None:
        raise SinkError(f"{url}: {explained(topic.error)}")
    return sorted(topic.partitions)


def explained(error: KafkaError) -> str:
    """Return what an error means, without where librdkafka noticed it."""
    return re.sub(r"^(Local: |Broker: )| \(after .*\)$", "", error.str())


class KafkaSink(BrokerSink):
    """Produces each message once, confirmed by all replicas.

    A sink writes to one partition, that of its random name, so that its records have one order. While no broker can be
    reached, `write` raises at once; it asks the brokers once per second.

    Args:
        url: Servers and topic.

    Raises:
        ValueError: If a property of the client is wrong.
    """

    def __init__(self, url: BrokerUrl) -> None:
        super().__init__(url)
        self._state = BrokerState()
        self._retry = 0.0  # time of the next attempt to reach a broker
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "delivery.timeout.ms": int(sinks.DELIVERY_SECONDS * 1000),
            "partitioner": "consistent_random",
        }
        producer: Producer = connect(Producer, self._url, self._state, own)
        return producer

    def check(self) -> None:
        find_partitions(self._producer, self._url, self._state, seconds=CONNECT_SECONDS)

    def _max_message(self) -> int:
        """Raise a SinkError unless a broker can be reached; ask once per RETRY_SECONDS after it could not."""
        self.tick()
        if self._state.problem:
            if time.monotonic() < self._retry:
                raise SinkError(f"{self._url}: {self._state.problem}")
            self._retry = time.monotonic() + RETRY_SECONDS
            find_partitions(self._producer, self._url, self._state, seconds=RETRY_SECONDS / 4)
        return MAX_MESSAGE

    def _deliver(self, kind: Kind, id: str, payload: bytes) -> Future[None]:
        message: Future[None] = Future()

        def settle(error: KafkaError | None, _: object) -> None:
            if error is None:
                message.set_result(None)
            else:
                message.set_exception(SinkError(f"{self._url}: {self._state.problem or explained(error)}"))

        headers: dict[str, str | bytes | None] = {KIND: kind, ID: id}
        try:
            self._producer.produce(self._url.name, payload, key=self._name, headers=headers, on_delivery=settle)
        except BufferError:
            raise SinkError(f"{self._url}: too many messages were not confirmed yet") from None
        except KafkaException as error:
            raise SinkError(f"{self._url}: {explained(error.args[0])}") from None
        return message

    def _wait(self, messages: Sequence[Future[None]], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not all(message.done() for message in messages) and time.monotonic() < deadline:
            self._producer.poll(0.05)

    def tick(self) -> None:
        self._producer.poll(0)  # settles messages that were confirmed or lost
        if self._state.is_fatal:  # an error of the idempotent producer that it cannot recover from
            self._disconnect()
            self._producer = self._new_producer()
            self._state.is_fatal = False

    def _disconnect(self) -> None:
        self._producer.purge()
        self._producer.flush(1)


class KafkaSource:
    """Reads a topic from the offsets that the group ``rankfall-collect`` has committed, or from the beginning.

    Messages of all partitions are received in the order of their times, also if there are many: a message waits until
    every other partition has a later one or has ended. Implements :class:`~.collect.Source`.

    Args:
        url: Servers and topic.

    Raises:
        ValueError: If a property of the client is wrong.
        SinkError: If no broker can be reached, or there is no such topic.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self._url = url
        self._state = BrokerState()
        self._missed = 0
        own = {
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._consumer: Consumer = connect(Consumer, url, self._state, own)
        try:
            partitions = find_partitions(self._consumer, url, self._state, seconds=CONNECT_SECONDS)
            self._next = self._committed(partitions)
            starts = [TopicPartition(url.name, one, self._next.get(one, OFFSET_BEGINNING)) for one in partitions]
            self._consumer.assign(starts)
        except BaseException:
            self._consumer.close()
            raise
        self._waiting: dict[int, deque[confluent_kafka.Message]] = {one: deque() for one in partitions}
        self._behind = set(partitions)  # whose end was not reached
        self._looked = time.monotonic()  # for new partitions

    def receive(self) -> list[Message]:
        for one in self._consumer.consume(MAX_MESSAGES, RECEIVE_SECONDS):
            error, partition = one.error(), one.partition() or 0
            if error is None:
                self._waiting[partition].append(one)
                self._behind.add(partition)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._behind.discard(partition)
            else:
                raise SinkError(f"{self._url}: {explained(error)}")
        found: list[Message] = []  # in the order of their times
        while len(found) < MAX_MESSAGES and all(self._waiting[one] for one in self._behind):
            given = [queue for queue in self._waiting.values() if queue]
            if not given:
                break
            one = min(given, key=lambda queue: queue[0].timestamp()[1]).popleft()
            partition, offset = one.partition() or 0, one.offset() or 0
            if partition in self._next:  # the topic no longer has the messages between the last one and this one
                self._missed += max(0, offset - self._next[partition])
            self._next[partition] = offset + 1
            headers = dict(one.headers() or [])
            found.append(Message(_text(headers.get(KIND)), _text(headers.get(ID)), _bytes(one.value()), one))
        # read no further in partitions that are far ahead of others
        ahead = [one for one, queue in self._waiting.items() if len(queue) >= _MAX_AHEAD]
        self._consumer.resume([TopicPartition(self._url.name, one) for one in self._waiting if one not in ahead])
        self._consumer.pause([TopicPartition(self._url.name, one) for one in ahead])
        if not found and self._state.problem:
            raise SinkError(f"{self._url}: {self._state.problem}")
        if not found and time.monotonic() - self._looked > _PARTITION_SECONDS:
            self._looked = time.monotonic()
            if find_partitions(self._consumer, self._url, self._state) != sorted(self._waiting):
                raise SinkError(f"{self._url}: the topic has other partitions than before")
        return found

    def is_drained(self) -> bool:
        return not self._behind and not any(self._waiting.values())

    def take_missed(self) -> int:
        missed, self._missed = self._missed, 0
        return missed

    def acknowledge(self, messages: Sequence[Message]) -> None:
        following = {one.handle.partition(): one.handle.offset() + 1 for one in messages}
        offsets = [TopicPartition(self._url.name, *of) for of in following.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise SinkError(f"{self._url}: {explained(error.args[0])}") from None

    def close(self) -> None:
        self._consumer.close()

    def _committed(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the offset of the first message of each partition that was not acknowledged; none if none ever was."""
        given = [TopicPartition(self._url.name, one) for one in partitions]
        try:
            found = self._consumer.committed(given, timeout=CONNECT_SECONDS)
        except KafkaException as error:
            raise SinkError(f"{self._url}: {explained(error.args[0])}") from None
        if all(one.offset < 0 for one in found):
            return {}
        return {one.partition: max(0, one.offset) for one in found}


def _text(value: str | bytes | None) -> str:
    return _bytes(value).decode(errors="replace")


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
