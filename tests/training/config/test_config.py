"""Configurations: what they say when something is wrong, overrides, and what is written out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest
import yaml

from rankfall import losses, registry
from rankfall._config import ConfigError, dump
from rankfall.models import ACTIVATIONS
from rankfall.models.layers import INITS
from rankfall.option_types import Activation, Init
from rankfall.training.config.load_config import apply_overrides, load_config, merge
from rankfall.training.config.ranker_config import LinearConfig, MLPConfig, validate
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

SMALLEST: dict[str, Any] = {
    "data": {"path": "data", "train": ["S1"], "valid": ["S2"]},
    "loss": {"name": "softmax_loss"},
}


def test_defaults_are_filled_in() -> None:
    config = validate(SMALLEST)
    assert isinstance(config.model, MLPConfig)
    assert config.training.metric in config.metrics
    assert config.data.test == []


def test_what_is_written_out_is_read_back(tmp_path: Path) -> None:
    options = {"name": "relax_loss", "m": 3, "k": 2, "tau": 1e-5, "sort": {"name": "soft_sort", "power": 2}}
    config = validate({**SMALLEST, "loss": options})
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load_config(tmp_path / "config.yaml") == config
    assert config.loss.options == {key: value for key, value in options.items() if key != "name"}


def test_every_loss_and_activation_can_be_named() -> None:
    functions = {name for name in losses.__all__ if name.endswith("_loss")}
    assert set(registry.names("loss")) == functions | {"arf", "arf_v2"}
    assert set(get_args(Activation)) == set(ACTIVATIONS)
    assert get_args(Init) == INITS


def test_a_preset_is_replaced_by_its_options() -> None:
    model = validate({**SMALLEST, "model": {"preset": "arf_industrial", "dropout": 0.5}}).model
    assert model == MLPConfig(
        hidden=[1024, 256, 256, 256],
        activation="selu",
        residual=True,
        batch_norm=True,
        norm_momentum=0.001,
        dropout=[0.5],
    )
    wider = validate({**SMALLEST, "model": {"preset": "lcron_industrial", "hidden": [8, 8]}}).model
    assert isinstance(wider, MLPConfig)
    assert (wider.hidden, wider.activation, wider.init) == ([8, 8], "prelu", "he")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1", "optimizer: unknown key 'learning_rate'; allowed are name, lr"),
        ("optimiser={}", "unknown key 'optimiser', did you mean 'optimizer'; allowed are data, model"),
        ("optimizer.lr=fast", "optimizer.lr: found 'fast', expected a valid number"),
        ("optimizer.lr=0", "optimizer.lr: found 0, expected greater than 0"),
        ("optimizer.name=adm", "optimizer.name: found 'adm', did you mean 'adam'; allowed are adam, adamw"),
        ("optimizer=3", "optimizer: found 3, expected keys and values"),
        ("model.hidden=[8, wide]", "model.hidden.1: found 'wide', expected a valid integer"),
        ("model.hidden=[8, 0]", "model.hidden.1: found 0, expected greater than or equal to 1"),
        ("model.dropout=1.0", "model.dropout.0: found 1.0, expected less than 1"),
        ("model.dropout=[.1, .2, .3]", "model: dropout has 3 values for 2 hidden layers"),
        ("model.kind=tree", "model.kind: found 'tree'; allowed are mlp, linear"),
        ("model={kind: linear, hidden: [3]}", "model: unknown key 'hidden'; allowed are kind"),
        ("model.activation=rleu", "model.activation: found 'rleu', did you mean 'relu'"),
        (
            "model.preset=arf_industral",
            "model.preset: found 'arf_industral', did you mean 'arf_industrial'; allowed are",
        ),
        ("model={kind: linear, preset: arf_industrial}", "model.preset: found 'arf_industrial', which has mlp, not"),
        ("model.init=xavier", "model.init: found 'xavier'; allowed are default, he"),
        ("training.epochs=true", "training.epochs: found True, expected a valid integer"),
        ("training.epochs=2.5", "training.epochs: found 2.5, expected a valid integer"),
        ("training.metric=ndgc@5", "training.metric: found 'ndgc@5', did you mean 'ndcg'; allowed are arp, hit_rate"),
        ("training.metric=recall@5", "found 'recall@5'; expected recall@m@k"),
        ("training.metric=ndcg@0", "expected ndcg or ndcg@k, where cutoffs are whole numbers above 0"),
        ("metrics=[mrr, mrr@5]", "metrics.1: found 'mrr@5'; expected mrr"),
        ("data.valid=S1", "data: split 'S1' is in train and in valid"),
        ("data={path: x, train: [S1]}", "data.valid is missing"),
        ("data.train=[]", "data.train: found []"),
        (
            "loss.name=lamda_loss",
            "loss.name: found 'lamda_loss', did you mean 'lambda_loss'; allowed are approx_ndcg_loss",
        ),
        ("loss={name: softmax_loss, k: 3}", "loss: softmax_loss has no option 'k'; its options are none"),
        ("loss={name: relax_loss, m: 3, k: 2, taw: 1}", "relax_loss has no option 'taw', did you mean 'tau'"),
        ("loss={name: relax_loss, m: 3}", "loss: relax_loss needs the option 'k'"),
        ("loss={name: lambda_loss, k: five}", "loss.k: found 'five', expected a valid integer"),
        ("loss={name: lambda_loss, k: 0}", "loss.k: found 0, expected greater than or equal to 1"),
        (
            "loss={name: arf, m: 3, k: 2, sort: nerual_sort}",
            "loss.sort: found 'nerual_sort', did you mean 'neural_",
        ),
        ("loss={name: topk_bce_loss, k: 2, topk: {name: dftopk, power: 2}}", "loss.topk: dftopk has no option 'power'"),
        ("loss={name: topk_bce_loss, k: 2, topk: 7}", "loss.topk: found 7, expected an operator's name"),
        (
            "loss={name: lambda_loss, version: sond}",
            "loss.version: found 'sond', did you mean 'sound', expected",
        ),
        ("loss={name: lambda_loss, mix: 2}", "loss.mix: found 2, expected less than or equal to 1"),
        (
            "loss={name: relax_loss, m: 2, k: 1, tau: 0}",
            "loss.tau: found 0, expected greater than or equal to 0.0000000001",
        ),
        (
            "loss={name: relax_loss, m: 2, k: 1, tau: {start: 9, stop: 1}}",
            "loss.tau: found {'start': 9, 'stop': 1}, expected a number or start, end and schedule",
        ),
        ("loss={name: relax_loss, m: 2, k: 1, tau: {start: 9, end: 0}}", "loss.tau.end: found 0, expected a positive"),
        (
            "loss={name: pirank_ndcg_loss, sort: {name: soft_sort, tau: {start: 9, end: 1, schedule: cosine}}}",
            "loss.sort.tau.schedule: found 'cosine', expected constant, linear or exponential",
        ),
        (
            "loss={name: topk_bce_loss, k: 2, topk: {name: soft_sort, power: 3}}",
            "topk.power: found 3, expected 1 or 2",
        ),
        (
            "loss={name: topk_bce_loss, k: 2, topk: {name: dftopk, gradient: exact}}",
            "refuses its options: gradient",
        ),
        ("loss={name: relax_loss, m: 2, k: 1, reduction: none}", "has no option 'reduction'"),
        ("loss", "override: found 'loss', expected key=value"),
        ("loss={", "override 'loss={', line 1"),
        ("model.hidden.2=8", "override: model.hidden has 2 items, numbered from 0; found '2'"),
        ("loss.name.first=x", "override: loss.name is 'softmax_loss', which has no keys"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(
    override: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**SMALLEST, "model": {"hidden": [8, 4]}}))
    assert run("config", "show", str(file), override) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "section",
    [
        {"loss": {"name": "arf", "m": 3, "k": 2, "sort": {"name": "soft_sort", "tau": 2.0}}},
        {"loss": {"name": "topk_bce_loss", "k": 2, "topk": "dftopk"}},
    ],
)
def test_validation_builds_nothing(section: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a module was built")

    monkeypatch.setattr("torch.nn.Module.__init__", refuse)
    monkeypatch.setattr("rankfall.ops.topk", refuse)
    assert validate({**SMALLEST, **section}).loss.name == section["loss"]["name"]


def test_every_mistake_is_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        validate({**SMALLEST, "optimizer": {"lr": -1.0, "clip": 0.0}, "training": {"batch": 0}}, where="x.yaml")
    keys = [line.split(": ")[:2] for line in str(caught.value).splitlines()]
    assert keys == [["x.yaml", "optimizer.lr"], ["x.yaml", "optimizer.clip"], ["x.yaml", "training.batch"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"data: [", "line 1, column 8"),
        (b"loss: {name: mse_loss}\nloss: {name: bce_loss}\n", "line 2, column 1: duplicate key 'loss'"),
        (b"- data\n", "expected keys and values"),
        (b"", "found nothing, expected keys and values"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_configuration(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "config.yaml")


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml does not exist"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)


# --- overrides ----------------------------------------------------------------------------------------------------


def test_overrides_are_yaml_and_exponents_are_numbers() -> None:
    changed = apply_overrides(
        SMALLEST, ["optimizer.lr=3e-4", "data.train=[S1, S3]", "model.hidden=[8]", "model.hidden.0=16", "loss.x=-1E5"]
    )
    assert changed["optimizer"] == {"lr": 0.0003}
    assert changed["data"]["train"] == ["S1", "S3"]
    assert changed["model"] == {"hidden": [16]}
    assert changed["loss"]["x"] == -1e5
    assert "optimizer" not in SMALLEST


def test_naming_another_loss_or_model_drops_the_options_of_the_old_one() -> None:
    base = {**SMALLEST, "loss": {"name": "lambda_loss", "k": 5}, "model": {"hidden": [4]}, "optimizer": {"lr": 0.1}}
    changed = validate(
        apply_overrides(
            base, ["loss.name=relax_loss", "loss.m=9", "loss.k=3", "model.kind=linear", "optimizer.name=sgd"]
        )
    )
    assert changed.loss.options == {"m": 9, "k": 3}
    assert changed.model == LinearConfig()
    assert changed.optimizer.lr == 0.1
    assert apply_overrides(base, ["loss.name=lambda_loss"]) == base
    assert apply_overrides(base, ["model.kind=mlp"])["model"] == {"hidden": [4], "kind": "mlp"}


def test_merge_goes_into_sections() -> None:
    base = {"loss": {"name": "arf", "m": 3, "sort": {"name": "soft_sort"}}, "training": {"seed": 0, "epochs": 2}}
    changes = {"loss": {"sort": {"power": 2}}, "training": {"seed": 1}}
    assert merge(base, changes) == {
        "loss": {"name": "arf", "m": 3, "sort": {"name": "soft_sort", "power": 2}},
        "training": {"seed": 1, "epochs": 2},
    }
    assert merge(base, {"loss": {"name": "mse_loss"}})["loss"] == {"name": "mse_loss"}


# --- the commands -------------------------------------------------------------------------------------------------


def test_show_prints_what_was_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(SMALLEST))
    assert run("config", "show", str(file), "training.seed=7") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["training"]["seed"] == 7
    assert validate(shown) == validate({**SMALLEST, "training": {"seed": 7}})
    assert run("config", "show", str(file), "training.seed=7", "--json") == 0
    assert json.loads(capsys.readouterr().out) == shown


COMPARISON = {
    "data": {"path": "data", "train": ["S1"], "valid": ["S2"], "test": ["S3"]},
    "methods": {"softmax": {"loss": {"name": "softmax_loss"}}, "ridge": {"kind": "ridge"}},
    "seeds": [3],
}
STREAM = {
    "data": {"path": "log"},
    "stages": [{"name": "ranking", "quota": 2, "model": {"kind": "mlp"}}],
    "methods": {"BCE": {"objective": {"name": "bce"}}},
}
SEARCH = {**SMALLEST, "search": {"optimizer.lr": [0.1, 0.01]}}


@pytest.mark.parametrize(
    ("content", "expected", "wrong"),
    [
        (COMPARISON, {"seeds": [3], "jobs": 1}, "methods.softmax.loss.name=softmx_loss"),
        (STREAM, {"seeds": [0], "methods": STREAM["methods"]}, "methods.BCE.objective.name=bcd"),
        (SEARCH, {"trials": 20, "search": SEARCH["search"]}, "loss.name=softmx_loss"),
    ],
)
def test_show_knows_comparisons_streams_and_searches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: dict[str, Any], expected: dict[str, Any], wrong: str
) -> None:
    file, again = tmp_path / "one.yaml", tmp_path / "again.yaml"
    file.write_text(yaml.safe_dump(content))
    assert run("config", "show", str(file)) == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown).items() >= expected.items()
    again.write_text(shown)
    assert run("config", "show", str(again)) == 0
    assert capsys.readouterr().out == shown
    assert run("config", "show", str(file), wrong) == 1
    assert "did you mean" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"one\.yaml is a .* Expected the configuration of one training run"):
        load_config(file)


def test_schema_names_sections_and_losses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "schema") == 0
    both = json.loads(capsys.readouterr().out)
    assert {"CascadeConfig", "RankerConfig"} <= set(both["$defs"])
    assert run("config", "schema", "--kind", "ranker") == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {"data", "model", "loss", "optimizer", "training", "metrics"}
    names, references = schema["$defs"]["LossConfig"]["properties"]["name"]["anyOf"]
    assert "lambda_loss" in names["enum"]
    assert references["type"] == "string"
    assert schema["$defs"]["OptimizerConfig"]["additionalProperties"] is False
