"""Cascades on the command line: messages about mistakes, incompatible logs, and interruption with Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import rankfall.studies.compare as comparisons
from rankfall._tensor_file import read_checkpoint
from rankfall.api.training import step_status
from rankfall.encoding import UNSEEN
from rankfall.training.config.load_config import set_option
from rankfall.training.run_directory import Step
from support.cascades import content, liked_log
from support.command_line import run
from support.logs import DAYS
from support.sealing import edit_manifest, seal_again

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from support.logs import Columns


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("commands") / "log"
    return liked_log(path)


@pytest.fixture(scope="module")
def config(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("commands") / "config.yaml"
    path.write_text(yaml.safe_dump(content(log, training={"epochs": 1})))
    return path


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", str(config), "--out", str(out)) == 0
    return out


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the messages of a failed command, which printed no result."""
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


# --- mistakes -----------------------------------------------------------------------------------------------------


def rewrite(log: Path, day: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the file of a day, and its entries in the manifests."""
    path = log / "days" / day / "impressions.arrow"
    with pa.OSFile(str(path)) as file:
        table = change(pa.ipc.open_file(file).read_all())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    seal_again(log)


def test_a_missing_column_is_named(log: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = shutil.copytree(log, tmp_path / "log")
    rewrite(broken, DAYS[0], lambda table: table.drop_columns(["depth", "item.price"]))
    out = tmp_path / "run"
    assert run("train", str(config), f"data.path={broken}", "--out", str(out)) == 1
    expected = "impressions.arrow: the columns do not match the spec of the log; missing: item.price, depth"
    assert f"{DAYS[0]}/{expected}" in message(capsys)
    assert not out.exists()


def test_an_unknown_kind_of_feature_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {
        "stages": [{"name": "shown"}],
        "relevant": "shown",
        "day": "day",
        "features": {"user": {"age": {"kind": "categorial", "num_buckets": 9}}},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "log.csv").write_text("request_id,item_id,day,age\n1,1,a,3\n")
    arguments = ("--spec", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "log"))
    assert run("prepare", "rows", str(tmp_path / "log.csv"), *arguments) == 1
    assert "features.user.age.kind: found 'categorial', did you mean 'categorical'; allowed are" in message(capsys)


def test_a_stage_may_keep_everything_in_training_if_a_later_one_does_not(config: Path, tmp_path: Path) -> None:
    assert run("train", str(config), "objective={name: lcron, quotas: [12, 5]}", "--out", str(tmp_path / "run")) == 0


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("stages.1.min_depth=rankd", "stages.1.min_depth: found 'rankd', did you mean 'ranked'; the log's stages are"),
        ("objective={name: bce, min_depth: shone}", "objective.min_depth: found 'shone', did you mean 'shown'"),
        ("stages.0.quota=11", "stages: retrieval has the quota 11, but the longest list of 2024-01-14 has 11 items"),
        ("objective={name: lcron, quotas: [13, 12]}", "objective: it keeps 12 items (relevant, objective.quotas), but"),
        ("relevant=12", "objective: it keeps 12 items (relevant, objective.quotas), but the longest list of"),
        ("data.valid=2024-02-14", f"data.valid: LOG has no day '2024-02-14'; it has {', '.join(DAYS)}\n"),
    ],
)
def test_values_that_the_log_does_not_have_are_named(
    log: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, expected: str
) -> None:
    out = tmp_path / "run"
    assert run("train", str(config), word, "--out", str(out)) == 1
    assert expected in message(capsys).replace(str(log), "LOG")
    assert not out.exists()


def test_comparisons_check_the_stages_of_the_log_before_training(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = content(log) | {"methods": {"bce": {"objective": {"name": "bce", "min_depth": [0, "rankd"]}}}}
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(comparison))
    assert run("compare", str(tmp_path / "comparison.yaml"), "--out", str(tmp_path / "out")) == 1
    assert "objective.min_depth.1: found 'rankd', did you mean 'ranked'" in message(capsys)


def test_lists_longer_than_any_quota_are_made_by_length(config: Path, tmp_path: Path) -> None:
    words = ("stages.0.quota=11", "data.length=20")
    assert run("train", str(config), *words, "--out", str(tmp_path / "run")) == 0


def cut_lists(columns: Columns, which: range, length: int) -> None:
    """Cut the lists of some impressions to `length` items."""
    for name, values in columns.items():
        if name in ("item", "depth", "rank", "relevance", "grade") or name.startswith(("item.", "feedback.")):
            for number in which:
                values[number] = values[number][:length]


def test_impressions_without_effect_on_the_means_are_counted(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(days: dict[str, Columns]) -> None:
        relevance = days[DAYS[2]]["relevance"]
        relevance[:7] = [[0.0] * len(one) for one in relevance[:7]]
        relevance[7:20] = [[1.0] * len(one) for one in relevance[7:20]]
        cut_lists(days[DAYS[2]], range(7, 11), 4)  # not longer than the quota of retrieval, 5
        cut_lists(days[DAYS[2]], range(11, 13), 3)  # nor than that of ranking, 3
        cut_lists(days[DAYS[2]], range(5), 4)  # impressions without a relevant item, which do not count

    other = liked_log(tmp_path / "log", change=change)
    copy = shutil.copytree(trained, tmp_path / "run")
    assert run("evaluate", str(copy), "--data", str(other), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["undefined"].values()) == {7}
    assert found["kept_whole"] == {"retrieval": 6, "ranking": 2}
    assert run("evaluate", str(copy), "--data", str(other)) == 0
    printed = capsys.readouterr().out
    assert "7 of 60 have no relevant item and are excluded from the means" in printed
    assert "6 of 53 that count are not longer than the quota of retrieval, which drops none of their items" in printed


def test_lists_too_short_for_the_quotas_are_not_measured(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = liked_log(tmp_path / "log", change=lambda days: cut_lists(days[DAYS[2]], range(60), 5))
    assert run("evaluate", str(trained), "--data", str(other)) == 1
    assert f"retrieval has the quota 5, but the longest list of {DAYS[2]} has 5 items" in message(capsys)


def test_training_days_are_evaluated_in_file_order(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("train", str(config), "data.negatives=2", "--out", str(out)) == 0
    assert run("evaluate", str(out), "--split", "train") == 0
    assert run("evaluate", str(out), "--split", DAYS[0]) == 0
    by_role, by_name = (pq.read_table(out / f"values-{split}.parquet") for split in ("train", DAYS[0]))
    assert by_role.equals(by_name)


def test_a_split_that_does_not_exist_is_called_a_split(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", str(trained), "--split", "1999-01-01") == 1
    printed = message(capsys)
    assert "split: found '1999-01-01', expected train, valid, test of the configuration, or days of the log" in printed
    assert f"has no day '1999-01-01'; it has {', '.join(DAYS)}" in printed
    assert "days:" not in printed


# --- other logs ---------------------------------------------------------------------------------------------------


def edited(log: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a copy of a log with a changed manifest."""
    copy = shutil.copytree(log, out)
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    edit_manifest(copy / "manifest.json", **manifest)
    return copy


def set_vocabulary(log: Path, values: list[str]) -> None:
    path = log / "vocabularies" / "video.arrow"
    table = pa.table({"value": values})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    seal_again(log)


def feature(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(one for one in manifest["features"]["features"] if one["name"] == name)
    return entry


def hash_differently(manifest: dict[str, Any]) -> None:
    manifest["spec"]["features"]["item"]["author"]["hash_bucket_size"] = 200


def scale_differently(manifest: dict[str, Any]) -> None:
    manifest["about"]["scalings"] = {"item.price": {"mean": [1.0], "deviation": [2.0]}}


def lose_a_feature(manifest: dict[str, Any]) -> None:
    manifest["features"]["features"] = [one for one in manifest["features"]["features"] if one["name"] != "taste"]
    del manifest["spec"]["features"]["user"]["taste"]


def lose_an_event_feature(manifest: dict[str, Any]) -> None:
    manifest["features"]["sequences"][0]["features"] = ["video"]
    manifest["spec"]["sequences"]["history"]["features"] = ["video"]


def move(manifest: dict[str, Any]) -> None:
    manifest["spec"]["time"]["zone"] = "UTC"


def simulate(manifest: dict[str, Any]) -> None:
    manifest["about"] |= {"command": "simulate", "preset": "tiny", "seed": 3}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (hash_differently, "item.author: found ids 'hashed into 200', the model was trained with 'hashed into 300'"),
        (scale_differently, "the scaling or the buckets of item.price were fitted to other data"),
        (lose_a_feature, "it has no feature user.taste"),
        (lose_an_event_feature, "its sequence history has no author"),
        (move, "context.hour: found ids 'the hour in UTC', the model was trained with 'the hour in Asia/Shanghai'"),
        (simulate, "it is of the simulated platform tiny with seed 3, the model was trained on no simulated platform"),
    ],
)
def test_a_log_with_another_encoding_is_refused(
    log: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    expected: str,
) -> None:
    other = edited(log, tmp_path / "log", change)
    assert run("evaluate", str(trained), "--data", str(other)) == 1
    err = message(capsys)
    assert f"{other} is not encoded like the log that the model was trained on: {expected}" in err.replace("\n", " ")


@pytest.mark.parametrize("values", [["b", "a"], ["a"], ["a", "c", "b"]])
def test_a_vocabulary_that_assigns_other_ids_is_refused(
    log: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], values: list[str]
) -> None:
    other = shutil.copytree(log, tmp_path / "log")
    set_vocabulary(other, values)
    assert run("evaluate", str(trained), "--data", str(other)) == 1
    assert "the vocabulary of item.video assigns other ids than that of the training log" in message(capsys)


def test_features_that_no_stage_uses_may_differ(
    log: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = "[user.id, item.video, sequence.history]"
    words = (f"stages.0.model.only={only}", f"stages.1.model.only={only}")
    assert run("train", str(config), *words, "--out", str(tmp_path / "run")) == 0
    other = edited(log, tmp_path / "log", scale_differently)
    assert run("evaluate", str(tmp_path / "run"), "--data", str(other)) == 0
    # the sequence still uses the author, although no candidate does
    other = edited(log, tmp_path / "hashed", hash_differently)
    assert run("evaluate", str(tmp_path / "run"), "--data", str(other)) == 1
    assert "item.author: found ids" in capsys.readouterr().err


def test_added_ids_are_a_warning_and_are_read_as_never_seen(
    log: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def grow(manifest: dict[str, Any]) -> None:
        feature(manifest, "video")["rows"] += 3

    other = edited(log, tmp_path / "log", grow)
    set_vocabulary(other, ["a", "b", "c"])
    copy = shutil.copytree(trained, tmp_path / "run")
    assert run("evaluate", str(copy), "--json") == 0
    expected = json.loads(capsys.readouterr().out)
    assert run("evaluate", str(copy), "--data", str(other), "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == expected  # the meaning of existing ids is unchanged
    assert "has 3 more ids of video than the training log; the model has no embeddings for them" in err

    def show(video: int) -> Callable[[dict[str, Columns]], None]:
        def change(days: dict[str, Columns]) -> None:
            days[DAYS[2]]["item.video"][5][2] = video

        return change

    newer = edited(liked_log(tmp_path / "plain", change=show(44)), tmp_path / "newer", grow)
    unseen = liked_log(tmp_path / "unseen", change=show(UNSEEN))
    results = []
    for path in (newer, unseen):
        assert run("evaluate", str(copy), "--data", str(path), "--json") == 0
        out, err = capsys.readouterr()
        results.append(json.loads(out)["metrics"])
        assert ("has 3 more ids of video than the training log" in err) == (path == newer)
    assert results[0] == results[1]


def test_a_log_that_was_prepared_again_is_detected(
    log: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.copytree(log, tmp_path / "log")
    assert run("train", str(config), f"data.path={moved}", "--out", str(tmp_path / "run")) == 0
    set_vocabulary(moved, ["z", "y"])
    assert run("evaluate", str(tmp_path / "run")) == 1
    assert "assigns other ids than that of the training log" in capsys.readouterr().err


def test_a_run_without_log_json_prints_a_note(
    log: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    (copy / "log.json").unlink()
    assert run("evaluate", str(copy)) == 1
    assert "log.json is missing; train the run again" in capsys.readouterr().err
    seal_again(copy)
    assert run("evaluate", str(copy)) == 0
    assert "has no log.json, so it is unknown whether the ids of" in capsys.readouterr().err
    (copy / "log.json").write_text("{")
    assert run("evaluate", str(copy)) == 1
    assert "log.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        ("result.json", "evaluate", "result.json is damaged: it is not JSON"),
        ("result.json", "report", "result.json is damaged: it is not JSON"),
        ("metrics.jsonl", "report", "metrics.jsonl line 1 is damaged: it is not JSON"),
    ],
)
def test_truncated_files_are_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: str, expected: str
) -> None:
    copy = shutil.copytree(trained, tmp_path / "run")
    text = (copy / name).read_text()
    (copy / name).write_text(text[: len(text) // 2])
    assert run(command, str(copy)) == 1
    assert f"{copy / name} has changed since it was written" in message(capsys)
    assert run(command, str(copy), "--no-verify") == 1
    assert expected in message(capsys)


def test_a_report_is_a_file(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(trained), "--out", str(tmp_path)) == 1
    assert f"{tmp_path} is a directory, expected a file" in message(capsys)


# --- Ctrl-C -------------------------------------------------------------------------------------------------------


def test_a_training_run_stops_and_is_resumed(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "run")
    before = signal.getsignal(signal.SIGINT)

    def interrupt(step: Step, metric: str, stages: Sequence[str]) -> str:
        if step.batch == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step_status(step, metric, stages)

    monkeypatch.setattr("rankfall.api.training.step_status", interrupt)
    assert run("train", str(config), "--out", out) == 130
    err = message(capsys)
    assert "stopped after batch 3 of 10 in epoch 1; the same command with --resume continues" in err
    assert signal.getsignal(signal.SIGINT) == before
    monkeypatch.undo()
    assert run("train", str(config), "--out", out) == 1  # the run exists, and neither --force nor --resume is given
    assert "--resume" in capsys.readouterr().err
    assert run("train", str(config), "--out", out, "--resume") == 0
    weights = [read_checkpoint(path / "checkpoints" / "last.safetensors")[0] for path in (tmp_path / "run", trained)]
    assert all(tensor.equal(weights[1][name]) for name, tensor in weights[0].items())


def test_a_second_interrupt_prints_what_is_kept(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(step: Step, metric: str, stages: Sequence[str]) -> str:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        return ""

    monkeypatch.setattr("rankfall.api.training.step_status", interrupt)
    assert run("train", str(config), "--out", str(tmp_path / "run")) == 130
    assert "interrupted: the same command with --resume continues" in message(capsys)


def test_an_interrupted_comparison_continues(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = content(log, training={"epochs": 1}) | {"methods": {"a": {}, "b": {"optimizer": {"lr": 0.01}}}}
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump(comparison))
    perform = comparisons.perform
    done: list[Path] = []

    def interrupted(step: comparisons.Step) -> list[str]:
        if done:
            raise KeyboardInterrupt
        done.append(step.run.directory)
        return perform(step)

    monkeypatch.setattr(comparisons, "perform", interrupted)
    arguments = ("compare", str(tmp_path / "comparison.yaml"), "--out", str(tmp_path / "out"))
    assert run(*arguments) == 130
    err = message(capsys)
    assert f"interrupted: 1 finished run kept in {tmp_path / 'out'}/runs; the same command continues" in err
    result = (done[0] / "result.json").read_bytes()
    monkeypatch.undo()
    assert run(*arguments) == 0
    assert (done[0] / "result.json").read_bytes() == result  # not trained again
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"comparison.json", "report.html"}


def test_an_interrupted_reproduction_prints_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankfall.api.studies.run_reproduction", interrupted)
    out = tmp_path / "out"
    assert run("reproduce", "pirank-table1", "--data", "generated", "--quick", "--out", str(out)) == 130
    assert f"finished runs are kept in {out}; the same command continues from there" in message(capsys)


def test_replacing_and_continuing_exclude_each_other(config: Path, tmp_path: Path) -> None:
    assert run("train", str(config), "--out", str(tmp_path / "run"), "--force", "--resume") == 2


# --- progress and results -----------------------------------------------------------------------------------------


def test_the_status_shows_the_loss_and_the_validation() -> None:
    parts = {"e2e": 0.5, "stage1/single": 0.25}
    step = Step(1, 3, 4, 10, parts, {}, 812.4)
    shown = step_status(step, "joint_recall", ["retrieval", "ranking"])
    assert shown == "loss 0.7500 = e2e 0.5000 + retrieval/single 0.2500"
    validation = {
        "joint_recall": 0.6,
        "retrieval/alone/recall": 0.8,
        "retrieval/alone/ndcg": 0.7,
        "retrieval/lost": 0.2,
    }
    step = Step(2, 3, 4, 10, parts, validation, 812.4)
    assert step_status(step, "joint_recall").splitlines()[1:] == [
        "validation: joint_recall 0.6000, retrieval/alone/recall 0.8000"
    ]


def test_a_finished_run_prints_its_best_validation(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", str(config), "--out", str(tmp_path / "run")) == 0
    printed = capsys.readouterr().out
    best = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["validation"]
    for name in ("joint_recall", "retrieval/alone/recall", "ranking/alone/recall"):
        assert f"validation {name}" in printed
        assert f"{best[name]:.4f}" in printed


def test_names_of_stages_become_numbers_in_the_run(config: Path, tmp_path: Path) -> None:
    changed = set_option(yaml.safe_load(config.read_text()), "stages.1.min_depth", "ranked")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(changed))
    words = ("objective={name: bce}", "--out", str(tmp_path / "run"))
    assert run("train", str(tmp_path / "config.yaml"), *words) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["stages"][1]["min_depth"] == 1
