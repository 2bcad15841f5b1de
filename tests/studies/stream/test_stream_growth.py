"""Streams over logs whose vocabularies grow: the result does not depend on when days arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import rankfall as rf
from rankfall.cascade import Cascade
from rankfall.serving import Bundle
from rankfall.training.grow_tables import rows_of
from rankfall.training.run_directory import Stopped
from support.growing_logs import FIRST_VIDEOS, NAMES, NEW_VIDEOS, append_day, growing_log
from support.streams import run_outcome, stream_content, streamed

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.studies.results import StreamResult


def content_of(log: Path, **changes: Any) -> dict[str, Any]:
    """A stream of one method, with a table that becomes large enough for sparse gradients only later."""
    content = stream_content(log, **changes)
    content.pop("methods")
    return content


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream over a log that had four days, and had grown, before it began."""
    folder: Path = tmp_path_factory.mktemp("whole")
    streamed(content_of(growing_log(folder / "log", 4).path), folder / "out", follow=None)
    return folder


def weights_after(run: Path, day: str) -> Cascade:
    return Cascade.load(run / f"days/{day}.safetensors")


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


def test_following_trains_and_exports_new_values(whole: Path, tmp_path: Path) -> None:
    log = growing_log(tmp_path / "log", 2).path

    def more(result: Any) -> None:
        learned = len(rf.load(tmp_path / "out").learned) if False else len(result.learned)
        if learned < 4:
            append_day(log, learned)

    over = False

    def on_result(result: StreamResult) -> None:
        nonlocal over
        more(result)
        over = len(result.learned) == 4

    with pytest.raises(Stopped):
        streamed(content_of(log), tmp_path / "out", follow=0.01, on_result=on_result, stop=lambda: over)
    run = tmp_path / "out/runs/lcron-0"
    days = [weights_after(run, day) for day in NAMES[:4]]
    assert [rows_of(cascade)["video"] for cascade in days] == [2 + FIRST_VIDEOS + NEW_VIDEOS * n for n in range(4)]
    last = (run / "checkpoints/last.safetensors").read_bytes()
    assert last == (whole / "out/runs/lcron-0/checkpoints/last.safetensors").read_bytes()
    assert (run / f"days/{NAMES[3]}.safetensors").read_bytes() == last
    assert torch.equal(days[3].state_dict()["models.retrieval.embedding.table/video.weight"][0], torch.zeros(4))
    assert Bundle
