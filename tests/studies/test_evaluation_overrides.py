"""``rankfall evaluate RUN key=value``: a run is measured differently, and its directory stays as it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankfall._config import ConfigError
from rankfall.metrics import funnel
from rankfall.studies.evaluate import evaluate_run, scores_of_run
from rankfall.studies.results import SplitEvaluation
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.load_config import with_evaluation_overrides
from rankfall.training.config.ranker_config import validate
from rankfall.training.methods import train
from support.cascades import content, liked_log
from support.command_line import run
from support.logs import DAYS, ITEMS, random_log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("overrides") / "log"
    return liked_log(path)


@pytest.fixture(scope="module")
def trained(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("runs") / "run"
    train(validate_cascade(content(log, training={"epochs": 1})), directory)
    evaluate_run(directory)
    return directory


def content_of(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_all_items_are_measured_and_the_run_stays_as_it_is(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(trained)
    assert run("evaluate", str(trained), "data.length=all", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lists"] == {"mean_length": ITEMS, "longest": ITEMS, "catalogue": ITEMS, "all_items": True}
    own = json.loads((trained / "evaluation.json").read_text())
    assert own["lists"] == {"mean_length": 11, "longest": 11, "catalogue": ITEMS, "all_items": False}
    assert found["metrics"]["joint_recall"] < own["metrics"]["joint_recall"]
    out = tmp_path / "out"
    assert run("evaluate", str(trained), "data.length=all", "relevant=1", "--out", str(out)) == 0
    assert content_of(trained) == before
    written = SplitEvaluation.load(out / "evaluation.json")
    assert written.overrides == ["data.length=all", "relevant=1"]
    assert (out / "values.parquet").exists()


def test_short_lists_are_warned_of(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warning = f"recall is measured on lists of 11 items, but the log has {ITEMS} items by {DAYS[2]}"
    assert run("evaluate", str(trained)) == 0
    printed = " ".join(" ".join(capsys.readouterr()).split())
    assert printed.count(warning) == 1  # beside the figures, not once more as a message
    (stored,) = json.loads((trained / "evaluation.json").read_text())["warnings"]
    assert stored.startswith(warning)
    assert run("evaluate", str(trained), f"data.length={ITEMS - 1}") == 0
    assert "data.length=all measures it" not in " ".join(" ".join(capsys.readouterr()).split())


def test_left_out_relevant_items_are_counted(trained: Path, log: Path) -> None:
    (warning,) = evaluate_run(trained, overrides=["data.length=all"]).summary().warnings
    count = sum(place % 3 for place in range(60))  # as the log was made
    assert warning.startswith(f"{count} relevant items were not sampled")


def test_quotas_days_and_relevant_items_can_change(trained: Path) -> None:
    wide = evaluate_run(trained, overrides=["stages.0.quota=10", "stages.1.quota=10"]).summary()
    assert wide.metrics["joint_recall"] > evaluate_run(trained).summary().metrics["joint_recall"]
    other = evaluate_run(trained, overrides=[f"data.test={DAYS[1]}"])
    assert other.qids == evaluate_run(trained, "valid").qids
    assert evaluate_run(trained, overrides=["stage_metrics=[mrr]"]).summary().metrics["ranking/alone/mrr"] > 0


def test_another_log_is_measured_and_never_replaces_the_evaluation(trained: Path, log: Path, tmp_path: Path) -> None:
    random_log(tmp_path / "other", seed=5, impressions=20)
    before = content_of(trained)
    named = evaluate_run(trained, overrides=[f"data.path={tmp_path / 'other'}"])
    moved = evaluate_run(trained, data=str(tmp_path / "other"))
    assert len(named.qids) == len(moved.qids) == 20
    assert content_of(trained) == before
    copy = shutil.copytree(log, tmp_path / "copy")
    (trained / "evaluation.json").unlink()
    evaluate_run(trained, data=str(copy))  # the same data at another place
    assert (trained / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.name=bce", "objective.name='bce'"),
        ("stages.0.model.dim=9", "stages.0.model.dim=9"),
        ("optimizer.lr=1", "optimizer.lr=1"),
        ("training.metric=ranking/alone/ndcg", "training.metric='ranking/alone/ndcg'"),
        ("stages.1.name=x", "stages.1.name='x'"),
        ("data.negatives=4", "data.negatives=4"),
    ],
)
def test_what_was_trained_cannot_change(trained: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        evaluate_run(trained, overrides=[override])
    assert message in str(error.value)
    for allowed in ("data.length", "relevant", "stages.N.quota", "data.test", "data.path", "stage_metrics"):
        assert allowed in str(error.value)


def test_the_metric_of_early_stopping_need_not_be_measured(log: Path) -> None:
    config = validate_cascade(content(log, training={"metric": "ranking/alone/ndcg"}))
    assert with_evaluation_overrides(config, ["data.length=all"]).model_dump()["data"]["length"] == "all"
    assert with_evaluation_overrides(config, []) == config


def test_a_ranker_has_other_keys() -> None:
    config = validate({"data": {"path": "x", "train": "S1", "valid": "S2"}, "loss": {"name": "softmax_loss"}})
    assert with_evaluation_overrides(config, ["metrics=[mrr]"]).model_dump()["metrics"] == ["mrr"]
    with pytest.raises(ConfigError, match=r"model.hidden.*can change data.path, .*, metrics, training.device$"):
        with_evaluation_overrides(config, ["model.hidden=[3]"])


def test_wrong_overrides_are_explained(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(trained), "data.length=al") == 1
    assert "did you mean 'all'" in capsys.readouterr().err
    assert run("evaluate", str(trained), "stages.1.quota=9") == 1
    assert "ranking keeps 9 items" in capsys.readouterr().err
    assert run("evaluate", str(trained), "relevant=1", "--out", str(trained)) == 1
    assert "holds a run" in capsys.readouterr().err


@pytest.mark.parametrize("reach", [None, 5, 12, ITEMS])
def test_scores_of_all_items_reach_as_far_as_asked(trained: Path, reach: int | None) -> None:
    config, scores, _ = scores_of_run(trained, overrides=["data.length=all"], reach=lambda config: reach)
    assert scores.mask.sum(-1).min() >= (reach or 5)
    assert scores.complete == (reach == ITEMS)
    assert scores.ranked.tolist() == [ITEMS] * 60
    expected = evaluate_run(trained, overrides=["data.length=all"]).values["joint_recall"]
    quotas = [stage.quota for stage in config.stages]
    result = funnel(scores.scores, scores.truth, quotas=quotas, mask=scores.mask)
    assert torch.equal(result.joint_recall, expected)
    if reach is not None and reach >= 12:  # wider quotas than those of the run are exact too
        wider: list[Any] = ["data.length=all", "stages.0.quota=12", "stages.1.quota=8"]
        measured = evaluate_run(trained, overrides=wider).values["joint_recall"]
        again = funnel(scores.scores, scores.truth, quotas=[12, 8], mask=scores.mask)
        assert torch.equal(again.joint_recall, measured)


def test_a_misspelt_split_is_explained(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(trained), "--split", "tset") == 1
    assert "split: found 'tset', did you mean 'test', expected one of" in " ".join(capsys.readouterr().err.split())


def test_a_name_is_no_feedback(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(trained), "feedback=like") == 1
    assert "feedback: found 'like', expected keys and values" in " ".join(capsys.readouterr().err.split())
