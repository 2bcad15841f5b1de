"""Rows from a function of the user, named in the spec of a log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankfall import register
from rankfall.cli import main
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.rows.prepare_rows import check_rows, prepare_rows
from rankfall.data.sources.rows.row_files import RowFile

CONTENT: dict[str, Any] = {"request": "r", "item": "i", "day": "d", "relevant": {"column": "y"}}
PROGRAM = '''\
import polars as pl
import pyarrow as pa


def rows(day: int) -> dict[str, list[int]]:
    return {"r": [day, day], "i": [1, 2], "d": [day, day], "y": [0, 1]}


def read(days: int = 2, fail_at: int | None = None):
    """Yield the rows of some days, in turn as every kind of table."""
    kinds = [pl.DataFrame, pa.table, pa.RecordBatch.from_pydict]
    for day in range(days):
        if day == fail_at:
            raise OSError("the network is gone")
        yield kinds[day % 3](rows(day))


def one_frame():
    return pl.DataFrame(rows(1) | {"d": ["1", "1"]})


def number():
    return 7


def lists():
    yield pa.table(rows(1))
    yield [1, 2]


def nothing():
    yield from []


def other_columns():
    yield pl.DataFrame({"request": [1], "i": [1], "d": [1], "y": [1]})


def bad_rows():
    yield pl.DataFrame(rows(1))
    yield pl.DataFrame({"r": [2, None], "i": [1, 1], "d": [2, 2], "y": [0, 1]})


def required(table: str):
    yield pl.DataFrame(rows(1))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PROGRAM)
    return tmp_path


def prepare(function: str, **options: Any) -> ImpressionLog:
    spec = validate_spec(CONTENT | {"source": {"name": f"./mine.py:{function}", **options}})
    return prepare_rows([], Path("out"), spec)


def test_a_source_gives_the_log_of_its_rows(folder: Path) -> None:
    log = prepare("read", days=4)
    lines = ["r,i,d,y", *(f"{day},{item},{day},{item - 1}" for day in range(4) for item in (1, 2))]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    expected = prepare_rows([folder / "log.csv"], folder / "expected", validate_spec(CONTENT))
    assert log.checksum == expected.checksum
    assert log.spec.source == {"name": f"{folder / 'mine.py'}:read", "days": 4}
    (source,) = log.manifest["about"]["sources"]
    assert (source["path"], source["options"], source["rows"]) == (f"{folder / 'mine.py'}:read", {"days": 4}, 8)
    assert source["file"] == str(folder / "mine.py")
    assert len(source["sha256"]) == 64


def test_reading_a_log_runs_no_code(folder: Path) -> None:
    prepare("read")
    (folder / "mine.py").write_text("raise SystemExit('this ran')")
    assert len(ImpressionLog.load("out").days) == 2


def test_a_function_may_return_one_table(folder: Path) -> None:
    assert list(prepare("one_frame").days) == ["1"]


def test_a_registered_source(folder: Path) -> None:
    import polars as pl

    @register.source("tiny")
    def tiny(days: int = 1) -> list[pl.DataFrame]:
        return [pl.DataFrame({"r": [day], "i": [1], "d": [day], "y": [1]}) for day in range(days)]

    try:
        spec = validate_spec(CONTENT | {"source": {"name": "tiny", "days": 3}})
        assert list(prepare_rows([], Path("out"), spec).days) == ["0", "1", "2"]
    finally:
        register.unregister("source", "tiny")


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no function": ("raed", {}, "source: .*raed.*did you mean 'read'"),
    "unknown option": ("read", {"dys": 3}, "read has no option 'dys', did you mean 'days'"),
    "wrong option": ("read", {"days": "three"}, "source.days: .*found 'three', expected a valid integer"),
    "missing option": ("required", {}, "needs the option 'table'"),
    "not iterable": ("number", {}, "returns 7, expected an iterable of pyarrow tables or polars frames"),
    "not tables": ("lists", {}, "yields list as table 2, expected pyarrow tables or polars frames"),
    "no table": ("nothing", {}, "yields no table"),
    "other columns": ("other_columns", {}, "mine.py:other_columns: found no column 'r'"),
    "fails in the middle": (
        "read",
        {"fail_at": 1},
        "after 1 tables: OSError: the network is gone .*mine.py, line",
    ),
    "bad row": ("bad_rows", {}, r"mine.py:bad_rows: column 'r': found no value in row 4"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_sources(folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    function, options, message = WRONG[what]
    content = CONTENT | {"source": {"name": f"./mine.py:{function}", **options}}
    (folder / "spec.yaml").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        prepare_rows([], Path("out"), validate_spec(content))
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "rows", "--spec", "spec.yaml", "--out", "out"])
    assert "Traceback" not in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".pyc") == ["mine.py", "spec.yaml"]


def test_the_rows_of_a_source_are_checked_and_skipped(folder: Path) -> None:
    spec = validate_spec(CONTENT | {"source": {"name": "./mine.py:bad_rows"}})
    (problem,) = check_rows([], spec).problems
    assert [str(place) for place in problem.places] == [f"{folder / 'mine.py'}:bad_rows, row 4"]
    log = prepare_rows([], Path("out"), spec, skip_bad=1)
    assert log.manifest["about"]["skipped"]["rows"] == 1


def test_files_or_a_source(folder: Path) -> None:
    (folder / "log.csv").write_text("r,i,d,y\n1,1,1,1\n")
    with pytest.raises(ValueError, match="found no files, and the spec has no `source`"):
        prepare_rows([], Path("out"), validate_spec(CONTENT))
    with pytest.raises(ValueError, match="found files, and a `source` in the spec"):
        prepare_rows([Path("log.csv")], Path("out"), validate_spec(CONTENT | {"source": "./mine.py:read"}))
    with pytest.raises(ValueError, match="source: name: found nothing"):
        validate_spec(CONTENT | {"source": {"days": 3}})


def test_a_file_has_the_name_of_its_source_in_messages() -> None:
    assert str(RowFile(Path("a.csv"))) == "a.csv"
    assert str(RowFile(Path("a.csv"), label="mine:read")) == "mine:read"
