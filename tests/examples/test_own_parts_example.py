"""examples/own_parts: compared with built-in components, exported and served; and the same as an installed package."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from rankfall import ops
from rankfall.registry import references
from rankfall.serving import Bundle
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.storage.files import checksum
from support.bundles import made_once
from support.command_line import run
from support.paths import ROOT
from support.services import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLE = ROOT / "examples" / "own_parts"
FILES = ("focal_loss.py", "consistent.py", "gaussian_topk.py", "cross_network.py")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("own parts")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example beside a small log, as the current directory."""
    simulation = Simulation(preset="tiny", days=4, requests_per_day=40, seed=1)
    log = made_once("example log", lambda out: simulate_log(simulation, out))
    shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "example" / "log").symlink_to(log)
    monkeypatch.chdir(tmp_path / "example")
    return tmp_path / "example"


def test_files_are_short() -> None:
    for name in FILES:
        assert len((EXAMPLE / name).read_text().splitlines()) <= 60, name


@pytest.mark.service
def test_the_example_is_compared_exported_and_served(place: Path) -> None:
    assert run("compare", "compare.yaml", "seeds=[0]", "training.epochs=1", "--out", "comparison") == 0
    result = json.loads((place / "comparison" / "comparison.json").read_text())
    assert result["failed"] == []
    methods = {method["name"]: method for method in result["methods"]}
    assert list(methods) == list(yaml.safe_load((place / "compare.yaml").read_text())["methods"])
    chosen = place / "comparison" / methods["own objective and model"]["runs"][0]["directory"]
    trained_with = checksum(place / "consistent.py")
    with (place / "consistent.py").open("a") as file:
        file.write("# edited after training\n")
    assert run("export", chosen, "--out", "bundle", "--examples", "2") != 0  # would run unknown code
    assert run("export", chosen, "--out", "bundle", "--examples", "2", "--trust") == 0
    manifest = json.loads((place / "bundle" / "manifest.json").read_text())
    assert manifest["components"][1]["sha256"] == trained_with
    assert [(one["kind"], one["name"]) for one in manifest["components"]] == [
        ("model", "cross_network.py:CrossNetwork"),
        ("objective", "consistent.py:Consistent"),
    ]
    assert str(place) not in (place / "bundle" / "manifest.json").read_text()
    for name in FILES:  # a service needs no code of users
        (place / name).unlink()
    check_service(place / "bundle")


def check_service(bundle: Path) -> None:
    """Check that a service answers the first example of a bundle as PyTorch did when it was exported."""
    (example, *_) = Bundle.load(bundle).examples()
    with running(bundle) as service, service.client() as client:
        answer = client.post("/rank", example["request"])
        assert answer.code == 200, answer.body
        assert answer.json["ids"] == example["ids"]
        assert answer.json["scores"] == pytest.approx(example["scores"], rel=1e-4)


# --- the tutorial ---------------------------------------------------------------------------------------------------


def test_the_tutorial_shows_its_files_and_runs(place: Path) -> None:
    tutorial = ROOT / "docs" / "tutorials"
    page = (tutorial / "own-model-and-objective.md").read_text()
    for path in (tutorial / "own-parts").iterdir():
        language = {".py": "python", ".yaml": "yaml"}[path.suffix]
        assert f"```{language}\n{path.read_text()}```" in page, path.name
        shutil.copy(path, place)
    assert run("config", "show", "compare.yaml") == 0
    assert run("compare", "compare.yaml", "seeds=[0]", "training.epochs=1", "--out", "comparison") == 0
    result = json.loads((place / "comparison" / "comparison.json").read_text())
    assert (result["failed"], len(result["methods"])) == ([], 3)


# --- an installed package -------------------------------------------------------------------------------------------

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "toy-parts"
version = "1.0"

[project.entry-points.rankfall]
"loss.toy_focal" = "toy_parts.focal_loss:focal"
"objective.toy_consistent" = "toy_parts.consistent:Consistent"
"operator.toy_gaussian" = "toy_parts.gaussian_topk:gaussian_topk"
"model.toy_cross" = "toy_parts.cross_network:CrossNetwork"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with the components of the example as entry points, installed into a directory of the path."""
    package, site = tmp_path / "package", tmp_path / "site"
    (package / "toy_parts").mkdir(parents=True)
    (package / "toy_parts" / "__init__.py").touch()
    (package / "pyproject.toml").write_text(PROJECT)
    for name in FILES:
        shutil.copy(EXAMPLE / name, package / "toy_parts")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-compile"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", site, package], check=True)
    monkeypatch.syspath_prepend(site)
    references._all_entry_points.cache_clear()
    yield site
    monkeypatch.undo()
    references._all_entry_points.cache_clear()
    for name in [name for name in sys.modules if name.startswith("toy_parts")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.service
def test_components_of_an_installed_package_have_names(
    installed: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content: dict[str, Any] = yaml.safe_load((place / "compare.yaml").read_text())
    toy = content["methods"]["own objective and model"]
    toy["stages"][1]["model"]["kind"] = "toy_cross"
    toy["objective"] = {"name": "lcron", "topk": {"name": "toy_gaussian", "tau": 0.5}}
    content |= {"methods": {"LCRON": content["methods"]["LCRON"], "toy": toy}, "seeds": [0]}
    content["training"]["epochs"] = 1
    (place / "compare.yaml").write_text(yaml.safe_dump(content))
    for name in FILES:
        (place / name).unlink()
    assert run("compare", "compare.yaml", "--out", "comparison") == 0
    result = json.loads((place / "comparison" / "comparison.json").read_text())
    assert result["failed"] == []
    (trained,) = (method["runs"][0]["directory"] for method in result["methods"] if method["name"] == "toy")
    trained = place / "comparison" / trained
    sources = json.loads((trained / "components.json").read_text())
    assert {(one["kind"], one["name"]) for one in sources} == {("model", "toy_cross"), ("operator", "toy_gaussian")}
    assert all(one["file"].startswith(str(installed)) for one in sources)
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "of another user"))  # installed packages need no trust
    for name in [name for name in sys.modules if name.startswith("toy_parts")]:
        del sys.modules[name]
    assert run("evaluate", trained) == 0
    assert run("export", trained, "--out", "bundle", "--examples", "2") == 0
    manifest = json.loads((place / "bundle" / "manifest.json").read_text())
    assert ("model", "toy_cross") in [(one["kind"], one["name"]) for one in manifest["components"]]
    check_service(place / "bundle")
    capsys.readouterr()
    (place / "train.yaml").write_text(
        yaml.safe_dump({key: one for key, one in (content | toy).items() if key not in ("methods", "seeds")})
    )
    assert run("train", "train.yaml", "objective.name=toy_consistant", "--out", "other") != 0
    assert "did you mean 'toy_consistent'" in " ".join(capsys.readouterr().err.split())
    loss = "objective={name: per_stage, labels: relevance, loss: {name: toy_focal, gama: 1}}"
    assert run("train", "train.yaml", loss, "--out", "other") != 0
    assert "toy_focal has no option 'gama', did you mean 'gamma'" in " ".join(capsys.readouterr().err.split())


# --- the operator ---------------------------------------------------------------------------------------------------


def test_gaussian_topk_sums_to_k_and_has_the_gradient_of_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = ops.topk(f"{EXAMPLE / 'gaussian_topk.py'}:gaussian_topk", tau=0.7)
    torch.manual_seed(0)
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 2 + [False] * 4])
    p = keep(scores, 3, mask=mask)
    assert p.sum(-1).tolist() == pytest.approx([3, 3, 2])
    assert torch.autograd.gradcheck(lambda s: keep(s, 3, mask=mask), (scores,))


def test_focal_loss_without_focus_is_half_the_cross_entropy() -> None:
    focal = references.resolve("loss", f"{EXAMPLE / 'focal_loss.py'}:focal")
    assert callable(focal)
    scores, labels = torch.tensor([[0.3, -1.0, 2.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels) / 2
    assert focal(scores, labels, gamma=0.0).allclose(expected)
    by_hand = 0.5 * (1 - torch.sigmoid(scores[0, 0])) ** 2 * -torch.log(torch.sigmoid(scores[0, 0]))
    assert focal(scores[:, :1], labels[:, :1]).allclose(by_hand)
