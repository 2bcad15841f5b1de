"""``rankfall methods``: what it lists, and the options of one method."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from rankfall import losses, metrics, models, objectives, ops
from rankfall.commands.methods import Method, default_text, find_methods
from rankfall.component_docs import cited, option_docs, papers
from rankfall.metrics.named import forms
from rankfall.register import KINDS
from rankfall.registry import names
from rankfall.training.config.component_checks import METRICS_OF_CASCADES
from support.command_line import run
from support.own_components import here as here
from support.own_components import write
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_methods_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "--json") == 0
    listed = {method["name"]: method for method in json.loads(capsys.readouterr().out)}
    public = {name for module in (ops, losses, metrics) for name in module.__all__ if name.islower()}
    public |= set(objectives.__all__) - {"Objective"} | {one.__name__ for one in models.KINDS.values()}
    assert public - set(listed) == {"expected_grade", "log_inclusion", "log_rows", "topk"}  # tools, not methods
    assert set(listed) - public == {"ARFLoss", "ARFv2Loss"}  # losses that have no function
    assert all(method["line"] for method in listed.values())


def test_methods_of_one_kind_with_their_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "--kind", "loss") == 0
    text = capsys.readouterr().out
    assert "relax_loss" in text
    assert "dftopk" not in text.split("papers")[0]
    assert "Adaptive Neural Ranking Framework" in text


def everything() -> list[Method]:
    return [method for kind in KINDS for method in find_methods(kind)]


def test_every_citation_has_a_reference() -> None:
    parts = [(method.name, part) for method in everything() for part in method.citation.split(";") if part]
    assert [(name, part) for name, part in parts if not cited(part)] == []


def test_every_operator_cites_a_paper() -> None:
    assert [method.name for method in find_methods("operator") if not method.papers] == []


def test_every_paper_is_cited() -> None:
    used = {name for method in everything() for name in cited(method.citation)}
    assert set(papers()) - used == set()


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


def test_metrics_have_their_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "ndcg", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["names"] == ["ndcg", "ndcg@k", "ndcg_linear", "ndcg_linear@k"]
    assert found["text"][0] == r"\sum_{i: r_i \le k} \frac{G(y_i)}{\log_2(1 + r_i)}"
    options = {option["name"]: option for option in found["options"]}
    assert set(options) == {"k", "ties", "gain", "empty"}
    assert options["gain"]["default"] == "exp2"
    assert "2^y - 1" in options["gain"]["meaning"]
    assert run("methods", "ndcg") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "in configurations ndcg@k, ndcg_linear, ndcg_linear@k" in printed
    assert "divided by its largest value over all orders" in printed


@pytest.mark.parametrize(
    ("name", "metric"), [("ndcg_linear@5", "ndcg"), ("recall@20@10", "recall"), ("map", "average_precision")]
)
def test_metrics_are_found_by_their_names_in_configurations(
    name: str, metric: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("methods", name, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["name"] == metric


def test_every_metric_of_configurations_is_listed_and_defined(capsys: pytest.CaptureFixture[str]) -> None:
    listed = find_methods("metric")
    assert sorted(name for method in listed for name in method.names) == sorted(forms())
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    of_cascades = ("STAGE/lost", "STAGE/alone/ndcg_published@k", "STAGE/alone/ndcg_value@k")
    for name in (*forms(), *of_cascades, *METRICS_OF_CASCADES):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("joint_value", "joint_value"),
        ("ranking/alone/recall", "STAGE/alone/recall"),
        ("STAGE/lost", "STAGE/lost"),
    ],
)
def test_metrics_of_cascades_are_explained(name: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", name, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found == {"name": form, "kind": "metric", "line": METRICS_OF_CASCADES[form]}
    assert run("methods", name) == 0
    assert f"{form} (metric of a cascade): " in capsys.readouterr().out


def test_an_unknown_method_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "lcorn") == 2
    assert "did you mean 'lcron'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


# --- components of users ------------------------------------------------------------------------------------------

OWN = """
    import rankfall as rf
    from rankfall.option_types import NotNegative

    def focal(scores, labels, *, mask=None, weight=None, gamma: NotNegative = 2.0):
        '''Binary cross entropy with less weight on [easy] items (Burges 2010).

        Use it for rare labels.

        Args:
            gamma: Exponent of the weight.
        '''

    @rf.register.metric(higher_is_better=False)
    def own_cost(scores, labels, *, p: float, depth: int = 3, mask=None): ...

    class Tower(rf.models.Scorer):
        def __init__(self, features, *, width: int = 8): ...
"""


def test_a_reference_is_explained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "own.py", OWN)
    assert run("methods", "./own.py:focal", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["kind"], found["config"]) == ("focal", "loss", "./own.py:focal")
    assert found["place"] == str((here / "own.py").resolve())
    assert found["options"] == [
        {"name": "gamma", "needed": False, "meaning": "Exponent of the weight.", "default": 2.0}
    ]
    assert found["text"] == ["Use it for rare labels."]
    assert run("methods", "own:focal") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "focal (loss, in configurations own:focal): Binary cross entropy with less weight on [easy] items" in printed
    assert "From RankNet to LambdaRank to LambdaMART" in printed


@pytest.mark.parametrize(
    ("name", "kind", "names"),
    [
        ("own.py:own_cost", "metric", ["own.py:own_cost@p", "own.py:own_cost@p@depth"]),
        ("own.py:own_cost@0.5", "metric", ["own.py:own_cost@p", "own.py:own_cost@p@depth"]),
        ("own.py:Tower", "model", []),
    ],
)
def test_the_kind_of_a_reference(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str, names: list[str]
) -> None:
    write(here / "own.py", OWN)
    assert run("methods", name, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["names"]) == (kind, names)


def test_registered_components_are_listed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "own.py", OWN)
    assert run("methods", "own.py:own_cost", "--json") == 0  # imports the file, which registers it
    capsys.readouterr()
    assert run("methods", "--kind", "metric", "--json") == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["own_cost"]["names"] == ["own_cost@p", "own_cost@p@depth"]
    assert run("methods", "own_cots") == 2
    assert "did you mean 'own_cost'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_wrong_reference_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "own.py", OWN)
    assert run("methods", "own.py:focl") == 1
    assert "own.py has no 'focl', did you mean 'focal'" in capsys.readouterr().err
    assert run("methods", "own.py:focal", "--kind", "operator") == 1
    assert "unexpected keyword argument 'k'); expected a function f(scores, k" in capsys.readouterr().err


def tables(page: str) -> dict[str, dict[str, str]]:
    """The defaults of the options by component; a table can belong to several components."""
    found: dict[str, dict[str, str]] = {}
    for components, body in re.findall(
        r"^\*\*(`[^*]*`)\*\*.*\n\n\| option .*\n\|[-| ]*\n((?:\|.*\n)+)", page, re.MULTILINE
    ):
        rows = [line.split(" | ") for line in body.splitlines()]
        options = {row[0].strip("| `"): row[1].strip("` ") for row in rows}
        for name in re.findall(r"`([^`]*)`", components):
            found.setdefault(name, {}).update(options)
    return found


def test_the_tables_in_the_docs_are_complete() -> None:
    documented = tables((ROOT / "docs" / "reference" / "methods-in-short.md").read_text())
    expected = {name: option_docs("objective", name) for name in names("objective")}
    expected |= {name: option_docs("model", name) for name in names("model")}
    for name, options in expected.items():
        assert documented.get(name, {}) == {option.name: default_text(option) for option in options}, name
