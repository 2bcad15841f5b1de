"""`prepare rows` against plain loops, and its promise that only the rows count."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.requests import stage_counts
from rankfall.data.impressions.spec import Spec, validate_spec
from rankfall.data.sources.problems import TooManyBadError
from rankfall.data.sources.rows import log_state as fit
from rankfall.data.sources.rows import portions as collect
from rankfall.data.sources.rows import prepare_rows as preparing
from rankfall.data.sources.rows import row_files as source
from rankfall.data.sources.rows.prepare_rows import check_rows, prepare_rows
from rankfall.storage.files import LeftoverWarning
from support.row_logs import DAY, STAGES, START, logs, write_rows
from support.rows_witness import Row, Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # a log is drawn from one number


def examples(count: int) -> settings:
    return settings(max_examples=count, phases=WITHOUT_SHRINKING)


@pytest.fixture(autouse=True)
def small_steps() -> Iterator[None]:
    """Sizes at which a handful of rows goes through every loop that large logs go through."""
    with (
        mock.patch.object(source, "BATCH_ROWS", 7),
        mock.patch.object(source, "_BLOCK_BYTES", 2048),
        mock.patch.object(collect, "_MERGE_AT", 4),
        mock.patch.object(fit, "_SUM_BLOCK", 8),
    ):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


def content_of(log: ImpressionLog) -> dict[str, bytes]:
    """Every file that is read, but the manifest, which names the sources, and the state, which has their types."""
    files = {path.relative_to(log.path): path for path in log.path.rglob("*") if path.is_file()}
    skipped = ("manifest.json", "state")
    return {name.as_posix(): path.read_bytes() for name, path in files.items() if name.parts[0] not in skipped}


def about_of(log: ImpressionLog) -> dict[str, Any]:
    return {key: value for key, value in log.manifest["about"].items() if key not in ("sources", "tables")}


def found_rows(table: pa.Table) -> list[Row]:
    if "time" in table.column_names:
        place = table.column_names.index("time")
        table = table.set_column(place, "time", table["time"].cast(pa.int64()))
    rows: list[Row] = table.to_pylist()
    return rows


def assert_same(found: list[Row], expected: list[Row]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if name.endswith((".age", ".price")):
                assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6), name
            else:
                assert one[name] == other[name], name


# --- against loops ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@examples(40)
@given(st.data())
def test_impressions_are_those_of_a_loop_over_rows(folder: Path, data: st.DataObject) -> None:
    rows, spec = data.draw(logs())
    seed = data.draw(st.integers(0, 3))
    suffix = data.draw(st.sampled_from(source.SUFFIXES))
    file = write_rows(rows, fresh(folder) / f"log{suffix}")
    assert check_rows([file], spec).errors == []
    log = prepare_rows([file], folder / "out", spec, seed=seed)
    witness = Witness(rows, spec, seed=seed)
    expected = witness.impressions()
    assert list(log.days) == list(expected)
    for name, day in log.days.items():
        assert_same(found_rows(day.table()), expected[name])
    assert_same(found_rows(log.items()), witness.items())
    for table, values in witness.vocabularies.items():
        assert log.vocabulary(table).to_pylist() == values
    counts = log.manifest["about"]["counts"]
    assert counts["rows"] == len(rows)
    everything = [row for day in expected.values() for row in day]
    assert counts["without_relevant"] == sum(not any(value > 0 for value in row["relevance"]) for row in everything)
    for key, unseen in counts["unseen"].items():
        found = [row[key] for row in everything]
        assert unseen == sum(value == 1 for ids in found for value in (ids if isinstance(ids, list) else [ids]))
    stages = {row["stage"]: row for row in stage_counts(log).to_dicts()}
    for place, stage in enumerate(STAGES):
        assert stages[stage]["logged"] == sum(witness.depth(row) == place for row in rows)
        assert stages[stage]["kept"] == sum(row["depth"].count(place) for row in everything)
        sample = spec.stages[place].sample
        assert stages[stage]["short"] == sum(row["depth"].count(place) < (sample or 0) for row in everything)


JUNK = ["", "x", "-1", "-2", "inf", "-inf", "nan", "1.5", "1e400", "9" * 20, "007", "true", "3", "ranked", "2024-01-13"]


@pytest.mark.slow
@examples(15)
@given(st.data())
def test_a_log_is_prepared_if_and_only_if_the_check_finds_no_error(folder: Path, data: st.DataObject) -> None:
    """Cells of a good log are replaced by anything; what is left after dropping bad rows is prepared."""
    rows, spec = data.draw(logs())
    path = write_rows(rows, fresh(folder) / "log.csv")
    frame = pl.read_csv(path, infer_schema_length=0)
    for _ in range(data.draw(st.integers(1, 4))):
        row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.sampled_from(frame.columns))
        value = pl.lit(data.draw(st.sampled_from(JUNK)) or None, pl.String)
        frame = frame.with_columns(pl.when(pl.int_range(pl.len()) == row).then(value).otherwise(column).alias(column))
    frame.write_csv(path)
    check = check_rows([path], spec)
    try:
        prepare_rows([path], folder / "out", spec)
    except ValueError:
        assert check.errors
    else:
        assert not check.errors, check.errors
    if not check.errors or any(problem.dropped is None for problem in check.errors):
        return
    with suppress(TooManyBadError):  # every row is bad
        log = prepare_rows([path], folder / "rest", spec, skip_bad=len(rows))
        counts, skipped = log.manifest["about"]["counts"], log.manifest["about"]["skipped"]
        assert counts["rows"] + skipped["rows"] == len(rows)


@examples(20)
@given(st.data())
def test_sequences_hold_nothing_of_the_present_or_the_future(folder: Path, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=14))
    rows = [
        {"request": number, "time": START + time, "user": number % 2, "item": 10 * time + item, "clicked": 1}
        for number, time in enumerate(times)
        for item in range(2)
    ]
    spec = validate_spec(
        {
            "request": "request",
            "item": "item",
            "user": "user",
            "time": {"column": "time", "unit": "ms"},
            "stages": [{"name": "shown"}],
            "relevant": "shown",
            "feedback": ["clicked"],
            "features": {"item": {"item": {"kind": "categorical", "num_buckets": 100}}},
            "sequences": {"past": {"max_length": 100, "features": ["item"], "feedback": "clicked"}},
        }
    )
    portion = data.draw(st.integers(1, 8))
    log = prepare_rows([write_rows(rows, fresh(folder) / "log.parquet")], folder / "out", spec, portion_rows=portion)
    for row in found_rows(next(iter(log.days.values())).table()):
        now, user = row["time"] - START, row["request"] % 2
        past = [time for number, time in enumerate(times) if number % 2 == user and time < now]
        assert sorted((value - 2) // 10 for value in row["sequence.past.item"]) == sorted(past * 2)


@pytest.mark.parametrize(
    ("place", "expected"),
    [("position", [3, 8, 9, 7, 6, 4, 5]), ("rank", [3, 8, 9, 7, 6, 4, 5]), (None, [3, 4, 5, 7, 9, 6, 8])],
)
@pytest.mark.parametrize("portion", [1, 100])
def test_events_of_one_time_are_ordered_by_place_then_ids(
    tmp_path: Path, place: str | None, expected: list[int], portion: int
) -> None:
    """The orders were written by hand; a client that knows positions and ids can send the same history."""
    first = [(7, 2), (3, 0), (5, None), (9, 1), (4, None)]
    shown = [("a", 0, item, at) for item, at in first] + [("b", 0, 8, 0), ("b", 0, 6, 3), ("c", 1, 1, 0)]
    rows = [
        {"request": request, "time": START + time, "user": 1, "item": item, "place": at, "clicked": 1}
        for request, time, item, at in shown
    ]
    spec = validate_spec(
        {
            "request": "request",
            "item": "item",
            "user": "user",
            "time": {"column": "time", "unit": "ms"},
            **({} if place is None else {place: "place"}),
            "stages": [{"name": "shown"}],
            "relevant": "shown",
            "feedback": ["clicked"],
            "features": {"item": {"item": {"kind": "categorical", "num_buckets": 100}}},
            "sequences": {"past": {"features": ["item"], "feedback": "clicked"}},
        }
    )
    log = prepare_rows([write_rows(rows, tmp_path / "log.csv")], tmp_path / "out", spec, portion_rows=portion)
    last = found_rows(next(iter(log.days.values())).table())[-1]
    assert [value - 2 for value in last["sequence.past.item"]] == expected


# --- only the rows count ----------------------------------------------------------------------------------------


@pytest.mark.slow
@examples(20)
@given(st.data())
def test_files_formats_order_and_portions_do_not_matter(folder: Path, data: st.DataObject) -> None:
    rows, spec = data.draw(logs())
    once = prepare_rows([write_rows(rows, fresh(folder) / "log.parquet")], folder / "once", spec, seed=1)
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    parts = [shuffled[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    files = [
        write_rows(part, folder / f"{number}{data.draw(st.sampled_from(source.SUFFIXES))}")
        for number, part in enumerate(parts)
        if part
    ]
    again = prepare_rows(files, folder / "again", spec, seed=1, portion_rows=data.draw(st.integers(1, 40)))
    assert content_of(again) == content_of(once)
    assert about_of(again) == about_of(once)
    without = {
        "about": 0,
        "state": 0,
        "sha256": 0,
    }  # types of text and of numbers in other files may differ, and so the seal
    assert {**again.manifest, **without} == {**once.manifest, **without}


@pytest.mark.slow
def test_the_number_of_threads_does_not_matter(tmp_path: Path) -> None:
    chance = random.Random(5)
    rows = [
        {
            "request": request,
            "time": START + DAY * (request % 3),
            "item": item,
            "price": 10 * item + chance.gauss(3, 50),
            "stage": 0,
        }
        for request in range(200)
        for item in chance.sample(range(500), 20)
    ]
    chance.shuffle(rows)
    write_rows(rows, tmp_path / "log.parquet")
    spec = {
        "request": "request",
        "item": "item",
        "time": {"column": "time", "unit": "ms"},
        "stages": [{"name": "shown", "sample": 7}],
        "stage": "stage",
        "relevant": "shown",
        "negatives": 3,
        "features": {
            "item": {
                "item": {"kind": "categorical", "vocabulary": True},
                "price": {"kind": "dense", "standardise": True},
                "bucket": {"kind": "dense", "column": "price", "bucketize": 9},
            }
        },
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    for threads in ("1", "4"):
        arguments = ["log.parquet", "--spec", "spec.yaml", "--out", f"out{threads}", "--json"]
        subprocess.run(
            [sys.executable, "-m", "rankfall", "prepare", "rows", *arguments],
            env={**os.environ, "POLARS_MAX_THREADS": threads},
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    one, four = (ImpressionLog.load(tmp_path / f"out{threads}", verify=True) for threads in ("1", "4"))
    assert content_of(one) == content_of(four)
    assert about_of(one) == about_of(four)
    # and what was drawn besides is not in the request, is different, and is as much as was asked for
    logged = pl.DataFrame(rows).group_by("request").agg("item")
    known = {request: set(items) for request, items in logged.iter_rows()}
    for day in one.days.values():
        for row in found_rows(day.table()):
            drawn = [item for item, depth in zip(row["item"], row["depth"], strict=True) if depth == -1]
            assert len(set(drawn)) == 3
            assert not known[row["request"]] & set(drawn)


def test_directories_are_read_with_everything_inside(tmp_path: Path) -> None:
    rows, spec = simple_log()
    (tmp_path / "log" / "day=1").mkdir(parents=True)
    write_rows(rows[:3], tmp_path / "log" / "day=1" / "part.csv")
    write_rows(rows[3:], tmp_path / "log" / "part.feather")
    (tmp_path / "log" / "_SUCCESS.csv").write_text("a mark of another program")
    write_rows(rows[3:4], tmp_path / "log" / "part.jsonl.gz")
    write_rows(rows[4:], tmp_path / "log" / "part.feather")
    log = prepare_rows([tmp_path / "log"], tmp_path / "out", spec)
    names = [Path(about["path"]).name for about in log.manifest["about"]["sources"]]
    assert names == ["part.csv", "part.feather", "part.jsonl.gz"]
    assert log.manifest["about"]["counts"]["rows"] == len(rows)


def test_files_in_directories_that_no_reader_knows_are_errors(tmp_path: Path) -> None:
    rows, spec = simple_log()
    (tmp_path / "log").mkdir()
    write_rows(rows, tmp_path / "log" / "part.csv")
    (tmp_path / "log" / "part.json").write_text("{}")
    with pytest.raises(ValueError, match=r"part\.json: found '\.json', expected one of \.csv, .*\.jsonl"):
        prepare_rows([tmp_path / "log"], tmp_path / "out", spec)
    with pytest.raises(ValueError, match=r"part\.json: found '\.json'"):
        check_rows([tmp_path / "log"], spec)
    (tmp_path / "log" / "part.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    write_rows(rows, tmp_path / "elsewhere" / "part.csv")
    (tmp_path / "log" / "more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"log/more is not a file"):
        prepare_rows([tmp_path / "log"], tmp_path / "out", spec)
    assert not (tmp_path / "out").exists()


# --- JSON lines -------------------------------------------------------------------------------------------------


def test_json_lines_are_read_as_text_is(tmp_path: Path) -> None:
    """Numbers, truth values and text become what they become in CSV; lists are lists, and keys may be absent."""
    rows, spec = simple_log()
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    lines = [json.dumps(row if number % 2 else texts[number]) for number, row in enumerate(rows)]
    (tmp_path / "log.jsonl").write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
    once = prepare_rows([write_rows(rows, tmp_path / "log.csv")], tmp_path / "once", spec)
    again = prepare_rows([tmp_path / "log.jsonl"], tmp_path / "again", spec)
    assert content_of(again) == content_of(once)


def test_lists_in_json_lines_are_sequences_and_vectors(tmp_path: Path) -> None:
    rows = [
        {"request": 1, "time": 0, "item": 5, "past": [3, 4], "other": {"a": 1}, "size": [1, 2.5]},
        {"request": 2, "time": 1, "item": 6, "past": [], "other": [1], "size": [0, 0]},
        {"request": 3, "time": 2, "item": 5, "size": [1.5, 0]},
    ]
    spec = validate_spec(
        {
            "request": "request",
            "item": "item",
            "time": {"column": "time", "unit": "s"},
            "stages": [{"name": "shown"}],
            "relevant": "shown",
            "features": {
                "item": {"item": {"kind": "categorical", "num_buckets": 9}, "size": {"kind": "dense", "size": 2}}
            },
            "sequences": {"past": {"features": ["item"], "columns": {"item": "past"}}},
        }
    )
    (tmp_path / "log.ndjson").write_text("\n".join(map(json.dumps, rows)))
    found = found_rows(
        next(iter(prepare_rows([tmp_path / "log.ndjson"], tmp_path / "out", spec).days.values())).table()
    )
    assert [row["sequence.past.item"] for row in found] == [[5, 6], [], []]
    assert [row["item.size"] for row in found] == [[[1, 2.5]], [[0, 0]], [[1.5, 0]]]


def test_tables_may_be_json_lines(tmp_path: Path) -> None:
    rows, spec = with_item_table()
    table = [{"item": item, "topic": f"t{item % 3}"} for item in (10, 11, 12, 13, 20)]
    log = write_rows(rows, tmp_path / "log.csv")
    once = prepare_rows([log], tmp_path / "once", spec, items=write_rows(table, tmp_path / "items.csv"))
    again = prepare_rows([log], tmp_path / "again", spec, items=write_rows(table, tmp_path / "items.jsonl"))
    assert content_of(again) == content_of(once)


def with_item_table() -> tuple[list[Row], Spec]:
    rows, spec = simple_log()
    content = spec.model_dump(mode="json")
    content["features"]["item"]["topic"] = {"kind": "categorical", "vocabulary": True}
    return rows, validate_spec(content)


@pytest.mark.parametrize("line", ['{"request": 1', "[1]", "7", '{"item": NaN}', "\x00", '{"item": "\\ud800"}'])
def test_lines_that_are_no_objects_are_bad_rows(tmp_path: Path, line: str) -> None:
    rows, spec = simple_log()
    lines = [json.dumps(row) for row in rows]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(ValueError, match=r"log\.jsonl: row 4: found [^\n]*, expected a JSON object\n"):
        prepare_rows([file], tmp_path / "out", spec)
    (problem,) = check_rows([file], spec).errors
    assert (problem.problem, problem.count, problem.places[0].row) == ("found no JSON object", 1, 4)
    again = prepare_rows([file], tmp_path / "again", spec, skip_bad=1)
    once = prepare_rows([write_rows(rows, tmp_path / "good.csv")], tmp_path / "once", spec)
    assert content_of(again) == content_of(once)


# --- tables to join ---------------------------------------------------------------------------------------------


def simple_log() -> tuple[list[Row], Spec]:
    rows = [
        {"request": request, "time": START + request * DAY // 2, "user": request % 2, "item": item, "stage": stage}
        for request in range(4)
        for item, stage in ((10 + request, "ranked"), (20, "matched"))
    ]
    content = {
        "request": "request",
        "item": "item",
        "user": "user",
        "time": {"column": "time", "unit": "ms"},
        "stage": "stage",
        "stages": [{"name": "matched", "sample": 1}, {"name": "ranked"}],
        "relevant": "ranked",
    }
    return rows, validate_spec(content)


@pytest.mark.slow
@examples(16)
@given(st.data())
def test_joined_tables_give_what_columns_of_the_log_give(folder: Path, data: st.DataObject) -> None:
    rows, spec = data.draw(logs())
    # what belongs to an item, user or request is now the same in all its rows, as it is in a table
    of = {"items": ("item", ["author", "topic", "price", "size", "born"]), "users": ("user", ["age"])}
    of["requests"] = ("request", ["time", "user", "page", "last"])
    first: dict[str, dict[Any, Row]] = {
        table: {row[key]: {name: row[name] for name in (key, *names)} for row in reversed(rows) if row[key] is not None}
        for table, (key, names) in of.items()
    }
    for row in rows:
        for table, (key, _) in of.items():
            row.update(first[table].get(row[key], {"age": None}))
    whole = prepare_rows([write_rows(rows, fresh(folder) / "log.parquet")], folder / "whole", spec)
    moved = {name for _, names in of.values() for name in names}
    lean = [{name: value for name, value in row.items() if name not in moved} for row in rows]
    types = pl.DataFrame(rows, infer_schema_length=None).schema
    tables: dict[str, Path] = {}
    for table, (key, names) in of.items():
        suffix = data.draw(st.sampled_from([".parquet", ".csv"]))
        schema = {name: types[name] for name in (key, *names)}
        frame = pl.DataFrame([*first[table].values()], schema=schema)
        tables[table] = folder / f"{table}{suffix}"
        frame = frame.with_columns(pl.col(pl.Float64).fill_nan(None))
        frame.write_csv(tables[table]) if suffix == ".csv" else frame.write_parquet(tables[table])
    joined = prepare_rows(
        [write_rows(lean, folder / "lean.parquet")],
        folder / "joined",
        spec,
        items=tables["items"],
        users=tables["users"],
        requests=tables["requests"],
        portion_rows=data.draw(st.integers(1, 40)),
    )
    assert content_of(joined) == content_of(whole)
    assert joined.manifest["about"]["unknown"] == {"items": 0, "users": 0, "requests": 0}


def test_what_tables_do_not_have_is_missing_and_counted(tmp_path: Path) -> None:
    rows, spec = simple_log()
    features = {
        "item": {"topic": {"kind": "categorical", "vocabulary": True}, "price": {"kind": "dense", "missing": -7}},
        "user": {"city": {"kind": "categorical", "vocabulary": True}},
        "context": {"page": {"kind": "categorical", "num_buckets": 9}},
    }
    spec = validate_spec({**spec.model_dump(exclude_defaults=True), "features": features})
    pl.DataFrame({"item": [10, 12], "topic": ["a", "b"], "price": [1, 2]}).write_csv(tmp_path / "items.csv")
    pl.DataFrame({"user": [1, 5], "city": ["x", "y"]}).write_csv(tmp_path / "users.csv")
    pl.DataFrame({"request": [0, 1, 77, 78], "page": [3, 4, 5, 6]}).write_csv(tmp_path / "requests.csv")
    log = prepare_rows(
        [write_rows(rows, tmp_path / "log.csv")],
        tmp_path / "out",
        spec,
        items=tmp_path / "items.csv",
        users=tmp_path / "users.csv",
        requests=tmp_path / "requests.csv",
        fit_days=2,
    )
    found = {row["request"]: row for day in log.days.values() for row in found_rows(day.table())}
    assert [found[request]["context.page"] for request in range(4)] == [5, 6, 0, 0]
    assert [found[request]["user.city"] for request in range(4)] == [0, 2, 0, 2]
    by_item = {row["item"]: (row["item.topic"], row["item.price"]) for row in log.items().to_pylist()}
    assert by_item == {10: (2, 1), 12: (3, 2), 11: (0, -7), 13: (0, -7), 20: (0, -7)}
    assert log.manifest["about"]["unknown"] == {"items": 3, "users": 1, "requests": 2}
    assert log.manifest["about"]["unused_requests"] == 2


@pytest.mark.parametrize("where", ["log", "requests"])
def test_sequences_may_come_as_lists(tmp_path: Path, where: str) -> None:
    rows, spec = simple_log()
    lists = {0: [10, 20], 1: [], 2: None, 3: [13, 99, 20, 11]}
    content = spec.model_dump(exclude_defaults=True) | {
        "features": {"item": {"item": {"kind": "categorical", "vocabulary": True}}},
        "sequences": {"past": {"max_length": 3, "features": ["item"], "columns": {"item": "clicked_items"}}},
    }
    table = None
    if where == "log":
        rows = [row | {"clicked_items": lists[row["request"]]} for row in rows]
    else:
        table = tmp_path / "requests.parquet"
        pl.DataFrame({"request": [*lists], "clicked_items": [*lists.values()]}).write_parquet(table)
    log = prepare_rows(
        [write_rows(rows, tmp_path / "log.parquet")],
        tmp_path / "out",
        validate_spec(content),
        requests=table,
        fit_days=2,
        portion_rows=2,
    )
    known = log.vocabulary("item.item").to_pylist()
    for day in log.days.values():
        for row in found_rows(day.table()):
            expected = [2 + known.index(item) if item in known else 1 for item in (lists[row["request"]] or [])[-3:]]
            assert row["sequence.past.item"] == expected


# --- types ------------------------------------------------------------------------------------------------------


def test_times_may_be_written_out(tmp_path: Path) -> None:
    rows, spec = simple_log()
    written = validate_spec({**spec.model_dump(exclude_defaults=True), "time": {"column": "time", "zone": "UTC"}})
    as_numbers = prepare_rows([write_rows(rows, tmp_path / "log.parquet")], tmp_path / "numbers", spec)
    frame = pl.DataFrame(rows).with_columns(pl.from_epoch("time", "ms"))
    frame[:3].write_csv(tmp_path / "0.csv")
    frame[3:5].write_parquet(tmp_path / "1.parquet")
    frame[5:].with_columns(pl.col("time").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")).write_ipc(
        tmp_path / "2.arrow"
    )
    files = [tmp_path / name for name in ("0.csv", "1.parquet", "2.arrow")]
    as_dates = prepare_rows(files, tmp_path / "dates", written)
    assert content_of(as_dates) == content_of(as_numbers)


def test_a_column_may_name_the_days(tmp_path: Path) -> None:
    rows, spec = simple_log()
    content = spec.model_dump(exclude_defaults=True) | {"day": "part"}
    del content["time"]
    # ten is after nine, whatever letters say
    named = [{"part": 9 + row["request"] // 2, **row} for row in rows]
    log = prepare_rows([write_rows(named, tmp_path / "log.csv")], tmp_path / "out", validate_spec(content))
    assert list(log.days) == ["9", "10"]
    assert log.manifest["about"]["fit_days"] == ["9"]
    named = [{**row, "part": f"{row['part']:03}"} for row in named]
    log = prepare_rows([write_rows(named, tmp_path / "text.csv")], tmp_path / "text", validate_spec(content))
    assert list(log.days) == ["009", "010"]


def test_ids_that_became_floats_are_whole_again(tmp_path: Path) -> None:
    rows, spec = simple_log()
    content = spec.model_dump(exclude_defaults=True) | {
        "rank": "rank",
        "features": {
            "user": {"user": {"kind": "categorical", "num_buckets": 2}},
            "item": {"item": {"kind": "categorical", "hash_bucket_size": 1000}},
        },
    }
    rows = [row | {"rank": 1 + row["request"], "user": row["user"] or None} for row in rows]
    write_rows(rows, tmp_path / "log.parquet")
    floats = pl.DataFrame(rows).with_columns(pl.col("item", "user", "rank").cast(pl.Float64))
    floats.with_columns(pl.col("user").fill_null(math.nan)).write_parquet(tmp_path / "floats.parquet")
    floats.write_csv(tmp_path / "floats.csv")
    logs = [
        prepare_rows([tmp_path / name], tmp_path / f"from {name}", validate_spec(content))
        for name in ("log.parquet", "floats.parquet", "floats.csv")
    ]
    assert content_of(logs[0]) == content_of(logs[1]) == content_of(logs[2])


def test_what_is_fitted_is_fitted_to_the_first_days(tmp_path: Path) -> None:
    rows, spec = simple_log()
    features = {"item": {"item": {"kind": "categorical", "vocabulary": True}}}
    spec = validate_spec({**spec.model_dump(exclude_defaults=True), "features": features})
    path = write_rows(rows, tmp_path / "log.csv")
    # request 0 is of one day in UTC, 1 and 2 are of the next, 3 is of the last
    for days, known in ((1, [10, 20]), (2, [20, 10, 11, 12]), (3, [20, 10, 11, 12, 13])):
        log = prepare_rows([path], tmp_path / f"out{days}", spec, fit_days=days)
        assert log.vocabulary("item.item").to_pylist() == known
    default = prepare_rows([path], tmp_path / "out", spec)
    assert default.manifest["about"]["fit_days"] == list(default.days)[:-2]  # one for validation, one for testing


# --- nothing half done ------------------------------------------------------------------------------------------


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize("broken", ["order_requests", "fit_portions", "write_days", "provenance"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_crash_leaves_nothing_that_looks_finished(tmp_path: Path, broken: str, error: type[BaseException]) -> None:
    rows, spec = simple_log()
    path = write_rows(rows, tmp_path / "log.csv")
    good = content_of(prepare_rows([path], tmp_path / "old", spec))
    before = names_in(tmp_path)
    for out in ("new", "old"):
        with mock.patch.object(preparing, broken, side_effect=error), pytest.raises(error):
            prepare_rows([path], tmp_path / out, spec, force=True)
    assert names_in(tmp_path) == before
    assert content_of(ImpressionLog.load(tmp_path / "old", verify=True)) == good


def test_what_a_killed_run_leaves_is_not_mistaken_for_a_log(tmp_path: Path) -> None:
    """A process that is killed cleans nothing up."""
    rows, spec = simple_log()
    path = write_rows(rows, tmp_path / "log.csv")
    script = (
        "import os, sys; from pathlib import Path\n"
        "import rankfall.data.sources.rows.prepare_rows as p\n"
        "from rankfall.data.impressions.spec import load_spec\n"
        "p.provenance = lambda *a, **k: os._exit(9)\n"  # every day is written by then
        "p.prepare_rows([Path('log.csv')], Path('out'), load_spec(Path('spec.yaml')))\n"
    )
    (tmp_path / "spec.yaml").write_text(json.dumps(spec.model_dump(exclude_defaults=True)))
    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert killed.returncode == 9
    (left,) = tmp_path.glob(".out.*.unfinished")
    assert list((left / "days").iterdir())
    assert not (tmp_path / "out").exists()
    assert not is_log(left)
    with pytest.raises(ValueError, match="is not an impression log"):
        ImpressionLog.load(left)
    with pytest.warns(LeftoverWarning, match=f"removed {left}"):
        log = prepare_rows([path], tmp_path / "out", spec)
    assert log.manifest["about"]["counts"]["rows"] == len(rows)
    assert not left.exists()
    assert not list(log.path.rglob("*.spool"))
