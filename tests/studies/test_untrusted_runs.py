"""Nothing that another person's run names is imported unless it is trusted."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from rankfall._config import ConfigError, to_yaml
from rankfall.cascade import Cascade
from rankfall.registry import user_files
from rankfall.reporting.files import figures_of, write_evaluation_report, write_report
from rankfall.serving.export.export_run import export_run
from rankfall.storage.trust import UntrustedError
from rankfall.studies.diagnosis.diagnose import diagnose_run
from rankfall.studies.evaluate import evaluate_run, scores_of_run
from rankfall.studies.plan.plan_quotas import Costs, current_quotas, plan_run
from rankfall.training.run_directory import read_config, seal_run
from rankfall.training.train_cascade import load_run
from support.cascades import content
from support.command_line import run as command
from support.interrupted import train
from support.own_parts import PARTS, cascade, write_parts
from support.sealing import seal_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LEAVES_A_MARK = "\nimport pathlib\npathlib.Path(__file__).with_name('mark').touch()\n"


@pytest.fixture
def foreign(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of another user, whose code leaves a mark when it is imported."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of the other user"))
    parts = write_parts(tmp_path / "code", PARTS + LEAVES_A_MARK)
    train(cascade(log, parts), tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    forget(parts)
    return tmp_path / "run"


def forget(parts: Path) -> None:
    """Make this process as if it had not imported a file."""
    user_files._HASHES.pop(user_files.module_name(parts), None)
    mark(parts.parent.parent).unlink()


def mark(directory: Path) -> Path:
    return directory / "code" / "mark"


ACTIONS: dict[str, Callable[..., object]] = {
    "read_config": read_config,
    "load_run": load_run,
    "evaluate": evaluate_run,
    "scores": scores_of_run,
    "diagnose": diagnose_run,
    "quotas": lambda run, **options: current_quotas(run, (), **options),
    "plan": lambda run, **options: plan_run(
        run, costs=Costs.defaults({"retrieval": "mlp", "ranking": "mlp"}), **options
    ),
    "export": lambda run, **options: export_run(run, run / "bundle", **options),
    "report": write_report,
    "other report": lambda run, **options: write_evaluation_report(run, run.parent, **options),
    "figures": figures_of,
    "checkpoint": lambda run, **options: Cascade.load(run / "checkpoints" / "best.safetensors", **options),
    "stage": lambda run, **options: Cascade.load_stage(run / "checkpoints" / "last.safetensors", "ranking", **options),
}


def test_nothing_is_imported(foreign: Path) -> None:
    for name, action in ACTIONS.items():
        with pytest.raises(ValueError, match=r"parts\.py.*--trust") as raised:
            action(foreign)
        assert isinstance(raised.value, UntrustedError | ConfigError), name
        assert not mark(foreign.parent).exists(), name


def test_what_is_trusted_is_imported(foreign: Path) -> None:
    with pytest.raises(ValueError, match="--trust"):
        evaluate_run(foreign)
    evaluate_run(foreign, trust=True)
    assert mark(foreign.parent).exists()
    assert not (foreign.parent / "mine").exists()  # for this time only


def test_what_the_user_has_trained_with_is_trusted(foreign: Path, log: Path, tmp_path: Path) -> None:
    train(cascade(log, tmp_path / "code" / "parts.py", training={"seed": 1}), tmp_path / "own")
    forget(tmp_path / "code" / "parts.py")
    evaluate_run(foreign)
    assert mark(foreign.parent).exists()


def test_a_checkpoint_that_names_other_code_than_its_run(foreign: Path, log: Path, tmp_path: Path) -> None:
    other = write_parts(tmp_path / "mine too")
    train(cascade(log, other), tmp_path / "own")
    shutil.copy(foreign / "checkpoints" / "best.safetensors", tmp_path / "own" / "checkpoints" / "best.safetensors")
    with pytest.raises(ValueError, match=r"best\.safetensors has changed since it was written"):
        evaluate_run(tmp_path / "own")
    seal_again(tmp_path / "own")
    with pytest.raises(UntrustedError, match=r"code/parts\.py"):
        evaluate_run(tmp_path / "own")
    assert not mark(tmp_path).exists()


@pytest.mark.parametrize("reference", ["os:system", "subprocess:run", "antigravity:geohash"])
def test_modules_need_trust_too(reference: str, log: Path, tmp_path: Path) -> None:
    config = content(log, objective={"name": "lcron", "topk": reference})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    seal_run(tmp_path, [tmp_path / "config.yaml"])
    with pytest.raises(ConfigError, match=rf"objective.topk.*{reference}' is code that {tmp_path} names.*--trust"):
        read_config(tmp_path)
    assert "antigravity" not in sys.modules  # it would open a browser


def test_the_command_line_says_what_would_run(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands: dict[str, list[Any]] = {
        "evaluate": [],
        "plan": [],
        "report": [],
        "export": ["--out", foreign / "bundle"],
    }
    for verb, options in commands.items():
        assert command(verb, foreign, *options) != 0
        said = " ".join(capsys.readouterr().err.split())
        assert "loading it would run" in said, verb
        assert "Traceback" not in said
    assert not mark(foreign.parent).exists()
    assert command("evaluate", foreign, "--trust") == 0
    assert mark(foreign.parent).exists()


@pytest.mark.parametrize("changes", [{"kind": "nonsense"}, {"name": 5}, {"file": None}, {"more": ""}])
def test_a_damaged_list_of_components(changes: dict[str, Any], log: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(content(log)))
    stored = {"kind": "loss", "name": "softmax_loss", "file": "", "sha256": ""} | changes
    (tmp_path / "components.json").write_text(json.dumps([stored]))
    seal_run(tmp_path, [tmp_path / "config.yaml", tmp_path / "components.json"])
    with pytest.raises(ValueError, match=r"components\.json is damaged"):
        read_config(tmp_path)
