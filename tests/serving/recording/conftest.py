"""Brokers that tests of sinks and of collecting share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.kafka_mock import KafkaMock
from support.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and messages may take longer on a busy machine; tests of servers that do not answer shorten it."""
    for module in ("nats", "kafka"):
        monkeypatch.setattr(f"rankfall.serving.recording.{module}.CONNECT_SECONDS", 20.0)
    give_up_after(20.0, monkeypatch)


def give_up_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time after which sinks give up a message."""
    monkeypatch.setattr("rankfall.serving.recording.sinks.DELIVERY_SECONDS", seconds)


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch, patience: None) -> None:
    """Sinks give up a message after a second."""
    give_up_after(1.0, monkeypatch)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server that runs until the end; each test has its own stream."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_mock() -> Iterator[KafkaMock]:
    """librdkafka's mock cluster, not a Kafka broker; each test has its own topic."""
    with KafkaMock() as mock:
        yield mock
