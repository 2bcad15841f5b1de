"""`prepare rows` on logs that are wrong: a message that says where, and nothing written."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from typer.testing import CliRunner

from rankfall.cli import main
from rankfall.commands.prepare import app
from rankfall.data.impressions.log import ImpressionLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG = """\
request,time,user,item,stage,rank,page,price,clicked
1,1000,7,10,ranked,1,3,2.5,1
1,1000,7,11,matched,,3,0.5,0
2,2000,8,10,ranked,1,4,2.5,0
2,2000,8,12,matched,,4,1.5,0
3,90000,7,11,ranked,2,3,0.5,1
"""
SPEC: dict[str, Any] = {
    "request": "request",
    "item": "item",
    "user": "user",
    "time": {"column": "time", "unit": "s"},
    "stage": "stage",
    "rank": "rank",
    "stages": [{"name": "matched", "sample": 1}, {"name": "ranked", "sample": 1}],
    "relevant": "ranked",
    "feedback": ["clicked"],
    "features": {
        "context": {"page": {"kind": "categorical", "num_buckets": 10}},
        "item": {"item": {"kind": "categorical", "vocabulary": True}, "price": {"kind": "dense", "standardise": True}},
    },
    "sequences": {"clicks": {"max_length": 5, "features": ["item"], "feedback": "clicked"}},
}
Arguments = list[str]


def run(folder: Path, arguments: Arguments, spec: dict[str, Any] | None = None) -> None:
    """The command, in a folder with a good log and its spec."""
    (folder / "log.csv").exists() or (folder / "log.csv").write_text(LOG)
    (folder / "spec.yaml").write_text(json.dumps(spec or SPEC))
    main(["prepare", "rows", *arguments, "--spec", "spec.yaml", "--out", "out"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_good_log_is_good(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(folder, ["log.csv", "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == ImpressionLog.load(folder / "out").manifest
    assert "Traceback" not in printed.err


def assert_refused(folder: Path, capsys: pytest.CaptureFixture[str], expected: str) -> None:
    printed = capsys.readouterr()
    said = " ".join(printed.err.replace("│", " ").split())
    assert re.search(expected, said), said
    assert "Traceback" not in said
    assert not printed.out
    assert not (folder / "out").exists()
    assert not list(folder.glob(".out*"))


def assert_check_finds(folder: Path, capsys: pytest.CaptureFixture[str], arguments: Arguments) -> None:
    """`--check` finds an error wherever the preparation stops, and writes nothing."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "rows", *arguments, "--spec", "spec.yaml", "--check", "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    found = json.loads(printed.out)["problems"]
    assert found[0]["level"] == "error"
    assert all(problem["count"] >= 1 for problem in found)
    assert "Traceback" not in printed.err
    assert sorted(folder.rglob("*")) == before


# --- wrong rows -------------------------------------------------------------------------------------------------


def replaced(old: str, new: str) -> str:
    assert old in LOG
    return LOG.replace(old, new)


ROW = "1,1000,7,11,matched,,3,0.5,0\n"  # the second one
WRONG_ROWS: dict[str, tuple[str, str]] = {
    "missing column": (
        replaced(",price", ",prize"),
        "log.csv: found no column 'price' .item.price of the spec., did you mean 'prize'; the columns are ",
    ),
    "unknown stage": (replaced(ROW, "1,1000,7,11,matchd,,3,0.5,0\n"), "column 'stage'.*'matchd'.*request 1, item 11"),
    "no stage": (replaced(ROW, "1,1000,7,11,,,3,0.5,0\n"), "column 'stage'.*None.*request 1, item 11"),
    "item twice in a request": (LOG + ROW, "request 1, item 11"),
    "no feature": (replaced(ROW, "1,1000,7,11,matched,,3,,0\n"), "column 'price': found nothing.*request 1"),
    "NaN": (replaced(ROW, "1,1000,7,11,matched,,3,nan,0\n"), "column 'price': found nan.*request 1"),
    "infinite": (replaced(ROW, "1,1000,7,11,matched,,3,inf,0\n"), "column 'price': found inf.*request 1"),
    "text for a number": (replaced(ROW, "1,1000,7,11,matched,,3,cheap,0\n"), "log.csv: column 'price': found 'cheap'"),
    "text for feedback": (replaced(ROW, "1,1000,7,11,matched,,3,1,yes\n"), "log.csv: column 'clicked': found 'yes'"),
    "text for a bucket": (replaced(ROW, "1,1000,7,11,matched,,p3,1,0\n"), "log.csv: column 'page': found 'p3'"),
    "a fraction for a rank": (replaced(ROW, "1,1000,7,11,matched,1.5,3,1,0\n"), "log.csv: column 'rank': found '1.5'"),
    "negative id": (LOG.replace(",3,", ",-3,"), "column 'page': found -3.*from 0 to 9.*request 1"),
    "no request": (replaced(ROW, ",1000,7,11,matched,,3,1,0\n"), "log.csv: column 'request': found no value in row 2"),
    "no item": (replaced(ROW, "1,1000,7,,matched,,3,1,0\n"), "log.csv: column 'item': found no value in row 2"),
    "no time": (replaced(ROW, "1,,7,11,matched,,3,1,0\n"), "log.csv: column 'time': found no value in row 2"),
    "two times": (
        replaced(ROW, "1,1001,7,11,matched,,3,1,0\n"),
        "request 1 has .* more than one value of 'time'",
    ),
    "two users": (
        replaced(ROW, "1,1000,8,11,matched,,3,1,0\n"),
        "request 1 has .* more than one value of 'user'",
    ),
    "two pages": (
        replaced(ROW, "1,1000,7,11,matched,,4,1,0\n"),
        "request 1 has .* more than one value of 'page'",
    ),
    "short row": (replaced(ROW, "1,1000,7,11,matched\n"), "log.csv cannot be read.*Expected 9 columns, got 5"),
    "cut off": (LOG[:-12], "log.csv cannot be read.*Expected 9 columns, got"),
    "empty file": ("", "log.csv cannot be read.*Empty CSV file"),
    "no rows": (LOG.splitlines()[0] + "\n", "log.csv: found no rows"),
    "column twice": (replaced("page", "price"), "log.csv: the column 'price' occurs twice"),
    "not a log": ("\x00\x01\x02\xff", "log.csv cannot be read as a file of its suffix"),
    "another log": (
        "a,b\n1,2\n",
        "log.csv: found no column 'request'.*; the columns are a, b",
    ),
}


@pytest.mark.parametrize("what", WRONG_ROWS)
def test_wrong_rows(folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    text, expected = WRONG_ROWS[what]
    (folder / "log.csv").write_text(text)
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv"])
    assert_refused(folder, capsys, expected)
    assert_check_finds(folder, capsys, ["log.csv"])


# --- wrong files ------------------------------------------------------------------------------------------------


def cut(path: Path, share: float = 0.6) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def good_frame() -> pl.DataFrame:
    return pl.read_csv(LOG.encode())


def cut_parquet(folder: Path) -> Arguments:
    good_frame().write_parquet(folder / "a.parquet")
    cut(folder / "a.parquet")
    return ["a.parquet"]


def cut_arrow(folder: Path) -> Arguments:
    good_frame().write_ipc(folder / "a.arrow")
    cut(folder / "a.arrow")
    return ["a.arrow"]


def cut_gzip(folder: Path) -> Arguments:
    (folder / "a.csv.gz").write_bytes(gzip.compress(LOG.encode()))
    cut(folder / "a.csv.gz")
    return ["a.csv.gz"]


def damaged_inside(folder: Path) -> Arguments:
    """The end of the file, which says what is in it, is whole."""
    frame = pl.concat([good_frame().with_columns(request=pl.col("request") + 10 * n) for n in range(500)])
    frame.write_parquet(folder / "a.parquet", compression="zstd")
    content = bytearray((folder / "a.parquet").read_bytes())
    content[4:100] = bytes(96)  # where the first page says what it is
    (folder / "a.parquet").write_bytes(content)
    return ["a.parquet"]


def column_in_one_file(folder: Path) -> Arguments:
    good_frame()[:2].write_parquet(folder / "a.parquet")
    good_frame()[2:].drop("price").write_parquet(folder / "b.parquet")
    return ["a.parquet", "b.parquet"]


def strange_type(folder: Path) -> Arguments:
    good_frame().with_columns(pl.struct("price")).write_parquet(folder / "a.parquet")
    return ["a.parquet"]


def lists_for_numbers(folder: Path) -> Arguments:
    good_frame().with_columns(pl.concat_list("clicked")).write_parquet(folder / "a.parquet")
    return ["a.parquet"]


def other_suffix(folder: Path) -> Arguments:
    (folder / "a.txt").write_text(LOG)
    return ["a.txt"]


def empty_directory(folder: Path) -> Arguments:
    (folder / "logs").mkdir()
    return ["logs"]


def given_twice(folder: Path) -> Arguments:
    return ["log.csv", "./log.csv"]


def too_many_fit_days(folder: Path) -> Arguments:
    return ["log.csv", "--fit-days", "3"]


WRONG_FILES: list[tuple[Callable[[Path], Arguments], str]] = [
    (cut_parquet, "a.parquet cannot be read"),
    (cut_arrow, "a.arrow cannot be read"),
    (cut_gzip, "a.csv.gz cannot be read"),
    (damaged_inside, "a.parquet cannot be read"),
    (column_in_one_file, "b.parquet: found no column 'price'"),
    (strange_type, "a.parquet: column 'price': found Struct"),
    (lists_for_numbers, "column 'clicked': found List"),
    (other_suffix, "a.txt: found '.txt', expected one of .csv"),
    (empty_directory, "logs: found no file"),
    (given_twice, "log.csv is given twice"),
    (too_many_fit_days, "fit_days: found 3, expected 1 to 2"),
]


WRONG_USE = (other_suffix, empty_directory, given_twice, too_many_fit_days)


@pytest.mark.parametrize(("make", "expected"), WRONG_FILES)
def test_wrong_files(
    folder: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], Arguments], expected: str
) -> None:
    arguments = make(folder)
    with pytest.raises(SystemExit, match="1"):
        run(folder, arguments)
    assert_refused(folder, capsys, expected)
    if make not in WRONG_USE:
        assert_check_finds(folder, capsys, arguments)


# --- wrong tables -----------------------------------------------------------------------------------------------


WRONG_TABLES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "item twice": ("items", "item,weight\n10,1\n11,2\n12,3\n11,4\n", {}, "items.csv: item 11 occurs twice"),
    "user twice": ("users", "user,weight\n7,1\n8,2\n8,3\n", {}, "users.csv: user 8 occurs twice"),
    "request twice": ("requests", "request,weight\n3,1\n3,2\n", {}, "requests.csv: request 3 occurs twice"),
    "no key": ("items", "itm,weight\n10,1\n", {}, "items.csv: found no column 'item', did you mean 'itm'"),
    "key without value": ("items", "item,weight\n10,1\n,2\n", {}, "items.csv: column 'item': found no value in row 2"),
    "no such column": ("items", "item,wait\n10,1\n", {}, "log.csv and items.csv: found no column 'weight'"),
    "item that is not there": ("items", "item,weight\n10,1\n11,2\n", {}, "'weight': found nothing.*item 12"),
    "user that is not there": ("users", "user,weight\n7,1\n", {}, "column 'weight': found nothing.*request 2"),
    "no user": ("users", "user,weight\n7,1\n", {"user": None, "sequences": {}}, "users: the spec has no `user`"),
    "no time of a request": (
        "requests",
        "request,when,weight\n1,5,1\n2,6,2\n",
        {"time": {"column": "when", "unit": "s"}},
        "requests.csv: column 'when': found no value for the request 3",
    ),
    "lists in text": (
        "requests",
        "request,weight,past\n1,1,10\n2,2,11\n3,2,12\n",
        {"sequences": {"past": {"features": ["item"], "columns": {"item": "past"}}}},
        "column 'past': found Int64, expected lists",
    ),
}
GROUPS = {"items": "item", "users": "user", "requests": "context"}


@pytest.mark.parametrize("what", WRONG_TABLES)
def test_wrong_tables(folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    table, text, changes, expected = WRONG_TABLES[what]
    (folder / f"{table}.csv").write_text(text)
    group = GROUPS[table]
    features = {**SPEC["features"], group: {**SPEC["features"].get(group, {}), "weight": {"kind": "dense"}}}
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv", f"--{table}", f"{table}.csv"], SPEC | {"features": features} | changes)
    assert_refused(folder, capsys, expected)
    if what != "no user":
        assert_check_finds(folder, capsys, ["log.csv", f"--{table}", f"{table}.csv"])


def test_one_name_for_two_things(folder: Path) -> None:
    """Users and items have their own column of this name."""
    (folder / "items.csv").write_text("item,city\n10,a\n")
    (folder / "users.csv").write_text("user,city\n7,b\n")
    city = {"city": {"kind": "categorical", "vocabulary": True}}
    with pytest.raises(SystemExit, match="0"):
        run(
            folder,
            ["log.csv", "--items", "items.csv", "--users", "users.csv"],
            SPEC | {"features": {"item": {**SPEC["features"]["item"], **city}, "user": city}},
        )
    log = ImpressionLog.load(folder / "out")
    assert log.vocabulary("item.city").to_pylist() == ["a"]
    assert log.vocabulary("user.city").to_pylist() == ["b"]
    assert log.spec.features.user["city"].column is None  # the spec is stored as it was given


def test_lists_of_different_lengths(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"request": [1, 2, 3], "a": [[10], [11, 12], []], "b": [[3.5], [1.0], []]})
    frame = frame.with_columns(pl.col("b").cast(pl.List(pl.Int64)))
    frame.write_parquet(folder / "requests.parquet")
    page = {"shelf": {"kind": "categorical", "column": "page", "num_buckets": 10}}
    spec = SPEC | {
        "features": {"item": {**SPEC["features"]["item"], **page}},
        "sequences": {"past": {"features": ["item", "shelf"], "columns": {"item": "a", "shelf": "b"}}},
    }
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv", "--requests", "requests.parquet"], spec)
    assert_refused(folder, capsys, "sequences.past.*request 2")
    assert_check_finds(folder, capsys, ["log.csv", "--requests", "requests.parquet"])


# --- wrong specs -----------------------------------------------------------------------------------------


FLAGS = [{"name": "matched", "flag": "clicked"}, {"name": "ranked", "flag": "rank"}]
WRONG_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong key": ({"feedbacks": ["clicked"]}, "spec.yaml: unknown key 'feedbacks', did you mean 'feedback'"),
    "wrong key inside": (
        {"features": {"item": {"item": {"kind": "categorical", "num_bucket": 3}}}},
        "unknown key 'num_bucket', did you mean 'num_buckets'",
    ),
    "no flag is set": (
        {"stage": None, "stages": FLAGS},
        "column 'clicked, rank': found none above 0, .*request 1, item 11",
    ),
    "stage number": ({"stage": "page"}, "column 'page': found 3, expected one of 0 to 1"),
    "time without unit": ({"time": "time"}, "column 'time': found whole numbers, for which `unit`"),
    "not times": ({"time": "stage", "stage": None, "stages": [{"name": "ranked"}]}, "column 'stage'.*expected times"),
    "days that overlap": ({"day": "page"}, "column 'page': '4' begins before an earlier day ends"),
}


@pytest.mark.parametrize("what", WRONG_SPECS)
def test_wrong_descriptions(folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    changes, expected = WRONG_SPECS[what]
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv"], SPEC | changes)
    assert_refused(folder, capsys, expected)


def test_a_day_that_is_no_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "log.csv").write_text(LOG.replace(",7,", ",../7,"))
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv"], SPEC | {"day": "user", "sequences": {}})
    assert_refused(folder, capsys, "day: found '../7', expected a name")


# --- the command ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing.csv"], "nothing.csv.*does not exist"),
        (["log.csv", "--items", "nothing.csv"], "nothing.csv.*does not exist"),
        (["log.csv", "--fit-days", "0"], "--fit-days"),
        ([], "missing, and the spec names no source"),
    ],
)
def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str], arguments: Arguments, expected: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(folder, arguments)
    assert_refused(folder, capsys, expected)


def test_what_is_there_is_replaced_only_if_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(folder, ["log.csv"])
    before = (folder / "out" / "manifest.json").read_bytes()
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv", "--seed", "1"])
    assert "out exists already; --force replaces it" in " ".join(capsys.readouterr().err.split())
    assert (folder / "out" / "manifest.json").read_bytes() == before
    with pytest.raises(SystemExit, match="0"):
        run(folder, ["log.csv", "--seed", "1", "--force"])
    assert json.loads((folder / "out" / "manifest.json").read_bytes())["about"]["seed"] == 1


def test_what_is_no_log_is_never_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit, match="1"):
        run(folder, ["log.csv", "--force"])
    assert "is not what this command writes" in " ".join(capsys.readouterr().err.split())
    assert (folder / "out" / "thesis.tex").read_text() == "years of work"


def test_the_summary_says_what_was_dropped_and_warns(folder: Path) -> None:
    (folder / "log.csv").write_text(LOG + "3,90000,7,13,ranked,3,3,0.5,1\n4,260000,9,14,matched,,3,0.5,1\n")
    (folder / "none.csv").write_text(LOG.splitlines()[0] + "\n")
    (folder / "spec.yaml").write_text(json.dumps(SPEC))
    result = CliRunner().invoke(app, ["rows", "log.csv", "none.csv", "--spec", "spec.yaml", "--out", "out"])
    assert result.exit_code == 0, result.output
    lines = {line.split()[1]: line.replace("│", " ").split() for line in result.stdout.splitlines() if "│" in line}
    # stage, rows logged, a request, sample, rows kept, dropped, requests with fewer
    assert lines["matched"] == ["matched", "3", "0.8", "1", "3", "0", "1"]
    assert lines["ranked"] == ["ranked", "4", "1.0", "1", "3", "1", "1"]
    said = " ".join(result.stderr.split())
    assert "item.item: 2 (33.33%) ids were never seen" in said
    assert "1 (25.00%) impressions have no relevant item" in said
    assert "stage ranked: 1 (25.00%) impressions have fewer items" in said
    assert "none.csv has no rows" in said
    assert "the log has no rows on 1970-01-03" in said
