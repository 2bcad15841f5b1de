"""Brokers that tests of sinks and of collecting share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.kafka_mock import KafkaMock
from support.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Iterator


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
