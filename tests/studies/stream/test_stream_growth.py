"""Streams over logs whose vocabularies grow: the result does not depend on when days arrive."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rankfall.api.studies import DayBundles
from rankfall.cascade import Cascade
from rankfall.data import ImpressionLoader, ImpressionLog
from rankfall.serving import Bundle
from rankfall.training.run_directory import Stopped
from rankfall.training.start_weights import rows_of
from support.growing_logs import FIRST_VIDEOS, NAMES, NEW_VIDEOS, append_day, growing_log
from support.sealing import edit_manifest
from support.streams import run_outcome, stream_content, streamed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rankfall.studies.results import StreamResult
    from rankfall.studies.stream.stream_config import StreamRun


def content_of(log: Path, **changes: Any) -> dict[str, Any]:
    """A stream of one method, with a table that becomes large enough for sparse gradients only later."""
    content = stream_content(log, **changes)
    content.pop("methods")
    return content


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream over a log that had four days, and had grown, before it began."""
    folder: Path = tmp_path_factory.mktemp("whole")
    streamed(content_of(growing_log(folder / "log", 4).path), folder / "out")
    return folder


def test_days_that_arrive_one_by_one_give_the_same_weights(whole: Path, tmp_path: Path) -> None:
    log = growing_log(tmp_path / "log", 2).path
    streamed(content_of(log), tmp_path / "out")
    append_day(log, 2)
    batches = iter(range(1000))
    with pytest.raises(Stopped):  # in the middle of the third day
        streamed(content_of(log), tmp_path / "out", resume=True, stop=lambda: next(batches) >= 5)
    append_day(log, 3)
    streamed(content_of(log), tmp_path / "out", resume=True)
    ours, expected = (run_outcome(folder / "out/runs/lcron-0") for folder in (tmp_path, whole))
    assert ours == expected


def test_days_that_were_trained_on_may_be_deleted(tmp_path: Path) -> None:
    log = growing_log(tmp_path / "log", 3).path
    content = content_of(log, data={"negatives": 0})
    streamed(content, tmp_path / "out")
    days = append_day(log, 3).manifest["days"]
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    streamed(content, tmp_path / "whole", resume=True)
    for day in NAMES[:2]:
        shutil.rmtree(log / "days" / day)
    edit_manifest(log / "manifest.json", days={day: days[day] for day in NAMES[2:4]})
    streamed(content, tmp_path / "out", resume=True)
    ours, expected = (run_outcome(tmp_path / name / "runs/lcron-0") for name in ("out", "whole"))
    assert ours == expected


@pytest.mark.slow
def test_following_trains_and_exports_new_values(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra serve")
    pytest.importorskip("faiss", reason="needs the extra serve")
    log, out = growing_log(tmp_path / "log", 2).path, tmp_path / "out"
    bundles, over = DayBundles(out / "bundles", 1), False

    def on_result(result: StreamResult) -> None:
        nonlocal over
        over = len(result.learned) == 4
        if not over:
            append_day(log, len(result.learned))

    runs: list[StreamRun] = []

    def on_day(run: StreamRun, log: ImpressionLog, days: Sequence[str], day: str) -> str | None:
        runs.append(run)
        return bundles(run, log, days, day) if day == NAMES[3] else None

    with pytest.raises(Stopped):
        streamed(content_of(log), out, follow=0.01, on_day=on_day, on_result=on_result, stop=lambda: over)
    run = out / "runs/lcron-0"
    days = [Cascade.load(run / f"days/{day}.safetensors") for day in NAMES[:4]]
    assert [rows_of(cascade)["video"] for cascade in days] == [2 + FIRST_VIDEOS + NEW_VIDEOS * n for n in range(4)]
    last = (run / "checkpoints/last.safetensors").read_bytes()
    assert last == (whole / "out/runs/lcron-0/checkpoints/last.safetensors").read_bytes()
    check_bundle(Bundle.load(out / "bundles/lcron" / NAMES[3]), days[3], ImpressionLog.load(log))
    # older weights are exported from the grown log with the values that they know
    older = DayBundles(out / "older", 1)(runs[0], ImpressionLog.load(log), NAMES[:2], NAMES[1])
    assert older is None
    bundle = Bundle.load(out / "older/lcron" / NAMES[1])
    assert len(bundle.items.lookup.values) == FIRST_VIDEOS + NEW_VIDEOS
    bundle.check()


def check_bundle(bundle: Bundle, cascade: Cascade, log: ImpressionLog) -> None:
    """Check that the bundle has all videos, and scores raw values that are new on the last day as the cascade does."""
    assert len(bundle.items.lookup.values) == FIRST_VIDEOS + 3 * NEW_VIDEOS
    (batch,) = ImpressionLoader(log, NAMES[3], batch=64, shuffle=False, prefetch=0)
    users, videos = (log.vocabulary(table).to_pylist() for table in ("user.user", "video"))
    known = log.as_of(NAMES[2]).features.tables["user.user"]
    places = (batch.user["user"] >= known).nonzero().flatten().tolist()
    assert places
    with torch.no_grad():
        expected = cascade.eval()(batch)
    for place in places[:3]:
        real = batch.sequence_mask["history"][place]
        events = [videos[number - 2] for number in batch.sequences["history"]["video"][place][real].tolist()]
        request = {
            "time": int(batch.time[place]),
            "user": {"user": users[int(batch.user["user"][place]) - 2]},
            "sequences": {"history": {"video": events}},
        }
        scores = bundle.score(request, batch.item[place][batch.mask[place]].tolist())
        for stage, values in zip(cascade.names, expected, strict=True):
            assert np.allclose(scores[stage], values[place][batch.mask[place]], atol=1e-5)
