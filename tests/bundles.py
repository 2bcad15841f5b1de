"""A small run on a simulated platform and its bundle, for tests of what exports and serves."""

from __future__ import annotations

import atexit
import shutil
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from command_line import run
from rankfall.data.platform.simulate import Simulation, simulate_log
from rankfall.training.cascade import train
from rankfall.training.cascade_config import validate_cascade

if TYPE_CHECKING:
    from rankfall.data import ImpressionLog, Impressions

DAYS = ("2024-01-13", "2024-01-14", "2024-01-15")
RETRIEVAL = {"name": "retrieval", "quota": 25, "model": {"kind": "two_tower", "hidden": [16, 8], "dim": 4}}
RANKING = {"name": "ranking", "quota": 10, "model": {"kind": "din", "hidden": [16], "dim": 4, "attention": 8}}


def _directory() -> Path:
    """One that is gone when the tests end."""
    path = Path(mkdtemp(prefix="rankfall-bundles-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def platform_log() -> ImpressionLog:
    """Three days of a small platform."""
    return simulate_log(Simulation(preset="tiny", days=3, requests_per_day=60, seed=3), _directory() / "log")


def trained(log: Path, out: Path, stages: list[dict[str, Any]], days: tuple[str, ...] = DAYS, **changes: Any) -> Path:
    """A run of these stages, trained a little."""
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
    """Two towers and a DIN, trained on the platform."""
    return trained(platform_log().path, _directory() / "run", [RETRIEVAL, RANKING])


@cache
def platform_bundle() -> Path:
    """The bundle of that run, written by the command line."""
    out = _directory() / "bundle"
    assert run("export", str(platform_run()), "--out", str(out)) == 0
    return out


def raw_request(batch: Impressions, place: int) -> dict[str, Any]:
    """A request of the platform as its log had it: its ids are whole numbers, of which the first has the id 2."""

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
