"""`prepare letor --check` and `--skip-bad` on dirty text whose problems were put there one by one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rankfall.cli import main
from rankfall.data.lists.ranking_data import RankingData
from rankfall.data.sources.letor.parse import Recipe
from rankfall.data.sources.letor.prepare_letor import check_letor, prepare_letor

if TYPE_CHECKING:
    from pathlib import Path

GOOD = ["2 qid:1 1:0.5 2:1", "0 qid:1 1:0.1", "1 qid:2 2:3", "0 qid:2 1:1 # docid = x"]
BAD = {  # line after which it is inserted: a problem, and how it is named
    1: ("x qid:1 1:0.5", "the label ... is not a finite number"),
    2: ("0 qid:2 2:1 1:3", "found feature id ... after ...; ids must increase along a line"),
    3: ("0 qid:2 2:1 1:3", "found feature id ... after ...; ids must increase along a line"),
    4: ("0 1:3", "found no ... after the label"),
}


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def dirty() -> list[str]:
    lines = []
    for number, line in enumerate(GOOD, start=1):
        lines.append(line)
        if number in BAD:
            lines.append(BAD[number][0])
    return lines


def test_a_clean_file_has_no_problem(tmp_path: Path) -> None:
    found = check_letor({"a": [write(tmp_path / "a.txt", GOOD)]}, Recipe())
    assert (found.rows, found.problems) == (4, [])


def test_every_problem_is_counted_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", dirty())
    found = check_letor({"a": [file]}, Recipe())
    assert found.rows == 4
    assert {
        problem.problem: (problem.count, [place.line for place in problem.places]) for problem in found.problems
    } == {
        "the label ... is not a finite number": (1, [2]),
        "found feature id ... after ...; ids must increase along a line": (2, [4, 6]),
        "found no ... after the label": (1, [8]),
    }
    assert str(found.problems[0].places[0]) == f"{file}:2: the label 'x' is not a finite number"


def test_queries_apart_and_in_two_splits(tmp_path: Path) -> None:
    one = write(tmp_path / "a.txt", [*GOOD, "0 qid:1 1:3"])
    other = write(tmp_path / "b.txt", GOOD[2:])
    found = check_letor({"a": [one], "b": [other]}, Recipe())
    again, shared = found.problems
    assert (again.level, again.number, again.places[0].line) == ("error", "1 line", 5)
    assert (shared.level, shared.number) == ("warning", "1 query")
    assert [problem.level for problem in check_letor({"a": [one]}, Recipe(regroup=True)).problems] == []


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"\x1f\x8b broken")
    sizes = write(tmp_path / "b.group", ["1", "7"])
    lines = write(tmp_path / "b.txt", ["0 1:3", "1 1:4"])
    alone = write(tmp_path / "c.txt", ["0 1:3"])
    found = check_letor({"a": [tmp_path / "a.txt.gz"], "b": [lines], "c": [alone]}, Recipe(), groups={lines: sizes})
    assert [(problem.level, problem.unit, problem.count) for problem in found.problems] == [("error", "files", 1)] * 3
    texts = " ".join(str(problem.places[0]) for problem in found.problems)
    assert "damaged or truncated" in texts
    assert "the sizes add up to 8, but" in texts
    assert "no file of group sizes" in texts


def test_skip_bad_gives_the_data_of_the_good_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", dirty())
    found = prepare_letor({"a": [file]}, tmp_path / "out", Recipe(), skip_bad=4)
    expected = prepare_letor({"a": [write(tmp_path / "b.txt", GOOD)]}, tmp_path / "expected", Recipe())
    assert found["a"].features.tolist() == expected["a"].features.tolist()
    assert found["a"].labels.tolist() == expected["a"].labels.tolist()
    with pytest.raises(ValueError, match=r"found more than 3 invalid lines; the first are\n.*a.txt:2: the label 'x'"):
        prepare_letor({"a": [file]}, tmp_path / "refused", Recipe(), skip_bad=3)
    assert not (tmp_path / "refused").exists()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", dirty())
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "letor", "a.txt", "--check", "--json"])
    assert [problem["count"] for problem in json.loads(capsys.readouterr().out)["problems"]] == [1, 2, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(SystemExit, match="1"):
        main(["prepare", "letor", "a.txt", "--out", "out"])
    assert "--check lists every problem" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["prepare", "letor", "a.txt", "--out", "out", "--skip-bad", "9"])
    assert len(RankingData.load(tmp_path / "out")["a"]) == 2
