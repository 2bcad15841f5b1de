"""Training whatever a configuration describes: a cascade, or one ranker."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from rankfall.training import train_cascade as cascade
from rankfall.training import train_ranker as ranker
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.distributed.group import ALONE
from rankfall.training.run_directory import is_to_be_replaced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.training.config.ranker_config import RankerConfig
    from rankfall.training.distributed.group import Group
    from rankfall.training.loop import OnNotice, Progress
    from rankfall.training.run_directory import TrainResult


class Options(TypedDict, total=False):
    """Who is told of a training, and asked whether to end it early."""

    progress: Progress
    on_notice: OnNotice
    stop: Callable[[], int]


def train(
    config: RankerConfig | CascadeConfig,
    out: Path,
    *,
    force: bool = False,
    resume: bool = False,
    group: Group = ALONE,
    **options: Unpack[Options],
) -> TrainResult:
    """Train and leave a run directory, as :func:`cascade.train` and :func:`ranker.train` do.

    Processes that were started again go on with what they had begun, whatever they were told at first.
    """
    if group.restarted:
        with group.together():
            replaces = group.first and force and is_to_be_replaced(out)
        force = any(group.gather(replaces))
        resume = not force
    if isinstance(config, CascadeConfig):
        return cascade.train(config, out, force=force, resume=resume, group=group, **options)
    return ranker.train(config, out, force=force, resume=resume, group=group, **options)
