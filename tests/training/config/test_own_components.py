"""Components of users in configurations: what is checked, in which order, and without torch where possible."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rankfall._config import ConfigError, dump
from rankfall.training.config.load_config import load_config, validate_any, with_absolute_path
from support.command_line import run
from support.own_components import here as here
from support.own_components import write

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
    open("imported", "w").close()
    from typing import Literal
    import torch
    import rankfall as rf
    from rankfall.option_types import Count, Positive

    @rf.register.loss("own_focal")
    def focal(scores, labels, *, mask=None, weight=None, gamma: Positive = 2.0, form: Literal["soft", "hard"] = "soft",
              sizes: list[int] = (), least: Count | None = None, free=None, topk: rf.ops.TopK | None = None):
        return scores.square().mean()

    def any_loss(scores, labels, *, mask=None, needed: float, **others):
        return scores.mean()

    def no_mask(scores, labels):
        return scores.mean()

    def soft(scores, k, *, mask=None, sharpness: Positive = 1.0):
        return torch.sigmoid(scores * sharpness)

    class Objective(rf.objectives.Objective):
        def __init__(self, *, relevant: int, stages: int, loss: torch.nn.Module, topk: "rf.ops.TopK"):
            super().__init__(stages)

        def terms(self, batch):
            return {}

    class Tower(torch.nn.Module):
        def __init__(self, features, *, width: Count = 8):
            super().__init__()

    def gain(scores, labels, *, p: float, mask=None, empty=0.0):
        return scores.mean(-1)
"""

RANKER: dict[str, Any] = {"data": {"path": "d", "train": ["S1"], "valid": ["S2"]}, "loss": {"name": "./own.py:focal"}}
CASCADE: dict[str, Any] = {
    "data": {"path": "log", "train": "a", "valid": "b"},
    "stages": [
        {"name": "retrieval", "quota": 5, "model": {"kind": "./own.py:Tower", "width": 4}},
        {"name": "ranking", "quota": 3, "model": {"kind": "mlp"}},
    ],
    "objective": {
        "name": "own:Objective",
        "loss": {"name": "./own.py:focal", "gamma": 1.0},
        "topk": {"name": "./own.py:soft", "sharpness": 2.0},
    },
    "stage_metrics": ["./own.py:gain@0.5"],
}


@pytest.fixture
def own(here: Path) -> Path:
    write(here / "own.py", OWN)
    return here.resolve()


def test_references_to_files_become_absolute(own: Path) -> None:
    ranker = validate_any(RANKER | {"metrics": ["own.py:gain@0.5", "ndcg"], "model": {"kind": "./own.py:Tower"}})
    content = ranker.model_dump()
    assert content["loss"]["name"] == f"{own}/own.py:focal"
    assert content["metrics"] == [f"{own}/own.py:gain@0.5", "ndcg"]
    assert content["model"] == {"kind": f"{own}/own.py:Tower"}
    cascade = validate_any(CASCADE | {"training": {"metric": "ranking/alone/own.py:gain@0.5"}})
    content = cascade.model_dump()
    assert content["stages"][0]["model"] == {"kind": f"{own}/own.py:Tower", "width": 4}
    assert content["objective"]["name"] == "own:Objective"
    assert content["objective"]["loss"]["name"] == f"{own}/own.py:focal"
    assert content["objective"]["topk"]["name"] == f"{own}/own.py:soft"
    assert content["stage_metrics"] == [f"{own}/own.py:gain@0.5"]
    assert content["training"]["metric"] == f"ranking/alone/{own}/own.py:gain@0.5"
    for config in (ranker, cascade):
        (own / "config.yaml").write_text(dump(config))
        assert load_config(own / "config.yaml") == config


def test_written_configurations_have_absolute_references(own: Path) -> None:
    content = CASCADE | {
        "training": {"metric": "ranking/alone/own.py:gain@0.5"},
        "methods": {"own": {"objective": {"name": "./own.py:Objective"}}, "bce": {"objective": {"name": "bce"}}},
    }
    written = with_absolute_path(content)
    assert written["methods"]["own"] == {"objective": {"name": f"{own}/own.py:Objective"}}
    assert written["methods"]["bce"] == {"objective": {"name": "bce"}}
    assert written["stage_metrics"] == [f"{own}/own.py:gain@0.5"]
    assert written["training"]["metric"] == f"ranking/alone/{own}/own.py:gain@0.5"
    assert with_absolute_path(written) == written
    assert with_absolute_path(RANKER | {"training": {"metric": "a/own.py:gain@1"}})["training"]["metric"] == (
        f"{own}/a/own.py:gain@1"
    )


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"gama": 1}, "loss: .*own.py:focal has no option 'gama', did you mean 'gamma'; its options are gamma, form, "),
        ({"gamma": 0}, "loss.gamma: found 0, expected greater than 0"),
        ({"gamma": "much"}, "loss.gamma: found 'much', expected a valid number"),
        ({"form": "sft"}, "loss.form: found 'sft', did you mean 'soft', expected 'soft' or 'hard'"),
        ({"sizes": [1, "a"]}, "loss.sizes.1: found 'a', expected a valid integer"),
        ({"least": 0}, "loss.least: found 0, expected greater than or equal to 1"),
        ({"topk": "dftpk"}, "loss.topk: found 'dftpk', did you mean 'dftopk'; allowed are dftopk"),
        (
            {"topk": {"name": "./own.py:soft", "sharp": 1}},
            "loss.topk: .*soft has no option 'sharp', did you mean",
        ),
        ({"topk": {"name": "./own.py:soft", "sharpness": 0}}, "loss.topk.sharpness: found 0, expected greater than 0"),
        ({"name": "./own.py:any_loss"}, "loss: .*any_loss needs the option 'needed'"),
        ({"name": "./own.py:any_loss", "needed": "a", "more": {}}, "loss.needed: found 'a', expected a valid number"),
        (
            {"name": "./own.py:no_mask"},
            "loss.name: found '.*no_mask', which does not take these arguments .*'mask'.; expected",
        ),
        ({"name": "./own.py:Tower"}, "loss.name: found '.*Tower', which "),
        (
            {"name": "./owm.py:focal"},
            "loss.name: found '.*owm.py:focal', but .* does not exist, did you mean 'own.py'",
        ),
        ({"name": "own:focl"}, "loss.name: found 'own:focl', but own has no 'focl', did you mean 'focal'"),
        ({"name": "own_focl"}, "loss.name: found 'own_focl'.*; allowed are approx_ndcg_loss"),
        ({"name": 7}, "loss.name: found 7; allowed are approx_ndcg_loss"),
    ],
)
def test_options_are_checked_by_the_signature(own: Path, loss: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_any(RANKER | {"loss": {**RANKER["loss"], **loss}})


@pytest.mark.parametrize(
    "loss",
    [
        {"gamma": 1, "form": "hard", "sizes": [3, 4], "least": None, "free": {"any": "thing"}, "topk": None},
        {"topk": {"name": "dftopk", "tau": 2.0}},
        {"name": "./own.py:any_loss", "needed": 1, "more": {"any": "thing"}},
    ],
)
def test_options_that_fit_the_signature(own: Path, loss: dict[str, Any]) -> None:
    config = validate_any(RANKER | {"loss": {**RANKER["loss"], **loss}})
    given = {name: value for name, value in loss.items() if name != "name"}
    assert given.items() <= config.model_dump()["loss"].items()


def test_a_registered_name_is_one_like_the_built_in_ones(own: Path) -> None:
    validate_any(RANKER)  # imports the file, which registers it
    validate_any(RANKER | {"loss": {"name": "own_focal", "gamma": 1.0}})
    with pytest.raises(ConfigError, match=r"found 'own_focl', did you mean 'own_focal'; allowed are .*, own_focal"):
        validate_any(RANKER | {"loss": {"name": "own_focl"}})


def test_what_needs_no_import_is_checked_before_any_import(own: Path) -> None:
    wrong = RANKER | {"loss": {"name": "./own.py:focal", "gama": 1}, "optimizer": {"lr": "fast"}, "metrics": ["ndgc"]}
    with pytest.raises(ConfigError) as error:
        validate_any(wrong)
    assert [line.split(":")[1].strip() for line in str(error.value).splitlines()] == ["optimizer.lr", "metrics.0"]
    assert not (own / "imported").exists()
    with pytest.raises(ConfigError, match="has no option 'gama'"):
        validate_any(wrong | {"optimizer": {}, "metrics": ["ndcg"]})
    assert (own / "imported").exists()


def test_problems_of_several_components_are_reported_together(own: Path) -> None:
    stages = [{**CASCADE["stages"][0], "model": {"kind": "own:Tower", "width": 0}}, CASCADE["stages"][1]]
    with pytest.raises(ConfigError) as error:
        validate_any(CASCADE | {"stages": stages, "objective": {"name": "own:Objective", "topk": "dftopk"}})
    first, second = str(error.value).splitlines()
    assert first.endswith("stages.0.model.width: found 0, expected greater than or equal to 1")
    assert second.endswith("objective: own:Objective needs the option 'loss'")


def test_config_show_writes_out_the_options_of_own_components(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "config.yaml").write_text(yaml.safe_dump(RANKER | {"model": {"kind": "own:Tower"}}))
    run("config", "show", "config.yaml")  # says that the data do not exist
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["loss"] == {
        "name": f"{own}/own.py:focal",
        "gamma": 2.0,
        "form": "soft",
        "sizes": [],
        "least": None,
        "free": None,
        "topk": None,
    }
    assert shown["model"] == {"kind": "own:Tower", "width": 8}
    validate_any({key: shown[key] for key in ("data", "loss", "model")})


# --- before torch is imported -------------------------------------------------------------------------------------

LISTS: dict[str, Any] = {"data": {"path": "d", "train": ["S1"], "valid": ["S2"], "test": ["S3"]}}
LOG: dict[str, Any] = {
    "data": {"path": "log"},
    "stages": [{"name": "ranking", "quota": 3, "model": {"kind": "mlp"}}],
    "objective": {"name": "lcron"},
}
TYPOS: dict[str, tuple[dict[str, Any], str]] = {
    "train": (LISTS | {"loss": {"name": "relax_loss", "m": 3, "k": 0}, "optimzer": {}}, "unknown key 'optimzer'"),
    "train cascade": (
        LOG | {"data": {"path": "log", "train": "a", "valid": "b"}, "objective": {"name": "lcrom"}},
        "objective.name: found 'lcrom', did you mean 'lcron'",
    ),
    "config show": (
        LISTS | {"loss": {"name": "lambda_loss", "mix": 2}, "optimizer": {"lr": -1}},
        "optimizer.lr: found -1, expected greater than 0",
    ),
    "config show metrics": (LISTS | {"loss": {"name": "mse_loss"}, "metrics": ["ndgc@10"]}, "did you mean 'ndcg'"),
    "compare": (
        LISTS | {"methods": {"first": {"loss": {"name": "mse_loss"}}, "second": {"loss": {"name": "mse_los"}}}},
        "methods.second: loss.name: found 'mse_los', did you mean 'mse_loss'",
    ),
    "tune": (
        LISTS | {"loss": {"name": "mse_loss"}, "search": {"loss.name": ["mse_loss", "bce_los"]}},
        "loss.name: found 'bce_los', did you mean 'bce_loss'",
    ),
    "stream": (
        LOG | {"methods": {"first": {}, "second": {"objective": {"name": "lcrn"}}}},
        "methods.second: objective.name: found 'lcrn', did you mean 'lcron'",
    ),
}


@pytest.mark.parametrize("case", TYPOS)
def test_a_typo_is_reported_before_torch_is_imported(case: str, tmp_path: Path) -> None:
    verb, content, message = case.partition(" ")[0], *TYPOS[case]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    words = ["config", "show", "config.yaml"] if verb == "config" else [verb, "config.yaml", "--out", "out"]
    code = """
import sys
from rankfall.cli import main
sys.argv = ["rankfall", *sys.argv[1:]]
try:
    main()
finally:
    print(*sorted({"torch", "numpy", "polars"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (1, ""), done.stderr
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
