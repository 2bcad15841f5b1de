"""A source that reads records from a topic of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from rankfall.serving.recording.kafka_client import (
    CONNECT_SECONDS,
    ID,
    KIND,
    PARTITION,
    BrokerState,
    explained,
    find_topic,
    made,
    settings,
)
from rankfall.serving.recording.messages import Message
from rankfall.serving.recording.sinks.sink import SinkError
from rankfall.serving.recording.sources.source import MAX_MESSAGES, RECEIVE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import confluent_kafka

    from rankfall.serving.recording.sinks.sink_url import BrokerUrl

GROUP = "rankfall-collect"


class KafkaSource:
    """Reads partition 0 from the offset that the group ``rankfall-collect`` has committed, or from the beginning.

    Implements :class:`~.source.Source`.

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
