"""librdkafka's mock cluster in a process of its own: it speaks Kafka's protocol over TCP, and is no Kafka broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Self

import pytest

_PROGRAM = """
import sys
from confluent_kafka import Producer
cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0})
(broker,) = cluster.list_topics(timeout=20).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


class KafkaMock:
    """A mock cluster of one broker, which keeps its data in memory."""

    def __init__(self) -> None:
        pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        """Send a signal to the process of the cluster."""
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.signal(signal.SIGKILL)
        self._process.communicate()
