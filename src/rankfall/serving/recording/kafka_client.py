"""Settings of clients of Kafka."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from rankfall.serving.recording.sinks.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.serving.recording.sinks.sink_url import BrokerUrl

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
        raise ValueError(f"properties: {path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"properties: {path}, line {number}: expected name=value")
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
        raise ValueError(f"properties: {error.args[0].str()}") from None


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
