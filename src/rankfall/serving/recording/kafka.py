"""A sink that produces records to a topic of Kafka."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from rankfall._errors import RankfallError
from rankfall.serving.recording.collect import MAX_MESSAGES, RECEIVE_SECONDS
from rankfall.serving.recording.record_segments import Message, encode
from rankfall.serving.recording.sinks import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import confluent_kafka
    import pyarrow as pa

    from rankfall.serving.recording.sinks import BrokerUrl, Kind


PARTITION = 0  # records have one order
KIND, ID = "rankfall-kind", "rankfall-id"  # headers of messages
CONNECT_SECONDS = 5.0
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


def settings(url: BrokerUrl, state: BrokerState) -> dict[str, Any]:
    """Return the settings that producers and consumers share.

    Args:
        url: Servers, and the file of properties in its query.
        state: Receives the errors that the client reports.

    Raises:
        ValueError: If the file of properties cannot be read.
    """
    return {
        "client.id": "rankfall",
        **(_properties(Path(url.query["properties"])) if "properties" in url.query else {}),
        "bootstrap.servers": ",".join(url.servers),
        "error_cb": state.on_error,
        "log_level": 0,  # problems reach `state`
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": 10_000,
    }


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


def made(make: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
    """Return a client.

    Raises:
        ValueError: If librdkafka refuses a property.
    """
    try:
        return make(values)
    except KafkaException as error:
        raise RankfallError(f"properties: {error.args[0].str()}") from None


def find_topic(client: Any, url: BrokerUrl, state: BrokerState, *, seconds: float = CONNECT_SECONDS) -> None:
    """Raise a SinkError unless the topic exists; brokers may create it now.

    Args:
        client: A producer or consumer.
        url: The topic.
        state: What the client reports.
        seconds: Time to wait for an answer.
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


def explained(error: KafkaError) -> str:
    """Return what an error means, without where librdkafka noticed it."""
    return re.sub(r"^(Local: |Broker: )| \(after .*\)$", "", error.str())


DELIVERY_SECONDS = 3.0  # until a message that was not confirmed is given up
RETRY_SECONDS = 1.0  # between attempts while no broker can be reached
MAX_UNCONFIRMED = 32 << 10  # kilobytes
MAX_MESSAGE = 900_000  # bytes; brokers accept a million by default


class KafkaSink:
    """Produces each batch as a message, once and confirmed by all replicas; implements :class:`~.sinks.Sink`.

    While no broker can be reached, `write` raises at once; it asks the brokers once per second.

    Args:
        url: Servers and topic.

    Raises:
        ValueError: If a property of the client is wrong.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self._url = url
        self._name = os.urandom(8).hex()
        self._numbers = itertools.count()
        self._lost = 0
        self._state = BrokerState()
        self._retry = 0.0  # time of the next attempt to reach a broker
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        values = {
            **settings(self._url, self._state),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "delivery.timeout.ms": int(DELIVERY_SECONDS * 1000),
            "queue.buffering.max.kbytes": MAX_UNCONFIRMED,
        }
        producer: Producer = made(Producer, values)
        return producer

    def check(self) -> None:
        find_topic(self._producer, self._url, self._state)

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        self.tick()
        if self._state.problem:
            self._retry_to_reach()
        try:
            parts = encode(batch, MAX_MESSAGE)
        except ValueError as error:
            raise SinkError(f"{self._url}: {error}") from None
        if durable:
            self._deliver(kind, parts)
        else:
            for payload, records in parts:
                self._produce(kind, payload, self._counted(records))

    def tick(self) -> None:
        self._producer.poll(0)  # calls back for messages that were confirmed or lost
        if self._state.is_fatal:
            self._replace_producer()

    def take_lost(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        if self._producer.flush(DELIVERY_SECONDS + 1):
            self._producer.purge()
            self._producer.flush(1)

    def _retry_to_reach(self) -> None:
        """Raise a SinkError unless a broker can be reached again; ask once per RETRY_SECONDS."""
        if time.monotonic() < self._retry:
            raise SinkError(f"{self._url}: {self._state.problem}")
        self._retry = time.monotonic() + RETRY_SECONDS
        find_topic(self._producer, self._url, self._state, seconds=RETRY_SECONDS / 4)

    def _deliver(self, kind: Kind, parts: list[tuple[bytes, int]]) -> None:
        """Produce messages, and wait until all are confirmed."""
        results: list[KafkaError | None] = []
        for payload, _ in parts:
            self._produce(kind, payload, results.append)
        deadline = time.monotonic() + DELIVERY_SECONDS + 1  # the client reports after DELIVERY_SECONDS
        while len(results) < len(parts) and time.monotonic() < deadline:
            self._producer.poll(0.05)
        failed = [error for error in results if error is not None]
        if failed:
            raise SinkError(f"{self._url}: {self._state.problem or explained(failed[0])}")
        if len(results) < len(parts):
            raise SinkError(f"{self._url}: not confirmed in time")

    def _produce(self, kind: Kind, payload: bytes, on_result: Callable[[KafkaError | None], None]) -> None:
        headers: dict[str, str | bytes | None] = {KIND: kind, ID: f"{self._name}-{next(self._numbers)}"}
        try:
            self._producer.produce(
                self._url.name,
                payload,
                partition=PARTITION,
                headers=headers,
                on_delivery=lambda error, message: on_result(error),
            )
        except BufferError:
            raise SinkError(f"{self._url}: {MAX_UNCONFIRMED:,} kB were not confirmed yet") from None
        except KafkaException as error:
            raise SinkError(f"{self._url}: {explained(error.args[0])}") from None

    def _counted(self, records: int) -> Callable[[KafkaError | None], None]:
        def count(error: KafkaError | None) -> None:
            self._lost += records * (error is not None)

        return count

    def _replace_producer(self) -> None:
        """Begin again after an error of the idempotent producer that it cannot recover from."""
        self._producer.purge()
        self._producer.flush(1)
        self._producer = self._new_producer()
        self._state.is_fatal = False


GROUP = "rankfall-collect"


class KafkaSource:
    """Reads partition 0 from the offset that the group ``rankfall-collect`` has committed, or from the beginning.

    Implements :class:`~.collect.Source`.

    Args:
        url: Servers and topic.

    Raises:
        ValueError: If a property of the client is wrong.
        SinkError: If no broker can be reached, or there is no such topic.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self._url = url
        self._state = BrokerState()
        self._is_drained = False
        self._missed = 0
        values = {
            **settings(url, self._state),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        self._consumer: Consumer = made(Consumer, values)
        try:
            find_topic(self._consumer, url, self._state)
            self._next = self._committed()
            start = OFFSET_BEGINNING if self._next is None else self._next
            self._consumer.assign([TopicPartition(url.name, PARTITION, start)])
        except BaseException:
            self._consumer.close()
            raise

    def receive(self) -> list[Message]:
        found = []
        self._is_drained = False
        for one in self._consumer.consume(MAX_MESSAGES, RECEIVE_SECONDS):
            error = one.error()
            if error is None:
                found.append(_message(one))
                self._count_missed(one.offset() or 0)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._is_drained = True
            else:
                raise SinkError(f"{self._url}: {explained(error)}")
        if not found and self._state.problem:
            raise SinkError(f"{self._url}: {self._state.problem}")
        return found

    def is_drained(self) -> bool:
        return self._is_drained

    def take_missed(self) -> int:
        missed, self._missed = self._missed, 0
        return missed

    def acknowledge(self, messages: Sequence[Message]) -> None:
        following = messages[-1].handle.offset() + 1
        try:
            self._consumer.commit(offsets=[TopicPartition(self._url.name, PARTITION, following)], asynchronous=False)
        except KafkaException as error:
            raise SinkError(f"{self._url}: {explained(error.args[0])}") from None

    def close(self) -> None:
        self._consumer.close()

    def _committed(self) -> int | None:
        """Return the offset of the first message that was not acknowledged, or None if none ever was."""
        try:
            (found,) = self._consumer.committed([TopicPartition(self._url.name, PARTITION)], timeout=CONNECT_SECONDS)
        except KafkaException as error:
            raise SinkError(f"{self._url}: {explained(error.args[0])}") from None
        return found.offset if found.offset >= 0 else None

    def _count_missed(self, offset: int) -> None:
        """Count the messages between the last one and this one, which the topic no longer has."""
        if self._next is not None:
            self._missed += max(0, offset - self._next)
        self._next = offset + 1


def _message(one: confluent_kafka.Message) -> Message:
    headers = dict(one.headers() or [])
    return Message(_text(headers.get(KIND)), _text(headers.get(ID)), _bytes(one.value()), one)


def _text(value: str | bytes | None) -> str:
    return _bytes(value).decode(errors="replace")


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
