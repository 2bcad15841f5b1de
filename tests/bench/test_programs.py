"""The command line and the output that benchmarks and trials outside of the package share."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import BUNDLES, given_bundles, parse_settings, print_report


@dataclass(frozen=True)
class Settings:
    minutes: float = 10.0
    kills: int = 3
    wait: str = "6h"
    with_trainer: bool = True
    counts: tuple[int, ...] = (10, 5)


@dataclass
class Report:
    seconds: float = 1.5
    problems: list[str] = field(default_factory=list)


def test_every_setting_is_an_option() -> None:
    assert parse_settings("", Settings, [])[0] == Settings()
    words = ["--minutes", "0.5", "--kills", "1", "--wait", "1h", "--no-with-trainer", "--counts", "7"]
    assert parse_settings("", Settings, words)[0] == Settings(0.5, 1, "1h", False, (7,))
    with pytest.raises(SystemExit):
        parse_settings("", Settings, ["--minutes", "many"])


def test_bundles_are_counted() -> None:
    settings, given = parse_settings("", Settings, ["one", "two", "--kills", "4"], BUNDLES)
    assert settings.kills == 4
    with given_bundles(given, 2) as bundles:
        assert bundles == [Path("one"), Path("two")]
    with pytest.raises(SystemExit, match="found 2 bundles, expected 1"), given_bundles(given, 1):
        pass


def test_problems_are_printed_and_end_the_program_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_report(Report()) == 0
    assert json.loads(capsys.readouterr().out) == {"seconds": 1.5, "problems": []}
    assert print_report(Report(problems=["it has ended"])) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["problems"] == ["it has ended"]
    assert "problem: it has ended" in err
