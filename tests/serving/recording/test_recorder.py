"""Answered requests become records, or are dropped and counted: the queue is bounded, the sink may fail."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs the extra serve")
pytest.importorskip("faiss", reason="needs the extra serve")

from rankfall.serving.drawing import draw_samples
from rankfall.serving.recording.record_segments import segments
from rankfall.serving.recording.recorder import Recorder, ServedRequest, sample_batches, sample_requests, sampling_key
from rankfall.serving.recording.sinks import FileSink
from rankfall.storage import disk as _disk
from support.bundles import platform_bundle
from support.records import ids_in
from support.services import eventually, loaded, ranking_bundle, requests

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from rankfall.serving.recording.sinks import Kind


COUNTS = (3,)
KEY = b"of tests"


def served(name: str, place: int = 0, *, path: Path | None = None, share: float = 1.0, size: int = 1) -> ServedRequest:
    bundle = loaded(path or platform_bundle())
    request = requests()[place]
    flags, seeds = sample_requests([name], share, KEY)
    (ranking,) = bundle.run(bundle.encode([request]), sampled=flags).rankings
    times = 1_705_300_000_000, 1_705_300_001_234
    return ServedRequest(name, *times, "model", bundle, request, ranking.trail, int(seeds[0]), size)


class GatedSink(FileSink):
    """A sink of files whose writes wait for permission."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opened = threading.Event()

    def write(self, kind: Kind, batch: pa.RecordBatch, *, durable: bool) -> None:
        assert self.opened.wait(60)
        super().write(kind, batch, durable=durable)


class Counts(dict[str, int]):
    def add(self, result: str, count: int) -> None:
        if count:
            self[result] = self.get(result, 0) + count


def recorder(sink: FileSink, counts: Counts, *, max_requests: int = 100, max_bytes: int = 10**6) -> Recorder:
    return Recorder(
        sink,
        count=counts.add,
        counts=COUNTS,
        max_requests=max_requests,
        max_bytes=max_bytes,
    )


def test_records_have_what_the_sample_has() -> None:
    given = [served("a"), served("b", share=0.0), served("c", 1)]
    (batch,) = sample_batches(given, COUNTS)
    bundle = given[0].bundle
    for one, row in zip(given, batch.to_pylist(), strict=True):
        assert row["request"] == one.request
        assert (row["time"].timestamp(), row["received"].timestamp()) == (1_705_300_000, 1_705_300_001.234)
        assert row["sampled"] == (one.trail is not None)
        if one.trail is None:
            assert {row[name] for name in batch.schema.names[4:]} == {None}
            continue
        (sample,) = draw_samples([one.trail], np.array([one.seed], np.uint64), COUNTS)
        assert sample is not None
        has_item = sample.rows >= 0
        assert row["item"] == bundle.items.ids(sample.rows[has_item])
        for name, attribute in (
            ("stage", "stages"), ("rank", "ranks"), ("score", "scores"), ("inclusion", "inclusion"),
        ):  # fmt: skip
            values = getattr(sample, attribute)
            assert np.array_equal(np.array(row[name], values.dtype), values[has_item])
        assert (row["model"], row["bundle"]) == ("model", str(platform_bundle().resolve()))
        assert json.loads(row["body"]) == one.features
        assert row["body"] == json.dumps(one.features, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_bundles_have_batches_of_their_own() -> None:
    given = [served("a"), served("b"), served("c", path=ranking_bundle()), served("d")]
    found = [batch["request"].to_pylist() for batch in sample_batches(given, COUNTS)]
    assert found == [["a", "b"], ["c"], ["d"]]
    stages = [set(batch["stage"][0].as_py()) for batch in sample_batches(given, COUNTS)]
    assert stages == [{0, 1, 2}, {0, 1}, {0, 1, 2}]


def test_share_of_sampled_requests() -> None:
    names = [f"request {place}" for place in range(20_000)]
    for share in (0.0, 0.1, 0.5, 1.0):
        flags, seeds = sample_requests(names, share, KEY)
        assert abs(flags.mean() - share) <= 5 * np.sqrt(share * (1 - share) / len(names))
        assert np.array_equal(sample_requests(names[7:9], share, KEY)[0], flags[7:9])
    smaller, larger = (sample_requests(names, share, KEY)[0] for share in (0.1, 0.5))
    assert not (smaller & ~larger).any()
    assert len(set(seeds.tolist())) == len(names)
    of_clients = [name for name, sampled in zip(names, smaller, strict=True) if sampled]
    assert sample_requests(of_clients, 0.1, b"another")[0].mean() < 0.2  # ids that one service samples say nothing


def test_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    key = sampling_key(str(tmp_path / "new"))
    assert sampling_key(str(tmp_path / "new")) == sampling_key(f"file://{tmp_path / 'new'}") == key
    assert sampling_key(str(tmp_path / "other")) != key
    assert stat.S_IMODE((tmp_path / "new" / "sampling.key").stat().st_mode) == 0o600
    (tmp_path / "new" / "sampling.key").write_bytes(b"")
    with pytest.raises(ValueError, match=r"sampling\.key has 0 bytes, expected 32"):
        sampling_key(str(tmp_path / "new"))


def test_key_of_a_broker_is_that_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sampling_key("nats://127.0.0.1/loop") == (tmp_path / "rankfall" / "sampling.key").read_bytes()


@pytest.mark.parametrize("limit", ["max_requests", "max_bytes"])
def test_full_queue_drops_requests(tmp_path: Path, limit: str) -> None:
    one, sink, counts = served("a"), GatedSink(tmp_path), Counts()
    assert one.memory > 1000  # the trail counts, too
    writer = recorder(sink, counts, **{limit: 3 * (one.memory if limit == "max_bytes" else 1)})
    writer.start()
    writer.put([one])
    eventually(lambda: not writer._queue)  # the thread waits in the sink, and what it writes counts
    writer.put([one])
    writer.put([one, one])  # they do not fit
    writer.put([one])
    assert writer.waiting == 3
    assert counts == {"dropped": 2}
    sink.opened.set()
    eventually(lambda: writer.waiting == 0)
    writer.put([one] * 3)  # there is room again
    writer.stop(60)
    assert counts == {"dropped": 2, "written": 6}
    assert ids_in(tmp_path / "samples") == ["a"] * 6


def test_full_disk_drops_requests_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink, counts = FileSink(tmp_path), Counts()
    writer = recorder(sink, counts)

    def hook(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with _disk.intercepted(hook):
        writer.start()
        for name in "ab":
            writer.put([served(name), served(name, share=0.0)])
            eventually(lambda: writer.waiting == 0)
        assert counts["dropped"] == 4
        assert counts["errors"] >= 2
    writer.put([served("c"), served("d", share=0.0)])
    eventually(lambda: "written" in counts)
    writer.stop(60)
    assert (counts["dropped"], counts["written"], counts["unsampled"]) == (4, 1, 1)
    assert ids_in(tmp_path / "samples") == ["c", "d"]
    assert sum("samples cannot be written" in line for line in caplog.messages) == 1  # not a line for each


def test_unexpected_error_does_not_end_the_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink, counts = FileSink(tmp_path), Counts()
    writer = recorder(sink, counts)
    writer.start()
    broken: Any = served("a")
    writer.put([ServedRequest("a", 0, 0, "model", broken.bundle, {"time": object()}, broken.trail, 1, 1)])
    eventually(lambda: counts.get("dropped") == 1)
    writer.put([served("b")])
    writer.stop(60)
    assert counts == {"dropped": 1, "written": 1}
    assert "cannot be recorded" in caplog.text


def test_stop_completes_the_segment(tmp_path: Path) -> None:
    counts = Counts()
    writer = recorder(FileSink(tmp_path), counts)
    writer.start()
    writer.put([served(name) for name in "abc"])
    writer.stop(60)
    assert [path.suffix for path in (tmp_path / "samples").iterdir()] == [".arrows"]
    assert ids_in(tmp_path / "samples") == ["a", "b", "c"]
    assert segments(tmp_path / "samples")[0].first > 1_700_000_000_000
