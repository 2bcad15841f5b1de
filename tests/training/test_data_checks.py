"""`config show` says which data, days and splits do not exist, all at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.cli import main
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.letor.parse import Recipe
from rankfall.data.sources.letor.prepare_letor import prepare_letor
from rankfall.data.sources.rows.prepare_rows import prepare_rows
from rankfall.training.config.load_config import apply_overrides, load_config

if TYPE_CHECKING:
    from pathlib import Path

SPEC = validate_spec({"request": "r", "item": "i", "day": "d", "relevant": {"column": "y"}})
CASCADE: dict[str, Any] = {
    "data": {"path": "log", "train": [7, "8..9"], "valid": 10},
    "relevant": 1,
    "stages": [{"name": "rank", "quota": 1, "model": {"kind": "mlp"}}],
    "objective": {"name": "bce"},
}
RANKER: dict[str, Any] = {
    "data": {"path": "lists", "train": 1, "valid": [2]},
    "loss": {"name": "softmax_loss"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with the days 7 to 10, and lists with the splits 1 and 2."""
    folder = tmp_path_factory.mktemp("data")
    lines = [f"{day}{request},{item},{day},{item % 2}" for day in range(7, 11) for request in (1, 2) for item in (1, 2)]
    (folder / "log.csv").write_text("\n".join(["r,i,d,y", *lines]) + "\n")
    prepare_rows([folder / "log.csv"], folder / "log", SPEC)
    for name in "12":
        (folder / f"{name}.txt").write_text(f"1 qid:{name} 1:0.5\n0 qid:{name} 1:0.1\n")
    prepare_letor({name: [folder / f"{name}.txt"] for name in "12"}, folder / "lists", Recipe())
    return folder


def show(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: dict[str, Any],
    *overrides: str,
) -> tuple[int, str, list[str]]:
    """The exit code, standard output, and the lines of standard error."""
    monkeypatch.chdir(folder)
    (folder / "config.yaml").write_text(json.dumps(content))
    with pytest.raises(SystemExit) as ended:
        main(["config", "show", "config.yaml", *overrides])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err.splitlines()


@pytest.mark.parametrize("content", [CASCADE, RANKER], ids=["cascade", "ranker"])
def test_numbers_are_names_of_days_and_splits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: dict[str, Any]
) -> None:
    code, shown, errors = show(folder, monkeypatch, capsys, content)
    assert (code, errors) == (0, [])
    assert "- '10'" in shown or "- '2'" in shown
    config = load_config(folder / "config.yaml", ["data.valid=3"])
    assert config.data.valid == ["3"]
    assert apply_overrides(content, ["data.valid=3"])["data"]["valid"] == 3  # validation makes it a name


def test_every_missing_day_is_named_and_the_configuration_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, errors = show(folder, monkeypatch, capsys, CASCADE, "data.train=[6, 7, 8..12]", "data.test=[11]")
    assert code == 1
    assert "objective:" in shown
    assert errors == [
        "error: config.yaml: data.train: log has no day '6'; it has 7, 8, 9, 10",
        "error: config.yaml: data.train: log has no day '12' (in '8..12'); it has 7, 8, 9, 10",
        "error: config.yaml: data.test: log has no day '11'; it has 7, 8, 9, 10",
    ]


def test_missing_splits(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = show(folder, monkeypatch, capsys, RANKER, "data.train=[1, 5]", "data.valid=S1")
    assert code == 1
    assert errors == [
        "error: config.yaml: data.train: lists has no split '5'; it has 1, 2",
        "error: config.yaml: data.valid: lists has no split 'S1'; it has 1, 2",
    ]


def test_folds_of_a_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {
        "data": {"path": "lists"},
        "methods": {"softmax": {"loss": {"name": "softmax_loss"}}},
        "folds": {"one": {"train": 1, "valid": 2, "test": 3}},
    }
    code, _, errors = show(folder, monkeypatch, capsys, content)
    assert code == 1
    assert errors == ["error: config.yaml: folds.one.test: lists has no split '3'; it has 1, 2"]


def test_days_of_a_stream(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    content = CASCADE | {"data": {"path": "log", "days": 11}, "methods": {"bce": {}}}
    code, _, errors = show(folder, monkeypatch, capsys, content)
    assert code == 1
    assert errors == ["error: config.yaml: data.days: log has no day '11'; it has 7, 8, 9, 10"]


def test_data_of_the_other_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = show(folder, monkeypatch, capsys, CASCADE, "data.path=lists")
    assert code == 1
    assert errors == [
        "error: config.yaml: data.path: lists is ranking data, expected an impression log for this configuration"
    ]


def test_data_that_do_not_exist_are_a_warning_with_the_directory_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = show(folder, monkeypatch, capsys, CASCADE, "data.path=logs")
    assert code == 0
    (line,) = errors
    assert line.startswith("warning: config.yaml: data.path: logs is not an impression log")
    assert line.endswith(f"; {folder / 'logs'} does not exist, did you mean 'log'")
