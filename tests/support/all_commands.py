"""Calls the commands from a simulated log to a bundle and from ranking text to a report, in one process.

``python -m support.all_commands DIRECTORY``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from rankfall.cli import main
from support.bundles import DAYS, RETRIEVAL
from support.planted import planted_text


def run(*words: str) -> None:
    """Run a command, which has to succeed."""
    try:
        main(list(words))
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{words}: exit code {end.code}") from None


def run_all(folder: Path) -> None:
    """Run the commands in a directory."""
    os.chdir(folder)
    training = {"epochs": 1, "batch": 16}
    run("simulate", "log", "--preset", "tiny", "--days", "3", "--requests-per-day", "30", "--seed", "3")
    cascade = {
        "data": {"path": "log", "train": DAYS[0], "valid": DAYS[1], "test": DAYS[2]},
        "relevant": 5,
        "stages": [RETRIEVAL],  # one graph is enough: a graph takes seconds
        "objective": {"name": "bce", "min_depth": 0},
        "training": training,
    }
    Path("cascade.yaml").write_text(yaml.safe_dump(cascade))
    run("config", "show", "cascade.yaml")
    run("data", "log")
    run("train", "cascade.yaml", "--out", "run")
    run("evaluate", "run")
    run("export", "run", "--out", "bundle")
    run("report", "run")
    Path("lists.txt").write_text(planted_text(30, 0))
    run("prepare", "letor", "all=lists.txt", "--out", "lists")
    ranker = {
        "data": {"path": "lists", "train": ["all:1/3"], "valid": ["all:2/3"], "test": ["all:3/3"]},
        "methods": {"linear": {"model": {"kind": "linear"}, "loss": {"name": "softmax_loss"}}},
        "training": training,
    }
    Path("comparison.yaml").write_text(yaml.safe_dump(ranker))
    run("compare", "comparison.yaml", "--out", "compared")


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
