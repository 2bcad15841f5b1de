"""The directory of a run, and what every training agrees on.

================================  ====================================================================================
``config.yaml``                   what was asked for, every default written out
``metrics.jsonl``                 one line a validation: training loss, validation metric, speed
``checkpoints/best.safetensors``  the weights with the best validation metric
``checkpoints/last.safetensors``  the last weights
``result.json``                   written last: a run that has it is finished
================================  ====================================================================================
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall._settings import read_yaml
from rankfall.training.config import validate_any

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from rankfall.training.cascade_config import CascadeConfig
    from rankfall.training.config import RankerConfig

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.yaml", "metrics.jsonl", "result.json", "checkpoints"


class TrainingError(ValueError):
    """A training that cannot go on."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a training has come."""

    epoch: int  # the first is 1
    epochs: int
    batch: int
    batches: int  # of an epoch
    parts: dict[str, float]  # the loss, or its terms: means over the epoch so far
    validation: dict[str, float]  # the last one's, by metric
    per_second: float  # lists or impressions


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came of a training."""

    best_metric: float
    best_epoch: int
    epochs: int
    seconds: float
    parameters: int


@contextmanager
def repeatable(seed: int, threads: int) -> Generator[None]:
    """A generator and a number of threads of one's own; the caller's are given back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def read_config(directory: Path) -> RankerConfig | CascadeConfig:
    """The configuration of a run."""
    if not (directory / CONFIG).is_file():
        raise ValueError(f"{directory} is not the directory of a run: it has no {CONFIG} (see 'rankfall train --help')")
    return validate_any(read_yaml(directory / CONFIG), where=str(directory / CONFIG))


def is_finished(directory: Path) -> bool:
    """Whether a training ended in this directory."""
    return (directory / RESULT).is_file()


def read_result(directory: Path) -> TrainResult:
    """What came of a finished training."""
    result: dict[str, Any] = json.loads((directory / RESULT).read_text())
    return TrainResult(**result)


def check_free(out: Path, force: bool) -> None:
    """Refuse to write over other files, and over a run without `force`."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, expected a directory for the run")
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / CONFIG).is_file():
        raise ValueError(f"{out} holds other files and no run; name another directory")
    if not force:
        raise ValueError(f"{out} holds a run already; name another directory, or replace it with --force")


def clear(out: Path) -> None:
    """Make the directory, and take away what a run before left in it."""
    (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    written = [RESULT, METRICS, "evaluation*.json", "values*.parquet", f"{CHECKPOINTS}/*.safetensors", CONFIG]
    for pattern in written:  # the configuration last: it tells a run's directory from one with other files
        for path in out.glob(pattern):
            path.unlink()
