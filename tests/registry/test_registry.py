"""The registry of operators, losses, objectives and models by their names in configurations."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankfall import losses, models, objectives, ops
from rankfall.registry import KINDS, REQUIRED, Kind, check_options, config_value, explicit_operator, get, names, options
from rankfall.registry.metric_names import _registered


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_belongs_to_one_component(kind: Kind) -> None:
    # "ndcg_linear" and "ndcg" are one function with other arguments
    described = {
        (get(kind, name), str(found.options) if kind == "metric" and (found := _registered(name)) else "")
        for name in names(kind)
    }
    assert len(described) == len(names(kind))


def test_every_public_component_has_a_name() -> None:
    assert {name for name in ops.__all__ if name.endswith(("_sort", "topk"))} - {"topk"} == set(names("operator"))
    functions = {name for name in losses.__all__ if name.endswith("_loss")}
    assert set(names("loss")) == {*functions, "arf", "arf_v2"}
    classes = {getattr(objectives, name) for name in objectives.__all__ if name != "Objective"}
    assert {get("objective", name) for name in names("objective")} == classes
    assert {name: get("model", name) for name in names("model")} == models.KINDS


def test_importing_the_registry_and_its_names_does_not_import_torch() -> None:
    code = "import sys; from rankfall import registry; registry.names('loss'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_are_parameters_that_a_configuration_can_give() -> None:
    assert {name: one.default for name, one in options("loss", "relax_loss").items()} == {
        "m": REQUIRED,
        "k": REQUIRED,
        "tau": None,
        "sort": ops.neural_sort,
        "positive_only": True,
        "label_tau": None,
        "variant": "sound",
        "scale": None,
    }
    assert list(options("operator", "hard_topk")) == []
    assert [one.name for one in options("objective", "arf").values() if one.required] == []  # the stages have quotas
    assert "features" not in options("model", "din")
    assert options("model", "din")["attention"].default == 80


@pytest.mark.parametrize(
    ("kind", "name", "given", "message"),
    [
        (
            "loss",
            "relx_loss",
            [],
            "^loss: found 'relx_loss', did you mean 'relax_loss'; allowed are approx_ndcg_loss, ",
        ),
        ("loss", "relax_loss", ["m"], "^relax_loss needs the option 'k'$"),
        ("loss", "softmax_loss", ["k"], "^softmax_loss has no option 'k'; its options are none$"),
        ("objective", "lcron", ["tpk"], "^lcron has no option 'tpk', did you mean 'topk'; its options are topk, "),
        ("objective", "lcron", ["relevant"], "^lcron has no option 'relevant'"),
        ("model", "din", ["tables"], "^din has no option 'tables'"),
    ],
)
def test_wrong_options_are_errors(kind: Kind, name: str, given: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options(kind, name, given)


def test_defaults_as_configurations_write_them() -> None:
    assert config_value(ops.topk("dftopk")) == {"name": "dftopk", "tau": 1.0}
    assert config_value((128, 64)) == [128, 64]
    defaults = {"tau": 1.0, "variant": "sound"}
    assert explicit_operator({"name": "sparse_topk", "p": 4 / 3}) == {"name": "sparse_topk", "p": 4 / 3, **defaults}
