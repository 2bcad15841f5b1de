"""Events are durable before their callers are told, many calls at once, and errors reach every caller."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rankfall.serving.recording.recorder import MAX_TIME, Clock, Event, EventWriter, QueueFullError
from rankfall.serving.recording.sinks import FileSink
from support.records import ids_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from rankfall.serving.recording.sinks import Kind


def event(name: str) -> Event:
    return Event(name, "r", "7", "click", 1.0, 1_700_000_000_000)


class GatedSink(FileSink):
    """A sink of files whose writes wait for permission, and fail if they should."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opened = threading.Event()
        self.batches: list[list[str]] = []
        self.error: OSError | None = None

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        assert self.opened.wait(60)
        assert durable
        if self.error is not None:
            raise self.error
        super().write(kind, batch, durable=durable)
        self.batches.append(batch["id"].to_pylist())


def written(sink: GatedSink, work: Callable[[EventWriter], object], *, max_events: int = 100) -> dict[str, int]:
    """Run a coroutine with a writer; return what it counted."""
    counts: dict[str, int] = {"errors": 0}

    def count(result: str, events: int) -> None:
        if events:
            counts[result] = counts.get(result, 0) + events

    async def run() -> None:
        writer = EventWriter(sink, Clock(), count=count, max_events=max_events)
        writer.start()
        await work(writer)  # type: ignore[misc]
        await asyncio.to_thread(writer.stop, 60.0)

    asyncio.run(run())
    return counts


def test_calls_that_wait_are_one_commit(tmp_path: Path) -> None:
    sink = GatedSink(tmp_path)

    async def work(writer: EventWriter) -> None:
        calls = [asyncio.ensure_future(writer.write([event("first")]))]
        await asyncio.sleep(0.3)  # the thread has taken it
        calls += [
            asyncio.ensure_future(writer.write([event(f"{place}-0"), event(f"{place}-1")])) for place in range(20)
        ]
        await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        sink.opened.set()
        await asyncio.gather(*calls)

    assert written(sink, work) == {"written": 41, "errors": 0}
    rest = [f"{place}-{number}" for place in range(20) for number in (0, 1)]
    assert sink.batches == [["first"], rest]
    assert ids_in(tmp_path / "events") == ["first", *rest]


def test_error_reaches_all_calls_of_the_commit_and_no_other(tmp_path: Path) -> None:
    sink = GatedSink(tmp_path)
    sink.opened.set()
    sink.error = OSError("no space")

    async def work(writer: EventWriter) -> None:
        found = await asyncio.gather(*(writer.write([event(name)]) for name in "ab"), return_exceptions=True)
        assert [str(error) for error in found] == ["no space"] * 2
        sink.error = None
        await writer.write([event("c")])

    counts = written(sink, work)
    assert (counts["written"], counts["refused"]) == (1, 2)
    assert counts["errors"] in (1, 2)
    assert ids_in(tmp_path / "events") == ["c"]


def test_full_queue_refuses_calls(tmp_path: Path) -> None:
    sink = GatedSink(tmp_path)

    async def work(writer: EventWriter) -> None:
        waits = asyncio.ensure_future(writer.write([event("a"), event("b")]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await writer.write([event("c"), event("d")])
        sink.opened.set()
        await waits
        await writer.write([event("e"), event("f"), event("g")])  # there is room again

    assert written(sink, work, max_events=3) == {"written": 5, "refused": 2, "errors": 0}


def test_stop_writes_what_waits_and_refuses_what_follows(tmp_path: Path) -> None:
    sink = GatedSink(tmp_path)

    async def work(writer: EventWriter) -> None:
        call = asyncio.ensure_future(writer.write([event("a")]))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(asyncio.to_thread(writer.stop, 60.0))
        await asyncio.sleep(0.1)
        with pytest.raises(QueueFullError):
            await writer.write([event("b")])
        sink.opened.set()
        await asyncio.gather(call, stopping)

    assert written(sink, work) == {"written": 1, "refused": 1, "errors": 0}
    assert ids_in(tmp_path / "events") == ["a"]


def test_clock_of_requests_is_their_largest_time() -> None:
    clock = Clock("requests")
    assert clock.now() is None
    for time, now in ((5, 5), (3, 5), (8, 8), (10**15, MAX_TIME)):
        clock.advance(time)
        assert clock.now() == now
    wall = Clock()
    before = wall.now()
    wall.advance(10**14)
    after = wall.now()
    assert before is not None
    assert after is not None
    assert before <= after < 10**14
