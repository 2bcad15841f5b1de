"""Logs that grow while others read them: a day is there or it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rankfall.data import ImpressionLoader
from rankfall.data.impressions.compatibility import encoding_signature
from rankfall.data.impressions.log import ImpressionLog, LogWatcher, appending
from rankfall.data.impressions.spec import UNSEEN
from rankfall.simulation.simulate import Simulation, append_days, simulate_log
from rankfall.storage.files import LeftoverWarning, checksum
from rankfall.storage.manifests import about_file, write_manifest
from support.command_line import run as command
from support.paths import PYTHONPATH
from support.sealing import edit_manifest
from support.week_log import WEEK, add_day, drop_day, log_of

if TYPE_CHECKING:
    from pathlib import Path

TINY: dict[str, Any] = {"preset": "tiny", "requests_per_day": 60, "seed": 5}


class Watcher:
    """Looks at a log and remembers what it was told."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self._arrivals = LogWatcher(path, self.said.append)

    def days(self, **options: Any) -> list[str]:
        return list(self._arrivals.scan(**options).days)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return log_of(tmp_path / "log", [0, 1], impressions=4)


# --- looking --------------------------------------------------------------------------------------------------------


def test_complete_days_are_found_in_time_order(log: Path) -> None:
    watcher = Watcher(log)
    assert watcher.days() == WEEK[:2]
    add_day(log, 3)
    drop_day(log, 2)  # which the manifest of the log does not name
    assert watcher.days() == WEEK[:4]  # in the order of time
    assert watcher.said == []


def test_a_day_without_a_manifest_is_not_finished(log: Path) -> None:
    watcher, place = Watcher(log), drop_day(log, 2)
    manifest = (place / "manifest.json").read_bytes()
    (place / "manifest.json").unlink()
    (log / "days/.2024-01-16.unfinished").mkdir()
    assert watcher.days() == WEEK[:2]
    assert watcher.said == []
    (place / "manifest.json").write_bytes(manifest)
    assert watcher.days() == WEEK[:3]


def test_where_days_have_success_files_all_need_one(log: Path) -> None:
    (log / "days" / WEEK[1] / "_SUCCESS").touch()
    watcher, place = Watcher(log), drop_day(log, 2)
    assert watcher.days() == WEEK[:2]  # the first is named by the manifest of the log
    assert watcher.said == []
    (place / "_SUCCESS").touch()
    assert watcher.days() == WEEK[:3]


@pytest.mark.parametrize("damage", ["bits", "length", "manifest", "empty", "count", "text", "other"])
def test_a_damaged_day_is_reported_once_and_looked_at_again(log: Path, damage: str) -> None:
    watcher, place = Watcher(log), drop_day(log, 2)
    good = {path: path.read_bytes() for path in place.iterdir()}
    file, manifest = place / "impressions.arrow", place / "manifest.json"
    if damage == "bits":
        file.write_bytes(good[file][:-8] + bytes(8))
        message = f"{file} has changed since it was written"
    elif damage == "length":
        file.write_bytes(good[file][:-8])
        message = f"{file} has {len(good[file]) - 8:,} bytes"
    elif damage == "manifest":
        manifest.write_text("{")
        message = "has no readable manifest.json"
    elif damage == "empty":
        edit_manifest(manifest, impressions=0)
        message = "has no impressions"
    elif damage == "count":
        edit_manifest(manifest, impressions=41)
        message = f"{file} has 40 impressions, its manifest states 41"
    elif damage == "text":
        edit_manifest(manifest, first_time="noon")
        message = "has no valid first_time"
    else:
        edit_manifest(manifest, first_time=...)
        message = "has no valid first_time"
    for _ in range(3):
        assert watcher.days() == WEEK[:2]
    (said,) = watcher.said
    assert message in said
    for path, content in good.items():
        path.write_bytes(content)
    assert watcher.days() == WEEK[:3]


def rewrite(place: Path, table: pa.Table) -> None:
    """Put another table into a day, with a manifest that fits it."""
    file, manifest = place / "impressions.arrow", place / "manifest.json"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    edit_manifest(manifest, impressions=len(table), **about_file(file))


def test_a_day_of_another_log_holds_up_no_later_day(log: Path) -> None:
    table = ImpressionLog.load(log).days[WEEK[0]].table()
    rewrite(drop_day(log, 2), table.drop_columns(["grade"]))
    rewrite(drop_day(log, 3), table.set_column(0, "request", table["request"].cast(pa.int32())))
    empty = pa.array([[]] * len(table), table.schema.field("item").type)
    rewrite(drop_day(log, 4), table.set_column(table.column_names.index("item"), table.schema.field("item"), empty))
    drop_day(log, 5)
    watcher = Watcher(log)
    for _ in range(2):
        assert watcher.days() == [*WEEK[:2], WEEK[5]]
    for said, message in zip(watcher.said, ("missing: grade", "of a wrong type: request", "has no items"), strict=True):
        assert message in said


def test_what_was_said_of_a_day_may_become_untrue(log: Path) -> None:
    """The log's manifest is repaired; the day itself stays as it is, and was whole all the time."""
    manifest = json.loads((log / "manifest.json").read_text())
    edit_manifest(log / "manifest.json", days=manifest["days"] | {WEEK[1]: "0" * 64})
    watcher = Watcher(log)
    assert watcher.days() == WEEK[:1]
    (log / "manifest.json").write_text(json.dumps(manifest))
    assert watcher.days() == WEEK[:2]
    assert len(watcher.said) == 1


def test_a_day_that_cannot_be_read_is_refused_alone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> str:
        if WEEK[1] in path.parts:
            raise OSError(f"{path}: input/output error")
        return checksum(path)

    watcher = Watcher(log)
    with monkeypatch.context() as patched:
        patched.setattr("rankfall.storage.manifests.checksum", unreadable)
        assert watcher.days() == WEEK[:1]
    assert "input/output error" in watcher.said[0]
    assert watcher.days() == WEEK[:2]


def test_a_day_that_is_named_must_be_that_day(log: Path) -> None:
    days = json.loads((log / "manifest.json").read_text())["days"]
    edit_manifest(log / "manifest.json", days=days | {WEEK[1]: "0" * 64, WEEK[4]: "0" * 64})
    watcher = Watcher(log)
    assert watcher.days() == WEEK[:1]
    assert len(watcher.said) == 2
    assert watcher.days(trusted=WEEK) == WEEK[:1]


# --- adding ---------------------------------------------------------------------------------------------------------


def test_appended_log_loads_and_verifies(log: Path) -> None:
    before = {path: path.read_bytes() for path in log.glob("days/*/*")}
    add_day(log, 2)
    grown = ImpressionLog.load(log, verify=True)
    assert list(grown.days) == WEEK[:3]
    assert grown.manifest["impressions"] == 4 + 4 + 40
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in log.iterdir()} == {"manifest.json", "items.arrow", "vocabularies", "days"}
    with pytest.raises(ValueError, match=f"{log} already has {WEEK[2]}"):
        add_day(log, 2)


def test_a_day_that_was_never_named_is_named_the_next_time(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    def crash(file: Path, manifest: dict[str, Any]) -> None:
        if WEEK[2] in manifest["days"]:  # but not while the item table is announced
            raise Crash
        write_manifest(file, manifest)

    with monkeypatch.context() as patched:
        patched.setattr("rankfall.data.impressions.log.write_manifest", crash)
        with pytest.raises(Crash):
            add_day(log, 2)
    assert list(ImpressionLog.load(log, verify=True).days) == WEEK[:2]
    assert Watcher(log).days() == WEEK[:3]  # it is whole
    add_day(log, 2)
    assert list(ImpressionLog.load(log, verify=True).days) == WEEK[:3]
    drop_day(log, 4).rename(log / "days" / WEEK[3])
    with pytest.raises(ValueError, match="exists with other content"):
        add_day(log, 3)


@pytest.mark.parametrize("killed", [False, True])
def test_readers_accept_the_items_of_a_log_that_grows(log: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """Between the replacement of the item table and that of the manifest, and in a log that was opened before."""
    opened = ImpressionLog.load(log)
    fewer = opened.items().slice(0, 30)
    table = opened.days[WEEK[0]].table()
    seen = []

    def write(file: Path, manifest: dict[str, Any]) -> None:
        if WEEK[2] in manifest["days"]:
            seen.extend([len(opened.items()), len(ImpressionLog.load(log, verify=True).items())])
            if killed:
                raise KeyboardInterrupt
        write_manifest(file, manifest)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr("rankfall.data.impressions.log.write_manifest", write)
        with appending(log) as growth:
            growth.write(WEEK[2], table)
            growth.finish(fewer, {})
    assert seen == [30, 30]
    assert len(opened.items()) == len(ImpressionLog.load(log, verify=True).items()) == 30
    assert (opened.checksum == ImpressionLog.load(log).checksum) == killed  # the announcement is no part of it
    (log / "items.arrow").write_bytes((log / "items.arrow").read_bytes()[::-1])
    for one in (opened, ImpressionLog.load(log)):
        with pytest.raises(ValueError, match=r"items\.arrow has changed since it was written"):
            one.items()


def test_appended_day_is_inserted_in_time_order(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", [0, 2], impressions=4)
    (log / ".new-days.0123abcd.unfinished").mkdir()
    with pytest.warns(LeftoverWarning, match="removed"):
        add_day(log, 1)
    assert list(ImpressionLog.load(log).days) == WEEK[:3]
    assert not list(log.glob(".*"))


def test_other_columns_are_not_added(log: Path) -> None:
    table = ImpressionLog.load(log).days[WEEK[0]].table()
    with (
        appending(log) as growth,
        pytest.raises(ValueError, match=f"{WEEK[2]}: .* missing: grade"),
    ):
        growth.write(WEEK[2], table.drop_columns(["grade"]))


def test_unfinished_day_is_invisible(log: Path) -> None:
    def interrupted() -> None:
        with appending(log) as growth:
            growth.write(WEEK[2], ImpressionLog.load(log).days[WEEK[0]].table())
            assert Watcher(log).days() == WEEK[:2]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(path.name for path in (log / "days").iterdir()) == WEEK[:2]
    assert {path.name for path in log.iterdir()} == {"manifest.json", "items.arrow", "vocabularies", "days"}
    with appending(log), pytest.raises(ValueError, match="another process adds days"), appending(log):
        pass
    with appending(log) as growth, pytest.raises(ValueError, match="there are no impressions to write"):
        growth.finish(ImpressionLog.load(log).items(), {})


# --- the simulated platform -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_platform_that_lives_on(tmp_path: Path) -> None:
    out = tmp_path / "log"
    simulate_log(Simulation(days=2, **TINY), out)
    whole = simulate_log(Simulation(days=4, **TINY), tmp_path / "whole")
    kept = {path: path.read_bytes() for path in out.glob("days/*/*")}
    for days in (3, 4):
        append_days(Simulation(days=days, **TINY), out)
    grown = ImpressionLog.load(out, verify=True)
    assert {path: path.read_bytes() for path in kept} == kept
    assert list(grown.days) == list(whole.days)
    rows = grown.features.tables["item.video_id"]
    assert rows < whole.features.tables["item.video_id"]
    unseen = 0
    for name, day in grown.days.items():
        ours, theirs = day.table(), whole.days[name].table()
        for column in ours.column_names:
            found, expected = ours[column].to_pylist(), theirs[column].to_pylist()
            if column.endswith("video_id"):  # items that are born later have no rows
                unseen += sum(item >= rows for items in expected for item in items)
                expected = [[item if item < rows else UNSEEN for item in items] for items in expected]
            assert found == expected, column
    assert unseen > 0
    assert grown.manifest["about"]["days"] == 4
    for key in ("rows", "requests", "logged", "kept"):
        assert grown.manifest["about"]["counts"][key] == whole.manifest["about"]["counts"][key]
    assert grown.items()["item"].to_pylist() == whole.items()["item"].to_pylist()


def test_days_are_appended_to_a_log_without_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that were simulated before positions were stored have no such column."""
    whole = simulate_log(Simulation(days=2, **TINY), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("rankfall.simulation.simulate.POSITION", None)
        simulate_log(Simulation(days=1, **TINY), tmp_path / "log")
    old = append_days(Simulation(days=2, **TINY), tmp_path / "log")
    assert old.spec.position is None
    assert encoding_signature(old)["rules"] == encoding_signature(whole)["rules"]
    for name, day in old.days.items():
        expected = whole.days[name].table()
        assert day.table()["grade"].equals(expected["grade"])
        assert day.table().column_names == [column for column in expected.column_names if column != "position"]
    for batch in ImpressionLoader(old, "..", batch=16):
        assert batch.position is None


def test_appended_days_continue_statistics(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"preset": "industry-easy", "requests_per_day": 40, "seed": 1}
    simulate_log(Simulation(days=1, **plan), tmp_path / "log")
    append_days(Simulation(days=2, **plan), tmp_path / "log")
    whole = simulate_log(Simulation(days=2, **plan), tmp_path / "whole")
    ours, theirs = (ImpressionLog.load(log).days["2024-01-14"].table() for log in (tmp_path / "log", whole.path))
    numbers = [name for name in ours.column_names if "view" in name or "show" in name]
    assert len(numbers) > 5
    for name in numbers:
        assert ours[name].to_pylist() == theirs[name].to_pylist()


def test_the_command_adds_days(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "log")
    plan = ("--requests-per-day", "30", "--seed", "2")
    assert command("simulate", out, "--days", "1", *plan) == 0
    assert command("simulate", out, "--days", "2", "--append", *plan, "--json") == 0
    assert list(ImpressionLog.load(out).days) == ["2024-01-13", "2024-01-14"]
    before = checksum(tmp_path / "log/manifest.json")
    capsys.readouterr()
    for options, code, message in (
        (["--days", "2", *plan], 1, f"days: found 2, expected more than the 2 of {out}"),
        (["--days", "3", *plan[:2]], 1, f"seed: found 0, but {out} was made with 2"),
        (["--days", "3", *plan, "--force"], 2, "--append: cannot be combined with --force"),
    ):
        assert command("simulate", out, "--append", *options) == code
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert checksum(tmp_path / "log/manifest.json") == before
    assert command("simulate", str(tmp_path / "nothing"), "--days", "2", "--append") == 1
    assert "is not an impression log" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_only_simulated_logs_live_on(log: Path) -> None:
    with pytest.raises(ValueError, match="is not the log of a simulated platform"):
        append_days(Simulation(days=9, **TINY), log)


def test_a_reader_never_sees_half_a_day(log: Path) -> None:
    """A process adds days while this one looks, without a pause."""
    program = "from pathlib import Path; from support.week_log import add_day\n"
    program += f"for n in (2, 3, 4): add_day(Path({str(log)!r}), n)"
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    producer = subprocess.Popen([sys.executable, "-c", program], env=environment)
    watcher = Watcher(log)
    seen: list[list[str]] = []
    while not seen or seen[-1] != WEEK[:5]:
        assert producer.poll() in (None, 0)
        days = watcher.days()
        if not seen or days != seen[-1]:
            seen.append(days)
            ImpressionLog.load(log).items()
        time.sleep(0.001)
    assert seen == [WEEK[:count] for count in range(2, 6) if WEEK[:count] in seen]
    assert watcher.said == []
    assert producer.wait() == 0
