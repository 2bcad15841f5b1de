"""The sink of Kafka against librdkafka's mock cluster, not a Kafka broker."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from rankfall.serving.recording.collect import collect
from rankfall.serving.recording.sinks import SinkError, open_sink
from support.nats_server import free_port
from support.records import events, hashes, ids_in, samples

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.serving.recording.sinks import Sink
    from support.kafka_mock import KafkaMock

pytestmark = pytest.mark.service


def collected(url: str, directory: Path) -> tuple[list[str], list[str]]:
    """Collect all messages; return the ids of requests and of events."""
    collect(url, directory, follow=False, stop=lambda: False, on_notice=pytest.fail, on_counts=lambda counts: None)
    return ids_in(directory / "samples"), ids_in(directory / "events")


def test_records_arrive_in_order(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    url = f"kafka://{kafka_mock.address}/order"
    sink = open_sink(url)
    sink.check()
    for number in range(20):
        sink.write("samples", samples(f"r{number}"), durable=False)
    sink.write("events", events("a", "b"), durable=True)
    sink.tick()
    sink.close()
    assert sink.take_lost() == 0
    assert collected(url, tmp_path) == ([f"r{number}" for number in range(20)], ["a", "b"])


def test_large_batches_are_divided(kafka_mock: KafkaMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.serving.recording.kafka.MAX_MESSAGE", 8000)
    url = f"kafka://{kafka_mock.address}/large"
    sink = open_sink(url)
    sink.write("events", events(*hashes(1000)), durable=True)
    with pytest.raises(SinkError, match=r"a record has [0-9,]+ bytes, and a message at most 8,000"):
        sink.write("events", events("".join(hashes(1000))), durable=True)
    sink.close()
    assert collected(url, tmp_path)[1] == hashes(1000)


def write_until_confirmed(sink: Sink, name: str) -> None:
    """Write an event; on a busy machine the cluster may need longer than a sink waits."""
    while True:
        try:
            sink.write("events", events(name), durable=True)
            return
        except SinkError:
            time.sleep(0.2)


@pytest.mark.usefixtures("impatience")
def test_cluster_that_does_not_answer(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    """Writes end, what was not confirmed is counted, and later writes succeed."""
    url = f"kafka://{kafka_mock.address}/stopped"
    sink = open_sink(url)
    write_until_confirmed(sink, "before")
    kafka_mock.signal(signal.SIGSTOP)
    try:
        sink.write("samples", samples("a", "b"), durable=False)
        with pytest.raises(SinkError, match="timed out"):
            sink.write("events", events("x"), durable=True)
        sink.tick()
        assert sink.take_lost() == 2
        assert sink.take_lost() == 0
    finally:
        kafka_mock.signal(signal.SIGCONT)
    write_until_confirmed(sink, "after")
    sink.close()
    found = collected(url, tmp_path)[1]
    assert found[0] == "before"
    assert found[-1] == "after"


def test_unconfirmed_messages_have_a_limit(kafka_mock: KafkaMock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.serving.recording.sinks.MAX_UNCONFIRMED", 16_000)
    sink = open_sink(f"kafka://{kafka_mock.address}/limit")
    kafka_mock.signal(signal.SIGSTOP)
    try:
        sink.write("samples", samples(*hashes(100)), durable=False)
        with pytest.raises(SinkError, match=r"[0-9,]+ bytes were not confirmed yet"):
            sink.write("samples", samples(*hashes(100)), durable=False)
    finally:
        kafka_mock.signal(signal.SIGCONT)
    sink.close()


def test_fatal_error_begins_a_new_producer(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    from confluent_kafka import KafkaError

    from rankfall.serving.recording.kafka import KafkaSink

    url = f"kafka://{kafka_mock.address}/fatal"
    sink = open_sink(url)
    assert isinstance(sink, KafkaSink)
    sink.write("events", events("a"), durable=True)
    before = sink._producer
    sink._state.on_error(KafkaError(KafkaError._FATAL, "out of order", True))
    sink.write("events", events("b"), durable=True)
    assert sink._producer is not before
    sink.close()
    assert collected(url, tmp_path)[1] == ["a", "b"]


def test_unreachable_broker_is_refused_at_once() -> None:
    url = f"kafka://127.0.0.1:{free_port()}/t"
    sink = open_sink(url)
    with pytest.raises(SinkError, match=f"{url}: .*Connection refused"):
        sink.check()
    for durable in (True, False, True, False):
        with pytest.raises(SinkError, match="Connection refused"):
            sink.write("events", events("x"), durable=durable)
    sink.close()
    assert sink.take_lost() == 0


def test_file_of_properties(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    url = f"kafka://{kafka_mock.address}/properties?properties={path}"
    with pytest.raises(ValueError, match=f"properties: {path} cannot be read"):
        open_sink(url)
    path.write_text("# a comment\n\nsecurity.protocol=PLAINTEXT\nclient.id = mine\n")
    sink = open_sink(url)
    sink.write("events", events("a"), durable=True)
    sink.close()
    for text, message in (
        ("x\n", f"properties: {path}, line 1: expected name=value"),
        ("no.such=1\n", 'properties: No such configuration property: "no.such"'),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            open_sink(url)
