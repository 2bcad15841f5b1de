"""`prepare rows --check` and `--skip-bad` on dirty logs whose problems were put there one by one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import polars as pl
import pytest

from rankfall.cli import main
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.impressions.spec import Spec, validate_spec
from rankfall.data.sources.problems import DataCheck, Findings, Kind, Place, TooManyBadError
from rankfall.data.sources.rows import check_log, row_files
from rankfall.data.sources.rows.prepare_rows import check_rows, prepare_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

START = 1_705_104_000  # 2024-01-13 00:00 UTC
COLUMNS = ["request", "time", "user", "item", "stage", "rank", "page", "price", "clicked"]
CONTENT: dict[str, Any] = {
    "request": "request",
    "item": "item",
    "user": "user",
    "time": {"column": "time", "unit": "s"},
    "stage": "stage",
    "rank": "rank",
    "stages": [{"name": "matched"}, {"name": "ranked"}],
    "relevant": {"column": "clicked"},
    "feedback": ["clicked"],
    "features": {
        "context": {"page": {"kind": "categorical", "num_buckets": 10}},
        "item": {"item": {"kind": "categorical", "vocabulary": True}, "price": {"kind": "dense", "standardise": True}},
    },
    "sequences": {"clicks": {"max_length": 5, "features": ["item"], "feedback": "clicked"}},
}
SPEC = validate_spec(CONTENT)
Row = list[str]


def spec_of(**changes: Any) -> Spec:
    return validate_spec(CONTENT | changes)


def clean_rows(requests: int = 30) -> list[Row]:
    """Rows of requests over three days, each with four items in two stages."""
    draw = random.Random(1)
    rows = []
    for request in range(requests):
        time, user, page = START + request * 8_000, draw.randrange(5), draw.randrange(10)
        for rank, item in enumerate(draw.sample(range(40), 4)):
            stage, price = ("ranked", "matched")[rank // 2], round(draw.random(), 3)
            clicked = int(rank == 0)
            values = [request, time, user, item, stage, rank % 2, page, price, clicked]
            rows.append([str(value) for value in values])
    return rows


def changed(row: Row, **values: str) -> Row:
    return [values.get(name, value) for name, value in zip(COLUMNS, row, strict=True)]


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("\n".join(map(",".join, [COLUMNS, *rows])) + "\n")
    return path


def counted(check: DataCheck) -> dict[tuple[str, str | None, str], int]:
    """The number of each problem, by level, column and the first words of its text."""
    return {(problem.level, problem.column, problem.problem.split(",")[0]): problem.count for problem in check.problems}


# One bad row each; all other values are those of a clean row of a request of its own.
BAD_ROWS: dict[tuple[str, str], list[dict[str, str]]] = {
    ("request", "found no value"): [{"request": ""}] * 2,
    ("item", "found no value"): [{"item": ""}],
    ("time", "found no value"): [{"time": ""}] * 3,
    ("time", "found other values"): [{"time": "soon"}],
    ("stage", "found an unknown stage"): [{"stage": "rankd"}, {"stage": ""}],
    ("rank", "found other values"): [{"rank": "first"}],
    ("rank", "not a place"): [{"rank": "-2"}] * 2,
    ("page", "found other values"): [{"page": "p1"}],
    ("page", "found a negative number"): [{"page": "-1"}],
    ("price", "found other values"): [{"price": "cheap"}, {"price": "1.5 EUR"}],
    ("price", "found no number"): [{"price": ""}, {"price": "nan"}, {"price": "inf"}, {"price": "-inf"}],
    ("clicked", "found other values"): [{"clicked": "yes"}],
    ("clicked", "found an infinite number"): [{"clicked": "inf"}],
}


def bad_rows() -> list[Row]:
    rows, pattern = [], clean_rows(1)[0]
    for place, values in enumerate(one for some in BAD_ROWS.values() for one in some):
        rows.append(changed(pattern, **({"request": str(1000 + place)} | values)))
    return rows


def test_a_clean_log_has_no_problem(tmp_path: Path) -> None:
    assert check_rows([write(tmp_path / "log.csv", clean_rows())], SPEC) == DataCheck(120, [])


@pytest.mark.parametrize("batch_bytes", [2**24, 300])
def test_every_problem_of_rows_is_counted_at_once(tmp_path: Path, batch_bytes: int) -> None:
    """Also if a file is read in many batches."""
    clean = clean_rows()
    with mock.patch.object(row_files, "_BLOCK_BYTES", batch_bytes):
        found = check_rows([write(tmp_path / "log.csv", [*clean, *bad_rows()])], SPEC)
    expected = {("error", column, problem): len(values) for (column, problem), values in BAD_ROWS.items()}
    assert counted(found) == expected
    assert found.rows == len(clean) + sum(expected.values())
    row = len(clean) + 1
    for problem, values in zip(BAD_ROWS, BAD_ROWS.values(), strict=True):
        (of_column,) = [one for one in found.problems if (one.column, one.problem.split(",")[0]) == problem]
        assert [place.row for place in of_column.places] == list(range(row, row + len(values)))[:3]
        assert of_column.dropped == "row"
        row += len(values)


def shuffled(rows: Sequence[Row]) -> list[Row]:
    return random.Random(2).sample(list(rows), len(rows))


def contradictions() -> Iterator[tuple[str, str, list[Row]]]:
    """A column, its problem, and the rows of a request that has it."""
    pattern = clean_rows(1)
    pairs = [[changed(row, request=str(2000 + n)) for row in pattern] for n in range(5)]
    pairs[0][1] = changed(pairs[0][1], user="99")
    yield "user", "found more than one value in the rows of a request", pairs[0]
    pairs[1][2] = changed(pairs[1][2], page="7" if pairs[1][2][6] != "7" else "8")
    yield "page", "found more than one value in the rows of a request", pairs[1]
    pairs[2][3] = changed(pairs[2][3], time=str(START + 1))
    yield "time", "found more than one value in the rows of a request", pairs[2]
    pairs[3][3] = changed(pairs[3][3], item=pairs[3][0][3])
    yield "item", "found an item twice in a request", pairs[3]


def test_contradicting_values_and_repeated_items_are_named(tmp_path: Path) -> None:
    rows = [changed(row, page="6") for request in contradictions() for row in request[2]]
    rows[0:4] = [changed(row, user=user) for row, user in zip(rows, ["", "", "3", "4"], strict=False)]
    rows[7] = changed(rows[7], page="8")
    rows[11] = changed(rows[11], time=str(START + 86_401))
    found = {
        (problem.column, place.row, place.request): place.found
        for problem in check_rows([write(tmp_path / "log.csv", rows)], SPEC).errors
        for place in problem.places
        if "day" not in problem.problem
    }
    assert found == {
        ("user", 3, "2000"): "nothing and 3",
        ("page", 8, "2001"): "6 and 8",
        ("time", 12, "2002"): "2024-01-13 00:00:00+00:00 and 2024-01-14 00:00:01+00:00",
        ("item", 16, "2003"): rows[12][3],
    }


@pytest.mark.parametrize("portion_bytes", [2**26, 500])
def test_skip_bad_gives_the_log_of_the_clean_rows(tmp_path: Path, portion_bytes: int) -> None:
    """Bad rows, requests that contradict themselves and repeated rows, between the good ones, in two files."""
    clean = clean_rows()
    wrong = [row for _, _, rows in contradictions() for row in rows]
    dirty = shuffled([*clean, *bad_rows(), *wrong, clean[5], clean[5], clean[70]])
    dirty.insert(3, ["1", "2"])  # two values for nine columns
    sources = [write(tmp_path / "a.csv", dirty[:80]), write(tmp_path / "b.csv", dirty[80:])]
    count = len(bad_rows()) + len(wrong) + 3 + 1
    expected = prepare_rows([write(tmp_path / "clean.csv", clean)], tmp_path / "clean", SPEC)
    with mock.patch.object(check_log, "_PORTION_BYTES", portion_bytes):
        found = prepare_rows(sources, tmp_path / "out", SPEC, skip_bad=count)
        with pytest.raises(TooManyBadError, match=f"found {count} bad rows, expected at most {count - 1}"):
            prepare_rows(sources, tmp_path / "refused", SPEC, skip_bad=count - 1)
        check = check_rows(sources, SPEC)
    assert (check.bad_rows, check.can_be_skipped) == (count, True)  # of the check, which remembers no row
    assert found.checksum == expected.checksum
    assert not (tmp_path / "refused").exists()
    skipped = found.manifest["about"]["skipped"]
    assert (skipped["limit"], skipped["rows"], skipped["requests"]) == (count, count, 4)
    numbers = counted(check)
    for column, problem, _ in contradictions():
        assert numbers["error", column, problem] == 1
    assert numbers["error", "item", "duplicate row"] == 3
    assert numbers["error", None, "wrong number of columns"] == 1
    assert [problem["count"] for problem in skipped["problems"]] == [problem.count for problem in check.errors]


def test_the_first_places_are_those_of_the_files(tmp_path: Path) -> None:
    """Requests are read in portions by their hash, which say nothing of their order in the files."""
    pattern = clean_rows(1)
    rows = [changed(row, request=str(n)) for n in range(50) for row in [pattern[0], changed(pattern[1], user="99")]]
    with mock.patch.object(check_log, "_PORTION_BYTES", 100):
        found = check_rows([write(tmp_path / "log.csv", rows)], SPEC)
    (problem,) = found.errors
    assert problem.count == 50
    assert [(place.row, place.request) for place in problem.places] == [(2, "0"), (4, "1"), (6, "2")]


def test_requests_over_two_days(tmp_path: Path) -> None:
    rows = clean_rows(2)
    rows[1] = changed(rows[1], time=str(START + 86_400))
    found = counted(check_rows([write(tmp_path / "log.csv", rows)], SPEC))
    assert found == {
        ("error", "time", "found more than one value in the rows of a request"): 1,
        ("error", "time", "found more than one day in the rows of a request"): 1,
    }


def test_dates_that_do_not_parse(tmp_path: Path) -> None:
    rows = [changed(row, time="2024-01-13 08:00:00") for row in clean_rows(3)]
    rows[4:8] = [changed(row, time="13.01.2024") for row in rows[4:8]]
    (problem,) = check_rows([write(tmp_path / "log.csv", rows)], spec_of(time="time")).problems
    assert (problem.count, problem.places[0]) == (4, Place(str(tmp_path / "log.csv"), 5, "'13.01.2024'"))
    assert problem.problem.startswith("found other values, expected times such as 2024-01-13T08:30:00")


def test_names_of_days(tmp_path: Path) -> None:
    rows = [changed(row, page=f"day{row[0]}") for row in clean_rows(4)]
    rows[0:4] = [changed(row, page="13/01") for row in rows[0:4]]
    rows[4:8] = [changed(row, page="") for row in rows[4:8]]
    spec = spec_of(day="page", features={}, sequences={})
    assert counted(check_rows([write(tmp_path / "log.csv", rows)], spec)) == {
        ("error", "page", "found no value"): 4,
        ("error", "page", "found another name"): 4,
    }


def test_warnings_do_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = clean_rows(4)
    rows[0] = changed(rows[0], clicked="-1")
    rows[1] = changed(rows[1], clicked="nan")
    rows[2] = changed(rows[2], clicked="")
    rows[4:8] = [changed(row, user="") for row in rows[4:8]]
    rows[9] = changed(rows[9], rank=rows[8][5])
    rows[12:16] = [changed(row, time="1705104") for row in rows[12:16]]
    write(tmp_path / "log.csv", rows)
    (tmp_path / "spec.yaml").write_text(json.dumps(CONTENT))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["prepare", "rows", "log.csv", "--spec", "spec.yaml", "--check", "--json"])
    found = DataCheck.from_json(json.loads(capsys.readouterr().out))
    assert counted(found) == {
        ("warning", "clicked", "found NaN"): 1,
        ("warning", "clicked", "found no value"): 1,
        ("warning", "clicked", "found a negative relevance"): 1,
        ("warning", "user", "found no user; such requests have no history"): 4,
        ("warning", "rank", "found a rank twice in a stage of a request; such items count as equal"): 1,
        ("warning", "time", "found years before 1990 or after 2099; is the unit right"): 4,
    }


def test_columns_are_checked_first_and_the_rest_still(tmp_path: Path) -> None:
    """A missing column, one of a wrong type, one without a unit and a damaged file do not hide a bad row."""
    frame = pl.DataFrame([dict(zip(COLUMNS, row, strict=True)) for row in clean_rows(3)])
    frame = frame.cast({"request": pl.Int64, "time": pl.Int64, "rank": pl.Int64, "price": pl.Float64})
    frame = frame.with_columns(clicked=pl.concat_list(pl.lit(1)), rank=pl.lit(-5)).drop("page")
    frame.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing else")
    spec = spec_of(time="time", relevant="ranked")
    found = check_rows([tmp_path / "a.parquet", tmp_path / "b.parquet"], spec)
    problems = {(problem.column, problem.unit): problem for problem in found.problems}
    of_columns = {(column, "columns") for column in ("page", "clicked", "time")}
    assert set(problems) == {*of_columns, (None, "files"), ("rank", "rows")}
    assert problems["rank", "rows"].count == 12
    assert "`unit` must be s, ms or us" in problems["time", "columns"].problem
    with pytest.raises(TooManyBadError, match="no dropped row solves every problem"):
        prepare_rows([tmp_path / "a.parquet"], tmp_path / "out", spec, skip_bad=100)


def test_tables_are_checked_and_their_bad_rows_dropped(tmp_path: Path) -> None:
    """An item that is twice in its table, one with text for a number, and one that is missing."""
    features = {**CONTENT["features"], "item": {**CONTENT["features"]["item"], "weight": {"kind": "dense"}}}
    spec = spec_of(features=features)
    clean = clean_rows()
    used = sorted({row[3] for row in clean}, key=int)
    twice, text, missing = used[0], used[1], used[2]
    lines = [f"{item},{item}" for item in used if item != missing]
    lines[1] = f"{text},heavy"
    (tmp_path / "items.csv").write_text("\n".join(["item,weight", *lines, f"{twice},8", ",3"]) + "\n")
    log = write(tmp_path / "log.csv", clean)
    numbers = counted(check_rows([log], spec, items=tmp_path / "items.csv"))
    of = {name: sum(row[3] == name for row in clean) for name in (twice, text, missing)}
    assert numbers == {
        ("error", "weight", "found other values"): 1,
        ("error", "item", "found no value"): 1,
        ("error", "item", "found an id twice in the table"): 2,
        ("error", "item", "found an id whose row in the table of items is wrong"): of[twice] + of[text],
        ("error", "weight", "found no number"): of[text] + of[missing],
    }
    found = prepare_rows([log], tmp_path / "out", spec, items=tmp_path / "items.csv", skip_bad=1000)
    good = [row for row in clean if row[3] not in of]
    (tmp_path / "good.csv").write_text("\n".join(["item,weight", *(f"{item},{item}" for item in used)]) + "\n")
    expected = prepare_rows(
        [write(tmp_path / "clean.csv", good)], tmp_path / "clean", spec, items=tmp_path / "good.csv"
    )
    assert found.checksum == expected.checksum
    assert found.manifest["about"]["skipped"]["rows"] == sum(of.values()) + 4


def test_missing_numbers_of_a_table_are_problems_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One item has no number in the table, and one is not in it; the log itself is without an error."""
    features = {**CONTENT["features"], "item": {**CONTENT["features"]["item"], "weight": {"kind": "dense"}}}
    clean = clean_rows()
    used = sorted({row[3] for row in clean}, key=int)
    empty, absent = used[0], used[1]
    lines = [f"{item},{'' if item == empty else item}" for item in used if item != absent]
    (tmp_path / "items.csv").write_text("\n".join(["item,weight", *lines]) + "\n")
    log = write(tmp_path / "log.csv", clean)
    (problem,) = check_rows([log], spec_of(features=features), items=tmp_path / "items.csv").errors
    assert problem.count == sum(row[3] in (empty, absent) for row in clean)
    assert {place.file for place in problem.places} == {str(tmp_path / "items.csv")}
    found = {place.found for place in problem.places}
    assert found <= {f"item {int(empty)}: nothing", f"item {int(absent)}: not in the table"}
    (tmp_path / "spec.yaml").write_text(json.dumps({**CONTENT, "features": features}))
    words = ("prepare", "rows", log, "--items", tmp_path / "items.csv", "--spec", tmp_path / "spec.yaml", "--check")
    with pytest.raises(SystemExit, match="1"):
        main([*map(str, words)])
    printed = " ".join(capsys.readouterr().err.split())
    _, _, rest = printed.partition("missing: indicator for weight in the spec keeps rows without these numbers")
    assert rest.startswith(" otherwise, --skip-bad")
    features["item"]["weight"]["missing"] = "indicator"
    assert check_rows([log], spec_of(features=features), items=tmp_path / "items.csv").errors == []


def test_lists_of_different_lengths_drop_their_requests(tmp_path: Path) -> None:
    spec = spec_of(
        features={"item": {**CONTENT["features"]["item"], "page": {"kind": "categorical", "num_buckets": 10}}},
        sequences={"past": {"features": ["item", "page"], "columns": {"item": "a", "page": "b"}, "max_length": 2}},
    )
    lists = {"a": [[1], [1, 2], [1, 2, 3], []], "b": [[1], [1], [1, 2], None]}  # the third agree after two events
    frame = pl.DataFrame({"request": [0, 1, 2, 3], **lists})
    frame.write_parquet(tmp_path / "requests.parquet")
    log = write(tmp_path / "log.csv", clean_rows(4))
    numbers = counted(check_rows([log], spec, requests=tmp_path / "requests.parquet"))
    assert numbers == {
        ("error", "b", "not as many events as 'a' has (sequences.past)"): 1,
        ("error", "request", "found an id whose row in the table of requests is wrong"): 4,
    }
    found = prepare_rows([log], tmp_path / "out", spec, requests=tmp_path / "requests.parquet", skip_bad=5)
    assert sum(len(day) for day in found.days.values()) == 3


def test_days_that_overlap(tmp_path: Path) -> None:
    rows = [changed(row, page="1" if int(row[0]) % 2 else "0") for row in clean_rows(4)]
    spec = spec_of(day="page", features={"item": CONTENT["features"]["item"]})
    (problem,) = check_rows([write(tmp_path / "log.csv", rows)], spec).problems
    assert (problem.column, problem.number, problem.dropped) == ("page", "1 day", None)
    assert "days that begin before an earlier one ends" in problem.problem


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.csv", [*clean_rows(), *bad_rows()])
    (tmp_path / "spec.yaml").write_text(json.dumps(CONTENT))
    return tmp_path


def test_the_check_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "rows", "log.csv", "--spec", "spec.yaml", "--check"])
    printed = capsys.readouterr()
    assert "log.csv, row 135: 'cheap'" in " ".join(printed.out.split())
    assert "errors: 13, warnings: 0; nothing was written" in printed.err
    assert "--skip-bad 22 drops 22 bad rows and prepares the others" in printed.err
    assert sorted(path.name for path in folder.iterdir()) == ["log.csv", "spec.yaml"]


def test_skip_bad_is_reported_stored_and_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["prepare", "rows", "log.csv", "--spec", "spec.yaml", "--skip-bad", "50", "--out", "out"])
    assert "skipped: 22 bad rows" in capsys.readouterr().err
    assert ImpressionLog.load(Path("out")).manifest["about"]["skipped"]["rows"] == 22
    with pytest.raises(SystemExit, match="0"):
        main(["data", "out"])
    assert "22 bad rows" in capsys.readouterr().out


def test_too_many_bad_rows_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "rows", "log.csv", "--spec", "spec.yaml", "--skip-bad", "21", "--out", "out"])
    printed = capsys.readouterr().err
    assert "column 'price': found other values, expected a number: 2 rows (log.csv, row 135: 'cheap'" in printed
    assert "found 22 bad rows, expected at most 21" in printed
    assert not (folder / "out").exists()


def test_out_is_required_without_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["prepare", "rows", "log.csv", "--spec", "spec.yaml"])
    assert "--out" in capsys.readouterr().err


def test_an_error_points_to_the_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "rows", "log.csv", "--spec", "spec.yaml", "--out", "out"])
    assert "--check lists every problem" in capsys.readouterr().err


# --- findings ---------------------------------------------------------------------------------------------------


def test_findings_remember_rows_up_to_the_limit_only() -> None:
    found, other = Findings(3), Findings(3)
    kind = Kind("error", "a", "wrong", "rows", "row")
    found.add(kind, 1, [Place("x", 1)])
    found.drop("x", [1, 2, 2])
    assert (found.bad_rows, found.skipped("x")) == (2, (1, 2))
    other.add(kind, 5, [Place("y", n) for n in range(1, 6)])
    other.drop("y", range(5))
    found.merge(other)
    assert found.bad_rows > 3
    assert found.rows == {}
    (problem,) = found.problems()
    assert (problem.count, problem.number, len(problem.places)) == (6, "6 rows", 3)
