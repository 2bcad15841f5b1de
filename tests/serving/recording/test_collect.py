"""Collecting from brokers: nothing is lost or written twice, whatever is killed. Kafka is librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.serving.recording import collect as collecting
from rankfall.serving.recording.collect import CollectionCounts, collect, open_source
from rankfall.serving.recording.record_segments import Message, encode
from rankfall.serving.recording.sinks import SinkError, open_sink
from rankfall.storage import disk as _disk
from support.nats_server import NatsServer
from support.records import events, ids_in, samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nats.js import JetStreamContext

    from support.kafka_mock import KafkaMock

pytestmark = pytest.mark.service

PROGRAM = """
import sys
from pathlib import Path
from rankfall.serving.recording.collect import collect
collect(sys.argv[1], Path(sys.argv[2]), follow=True, stop=lambda: False, on_notice=print, on_counts=lambda counts: None)
"""


@pytest.fixture(params=["nats", "kafka"])
def url(request: pytest.FixtureRequest) -> str:
    """A stream or topic of its own for each test."""
    server: NatsServer | KafkaMock = request.getfixturevalue("nats_server" if request.param == "nats" else "kafka_mock")
    return f"{request.param}://{server.address}/{request.node.originalname}"


def run(url: str, directory: Path, on_notice: Callable[[str], object] = pytest.fail) -> CollectionCounts:
    return collect(url, directory, follow=False, stop=lambda: False, on_notice=on_notice, on_counts=lambda counts: None)


def write_events(url: str, *ids: str) -> None:
    """Write one message per event."""
    sink = open_sink(url)
    sink.check()
    for one in ids:
        sink.write("events", events(one), durable=True)
    sink.close()


def in_nats(server: NatsServer, work: Callable[[JetStreamContext], Any]) -> None:
    import nats

    async def connected() -> None:
        client = await nats.connect(f"nats://{server.address}")
        try:
            await work(client.jetstream())
        finally:
            await client.close()

    asyncio.run(connected())


def publish(url: str, messages: list[tuple[str, bytes]]) -> None:
    """Write messages of another program."""
    scheme, _, place = url.partition("://")
    address, _, name = place.partition("/")
    if scheme == "kafka":
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": address})
        for kind, payload in messages:
            producer.produce(name, payload, partition=0, headers={"rankfall-kind": kind} if kind else None)
        assert producer.flush(10) == 0
        return
    import nats

    async def send() -> None:
        client = await nats.connect(f"nats://{address}")
        for kind, payload in messages:
            await client.jetstream().publish(f"{name}.{kind}", payload)
        await client.close()

    asyncio.run(send())


def test_all_messages_are_collected_once(url: str, tmp_path: Path) -> None:
    sink = open_sink(url)
    sink.check()
    for number in range(300):  # more than are received at once
        sink.write("samples", samples(f"r{number}"), durable=False)
    sink.write("events", events("a", "b"), durable=True)
    sink.close()
    assert sink.take_lost() == 0
    assert run(url, tmp_path) == CollectionCounts(messages=301, samples=300, events=2)
    assert run(url, tmp_path) == CollectionCounts()
    write_events(url, "c")
    assert run(url, tmp_path) == CollectionCounts(messages=1, events=1)
    assert ids_in(tmp_path / "samples") == [f"r{number}" for number in range(300)]
    assert sorted(ids_in(tmp_path / "events")) == ["a", "b", "c"]
    assert not (tmp_path / "rejected").exists()


def test_messages_that_were_written_and_not_acknowledged(url: str, tmp_path: Path) -> None:
    """A process that died in between is followed by one that begins with them, and writes none of them again."""
    write_events(url, "a", "b", "c")
    source = open_source(url)
    collector = collecting._Collector(tmp_path, pytest.fail)
    received: list[Message] = []
    while len(received) < 3:
        received += source.receive()
    collector.write(received[:2])
    collector.close()
    source.close()
    write_events(url, "d")
    counts = run(url, tmp_path)
    assert counts == CollectionCounts(messages=4, events=2, repeated=2)
    assert sorted(ids_in(tmp_path / "events")) == ["a", "b", "c", "d"]


def test_full_disk_leaves_messages_in_the_broker(url: str, tmp_path: Path) -> None:
    write_events(url, "a", "b", "c")
    writes = 0

    def hook(operation: str, path: Path) -> None:
        nonlocal writes
        writes += operation == "write"
        if operation == "write" and writes > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with _disk.intercepted(hook), pytest.raises(OSError, match="No space left"):
        run(url, tmp_path)
    assert ids_in(tmp_path / "events") == ["a"]
    assert run(url, tmp_path) == CollectionCounts(messages=3, events=2, repeated=1)
    assert sorted(ids_in(tmp_path / "events")) == ["a", "b", "c"]


def test_bad_messages_are_kept_apart(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_REJECTED", 2)
    write_events(url, "a")
    publish(url, [("events", b"no records"), ("samples", b"neither"), ("events", b"no records"), ("events", b"more")])
    write_events(url, "b")
    notices: list[str] = []
    assert run(url, tmp_path, notices.append) == CollectionCounts(messages=6, events=2, rejected=4)
    assert ids_in(tmp_path / "events") == ["a", "b"]
    kept = list((tmp_path / "rejected").iterdir())
    assert {path.read_bytes() for path in kept} == {b"no records", b"neither"}
    assert len(notices) == 2
    assert "a message was rejected: it is no Arrow stream" in notices[0]
    assert run(url, tmp_path) == CollectionCounts()


def test_partitions_are_merged_by_time(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    """Each sink writes to one partition. A backlog of several is received in the order of the times of its messages."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    url = f"kafka://{kafka_mock.address}/merged"
    sinks = [open_sink(url) for _ in range(12)]
    for number in range(3):
        for place, sink in enumerate(sinks):
            sink.write("events", events(f"{number}-{place}"), durable=True)
    for sink in sinks:
        sink.close()
    reader = Consumer({"bootstrap.servers": kafka_mock.address, "group.id": "test"})
    partitions = reader.list_topics("merged", timeout=20).topics["merged"].partitions
    sizes = [reader.get_watermark_offsets(TopicPartition("merged", one), timeout=20)[1] for one in partitions]
    reader.close()
    assert sum(size > 0 for size in sizes) > 1
    assert all(size % 3 == 0 for size in sizes)  # all messages of a sink are in one partition
    producer = Producer({"bootstrap.servers": kafka_mock.address})
    payload = encode(events("last"), 10_000)[0][0]
    for partition in partitions:  # at the same place of every partition, with times in the reverse order
        headers: dict[str, str | bytes | None] = {"rankfall-kind": "events", "rankfall-id": f"last {partition}"}
        producer.produce("merged", payload, partition=partition, headers=headers, timestamp=10**12 * (9 - partition))
    assert producer.flush(20) == 0
    source, received = open_source(url), list[Message]()
    while not source.is_drained():
        received += source.receive()
    source.close()
    times = [one.handle.timestamp()[1] for one in received[: -len(partitions)]]
    assert times == sorted(times)
    assert [one.id for one in received[-len(partitions) :]] == [f"last {one}" for one in sorted(partitions)[::-1]]
    assert run(url, tmp_path) == CollectionCounts(messages=len(received), events=len(received))


def test_messages_without_a_kind(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    url = f"kafka://{kafka_mock.address}/foreign"
    publish(url, [("", b"x")])
    notices: list[str] = []
    assert run(url, tmp_path, notices.append).rejected == 1
    assert "found the kind ''" in notices[0]


def test_stream_that_keeps_its_messages(nats_server: NatsServer, tmp_path: Path) -> None:
    """A stream of the user, with other limits: collecting goes on after the last acknowledged message."""

    async def create(jetstream: JetStreamContext) -> None:
        await jetstream.add_stream(name="kept", subjects=["kept.>"])

    in_nats(nats_server, create)
    url = f"nats://{nats_server.address}/kept"
    write_events(url, "a", "b")
    assert run(url, tmp_path / "one").events == 2
    write_events(url, "c")
    assert run(url, tmp_path / "two") == CollectionCounts(messages=1, events=1)
    assert ids_in(tmp_path / "two" / "events") == ["c"]


def test_messages_that_a_stream_has_deleted(nats_server: NatsServer, tmp_path: Path) -> None:
    async def create(jetstream: JetStreamContext) -> None:
        await jetstream.add_stream(name="short", subjects=["short.>"], max_msgs=2)

    in_nats(nats_server, create)
    url = f"nats://{nats_server.address}/short"
    write_events(url, "a")
    run(url, tmp_path)
    write_events(url, "b", "c", "d", "e")
    assert run(url, tmp_path) == CollectionCounts(messages=2, events=2, missed=2)
    assert sorted(ids_in(tmp_path / "events")) == ["a", "d", "e"]


def test_messages_that_a_topic_has_deleted(kafka_mock: KafkaMock, tmp_path: Path) -> None:
    """The mock cluster keeps five megabytes per partition."""
    url = f"kafka://{kafka_mock.address}/short"
    write_events(url, "a")
    run(url, tmp_path)
    sink = open_sink(url)
    written = [os.urandom(400_000).hex() for _ in range(16)]
    for one in written:
        sink.write("events", events(one), durable=True)
    sink.close()
    counts = run(url, tmp_path)
    assert counts.missed > 0
    assert counts.missed + counts.events == len(written)
    assert set(ids_in(tmp_path / "events")) == {"a", *written[counts.missed :]}


def test_follow_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    stop = threading.Event()
    notices: list[str] = []
    with NatsServer(tmp_path) as server:
        url = f"nats://{server.address}/S"
        write_events(url, "a")
        options: dict[str, Any] = {"follow": True, "stop": stop.is_set, "on_notice": notices.append}
        seen: list[int] = []
        options["on_counts"] = lambda counts: seen.append(counts.events)
        thread = threading.Thread(target=collect, args=(url, tmp_path / "out"), kwargs=options)
        thread.start()
        try:
            _wait_for(lambda: bool(seen) and seen[-1] == 1)
            server.kill()
            _wait_for(lambda: bool(notices))
            server.start()
            write_events(url, "b")
            _wait_for(lambda: seen[-1] == 2)
        finally:
            stop.set()
            thread.join()
    assert sorted(ids_in(tmp_path / "out" / "events")) == ["a", "b"]
    assert all(notice.startswith(f"{url}: ") and notice.endswith("; trying again") for notice in notices)


def test_collector_that_is_killed(nats_server: NatsServer, tmp_path: Path) -> None:
    """Killed while it collects, twice, and run again: everything that was confirmed is there, once."""
    url = f"nats://{nats_server.address}/killed"
    directory = tmp_path / "out"
    sink = open_sink(url)
    sink.check()
    written: list[str] = []
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, url, str(directory)])
        try:
            deadline = time.monotonic() + 60
            target = len(written) + 50
            while len(written) < target or not list((directory / "events").glob("*.open")):
                sink.write("events", events(f"e{len(written)}"), durable=True)
                written.append(f"e{len(written)}")
                assert time.monotonic() < deadline
                assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    sink.close()
    run(url, directory)
    assert sorted(ids_in(directory / "events")) == sorted(written)


def test_wrong_urls(tmp_path: Path) -> None:
    for target in ("records", "file:///records"):
        with pytest.raises(ValueError, match=f"found '{target}', expected nats://HOST:PORT/STREAM or kafka:"):
            run(target, tmp_path / "out")
    with pytest.raises(SinkError, match=r"nats://127\.0\.0\.1:9/S: connection refused"):
        run("nats://127.0.0.1:9/S", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("scheme", "package"), [("nats", "nats"), ("kafka", "confluent_kafka")])
def test_missing_packages(scheme: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if f"recording.{scheme}" in name or f".{scheme}_s" in name]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{scheme}:// needs {package}.*, which is not installed: pip install 'rankfall\[{scheme}\]'"
    with pytest.raises(ValueError, match=message):
        open_sink(f"{scheme}://127.0.0.1/x")
    with pytest.raises(ValueError, match=message):
        run(f"{scheme}://127.0.0.1/x", tmp_path)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
