"""The files in experiments/ are valid, and the published methods of LCRON's table 2 are what they claim to be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rankfall._config import read_yaml
from rankfall.studies.comparison_plan import check_comparison, load_comparison
from rankfall.studies.stream.stream_config import load_stream, make_runs
from rankfall.training.config.load_config import load_config

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
METHODS = ["BCE", "ICC", "RankFlow", "FS-RankNet", "FS-LambdaLoss", "ARF", "ARF-v2", "LCRON"]


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_is_valid(path: Path, tmp_path: Path) -> None:
    content = read_yaml(path)
    if "methods" not in content:
        assert load_config(path)
    elif "train" in content["data"] or "folds" in content:
        assert check_comparison(load_comparison(path)).candidates
    else:
        assert make_runs(load_stream(path), tmp_path)


def published() -> dict[str, dict[str, Any]]:
    methods = load_comparison(EXPERIMENTS / "lcron_table2.yaml").methods
    return {
        name.removesuffix(", published"): changes or {}
        for name, changes in methods.items()
        if name.endswith(", published")
    }


def test_published_methods_have_published_labels_and_the_printed_learning_rate() -> None:
    plan = check_comparison(load_comparison(EXPERIMENTS / "lcron_table2.yaml"))
    assert list(published()) == METHODS
    for (name, _), runs in plan.trials().items():
        if name.endswith(", published"):
            for run in runs:
                content = run.config.model_dump()
                assert content["data"]["labels"] == "published"
                assert content["optimizer"]["lr"] == 0.01


def test_published_methods_try_four_points_of_the_grids_of_appendix_c() -> None:
    tau: list[float] = [1, 20, 50, 100, 200, 1000]
    printed: dict[str, dict[str, list[float]]] = {
        "BCE": {},
        "ICC": {"objective.temperature": [0.05, 0.1, 0.5, 1]},
        "RankFlow": {"objective.alpha": [0, 0.25, 0.5, 0.75, 1]},
        "FS-RankNet": {},
        "FS-LambdaLoss": {"objective.k": [10, 20, 30, 40], "objective.mix": [0, 0.25, 0.5, 0.75, 1]},
        "ARF": {"objective.tau": tau},
        "ARF-v2": {"objective.tau": tau},
        "LCRON": {"objective.topk.tau": tau},
    }
    for name, changes in published().items():
        assert changes["tune"].keys() == printed[name].keys()
        assert math.prod(map(len, changes["tune"].values())) == (4 if printed[name] else 1)
        for key, values in changes["tune"].items():
            assert set(values) <= set(printed[name][key])
            assert {min(values), max(values)} == {min(printed[name][key]), max(printed[name][key])}
