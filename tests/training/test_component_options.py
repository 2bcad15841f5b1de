"""Options of models, losses and objectives: what is shown is what there is, and means what it did."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch
import yaml

from rankfall import models, objectives
from rankfall.commands.methods import Kind, default_text, find_methods, find_models, find_options
from rankfall.data import ImpressionLog
from rankfall.training.build_cascade import OBJECTIVES, make_cascade, make_objective
from rankfall.training.component_options import REQUIRED, loss_options, model_options, objective_options, with_defaults
from rankfall.training.config.cascade_config import ObjectiveName, validate_cascade
from rankfall.training.config.ranker_config import LossName, validate
from support.cascades import content, liked_log
from support.command_line import run
from support.paths import ROOT
from support.planted import config_for

if TYPE_CHECKING:
    from pathlib import Path

NEEDED: dict[str, dict[str, Any]] = {"per_stage": {"loss": "ranknet_loss"}}  # options without a default
LOSSES: dict[str, dict[str, Any]] = {
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


# --- config show --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_with_its_defaults_written_out_is_the_same(name: str, log: Path) -> None:
    short = validate_cascade(content(log, objective={"name": name, **NEEDED.get(name, {})}))
    shown = with_defaults(short)
    # what the stages say stands there once
    known = {"quotas"} if name != "lcron" else set()
    assert {option.name for option in objective_options(name)} - known == set(shown["objective"]) - {"name"}
    long = validate_cascade(shown)
    assert with_defaults(long) == shown
    scores = [torch.randn(4, 7, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    grades = torch.arange(7.0).expand(4, 7)
    depth = torch.tensor([-1, -1, 0, 0, 1, 1, 2]).expand(4, 7)
    values = [make_objective(config)[0](scores, grades, depth=depth) for config in (short, long)]
    assert torch.equal(*values)


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_model_with_its_defaults_written_out_is_the_same(kind: str, log: Path) -> None:
    told = content(log)
    told["stages"] = [{"name": "only", "quota": 3, "model": {"kind": kind}}]
    short = validate_cascade(told)
    shown = with_defaults(short)
    assert set(shown["stages"][0]["model"]) == {"kind", *(option.name for option in model_options(kind))}
    features = ImpressionLog.load(log).features
    made = []
    for config in (short, validate_cascade(shown)):
        torch.manual_seed(0)
        made.append(make_cascade(config, features).state_dict())
    assert all(tensor.equal(made[1][name]) for name, tensor in made[0].items())


@pytest.mark.parametrize("name", get_args(LossName))
def test_a_loss_with_its_defaults_written_out_is_accepted(name: str, tmp_path: Path) -> None:
    config = validate(config_for(tmp_path, loss={"name": name, **LOSSES.get(name, {})}))
    shown = with_defaults(config)
    assert set(shown["loss"]) == {"name", *(option.name for option in loss_options(name))}
    assert with_defaults(validate(shown)) == shown


def test_names_of_stages_and_schedules_stay_what_they_are(log: Path) -> None:
    told = content(log, objective={"name": "bce"})
    told["stages"][1]["min_depth"] = "ranked"
    shown = with_defaults(validate_cascade(told))
    assert shown["stages"][1]["min_depth"] == "ranked"
    assert "min_depth" not in shown["objective"]  # which would win over the stages'
    tau = {"start": 10, "end": 1}
    shown = with_defaults(validate_cascade(content(log, objective={"name": "arf_v2", "tau": tau})))
    assert shown["objective"]["tau"] == tau
    validate_cascade(shown)


def test_config_show_prints_them(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = content(log) | {"objective": {"name": "lcron"}}
    told["stages"][0]["model"] = {"kind": "two_tower"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(told))
    assert run("config", "show", str(tmp_path / "config.yaml")) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["stages"][0]["model"]["hidden"] == [128, 64, 32]
    assert shown["objective"]["topk"]["name"] == "neural_sort"
    assert shown["objective"]["topk"]["tau"] == 50.0
    assert shown["objective"]["quotas"] == [2, 2]  # K, the number of relevant items
    assert run("config", "show", str(tmp_path / "config.yaml"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == shown


# --- methods ------------------------------------------------------------------------------------------------------


def test_every_option_has_a_meaning() -> None:
    methods = [method for kind in Kind for method in find_methods(kind)] + find_models()
    without = [(one.name, option.name) for one in methods for option in find_options(one) if not option.meaning]
    assert without == []


def test_configurations_and_python_agree_on_names() -> None:
    named = {method.config: method.name for method in find_methods(Kind.OBJECTIVE)}
    assert set(named) == set(get_args(ObjectiveName)) == set(OBJECTIVES)
    assert all(getattr(objectives, name) is OBJECTIVES[config] for config, name in named.items())
    assert {method.config for method in find_methods(Kind.LOSS)} == set(get_args(LossName))


@pytest.mark.parametrize("name", ["lcron", "LCRON"])
def test_one_method_by_either_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", name, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["config"], found["kind"]) == ("LCRON", "lcron", "objective")
    assert {"topk", "quotas", "e2e_weight"} <= {option["name"] for option in found["options"]}
    assert run("methods", name) == 0
    printed = capsys.readouterr().out
    assert "in configurations lcron" in printed
    assert "Learning Cascade Ranking as One Network" in printed


def test_a_name_of_two_things_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "arf", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in found] == ["loss", "objective"]
    (m,) = (option for option in found[0]["options"] if option["name"] == "m")
    assert m["needed"]
    assert "default" not in m
    assert run("methods", "arf", "--kind", "objective", "--json") == 0
    assert [one["kind"] for one in json.loads(capsys.readouterr().out)] == ["objective"]


def test_models_have_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "din", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {"name": "attention", "default": 80}.items() <= next(
        option for option in found["options"] if option["name"] == "attention"
    ).items()


def test_an_unknown_method_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "lcorn") == 2
    assert "did you mean 'lcron'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


# --- docs ---------------------------------------------------------------------------------------------------------


def tables(page: str) -> dict[str, dict[str, str]]:
    """The defaults of the options by name, of which several may stand before a table."""
    found: dict[str, dict[str, str]] = {}
    for names, body in re.findall(r"^\*\*(`[^*]*`)\*\*.*\n\n\| option .*\n\|[-| ]*\n((?:\|.*\n)+)", page, re.MULTILINE):
        rows = [line.split(" | ") for line in body.splitlines()]
        options = {row[0].strip("| `"): row[1].strip("` ") for row in rows}
        for name in re.findall(r"`([^`]*)`", names):
            found.setdefault(name, {}).update(options)
    return found


def test_the_tables_in_the_docs_are_complete() -> None:
    documented = tables((ROOT / "docs" / "cascades.md").read_text())
    expected = {name: objective_options(name) for name in OBJECTIVES if objective_options(name)}
    expected |= {kind: model_options(kind) for kind in models.KINDS}
    for name, options in expected.items():
        defaults = {option.name: "needed" if option.default is REQUIRED else default_text(option) for option in options}
        assert documented[name] == defaults, name
