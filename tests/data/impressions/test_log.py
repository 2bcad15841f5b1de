"""Impression logs: what is written, in which bytes, and what is said when it is not whole."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.data.impressions import log_writer as log_module
from rankfall.data.impressions.items import impression_schema, item_schema
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.impressions.log_writer import LogWriter
from rankfall.data.impressions.spec import features_of
from rankfall.storage.files import fresh_directory
from support.logs import DAYS, FIRST_MS, ITEMS, ROWS, as_table, item_columns, random_day, random_log, spec
from support.sealing import edit_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = impression_schema(spec(), request=pa.int64())


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def new_writer(path: Path, schema: pa.Schema = SCHEMA) -> LogWriter:
    path.mkdir(parents=True, exist_ok=True)
    return LogWriter(path, spec(), features_of(spec(), ROWS), schema)


def item_table() -> pa.Table:
    return as_table(item_columns(), item_schema(spec()))


def day_table(number: int = 0, impressions: int = 30, seed: int = 0) -> pa.Table:
    return as_table(random_day(np.random.default_rng(seed), number, impressions), SCHEMA)


def finish(writer: LogWriter) -> None:
    writer.finish(item_table(), {"video": pa.array(["a", "b"])}, {"source": "test"})


# --- columns ------------------------------------------------------------------------------------------------------


def test_columns_of_impressions() -> None:
    assert SCHEMA.names == [
        "request",
        "time",
        "user.id",
        "user.taste",
        "context.hour",
        "context.load",
        "sequence.history.video",
        "sequence.history.author",
        "item",
        "item.video",
        "item.author",
        "item.price",
        "depth",
        "rank",
        "relevance",
        "grade",
        "feedback.click",
        "feedback.like",
        "left_out",
    ]
    types = {
        "request": pa.int64(),
        "time": pa.timestamp("ms", "UTC"),
        "user.id": pa.int32(),
        "user.taste": pa.list_(pa.field("value", pa.float32(), nullable=False), 3),
        "context.hour": pa.int32(),
        "context.load": pa.float32(),
    }
    lists = {
        "sequence.history.video": pa.int32(),
        "item": pa.int32(),
        "item.video": pa.int32(),
        "item.price": pa.float32(),
        "depth": pa.int8(),
        "rank": pa.int32(),
        "relevance": pa.float32(),
        "grade": pa.int32(),
        "feedback.click": pa.float32(),
        "left_out": pa.int32(),
    }
    assert {name: SCHEMA.field(name).type for name in types} == types
    assert {name: SCHEMA.field(name).type.value_type for name in lists} == lists
    assert not any(field.nullable for field in SCHEMA)


def test_columns_that_only_some_logs_have() -> None:
    schema = impression_schema(spec(truth="truth"), request=pa.string())
    assert schema.field("request").type == pa.string()
    assert schema.names == [*SCHEMA.names, "truth"]
    assert schema.field("truth").type.value_type == pa.float32()
    with_positions = impression_schema(spec(position="shown_at"), request=pa.int64())
    assert set(with_positions.names) - set(SCHEMA.names) == {"position"}
    assert with_positions.field("position").type.value_type == pa.int32()


def test_columns_of_items() -> None:
    assert item_schema(spec()).names == ["item", "item.video", "item.author", "item.price"]
    assert item_schema(spec()).field("item.price").type == pa.float32()
    with_ids = item_schema(spec(), ids=pa.string())
    assert with_ids.names == ["item", "id", "item.video", "item.author", "item.price"]
    assert with_ids.field("id").type == pa.string()


def test_vectors_of_items_are_lists_of_vectors() -> None:
    features = {"item": {"vector": {"kind": "dense", "size": 5}}}
    described = spec(features=features, sequences={})
    vector = pa.list_(pa.field("value", pa.float32(), nullable=False), 5)
    assert impression_schema(described, request=pa.int64()).field("item.vector").type.value_type == vector
    assert item_schema(described).field("item.vector").type == vector


# --- writing and reading ------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tables = {day: day_table(number, 30 + number, seed=number) for number, day in enumerate(DAYS)}
    writer = new_writer(tmp_path / "log")
    for day, table in tables.items():
        writer.write(day, table)
    finish(writer)
    log = ImpressionLog.load(tmp_path / "log", verify=True)
    assert list(log.days) == list(DAYS)
    for day, table in tables.items():
        assert log.days[day].table().equals(table)
        assert len(log.days[day]) == len(table)
    assert log.items().equals(item_table())
    assert log.vocabulary("video").to_pylist() == ["a", "b"]
    assert log.spec == spec()
    assert log.features == features_of(spec(), ROWS)
    assert "3 days, 93 impressions" in repr(log)


def test_manifests_say_what_is_there(tmp_path: Path) -> None:
    log = random_log(tmp_path / "log")
    assert log.manifest["days"] == {name: day.manifest["sha256"] for name, day in log.days.items()}
    assert list(log.days) == list(DAYS)
    assert log.manifest["impressions"] == 150
    assert log.manifest["stages"] == ["dropped", "ranked", "shown"]
    assert log.manifest["items"]["count"] == ITEMS
    assert log.manifest["about"] == {"source": "test"}
    for number, day in enumerate(log.days.values()):
        rows = day.table().to_pylist()
        file = day.path / "impressions.arrow"
        assert day.manifest["impressions"] == len(rows)
        assert day.manifest["items"] == sum(len(row["item"]) for row in rows)
        assert day.manifest["first_time"] == FIRST_MS + number * 86_400_000
        assert day.manifest["last_time"] == max(round(row["time"].timestamp() * 1000) for row in rows)
        assert day.manifest["bytes"] == file.stat().st_size
        assert day.manifest["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_tables_are_mapped_not_read(tmp_path: Path) -> None:
    log = random_log(tmp_path / "log", impressions=200)
    before = pa.total_allocated_bytes()
    table = log.days[DAYS[0]].table()
    assert len(table) == 200
    assert pa.total_allocated_bytes() == before


def test_types_are_those_of_the_schema(tmp_path: Path) -> None:
    """A portion may come with wider types than the log keeps."""
    table = day_table()
    wide = table.set_column(0, "request", table["request"].cast(pa.int32()))
    wide = wide.set_column(1, "time", table["time"].cast(pa.timestamp("us", "UTC")))
    place = table.schema.get_field_index("item")
    wide = wide.set_column(place, "item", table["item"].cast(pa.large_list(pa.int64())))
    writer = new_writer(tmp_path / "log")
    writer.write("d", wide)
    finish(writer)
    assert ImpressionLog.load(tmp_path / "log").days["d"].table().equals(table)


def test_blocks_have_one_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "BLOCK", 8)
    log = random_log(tmp_path / "log", impressions=30)
    assert [len(batch) for batch in log.days[DAYS[0]].table().to_batches()] == [8, 8, 8, 6]


WHOLE = day_table(0, 40)


def written(portions: list[pa.Table]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        writer = new_writer(Path(directory))
        for portion in portions:
            writer.write("d", portion)
        writer.write("e", WHOLE.slice(3, 5))
        finish(writer)
        return files_of(Path(directory))


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=8), chunked=st.booleans(), block=st.sampled_from([1, 7, 16]))
def test_bytes_do_not_depend_on_portions(cuts: list[int], chunked: bool, block: int) -> None:
    """However impressions are cut, and whatever the portions were cut from, the files are the same."""
    edges = [0, *sorted(cuts), len(WHOLE)]
    portions = [WHOLE.slice(start, stop - start) for start, stop in pairwise(edges)]
    if chunked:
        portions = [pa.concat_tables([portion.slice(0, 2), portion.slice(2)]) for portion in portions]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "BLOCK", block)
        assert written(portions) == written([WHOLE])


def test_bytes_do_not_depend_on_how_a_column_was_made(tmp_path: Path) -> None:
    """Columns from lists, from NumPy and from Polars have different buffers, and must give the same bytes."""
    import polars as pl

    through_polars = pl.DataFrame(pl.from_arrow(WHOLE)).to_arrow()
    assert written([through_polars]) == written([WHOLE])
    with_bitmaps = WHOLE  # which columns have that once had a null
    for place, field in enumerate(SCHEMA):
        if not pa.types.is_fixed_size_list(field.type):
            once_null = pa.concat_arrays([pa.array([None], field.type), WHOLE[field.name].combine_chunks()])
            with_bitmaps = with_bitmaps.set_column(place, field.name, once_null.slice(1))
    assert with_bitmaps["item"].chunk(0).buffers()[0] is not None
    assert written([with_bitmaps]) == written([WHOLE])


def test_strings_as_requests(tmp_path: Path) -> None:
    schema = impression_schema(spec(), request=pa.string())
    names = [f"request {number}" for number in range(len(WHOLE))]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        writer = new_writer(tmp_path / str(kind), schema)
        writer.write("d", WHOLE.set_column(0, "request", pa.array(names, kind)))
        finish(writer)
    assert ImpressionLog.load(tmp_path / "string").days["d"].table()["request"].to_pylist() == names
    assert files_of(tmp_path / "string") == files_of(tmp_path / "large_string") == files_of(tmp_path / "string_view")


# --- wrong use of the writer --------------------------------------------------------------------------------------


def test_a_day_comes_together(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "log")
    writer.write("b", day_table(0))
    writer.write("b", day_table(1))
    writer.write("a", day_table(2))
    with pytest.raises(ValueError, match="day: b is finished; the impressions of a day must be written together"):
        writer.write("b", day_table(3))


def test_days_keep_the_order_in_which_they_came(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "log")
    for day in ("b", "a", "c"):
        writer.write(day, day_table())
    finish(writer)
    log = ImpressionLog.load(tmp_path / "log")
    assert list(log.days) == ["b", "a", "c"]
    assert [day.name for day in log.choose(["b..a"])] == ["b", "a"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a..b", "a b", "-a", ".a", "2024-01-13\n"])
def test_names_of_days(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"day: found {name!r}, expected a name of letters")):
        new_writer(tmp_path / "log").write(name, day_table())


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no impressions to write"):
        finish(new_writer(tmp_path / "log"))


def test_a_day_without_impressions(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "log")
    writer.write("a", WHOLE.slice(0, 0))
    writer.write("b", WHOLE)
    finish(writer)
    log = ImpressionLog.load(tmp_path / "log", verify=True)
    assert (len(log.days["a"]), len(log.days["a"].table())) == (0, 0)
    assert log.days["a"].manifest["first_time"] is None


def test_a_column_too_few(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grade"):
        new_writer(tmp_path / "log").write("d", WHOLE.drop_columns(["grade"]))


def test_a_type_that_does_not_fit(tmp_path: Path) -> None:
    words = WHOLE.set_column(2, "user.id", pa.array(["x"] * len(WHOLE)))
    with pytest.raises(ValueError, match="x"):
        new_writer(tmp_path / "log").write("d", words)


@pytest.mark.parametrize("column", ["request", "user.taste", "rank", "sequence.history.video"])
def test_nulls(tmp_path: Path, column: str) -> None:
    """Nowhere, not even inside a list or a vector."""
    place, field = WHOLE.schema.get_field_index(column), WHOLE.schema.field(column)
    values = WHOLE[column].to_pylist()
    if isinstance(values[5], list):
        values[5] = [None, *values[5][1:]]
    else:
        values[5] = None
    kind = {"request": pa.int64(), "user.taste": pa.list_(pa.float32(), 3)}.get(column, pa.list_(pa.int32()))
    wrong = WHOLE.set_column(place, field.name, pa.array(values, kind))

    def write() -> None:
        writer = new_writer(tmp_path / "log")
        writer.write("d", wrong)
        finish(writer)

    with pytest.raises(ValueError, match=f"{column}.*null"):
        write()


# --- choosing days ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    path = tmp_path_factory.mktemp("week") / "log"
    writer = new_writer(path)
    for day in range(1, 10):
        writer.write(f"day-{day}", WHOLE.slice(day, 1))
    finish(writer)
    return ImpressionLog.load(path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["day-3"], [3]),
        (["day-3..day-5"], [3, 4, 5]),
        (["day-3..day-3"], [3]),
        (["..day-2"], [1, 2]),
        (["day-8.."], [8, 9]),
        ([".."], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (["day-7", "day-1..day-2"], [7, 1, 2]),
    ],
)
def test_choose(week: ImpressionLog, names: list[str], expected: list[int]) -> None:
    assert [day.name for day in week.choose(names)] == [f"day-{number}" for number in expected]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("day-0", r"has no day 'day-0', did you mean 'day-\d'; it has day-1 .. day-9 \(9 days\)"),
        ("monday", r"has no day 'monday'"),
        ("day-2..day-12", r"has no day 'day-12' \(in 'day-2..day-12'\)"),
        ("x..day-2", r"has no day 'x' \(in 'x..day-2'\)"),
        ("day-4..day-2", r"'day-4..day-2' ends before it begins"),
        ("", r"has no day ''"),
    ],
)
def test_days_that_are_not_there(week: ImpressionLog, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^days: .*{message}"):
        week.choose([name])


def test_few_days_are_listed(tmp_path: Path) -> None:
    log = random_log(tmp_path / "log", impressions=3)
    with pytest.raises(ValueError, match=f"it has {', '.join(DAYS)}$"):
        log.choose(["2025-01-01"])


# --- logs that are not whole --------------------------------------------------------------------------------------


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; `...` removes one."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


DAY = f"days/{DAYS[1]}"

BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda log: (log / "manifest.json").unlink(), "is not an impression log"),
    "empty manifest": (lambda log: (log / "manifest.json").write_text(""), "is not an impression log"),
    "cut manifest": (lambda log: cut(log / "manifest.json"), "is not an impression log"),
    "a list as manifest": (lambda log: (log / "manifest.json").write_text("[]"), "is not an impression log"),
    "other format": (lambda log: edit(log / "manifest.json", format="x"), "is not an impression log"),
    "other version": (
        lambda log: edit(log / "manifest.json", version=2),
        "was written in format version 2, this release reads version 1; prepare it again",
    ),
    "no version": (lambda log: edit(log / "manifest.json", version=...), "format version None, this release reads"),
    "no days": (lambda log: edit(log / "manifest.json", days=...), "manifest.json is damaged, it has no 'days'"),
    "no features": (lambda log: edit(log / "manifest.json", features=...), "is damaged, it has no 'features'"),
    "no spec": (lambda log: edit(log / "manifest.json", spec=...), "manifest.json is damaged, it has no 'spec'"),
    "edited manifest": (
        lambda log: edit(log / "manifest.json", impressions=7),
        "manifest.json has changed since it was written: its seal does not match; prepare the log again",
    ),
    "edited manifest of a day": (
        lambda log: edit(log / DAY / "manifest.json", first_time=0),
        f"{DAY}/manifest.json has changed since it was written: its seal does not match",
    ),
    "wrong spec": (lambda log: edit_manifest(log / "manifest.json", spec={"stages": []}), "manifest.json: "),
    "wrong features": (lambda log: edit_manifest(log / "manifest.json", features=[]), "damaged in 'features'"),
    "days in a list": (lambda log: edit_manifest(log / "manifest.json", days=["a"]), "its 'days' is not a mapping"),
    "a day elsewhere": (
        lambda log: edit_manifest(log / "manifest.json", days={"../../log": ""}),
        "is damaged, it names a day or a table",
    ),
    "another day": (
        lambda log: edit_manifest(log / DAY / "manifest.json", sha256="0" * 64),
        f"{DAY} has another checksum than .*manifest.json lists; prepare the log again",
    ),
    "no day": (lambda log: shutil.rmtree(log / DAY), f"{DAY} should be a day of the log but has no readable"),
    "no manifest of a day": (
        lambda log: (log / DAY / "manifest.json").unlink(),
        f"{DAY} should be a day of the log but has no readable manifest.json",
    ),
    "cut manifest of a day": (lambda log: cut(log / DAY / "manifest.json"), f"{DAY} should be a day of the log but"),
    "no size of a day": (lambda log: edit(log / DAY / "manifest.json", bytes=...), f"{DAY} should be a day of the log"),
    "no impressions": (
        lambda log: (log / DAY / "impressions.arrow").unlink(),
        f"{DAY}/impressions.arrow has 0 bytes, its manifest states .*; the file is truncated",
    ),
    "cut impressions": (
        lambda log: cut(log / DAY / "impressions.arrow"),
        f"{DAY}/impressions.arrow has .* bytes, its manifest states .*; the file is truncated",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_logs(tmp_path: Path, name: str) -> None:
    random_log(tmp_path / "log", impressions=5)
    damage, message = BROKEN[name]
    damage(tmp_path / "log")
    with pytest.raises(ValueError, match=message) as error:
        ImpressionLog.load(tmp_path / "log")
    assert str(tmp_path / "log") in str(error.value)


@pytest.mark.parametrize("damage", [cut, Path.unlink, lambda path: path.write_bytes(b"")])
def test_broken_items_and_vocabularies(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    log = random_log(tmp_path / "log", impressions=5)
    for file in ("items.arrow", "vocabularies/video.arrow"):
        damage(log.path / file)
    for verify, message in ((None, "is missing|has changed since"), (False, "is missing, damaged or truncated")):
        log = ImpressionLog.load(tmp_path / "log", verify=verify)
        with pytest.raises(ValueError, match=rf"items.arrow ({message}).*; prepare the log again"):
            log.items()
        with pytest.raises(ValueError, match=rf"video.arrow ({message}).*; prepare the log again"):
            log.vocabulary("video")


def test_a_vocabulary_that_nobody_fitted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table: found 'item.author', expected one of video"):
        random_log(tmp_path / "log", impressions=5).vocabulary("item.author")


@pytest.mark.parametrize("file", [f"{DAY}/impressions.arrow", "items.arrow", "vocabularies/video.arrow"])
@pytest.mark.parametrize("damage", ["one bit", "cut", "gone"])
def test_verify(tmp_path: Path, file: str, damage: str) -> None:
    log = random_log(tmp_path / "log", impressions=5)
    log.verify()
    path = log.path / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "one bit" else content[:-1])
    with pytest.raises(ValueError, match=f"path: {path} "):
        log.verify()
    with pytest.raises(ValueError, match=f"path: {path} "):
        ImpressionLog.load(log.path, verify=True)


@pytest.mark.parametrize("name", ["nothing", "file", "folder"])
def test_data_command_refuses_other_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert not is_log(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is not an impression log"):
        ImpressionLog.load(tmp_path / name)


def test_any_version_is_a_log(tmp_path: Path) -> None:
    """So that a log of another release can be replaced."""
    random_log(tmp_path / "log", impressions=5)
    edit(tmp_path / "log" / "manifest.json", version=99)
    assert is_log(tmp_path / "log")


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_crash_leaves_no_loadable_log(tmp_path: Path, steps: int) -> None:
    """A crash after any step leaves nothing with the name of the log, and nothing that loads."""
    out = tmp_path / "log"

    def crash() -> None:
        with fresh_directory(out, is_log) as directory:
            writer = LogWriter(directory, spec(), features_of(spec(), ROWS), SCHEMA)
            writer.write("a", WHOLE)
            if steps > 1:
                writer.write("b", WHOLE)
            shutil.copytree(directory, tmp_path / "left")  # as if nobody could clean up
            if steps > 2:
                finish(writer)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["left"]
    assert not is_log(tmp_path / "left")
    with pytest.raises(ValueError, match="is not an impression log"):
        ImpressionLog.load(tmp_path / "left")


def test_a_finished_log_is_not_replaced_by_accident(tmp_path: Path) -> None:
    random_log(tmp_path / "log", impressions=5)
    with (
        pytest.raises(ValueError, match="exists already; --force replaces it"),
        fresh_directory(tmp_path / "log", is_log),
    ):
        pass
