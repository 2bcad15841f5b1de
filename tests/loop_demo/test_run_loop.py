"""A small loop with real processes, which is interrupted and continued."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.data.impressions.log import ImpressionLog
from rankfall.loop_demo import loop_days as loop_files
from rankfall.loop_demo.loop_days import LoopFiles, LoopSettings, is_late, new_users
from rankfall.loop_demo.run_loop import Loop, StoppedError
from rankfall.simulation.live_users import STAGES

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

SETTINGS = LoopSettings(seed=1, requests_per_day=60, first_days=1, batch=16)
SMALL: list[dict[str, Any]] = [
    {"name": "retrieval", "quota": 100, "model": {"kind": "two_tower", "dim": 2, "hidden": [4]}},
    {"name": "preranking", "quota": 40, "model": {"kind": "mlp", "dim": 2, "hidden": [4]}},
    {"name": "ranking", "quota": 20, "model": {"kind": "mlp", "dim": 2, "hidden": [4]}},
]


class Steps:
    """The steps of a loop, which is stopped after some of them."""

    def __init__(self, files: LoopFiles, stop_after: int | None = None) -> None:
        self.seen: list[str] = []
        self._files, self._stop_after = files, stop_after

    def show(self, table: Table, step: str) -> None:
        self.seen.append(step)

    def stop(self) -> bool:
        """Stop after some portions were answered."""
        return self._stop_after is not None and len(list(self._files.answers.glob("*.json"))) >= self._stop_after


@pytest.mark.trial
@pytest.mark.service
def test_a_loop_learns_from_what_users_did_and_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_files, "STAGES", SMALL)
    files = LoopFiles(tmp_path / "loop")
    steps = Steps(files, stop_after=4)
    with pytest.raises(StoppedError):
        Loop(files, SETTINGS, 1, on_change=steps.show, stop=steps.stop).run()
    assert len(list(files.answers.glob("*.json"))) == 4
    assert list(ImpressionLog.load(files.log).days) == ["2024-01-13"]

    steps = Steps(files)
    days = Loop(files, SETTINGS, 1, on_change=steps.show).run()
    assert "sending the last requests again" in steps.seen
    assert "loading the bundle of 2024-01-14" in steps.seen
    first, second = json.loads(files.result.read_text())["days"]
    assert days.to_json(1)["days"] == [first, second]
    assert (first["day"], first["model"], first["samples"]) == ("2024-01-13", "platform", None)
    assert (second["day"], second["model"], second["samples"]) == ("2024-01-14", "2024-01-13", 60)
    assert_log_is_what_happened(files)

    again = Steps(files)  # nothing is left to do, and no process starts
    Loop(files, SETTINGS, 1, on_change=again.show).run()
    assert again.seen == ["simulating the first days"]


def assert_log_is_what_happened(files: LoopFiles) -> None:
    """Compare the joined day with the answers and the reactions to them, which are simulated again."""
    users = new_users(SETTINGS)
    for _ in users.past():
        pass
    table = ImpressionLog.load(files.log).days["2024-01-14"].table()
    logged = {row["request"]: row for row in table.to_pylist()}
    assert len(logged) == SETTINGS.requests_per_day
    while True:
        portion = users.arrive()
        answers = files.load_answers(portion)
        assert answers is not None
        reactions = users.react(portion, answers.items)
        for place, request in enumerate(portion.requests.number.astype(str).tolist()):
            row = logged.pop(request)
            found = dict(zip(row["item"], zip(row["depth"], row["feedback.effective_view"], strict=True), strict=True))
            answered = [item for item, (depth, _) in found.items() if depth == len(STAGES) - 1]
            assert set(answered) == set(answers.items[place].tolist())
            viewed = {item for item, (_, views) in found.items() if views > 0}
            seen = reactions.feedback["effective_view"][place] > 0
            if not (portion.is_last and is_late(request)):  # those events come after the day was closed
                assert viewed == set(answers.items[place][seen].tolist())
        if portion.is_last:
            break
    assert not logged


def test_a_directory_with_something_else_or_other_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("text")
    with pytest.raises(ValueError, match=r"out: .* is not empty and has no loop"):
        LoopFiles(tmp_path).check(SETTINGS)
    with pytest.raises(ValueError, match=r"out: .* is not empty and has no loop"):
        LoopFiles(tmp_path).remove()
    files = LoopFiles(tmp_path / "loop")
    users = new_users(SETTINGS)
    files.begin(SETTINGS, users, list(users.past()))
    assert files.check(SETTINGS)
    other = LoopSettings(seed=2, requests_per_day=60, first_days=1, batch=16)
    with pytest.raises(ValueError, match=r"seed: found 2, but the loop in .* has 1; --force begins again"):
        files.check(other)
    files.remove()
    assert not files.check(other)
