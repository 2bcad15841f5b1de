"""A sink that produces records to a topic of Kafka."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer

from rankfall.serving.recording.kafka_client import (
    ID,
    KIND,
    PARTITION,
    BrokerState,
    explained,
    find_topic,
    made,
    settings,
)
from rankfall.serving.recording.messages import encode
from rankfall.serving.recording.sinks.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from rankfall.serving.recording.sinks.sink import Kind
    from rankfall.serving.recording.sinks.sink_url import BrokerUrl

DELIVERY_SECONDS = 3.0  # until a message that was not confirmed is given up
RETRY_SECONDS = 1.0  # between attempts while no broker can be reached
MAX_UNCONFIRMED = 32 << 10  # kilobytes
MAX_MESSAGE = 900_000  # bytes; brokers accept a million by default


class KafkaSink:
    """Produces each batch as a message, once and confirmed by all replicas; implements :class:`~.sink.Sink`.

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
