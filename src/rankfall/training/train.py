"""Train what a configuration describes: a ranker or a cascade."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from rankfall._seal import verification
from rankfall.training.distributed.group import ALONE
from rankfall.training.methods import method_of
from rankfall.training.run_directory import is_marked_for_replacement

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.training.config.load_config import TrainConfig
    from rankfall.training.distributed.group import Group
    from rankfall.training.methods.method import Callbacks
    from rankfall.training.run_directory import TrainResult


def train(
    config: TrainConfig,
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
    group: Group = ALONE,
    **callbacks: Unpack[Callbacks],
) -> TrainResult:
    """Train and write a run directory. The same configuration and data give the same weights, bit for bit.

    Processes that were restarted after a failure continue the run, whatever `force` and `resume` are.

    Args:
        config: Configuration of a ranker or a cascade.
        out: Run directory.
        force: Replace a run that exists in `out`.
        resume: Continue a run that exists in `out`. The result is the same as without an interruption.
        group: Processes that train together. All of them call this function with the same arguments.
        **callbacks: `progress` is called after every batch, `on_notice` with warnings such as damaged checkpoints.
            `stop` is called after every batch; a true value ends the run early and raises
            :class:`~rankfall.training.run_directory.Stopped`.

    Raises:
        ConfigError: If the configuration does not fit the data or the run in `out`.
        TrainingError: If training cannot continue, for example because the loss became NaN.
    """
    if group.restarted:
        with group.together():
            replaces = group.first and force and is_marked_for_replacement(out)
        force = any(group.gather(replaces))
        resume = not force
    with verification(os.environ.get("LOCAL_RANK", "0") == "0"):  # one process per machine reads the data for that
        return method_of(config).train(out, force=force, resume=resume, group=group, **callbacks)


def continue_run(config: TrainConfig, directory: Path, **callbacks: Unpack[Callbacks]) -> TrainResult:
    """Train from the last checkpoint that an interrupted process left; see :meth:`TrainingMethod.complete`."""
    return method_of(config).complete(directory, **callbacks)
