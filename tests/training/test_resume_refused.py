"""Trainings that cannot be continued, or from nothing, and what is said of it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from rankfall._config import ConfigError
from rankfall.storage.files import LeftoverWarning, locked
from rankfall.training.checkpoint import Checkpoints, DamagedError
from rankfall.training.config.load_config import set_option
from support.interrupted import outcome, train
from support.logs import DAYS, random_log
from support.planted import plant
from support.resuming import Interrupted, after, contents, interrupt, whole_runs
from support.sealing import seal_again

if TYPE_CHECKING:
    from pathlib import Path


# --- nothing to continue from ---------------------------------------------------------------------------------------


def test_resume_starts_new_run_in_empty_directory(tmp_path: Path) -> None:
    left = tmp_path / "killed before it had begun"
    (left / "checkpoints").mkdir(parents=True)
    (left / ".config.yaml.00000123.tmp").touch()
    (left / "checkpoints" / ".step-000000001.safetensors.00000123.tmp").touch()
    (tmp_path / "empty").mkdir()
    with pytest.warns(LeftoverWarning, match="removed"):
        train(contents()["ranker"], left, resume=True)
    for run in (tmp_path / "empty", tmp_path / "new"):
        train(contents()["ranker"], run, resume=True)
    for run in (left, tmp_path / "empty", tmp_path / "new"):
        assert outcome(run) == outcome(whole_runs()["ranker"])


def test_resume_without_checkpoint_starts_over(tmp_path: Path) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    interrupt(contents()["ranker"], run, 1)
    train(contents()["ranker"], run, resume=True, on_notice=heard.append)
    assert heard == [f"{run} has no checkpoint yet: training starts again"]
    assert outcome(run) == outcome(whole_runs()["ranker"])


def test_other_files_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds other files and no run"):
        train(contents()["ranker"], tmp_path, resume=True)


def test_existing_run_requires_resume_or_force(tmp_path: Path) -> None:
    interrupt(contents()["ranker"], tmp_path / "run", 3)
    with pytest.raises(ValueError, match="holds a run already; name another directory, continue it with --resume, or"):
        train(contents()["ranker"], tmp_path / "run")
    with pytest.raises(ValueError, match="force: found with resume; a run is either replaced or continued"):
        train(contents()["ranker"], tmp_path / "run", force=True, resume=True)


# --- what cannot be continued ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "value", "message"),
    [
        (
            "cascade",
            "optimizer.lr",
            0.1,
            r"a different configuration: optimizer\.lr was 0\.05 and is 0\.1\. Resume with",
        ),
        ("cascade", "training.threads", 2, r"training\.threads was 1 and is 2"),
        ("cascade", "training.epochs", 4, r"training\.epochs was 3 and is 4"),
        ("cascade", "stages.1.quota", 2, r"stages\.1\.quota was 3 and is 2"),
        ("cascade", "share", [], r"share\.0 was 'video' and is nothing"),
        ("cascade", "objective", {"name": "bce"}, r"objective\.name was 'lcron' and is 'bce'"),
        ("ranker", "loss.k", 4, r"loss\.k was 5 and is 4"),
    ],
)
def test_another_configuration_is_refused(kind: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupt(contents()[kind], run, 3)
    changed = set_option(contents()[kind], key, value)
    with pytest.raises(ConfigError, match=message):
        train(changed, run, resume=True)
    (run / "config.yaml").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"config\.yaml has changed since it was written"):
        train(changed, run, resume=True)
    seal_again(run)  # an edited file is no other beginning
    with pytest.raises(ConfigError, match=message):
        train(changed, run, resume=True)


def test_mutable_keys_may_change_on_resume(tmp_path: Path) -> None:
    content, run = contents()["cascade"], tmp_path / "run"
    interrupt(content, run, 3)
    shutil.copytree(content["data"]["path"], tmp_path / "moved")
    for key, value in (
        ("data.path", str(tmp_path / "moved")),
        ("training.keep", 1),
        ("training.checkpoint_every", 60),
        ("stage_metrics", []),
    ):
        content = set_option(content, key, value)
    train(content, run, resume=True)
    assert str(tmp_path / "moved") in (run / "config.yaml").read_text()
    assert outcome(run) == outcome(whole_runs()["cascade"])


def test_other_data_are_refused(tmp_path: Path) -> None:
    interrupt(contents()["cascade"], tmp_path / "cascade", 3)
    random_log(tmp_path / "log", impressions=50, seed=1)
    with pytest.raises(ConfigError, match=rf"data\.path: .* other data; day {DAYS[0]}, day {DAYS[1]}, .* differ"):
        train(set_option(contents()["cascade"], "data.path", str(tmp_path / "log")), tmp_path / "cascade", resume=True)
    interrupt(contents()["ranker"], tmp_path / "ranker", 3)
    data = plant(tmp_path / "planted", log1p=True)
    with pytest.raises(ConfigError, match=r"data\.path: .* other data; S1"):
        train(set_option(contents()["ranker"], "data.path", str(data)), tmp_path / "ranker", resume=True)


def test_a_finished_run_is_of_its_data(tmp_path: Path) -> None:
    run, content = tmp_path / "run", contents()["ranker"]
    train(content, run)
    data = plant(tmp_path / "planted", log1p=True)
    with pytest.raises(ConfigError, match=r"data\.path: .* other data; S1"):
        train(set_option(content, "data.path", str(data)), run, resume=True)


@pytest.mark.parametrize(
    ("part", "message"),
    [("modules", "'modules'"), ("optimizer", "'optimizer'"), ("position", r"unexpected keyword argument 'weather'")],
)
def test_a_checkpoint_of_another_kind_of_training_is_named(part: str, message: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupt(contents()["ranker"], run, 3)
    store = Checkpoints(run / "checkpoints", 1)
    state = store.load(pytest.fail)
    assert state is not None
    if part == "position":
        state[part]["weather"] = "fine"
    else:
        del state[part]
    store.save(9, state)
    with pytest.raises(DamagedError, match=rf"of rankfall \S+ does not fit this release, \S+: .*{message}.*--force"):
        train(contents()["ranker"], run, resume=True)


def test_version_change_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    heard: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("rankfall.training.loop.__version__", "0.0.1")
        with pytest.raises(Interrupted):
            train(contents()["ranker"], run, progress=after(3))
    train(contents()["ranker"], run, resume=True, on_notice=heard.append)
    assert len(heard) == 1
    assert f"{run} was started with rankfall 0.0.1, now " in heard[0]


def test_second_run_in_same_directory_is_refused(tmp_path: Path) -> None:
    interrupt(contents()["ranker"], tmp_path, 3)
    with locked(tmp_path), pytest.raises(ValueError, match="another training run is working in"):
        train(contents()["ranker"], tmp_path, resume=True)
    train(contents()["ranker"], tmp_path, resume=True)
