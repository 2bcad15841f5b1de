"""Interrupted training runs, for tests of resuming."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from rankfall.training.checkpoint import Checkpoints
from rankfall.training.config.load_config import set_option
from support.bundles import made_once
from support.interrupted import cascade_content, ranker_content, train
from support.logs import random_log
from support.planted import plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.training.run_directory import Step

    Content = dict[str, Any]


class Interrupted(Exception):  # noqa: N818
    """Interrupts training in these tests."""


def after(count: int) -> Callable[[Step], None]:
    """Return a progress function that interrupts training after `count` batches."""
    seen: list[Step] = []

    def on_step(step: Step) -> None:
        seen.append(step)
        if len(seen) == count:
            raise Interrupted

    return on_step


def interrupt(content: Content, run: Path, batches: int, **options: Any) -> list[Path]:
    """Train for a number of batches; return the checkpoints, the newest first."""
    with pytest.raises(Interrupted):
        train(content, run, progress=after(batches), **options)
    return left(run)


def left(run: Path) -> list[Path]:
    """Return the checkpoints of a run, the newest first."""
    return Checkpoints(run / "checkpoints", 9).paths()


def alter(path: Path) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@cache
def contents() -> dict[str, Content]:
    """Return configurations of a cascade and of rankers with different optimizers, on shared data."""

    def make(place: Path) -> None:
        place.mkdir()
        random_log(place / "log", impressions=50)
        plant(place / "planted")

    place = made_once("interrupted", make)
    data = place / "planted" / "data"
    return {
        "cascade": cascade_content(place / "log"),
        "ranker": ranker_content(data),
        "adamw": ranker_content(
            data,
            optimizer={"name": "adamw", "weight_decay": 0.01, "clip": 0.5},
            loss={"tau": {"start": 10, "end": 1}},
        ),
        "sgd": ranker_content(data, optimizer={"name": "sgd"}, loss={"name": "grade_softmax_loss"}),
    }


@cache
def whole_runs() -> dict[str, Path]:
    """Return their runs without interruptions and without checkpoints."""

    def make(place: Path) -> None:
        for name, content in contents().items():
            train(set_option(content, "training.checkpoint_every", 1e9), place / name)

    place = made_once("whole", make)
    return {name: place / name for name in contents()}
