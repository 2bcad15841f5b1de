"""The sink of NATS against a real server: what is confirmed stays, also if the server is killed while it is written."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from rankfall.serving.recording.collect import collect
from rankfall.serving.recording.sinks import SinkError, open_sink
from support.nats_server import NatsServer, free_port, settings_file
from support.records import events, hashes, ids_in, samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nats.js.api import StreamInfo

    from rankfall.serving.recording.sinks import Sink

pytestmark = pytest.mark.service


def collected(url: str, directory: Path) -> tuple[list[str], list[str]]:
    """Collect all messages; return the ids of requests and of events."""
    collect(url, directory, follow=False, stop=lambda: False, on_notice=pytest.fail, on_counts=lambda counts: None)
    return ids_in(directory / "samples"), ids_in(directory / "events")


def stream_info(server: NatsServer, name: str) -> StreamInfo:
    import nats

    async def ask() -> StreamInfo:
        client = await nats.connect(f"nats://{server.address}")
        try:
            return await client.jetstream().stream_info(name)
        finally:
            await client.close()

    return asyncio.run(ask())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def can_write(sink: Sink) -> bool:
    try:
        sink.check()
    except OSError:
        return False
    return True


def test_records_arrive_in_order(nats_server: NatsServer, tmp_path: Path) -> None:
    url = f"nats://{nats_server.address}/order"
    sink = open_sink(url)
    sink.check()
    for number in range(20):
        sink.write("samples", samples(f"r{number}"), durable=False)
    sink.write("events", events("a", "b"), durable=True)
    sink.tick()
    sink.close()
    assert sink.take_lost() == 0
    assert stream_info(nats_server, "order").state.messages == 21
    assert collected(url, tmp_path) == ([f"r{number}" for number in range(20)], ["a", "b"])
    assert stream_info(nats_server, "order").state.messages == 0  # what was collected is deleted


def test_large_batches_are_divided(tmp_path: Path) -> None:
    settings = settings_file(tmp_path, ["max_payload: 8KB"])
    with NatsServer(tmp_path, "--config", settings) as server:
        url = f"nats://{server.address}/S"
        sink = open_sink(url)
        sink.check()
        ids = hashes(1000)
        sink.write("events", events(*ids), durable=True)
        with pytest.raises(SinkError, match=r"a record has [0-9,]+ bytes, and a message at most"):
            sink.write("events", events("".join(hashes(1000))), durable=True)
        sink.close()
        assert stream_info(server, "S").state.messages > 1
        assert collected(url, tmp_path / "out")[1] == ids


@pytest.mark.usefixtures("impatience")
def test_server_that_is_killed_during_writes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every record was confirmed, refused or counted as lost; what was confirmed is there, once."""
    with NatsServer(tmp_path) as server:
        url = f"nats://{server.address}/S"
        sink = open_sink(url)
        sink.check()
        confirmed, refused, taken, not_taken = [], [], [], []

        def write(number: int) -> None:
            try:
                sink.write("samples", samples(f"r{number}"), durable=False)
                taken.append(f"r{number}")
            except SinkError:
                not_taken.append(f"r{number}")
            try:
                sink.write("events", events(f"e{number}"), durable=True)
                confirmed.append(f"e{number}")
            except SinkError:
                refused.append(f"e{number}")

        for kill in range(2):
            for number in range(100 * kill, 100 * kill + 30):
                write(number)
            server.kill()
            for number in range(100 * kill + 30, 100 * kill + 34):
                write(number)
            server.start()
            wait_for(lambda: can_write(sink))
        before = len(confirmed)
        while len(confirmed) == before:  # writes succeed again
            write(1000 + len(refused))
        sink.close()
        lost = sink.take_lost()
        found_samples, found_events = collected(url, tmp_path / "out")
    assert confirmed
    assert refused
    assert not_taken
    assert len(set(found_events)) == len(found_events)
    assert set(confirmed) <= set(found_events) <= {*confirmed, *refused}
    assert len(set(found_samples)) == len(found_samples)
    assert set(found_samples) <= set(taken)
    # A record that was counted as lost may have arrived without its confirmation.
    assert len(found_samples) >= len(taken) - lost
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("impatience")
def test_server_that_does_not_answer(nats_server: NatsServer) -> None:
    """Writes end, and nothing is buffered without a limit."""
    sink = open_sink(f"nats://{nats_server.address}/stopped")
    sink.check()
    nats_server.signal(signal.SIGSTOP)
    try:
        sink.write("samples", samples("a", "b"), durable=False)
        with pytest.raises(SinkError, match=r"no answer in time|not confirmed in time|connection was lost"):
            sink.write("events", events("x"), durable=True)
        sink.close()
        assert sink.take_lost() == 2
        assert sink.take_lost() == 0
    finally:
        nats_server.signal(signal.SIGCONT)


def test_unconfirmed_messages_have_a_limit(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.serving.recording.sinks.MAX_UNCONFIRMED", 5000)
    sink = open_sink(f"nats://{nats_server.address}/limit")
    sink.check()
    nats_server.signal(signal.SIGSTOP)
    try:
        sink.write("samples", samples(*hashes(100)), durable=False)
        with pytest.raises(SinkError, match="bytes were not confirmed yet"):
            sink.write("samples", samples("r"), durable=False)
    finally:
        nats_server.signal(signal.SIGCONT)
    sink.close()


def test_wrong_addresses_and_users(nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(url: str) -> str:
        sink = open_sink(url)
        try:
            with pytest.raises(SinkError) as refused:
                sink.check()
            with pytest.raises(SinkError):
                sink.write("events", events("x"), durable=False)
        finally:
            sink.close()
        assert "secret" not in str(refused.value)
        return str(refused.value)

    port = free_port()
    assert problem(f"nats://127.0.0.1:{port}/S") == f"nats://127.0.0.1:{port}/S: connection refused"
    settings = settings_file(tmp_path, ["authorization { users: [{user: me, password: right}] }"])
    with NatsServer(tmp_path, "--config", settings) as server:
        for user in ("me:secret@", "secret@", ""):
            assert "Authorization Violation" in problem(f"nats://{user}{server.address}/S")
        monkeypatch.setenv("RANKFALL_NATS_PASSWORD", "right")
        for user in ("me@", "me:right@"):
            sink = open_sink(f"nats://{user}{server.address}/S")
            sink.check()
            sink.close()
    with NatsServer(tmp_path, jetstream=False) as server:
        assert "the server has no JetStream for this account" in problem(f"nats://{server.address}/S")


def test_stream_of_other_subjects(nats_server: NatsServer) -> None:
    import nats

    async def create() -> None:
        client = await nats.connect(f"nats://{nats_server.address}")
        await client.jetstream().add_stream(name="foreign", subjects=["foreign.samples"])
        await client.close()

    asyncio.run(create())
    sink = open_sink(f"nats://{nats_server.address}/foreign")
    with pytest.raises(SinkError, match=r"the stream foreign does not have the subject foreign\.events"):
        sink.check()
    sink.close()


def test_deleted_stream_is_created_again(nats_server: NatsServer) -> None:
    import nats

    async def delete() -> None:
        client = await nats.connect(f"nats://{nats_server.address}")
        await client.jetstream().delete_stream("deleted")
        await client.close()

    sink = open_sink(f"nats://{nats_server.address}/deleted")
    sink.check()
    asyncio.run(delete())
    sink.write("events", events("a"), durable=True)
    sink.close()
    assert stream_info(nats_server, "deleted").state.messages == 1
