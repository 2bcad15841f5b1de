"""Joining: a witness in plain Python, and bytes that do not depend on how and when records come."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rankfall.data import ImpressionLog
from rankfall.data.sources.rows.prepare_rows import append_rows
from support.forks import DEADLINE, ENVIRONMENT
from support.join_kills import copy_of, joined, tree
from support.join_witness import rows_frame, witness_join
from support.served_records import HOUR, Traffic, prepared_log, random_traffic, write_segments

if TYPE_CHECKING:
    from pathlib import Path

NEWEST = "2024-01-14"  # of the log before the service


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the log of the days before the service, and the table of items."""
    directory = tmp_path_factory.mktemp("older")
    prepared_log(directory, directory / "log")
    return directory


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_a_join_in_plain_python(older: Path, tmp_path: Path, seed: int) -> None:
    traffic = random_traffic(seed, days=3, hostile=True)
    write_segments(tmp_path / "records", traffic, seed)
    result = joined(tmp_path / "records", copy_of(older, tmp_path / "log"), older)
    expected = witness_join(traffic, after=NEWEST)
    assert result.closed == list(expected)
    assert len(expected) >= 2
    files = []
    for day, made in expected.items():
        files.append(tmp_path / f"{day}.parquet")
        rows_frame(made.rows).write_parquet(files[-1])
    append_rows(files, copy_of(older, tmp_path / "witness"), items=older / "items.parquet")
    ours, theirs = (ImpressionLog.load(tmp_path / name) for name in ("log", "witness"))
    for day, report in zip(expected, result.days, strict=True):
        assert ours.days[day].table().equals(theirs.days[day].table())
        for name in ("requests", "sampled", "items", "events", "repeated_events"):
            assert getattr(report, name) == expected[day].counts[name], name
        apart = {name: count for name, count in report.apart.items() if name != "event: unknown request"}
        assert apart == dict(expected[day].apart)


def test_every_record_is_counted_once(older: Path, tmp_path: Path) -> None:
    traffic = random_traffic(7, days=3, hostile=True)
    write_segments(tmp_path / "records", traffic)
    result = joined(tmp_path / "records", copy_of(older, tmp_path / "log"), older)
    end = result.days[-1].limit
    samples = [one for one in traffic.samples if one["received"] <= end]
    counted = sum(
        report.requests + report.repeated_requests + sum(report.late_requests.values()) for report in result.days
    )
    first: dict[str, int] = {}
    for one in sorted(samples, key=lambda one: one["received"]):
        first.setdefault(one["request"], one["time"])
    carried = sum(time >= end - HOUR for time in first.values())  # of the day after the last one
    assert counted + carried == len(samples)


def variants(traffic: Traffic, place: Path, older: Path) -> dict[str, dict[str, str]]:
    """The log of the same records that come in different ways."""
    found = {}
    for name, seed in (("once", None), ("split", 1), ("split otherwise", 2)):
        write_segments(place / name / "records", traffic, seed)
        joined(place / name / "records", copy_of(older, place / name / "log"), older)
        found[name] = tree(place / name / "log")
    repeated = Traffic(traffic.samples + traffic.samples[::3], traffic.events + traffic.events[::2])
    write_segments(place / "repeated" / "records", repeated, 3)
    joined(place / "repeated" / "records", copy_of(older, place / "repeated" / "log"), older)
    found["repeated"] = tree(place / "repeated" / "log")
    return found | {"step by step": step_by_step(traffic, place / "steps", older)}


def step_by_step(traffic: Traffic, place: Path, older: Path) -> dict[str, str]:
    """Write records in the order in which they were received, and join after each segment; a process dies."""
    log = copy_of(older, place / "log")
    ordered = sorted([*traffic.samples, *traffic.events], key=lambda one: one["received"])
    chance = random.Random(5)
    while ordered:
        count = chance.randint(5, 25)
        part, ordered = ordered[:count], ordered[count:]
        of = Traffic([one for one in part if "sampled" in one], [one for one in part if "kind" in one])
        write_segments(place / "records", of)
        if chance.random() < 0.5:
            leave_open(place / "records", chance)
        joined(place / "records", log, older)
    return tree(log)


def leave_open(directory: Path, chance: random.Random) -> None:
    """Make a segment look like that of a process that died while it wrote another batch."""
    newest = max(directory.rglob("*.arrows"), key=lambda path: path.stat().st_mtime_ns)
    stem = "-".join(newest.name.split("-")[:3])
    content = newest.read_bytes()
    newest.unlink()
    newest.with_name(f"{stem}.open").write_bytes(content + content[: chance.randint(0, 100)])


@pytest.mark.parametrize("seed", [11])
def test_same_records_give_the_same_bytes(older: Path, tmp_path: Path, seed: int) -> None:
    found = variants(random_traffic(seed, requests=8, hostile=True), tmp_path, older)
    for name, files in found.items():
        assert files == found["once"], name


@pytest.mark.slow
def test_kill_at_any_rename_and_again_gives_the_same_bytes(older: Path, tmp_path: Path) -> None:
    write_segments(tmp_path / "records", random_traffic(3, requests=5))
    program = [sys.executable, "-m", "support.join_kills", str(tmp_path / "records"), str(older), str(tmp_path), "9"]
    done = subprocess.run(program, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= 4
    assert found["wrong"] == []
