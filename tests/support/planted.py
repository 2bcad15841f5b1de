"""Prepared data with a planted linear ranking, for tests that train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.data import Recipe, prepare_letor

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = np.array([1.0, -2.0, 0.5, 0.0])
SPLITS = {"S1": 40, "S2": 40, "S3": 20, "S4": 40}


def planted_text(lists: int, seed: int, *, shortest: int = 5, longest: int = 25) -> str:
    """Return lists whose labels 0 to 3 are grades of a weighted sum of features of very different scales."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(lists):
        for values in rng.normal(size=(rng.integers(shortest, longest + 1), len(WEIGHTS))):
            label = np.digitize(values @ WEIGHTS, [0.0, 2.0, 3.5])
            written = values * [1.0, 100.0, 1e-3, 1.0] + [0.0, 500.0, 0.0, -3.0]
            lines.append(
                f"{label} qid:q{seed}-{number} " + " ".join(f"{i}:{value:.9g}" for i, value in enumerate(written, 1))
            )
    return "\n".join(lines) + "\n"


def plant(directory: Path, **recipe: Any) -> Path:
    """Prepare data with the splits S1 to S4 in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for seed, (name, lists) in enumerate(SPLITS.items()):
        file = directory / f"{name}.txt"
        file.write_text(planted_text(lists, seed))
        files[name] = [file]
    prepare_letor(files, directory / "data", Recipe(**recipe))
    return directory / "data"


def config_for(data: Path, /, **sections: Any) -> dict[str, Any]:
    """Return a configuration that trains on S1 and S2, validates on S3 and tests on S4."""
    base: dict[str, Any] = {
        "data": {"path": str(data), "train": ["S1", "S2"], "valid": ["S3"], "test": ["S4"]},
        "model": {"kind": "linear"},
        "loss": {"name": "softmax_loss"},
        "optimizer": {"lr": 0.1},
        "training": {"epochs": 3, "batch": 16},
    }
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}
