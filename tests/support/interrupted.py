"""Configurations whose training uses everything that a checkpoint stores, and the results that tests compare."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankfall.training import methods as training
from rankfall.training.config.load_config import merge, validate_any
from support.logs import DAYS
from support.planted import config_for

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.training.run_directory import TrainResult

# wall clock
TIMES = ("seconds", "lists_per_second", "impressions_per_second")


def cascade_content(log: Path, **changes: Any) -> dict[str, Any]:
    """Noise, negatives, a falling temperature, learned weights, sparse and shared tables, two days."""
    model = {"dim": 4, "hidden": [8], "sparse": 40}
    base = {
        "data": {"path": str(log), "train": list(DAYS[:2]), "valid": DAYS[2], "negatives": 3},
        "relevant": 2,
        "stages": [
            {"name": "retrieval", "quota": 6, "model": {"kind": "two_tower", **model}},
            {"name": "ranking", "quota": 3, "model": {"kind": "din", "attention": 4, **model}},
        ],
        "share": ["video"],
        "objective": {
            "name": "lcron",
            "e2e_weight": "learned",
            "topk": {"name": "neural_sort", "gumbel_samples": 2, "tau": {"start": 10, "end": 1}},
        },
        "optimizer": {"lr": 0.05},
        "training": {"epochs": 3, "batch": 16, "window": 32, "checkpoint_every": 0},
    }
    return merge(base, changes)


def ranker_content(data: Path, **changes: Any) -> dict[str, Any]:
    """Dropout, batch norm, samples of long lists, a learned balance, early stopping."""
    base = config_for(
        data,
        model={"kind": "mlp", "hidden": [8], "dropout": [0.3]},
        loss={"name": "arf", "m": 10, "k": 5, "tau": 5.0},
        optimizer={"name": "adagrad", "lr": 0.05},
        training={"epochs": 5, "batch": 16, "max_list": 12, "patience": 2, "checkpoint_every": 0},
    )
    return merge(base, changes)


def train(content: dict[str, Any], out: Path, **options: Any) -> TrainResult:
    """Train a configuration of a cascade or of a ranker."""
    return training.train(validate_any(content), out, **options)


def outcome(run: Path) -> dict[str, Any]:
    """Return the files and values of a finished run, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((run / "result.json").read_text())
    return {
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
        "weights": {name: (run / "checkpoints" / f"{name}.safetensors").read_bytes() for name in ("best", "last")},
        "metrics": [{key: value for key, value in line.items() if key not in TIMES} for line in lines],
        "result": {key: value for key, value in result.items() if key not in TIMES},
    }
