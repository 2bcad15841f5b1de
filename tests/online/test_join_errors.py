"""What people and files may get wrong: each has one message, and leaves the log as it was."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import rankfall as rf
from rankfall.data import ImpressionLog
from rankfall.serving.recording.record_segments import EVENT_SCHEMA, SegmentWriter, segments
from support.command_line import run
from support.join_kills import copy_of, joined, tree
from support.served_records import (
    DAY,
    HOUR,
    MIDNIGHT,
    Traffic,
    prepared_log,
    random_traffic,
    served_spec,
    write_segments,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the log of the days before the service, and the table of items."""
    directory = tmp_path_factory.mktemp("older")
    prepared_log(directory, directory / "log")
    return directory


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Records of one day, and a later one."""
    write_segments(tmp_path / "records", random_traffic(1, days=1, requests=4))
    return tmp_path / "records"


def join(records: Path, older: Path, log: Path, **options: Any) -> Any:
    given = {"spec": served_spec(), "items": older / "items.parquet", "parity": 0, "progress": False, **options}
    return rf.join(records, log, **given)


def test_a_damaged_segment_is_named(records: Path, older: Path, tmp_path: Path) -> None:
    path = segments(records / "events")[0].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    log = copy_of(older, tmp_path / "log")
    with pytest.raises(ValueError, match=rf"{path.name} does not match the checksum in its name"):
        join(records, older, log)
    assert tree(log) == tree(older / "log")


def test_a_pipe_with_the_name_of_a_segment_is_named(records: Path, older: Path, tmp_path: Path) -> None:
    path = segments(records / "events")[0].path
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=rf"{path.name} is not a file"):
        join(records, older, copy_of(older, tmp_path / "log"))


def test_a_segment_with_other_columns_is_named(records: Path, older: Path, tmp_path: Path) -> None:
    writer = SegmentWriter(records / "samples")
    writer.write(pa.RecordBatch.from_pydict({"received": pa.array([0], pa.timestamp("ms", "UTC"))}))
    writer.close()
    with pytest.raises(ValueError, match=r"is not a segment of samples: found the columns received"):
        join(records, older, copy_of(older, tmp_path / "log"))


def test_other_files_are_ignored_or_named(records: Path, older: Path, tmp_path: Path) -> None:
    (records / "samples" / "README.txt").write_text("hello")
    with pytest.warns(rf.RankfallWarning, match=r"README\.txt is not a segment and is ignored"):
        join(records, older, copy_of(older, tmp_path / "log"))
    (records / "samples" / "copy.arrows").write_text("hello")
    with pytest.raises(ValueError, match=r"copy\.arrows has not the name of a segment"):
        join(records, older, tmp_path / "log", on_notice=lambda text: None)


def test_directories_without_records(older: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing is not a directory, expected a directory that 'rankfall serve"):
        join(tmp_path / "missing", older, tmp_path / "log")
    with pytest.raises(ValueError, match=r"has neither samples/ nor events/"):
        join(tmp_path, older, tmp_path / "log")


def test_stages_of_the_description_are_those_of_the_model(records: Path, older: Path, tmp_path: Path) -> None:
    for names in (["missed", "answered"], ["missed", "outranked", "reranked", "answered"]):
        spec = served_spec(stages=[{"name": name} for name in names])
        with pytest.raises(
            ValueError, match=rf"stages: found {', '.join(names)}, expected 3 stages: one for the items"
        ):
            join(records, older, tmp_path / "new", spec=spec)
        assert not (tmp_path / "new").exists()


def test_another_description_than_that_of_the_log(records: Path, older: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"spec: feedback differs from the spec of"):
        join(records, older, copy_of(older, tmp_path / "log"), spec=served_spec(feedback=["click"]))


def test_tables_must_have_what_the_description_names(records: Path, older: Path, tmp_path: Path) -> None:
    log = copy_of(older, tmp_path / "log")
    with pytest.raises(ValueError, match=r"items: missing, expected a table of items with the column 'topic'"):
        join(records, older, log, items=None)
    items = pl.read_parquet(older / "items.parquet")
    items.drop("price").write_parquet(tmp_path / "columns.parquet")
    with pytest.raises(ValueError, match=r"columns\.parquet has no column 'price'"):
        join(records, older, log, items=tmp_path / "columns.parquet")
    items.head(1).write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"rows\.parquet has no item '1' and \d+ others, which a service has recorded"):
        join(records, older, log, items=tmp_path / "rows.parquet")
    assert tree(log) == tree(older / "log")
    assert list((tmp_path / "log.join").iterdir()) == []


def test_requests_that_a_log_cannot_have_are_left_out_and_counted(older: Path, tmp_path: Path) -> None:
    traffic = random_traffic(2, days=1, requests=8)
    good = [sample for sample in traffic.samples if sample["sampled"] and sample["received"] < MIDNIGHT + 3 * DAY]
    chosen = {one["request"]: one for one in good}
    one, other = list(chosen.values())[:2]
    for sample, change in ((one, {"user": {"id": 7}}), (other, {"age": "old"})):
        body = json.loads(sample["body"])
        body["user"] |= change
        sample["body"] = json.dumps(body)
    only = Traffic([one, other, *list(chosen.values())[2:], traffic.samples[-1]])
    write_segments(tmp_path / "records", only)
    report = join(tmp_path / "records", older, copy_of(older, tmp_path / "log")).days[0]
    assert report.apart["request: value"] == 2
    assert sorted(report.apart_because["request: value"]) == sorted(
        [
            f"request {one['request']!r}: user.user: found {{'id': 7}}, expected a whole number or text",
            f"request {other['request']!r}: user.age: found 'old', expected a finite number",
        ]
    )
    day = ImpressionLog.load(tmp_path / "log").days["2024-01-15"].table()
    assert set(day["request"].to_pylist()) == set(chosen) - {one["request"], other["request"]}


def test_wrong_arguments(records: Path, older: Path, tmp_path: Path) -> None:
    log = copy_of(older, tmp_path / "log")
    for options, message in (
        ({"wait": "soon"}, "wait: found 'soon', expected a duration"),
        ({"wait": -1}, "wait: found -1"),
        ({"parity": 1.5}, "parity: found 1.5, expected a share from 0 to 1"),
        ({"close": True, "follow": True}, "close: found with follow"),
        ({"bundles": tmp_path / "none"}, "bundles: .*none does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            join(records, older, log, **options)
    without: dict[str, Any] = {"sequences": {}, "features": {}}
    for changes, message in (
        ({"time": None, "day": "at"}, "spec: time: missing; the days of joined logs are dates of the time"),
        ({}, "spec: user: no feature of users has the column 'user'"),
    ):
        with pytest.raises(ValueError, match=message):
            join(records, older, tmp_path / "new", spec=served_spec(**without, **changes))


def test_a_day_waits_for_its_records(older: Path, tmp_path: Path) -> None:
    write_segments(tmp_path / "records", Traffic(random_traffic(1, days=1, requests=4).samples[:-1]))
    log = copy_of(older, tmp_path / "log")
    waiting = join(tmp_path / "records", older, log, wait="1d")
    assert waiting.closed == []
    assert waiting.waiting["2024-01-15"] == "no record was received after its limit"
    assert join(tmp_path / "records", older, log, wait="1d", close=True).closed[0] == "2024-01-15"


def test_an_open_segment_keeps_a_day_open(older: Path, tmp_path: Path) -> None:
    traffic = random_traffic(1, days=1, requests=4)
    write_segments(tmp_path / "records", traffic)
    writer = SegmentWriter(tmp_path / "records" / "events")
    received = {"received": MIDNIGHT + 3 * DAY, "time": MIDNIGHT + 3 * DAY}
    event = {"id": "e", "request": "r0", "item": "1", "kind": "click", "value": 1.0, **received}
    writer.write(pa.RecordBatch.from_pylist([event], EVENT_SCHEMA))
    log = copy_of(older, tmp_path / "log")
    assert join(tmp_path / "records", older, log).waiting == {
        "2024-01-15": "a segment is open that may have records of it",
        "2024-01-16": "no record was received after its limit",
    }
    with pytest.raises(ValueError, match="close: a service still writes segments"):
        join(tmp_path / "records", older, log, close=True)
    writer.close()
    assert join(tmp_path / "records", older, log).closed == ["2024-01-15"]


def test_one_process_joins_to_a_log(records: Path, older: Path, tmp_path: Path) -> None:
    from rankfall.online.join_state import JoinDirectory

    log = copy_of(older, tmp_path / "log")
    with JoinDirectory(log).locked(), pytest.raises(ValueError, match="another process joins records to"):
        join(records, older, log)


def test_ids_may_be_text_and_repeated_calls_add_nothing(older: Path, tmp_path: Path) -> None:
    traffic = random_traffic(4)
    for name, text in (("numbers", False), ("text", True)):
        write_segments(tmp_path / name / "records", traffic, 1, text=text)
        log = copy_of(older, tmp_path / name / "log")
        first = joined(tmp_path / name / "records", log, older)
        again = joined(tmp_path / name / "records", log, older)
        assert (again.closed, again.days) == ([], first.days)
    assert tree(tmp_path / "numbers" / "log") == tree(tmp_path / "text" / "log")


def test_the_command_prints_a_table_or_json(
    records: Path, older: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(served_spec().model_dump(mode="json", exclude_none=True)))
    line: list[str | Path] = ["join", records, "--spec", spec, "--items", older / "items.parquet", "--parity", "0"]
    assert run(*line, "--out", tmp_path / "new", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["closed"] == ["2024-01-15"]
    assert run(*line, "--out", tmp_path / "new") == 0
    shown = capsys.readouterr()
    assert "2024-01-15" in shown.out
    assert "closed no day" in shown.err
    assert run(*line, "--out", tmp_path / "new", "--wait", "x") == 1
    assert "wait: found 'x'" in capsys.readouterr().err


def test_late_records_are_counted_for_their_day(older: Path, tmp_path: Path) -> None:
    traffic = random_traffic(1, days=1, requests=4)
    sample = next(one for one in traffic.samples if one["sampled"])
    late = {**sample, "request": "late", "received": MIDNIGHT + 4 * DAY}
    event = {"id": "x", "request": sample["request"], "item": str(sample["item"][0]), "kind": "click", "value": 1.0}
    event |= {"time": sample["time"], "received": MIDNIGHT + 4 * DAY}
    end = {**sample, "request": "end", "time": MIDNIGHT + 4 * DAY, "received": MIDNIGHT + 5 * DAY + 2 * HOUR}
    write_segments(tmp_path / "records", Traffic([*traffic.samples, late, end], [event]))
    result = join(tmp_path / "records", older, copy_of(older, tmp_path / "log"))
    reports = {report.day: report for report in result.days}
    assert reports["2024-01-16"].late_requests == {"2024-01-15": 1}
    assert reports["2024-01-16"].late_events == {"2024-01-15": 1}
    assert next(row for row in result.tables()["days"] if row["day"] == "2024-01-15")["late"] == 2


def test_an_event_may_be_recorded_before_its_request(older: Path, tmp_path: Path) -> None:
    """A service writes samples after it has answered; the client may be faster, and a limit may be between them."""
    first = random_traffic(1, days=1, requests=4)
    limit = MIDNIGHT + 3 * DAY + HOUR
    sample = next(one for one in first.samples if one["sampled"])
    following = {**sample, "request": "fast", "time": limit - 50, "received": limit + 40}
    event = {"id": "x", "request": "fast", "item": str(sample["item"][0]), "kind": "click", "value": 1.0}
    event |= {"time": limit - 10, "received": limit - 10}
    end = {**sample, "request": "end", "time": limit + 2 * DAY, "received": limit + 2 * DAY}
    write_segments(tmp_path / "records", Traffic([*first.samples, following, end], [event]))
    reports = join(tmp_path / "records", older, copy_of(older, tmp_path / "log")).days
    unknown = "event: unknown request"
    assert [(report.day, report.events, report.apart.get(unknown, 0)) for report in reports] == [
        ("2024-01-15", 0, 0),
        ("2024-01-16", 1, 0),
    ]
