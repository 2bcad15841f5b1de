"""A small run on a simulated platform and its bundle, for tests of export and serving."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.data import ImpressionLog
from rankfall.simulation.simulate import Simulation, simulate_log
from rankfall.storage.files import locked
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.methods import train
from support.command_line import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankfall.data import Impressions

DAYS = ("2024-01-13", "2024-01-14", "2024-01-15")
RETRIEVAL = {"name": "retrieval", "quota": 25, "model": {"kind": "two_tower", "hidden": [16, 8], "dim": 4}}
RANKING = {"name": "ranking", "quota": 10, "model": {"kind": "din", "hidden": [16], "dim": 4, "attention": 8}}


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory that one process of a test run creates and all processes share; tests must not change it."""
    shared = Path(os.environ["RANKFALL_TESTS_SHARE"])
    path = shared / name
    with locked(shared / f"{name}.lock", wait=True):
        if not path.exists():
            make(path)
    return path


@cache
def platform_log() -> ImpressionLog:
    """Three days of a small platform."""
    simulation = Simulation(preset="tiny", days=3, requests_per_day=60, seed=3)
    return ImpressionLog.load(made_once("log", lambda out: simulate_log(simulation, out)))


def trained(log: Path, out: Path, stages: list[dict[str, Any]], days: tuple[str, ...] = DAYS, **changes: Any) -> Path:
    """Train these stages for one epoch."""
    content = {
        "data": {"path": str(log), "train": days[0], "valid": days[1], "test": days[2]},
        "relevant": 5,
        "stages": stages,
        "objective": {"name": "bce", "min_depth": 0},
        "training": {"epochs": 1, "batch": 16},
        **changes,
    }
    train(validate_cascade(content), out)
    return out


@cache
def platform_run() -> Path:
    """Return the run of a two-tower model and a DIN on the platform."""
    return made_once("run", lambda out: trained(platform_log().path, out, [RETRIEVAL, RANKING]))


@cache
def platform_bundle() -> Path:
    """Return the bundle of that run, written by the command line."""
    return made_once("bundle", lambda out: exported(platform_run(), out))


def exported(run_directory: Path, out: Path, *options: str) -> None:
    """Export the bundle of a run."""
    assert run("export", str(run_directory), "--out", str(out), *options) == 0


def raw_request(batch: Impressions, place: int) -> dict[str, Any]:
    """Return a request with the raw values of the log: numbers, which are encoded from 2 on."""

    def number(value: Any) -> int:
        return int(value) - 2

    history = batch.sequences["history"]
    length = int(batch.sequence_mask["history"][place].sum())
    return {
        "time": datetime.fromtimestamp(int(batch.time[place]) / 1000, UTC).isoformat(),
        "user": {name: number(values[place]) for name, values in batch.user.items()},
        "sequences": {
            "history": [
                {name: number(values[place, event]) for name, values in history.items()} for event in range(length)
            ]
        },
    }
