"""Configurations with all defaults written out: they mean the same as without."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from rankfall import models
from rankfall._config import ConfigError
from rankfall.data import ImpressionLog
from rankfall.registry import names, options
from rankfall.training.build import make_cascade, make_objective
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.ranker_config import validate
from rankfall.training.methods import method_of
from support.cascades import content, liked_log
from support.command_line import run
from support.planted import config_for

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED_OPTIONS: dict[str, dict[str, Any]] = {"per_stage": {"loss": "ranknet_loss"}}  # options without a default
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    "lambda_recall_loss": {"m": 5, "k": 2},
    "relax_loss": {"m": 5, "k": 2, "tau": 0.5},
    "topk_bce_loss": {"k": 2, "topk": {"name": "lapsum_topk", "tau": 0.5}},
    "arf": {"m": 5, "k": 2},
    "arf_v2": {"k": 2},
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("options") / "log"
    return liked_log(path)


@pytest.mark.parametrize("name", names("objective"))
def test_an_objective_with_its_defaults_written_out_is_the_same(name: str, log: Path) -> None:
    short = validate_cascade(content(log, objective={"name": name, **REQUIRED_OPTIONS.get(name, {})}))
    shown = method_of(short).with_defaults()
    # the quotas of the stages are not repeated
    defined_by_stages = {"quotas"} if name != "lcron" else set()
    assert set(options("objective", name)) - defined_by_stages == set(shown["objective"]) - {"name"}
    long = validate_cascade(shown)
    assert method_of(long).with_defaults() == shown
    scores = [torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    grades = torch.arange(7.0).expand(4, 7)
    depth = torch.tensor([-1, -1, 0, 0, 1, 1, 2]).expand(4, 7)
    values = [make_objective(config)[0](scores, grades, depth=depth) for config in (short, long)]
    assert torch.equal(*values)


@pytest.mark.parametrize("name", ["lcron", "fs_lambda_loss", "icc", "arf", "arf_v2", "sort_ce"])
def test_a_published_variant_with_its_defaults_written_out_is_the_same(name: str, log: Path) -> None:
    short = validate_cascade(content(log, objective={"name": name, "variant": "published"}))
    shown = method_of(short).with_defaults()
    assert shown["objective"]["variant"] == "published"
    scores = [torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    grades = torch.tensor([3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 0.0]).expand(4, 7)
    values = [make_objective(config)[0](scores, grades) for config in (short, validate_cascade(shown))]
    assert torch.equal(*values)
    if name == "arf_v2":  # the stages supply its quotas
        assert make_objective(short)[0].kept == [stage.quota for stage in short.stages]
    with pytest.raises(ConfigError, match="found 'publisht', did you mean 'published'"):
        validate_cascade(content(log, objective={"name": name, "variant": "publisht"}))


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_model_with_its_defaults_written_out_is_the_same(kind: str, log: Path) -> None:
    given = content(log)
    given["stages"] = [{"name": "only", "quota": 3, "model": {"kind": kind}}]
    short = validate_cascade(given)
    shown = method_of(short).with_defaults()
    assert set(shown["stages"][0]["model"]) == {"kind", *options("model", kind)}
    features = ImpressionLog.load(log).features
    made = []
    for config in (short, validate_cascade(shown)):
        torch.manual_seed(0)
        made.append(make_cascade(config, features).state_dict())
    assert all(tensor.equal(made[1][name]) for name, tensor in made[0].items())


@pytest.mark.parametrize("name", names("loss"))
def test_a_loss_with_its_defaults_written_out_is_accepted(name: str, tmp_path: Path) -> None:
    config = validate(config_for(tmp_path, loss={"name": name, **LOSS_OPTIONS.get(name, {})}))
    shown = method_of(config).with_defaults()
    assert set(shown["loss"]) == {"name", *options("loss", name)}
    assert method_of(validate(shown)).with_defaults() == shown


def test_names_of_stages_and_schedules_stay_what_they_are(log: Path) -> None:
    given = content(log, objective={"name": "bce"})
    given["stages"][1]["min_depth"] = "ranked"
    shown = method_of(validate_cascade(given)).with_defaults()
    assert shown["stages"][1]["min_depth"] == "ranked"
    assert "min_depth" not in shown["objective"]  # which would win over the stages'
    tau = {"start": 10, "end": 1}
    shown = method_of(validate_cascade(content(log, objective={"name": "arf_v2", "tau": tau}))).with_defaults()
    assert shown["objective"]["tau"] == tau
    validate_cascade(shown)


def test_config_show_prints_them(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = content(log) | {"objective": {"name": "lcron"}}
    given["stages"][0]["model"] = {"kind": "two_tower"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(given))
    assert run("config", "show", str(tmp_path / "config.yaml")) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["stages"][0]["model"]["hidden"] == [128, 64, 32]
    assert shown["objective"]["topk"]["name"] == "neural_sort"
    assert shown["objective"]["topk"]["tau"] == 50.0
    assert shown["objective"]["quotas"] == [2, 2]  # K, the number of relevant items
    assert run("config", "show", str(tmp_path / "config.yaml"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == shown
