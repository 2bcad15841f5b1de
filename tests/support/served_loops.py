"""A small shop for tests of the loop: a log, a bundle that was trained on it, and the commands that close the loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.methods import train
from support.bundles import exported
from support.served_records import prepared_log, served_spec

if TYPE_CHECKING:
    from pathlib import Path

STAGES = [
    {"name": "retrieval", "quota": 15, "model": {"kind": "two_tower", "hidden": [8], "dim": 4}},
    {"name": "ranking", "quota": 10, "model": {"kind": "din", "hidden": [8], "dim": 4, "attention": 4}},
]
SHARED: dict[str, Any] = {"relevant": 3, "stages": STAGES, "objective": {"name": "bce", "min_depth": 0}}


@dataclass(frozen=True)
class Shop:
    """Where the log of earlier days, the bundle of two stages and that of the second stage alone are."""

    directory: Path

    @property
    def log(self) -> Path:
        """The log of earlier days, which tests copy."""
        return self.directory / "log"

    @property
    def items(self) -> Path:
        """The table of items."""
        return self.directory / "items.parquet"

    @property
    def bundle(self) -> Path:
        """The bundle of two stages."""
        return self.directory / "bundle"

    @property
    def other(self) -> Path:
        """The bundle of one stage."""
        return self.directory / "other"

    def join_line(self, records: Path, log: Path, *options: str | Path) -> list[str]:
        """Return the command line that joins records to a log."""
        return [
            str(word) for word in ("join", records, "--spec", spec_file(log), "--items", self.items, "--out", log)
        ] + [str(word) for word in options]


def make_shop(directory: Path, **changes: Any) -> Shop:
    """Prepare a log whose spec has some changes, train on it and export bundles."""
    log = prepared_log(directory, directory / "log", **changes)
    data = {"path": str(log.path), "train": "2024-01-13", "valid": "2024-01-14", "labels": "relevance", "length": 30}
    train(validate_cascade({"data": data, **SHARED, "training": {"epochs": 1, "batch": 16}}), directory / "run")
    exported(directory / "run", directory / "bundle")
    exported(directory / "run", directory / "other", "--stage", "ranking")
    return Shop(directory)


def spec_file(log: Path, **changes: Any) -> Path:
    """Write the spec beside a log, unless it is there."""
    path = log.with_name(f"{log.name}.spec.yaml")
    if not path.exists() or changes:
        path.write_text(json.dumps(served_spec(**changes).model_dump(mode="json", exclude_none=True)))
    return path


def stream_line(log: Path, out: Path, *options: str) -> list[str]:
    """Write the configuration of a stream over all days of a log; return the command line."""
    config = log.with_name(f"{log.name}.stream.yaml")
    data = {"path": str(log), "labels": "relevance", "length": 30}
    config.write_text(json.dumps({"data": data, **SHARED, "training": {"batch": 16}, "methods": {"BCE": {}}}))
    return ["stream", str(config), "--out", str(out), *options]


def start(line: list[str]) -> subprocess.Popen[str]:
    """Start a command as a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "rankfall", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
