"""The interface of sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rankfall.serving.recording.sinks.open_sink import requires_extra
from rankfall.serving.recording.sinks.sink_url import BROKERS, BrokerUrl, parse_sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.serving.recording.messages import Message

MAX_MESSAGES = 200  # per call of receive
RECEIVE_SECONDS = 0.5


class Source(Protocol):
    """Delivers messages in the order in which they were written, beginning with the first unacknowledged one.

    All methods raise a SinkError if the connection is lost. The source is useless then; a new one begins with the
    messages that were not acknowledged.
    """

    def receive(self) -> list[Message]:
        """Return at most MAX_MESSAGES messages, or none if there were none for RECEIVE_SECONDS."""

    def is_drained(self) -> bool:
        """Return whether all messages that were there at the last call of `receive` have been received."""

    def take_missed(self) -> int:
        """Return the number of messages, since the last call, that the broker deleted before they were received."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Confirm all messages that a call of `receive` returned; return when the broker knows it."""

    def close(self) -> None:
        """End the connection."""


def open_source(target: str) -> Source:
    """Return the source that a URL names.

    Raises:
        ValueError: If it names none, or the package of the broker is not installed.
        SinkError: If no connection can be made.
    """
    url = parse_sink(target, expected=BROKERS)
    if not isinstance(url, BrokerUrl):
        raise ValueError(f"found {target!r}, expected {BROKERS}")
    with requires_extra(url.scheme):
        if url.scheme == "nats":
            from rankfall.serving.recording.sources.nats_source import NatsSource

            return NatsSource(url)
        from rankfall.serving.recording.sources.kafka_source import KafkaSource

        return KafkaSource(url)
