"""Tasks of forks (``forks.py``) in tests of comparisons and searches."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.studies import compare as comparing
from rankfall.studies.compare import compare_methods, perform
from rankfall.studies.comparison_plan import load_comparison
from rankfall.studies.search_space import load_search
from rankfall.studies.tune import tune

if TYPE_CHECKING:
    from rankfall.studies.compare import Step as Run
    from rankfall.training.run_directory import Step


def counted(log: Path, step: Run) -> list[str]:
    """Perform a step of a comparison and write a line to a log."""
    notices = perform(step)
    time.sleep(0.1)  # leaves time for a kill
    with log.open("a") as file:
        file.write(f"{step.action} {step.run.directory.name}\n")
    return notices


def compare_counted(arguments: list[str]) -> None:
    """Run a comparison whose steps are logged: CONFIG OUT LOG JOBS."""
    config, out, log, jobs = arguments
    comparing.perform = partial(counted, Path(log))
    compare_methods(load_comparison(Path(config)), Path(out), jobs=int(jobs))


def compare_without_lightgbm(arguments: list[str]) -> None:
    """Run a comparison without LightGBM: CONFIG OUT."""
    config, out = arguments
    compare_methods(load_comparison(Path(config)), Path(out))
    assert "lightgbm" not in sys.modules


def tune_and_die(arguments: list[str]) -> None:
    """Run a search that is killed in its second trial, in the third batch of the second epoch: CONFIG OUT."""
    config, out = arguments

    def on_step(number: int, step: Step) -> None:
        if (number, step.epoch, step.batch) == (1, 2, 3):
            os.kill(os.getpid(), signal.SIGKILL)

    tune(load_search(Path(config)), Path(out), on_step=on_step)
