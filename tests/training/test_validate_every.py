"""Validation every n epochs: which epochs are measured, which can be the best, and when training stops."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.studies.evaluate import evaluate_run
from rankfall.training.run_directory import read_lines, read_result
from rankfall.training.train_cascade import CascadeLearner
from support.interrupted import cascade_content, outcome, train
from support.logs import random_log
from support.resuming import Interrupted, after

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("every") / "log"
    random_log(path, impressions=24)
    return path


def validated(run: Path) -> list[int]:
    """Return the epochs with validation metrics."""
    return [line["epoch"] for line in read_lines(run) if line["validation"]]


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_every_nth_epoch_and_the_last_one_are_validated(
    log: Path, tmp_path: Path, every: int, expected: list[int]
) -> None:
    train(cascade_content(log, training={"epochs": 5, "validate_every": every}), tmp_path / "run")
    lines = read_lines(tmp_path / "run")
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    assert validated(tmp_path / "run") == expected
    result = read_result(tmp_path / "run")
    values = {line["epoch"]: line["validation"]["joint_recall"] for line in lines if line["validation"]}
    assert result.best_epoch in values
    assert result.best_metric == values[result.best_epoch] == max(values.values())


def test_validation_changes_nothing_that_is_trained(log: Path, tmp_path: Path) -> None:
    for every in (1, 3):
        train(cascade_content(log, training={"epochs": 3, "validate_every": every}), tmp_path / str(every))
    last = [(tmp_path / every / "checkpoints" / "last.safetensors").read_bytes() for every in ("1", "3")]
    assert last[0] == last[1]


def test_an_interrupted_run_ends_the_same(log: Path, tmp_path: Path) -> None:
    content = cascade_content(log, training={"epochs": 4, "validate_every": 3})
    train(content, tmp_path / "whole")
    run, interruptions = tmp_path / "run", 0
    while True:
        try:
            train(content, run, resume=True, progress=after(3))
        except Interrupted:
            interruptions += 1
            continue
        break
    assert interruptions > 4
    assert outcome(run) == outcome(tmp_path / "whole")
    assert validated(run) == [3, 4]


@pytest.mark.parametrize(("every", "patience", "epochs"), [(1, 2, 3), (2, 1, 4), (3, 2, 9)])
def test_patience_counts_validations(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, patience: int, epochs: int
) -> None:
    """The first validation is the best; training stops after `patience` more, or at the end."""
    calls: list[int] = []

    def worse(self: CascadeLearner) -> dict[str, float]:
        calls.append(1)
        return {"joint_recall": 1 / len(calls)}

    monkeypatch.setattr(CascadeLearner, "validate", worse)
    changes: dict[str, Any] = {"epochs": 10, "validate_every": every, "patience": patience}
    result = train(cascade_content(log, training=changes), tmp_path / "run")
    assert result.epochs == epochs
    assert result.best_epoch == every


def test_a_run_without_a_validation_has_last_weights_only(log: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    content = cascade_content(log, training={"epochs": 4, "validate_every": 4})
    with pytest.raises(Interrupted):
        train(content, run, progress=after(10))  # in the third epoch
    assert not (run / "checkpoints" / "best.safetensors").exists()
    assert (run / "checkpoints" / "last.safetensors").exists()
    assert [json.loads(line)["validation"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [{}, {}]
    with pytest.raises(ValueError, match="no best weights yet"):
        evaluate_run(run)
