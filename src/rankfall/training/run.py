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

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

CONFIG, METRICS, RESULT, CHECKPOINTS = "config.yaml", "metrics.jsonl", "result.json", "checkpoints"


class TrainingError(ValueError):
    """A training that cannot go on."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a training has come."""

    epoch: int  # the first is 1
    epochs: int
    batch: int
    batches: int
    loss: float  # mean over the lists of the epoch so far
    metric: float | None  # the last validation's
    lists_per_second: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is known after an epoch: one line of ``metrics.jsonl``."""

    epoch: int
    loss: float
    metric: float
    lists_per_second: float
    seconds: float  # since the training started
    trained: dict[str, float]  # what the loss has learned: alpha of ARF


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
