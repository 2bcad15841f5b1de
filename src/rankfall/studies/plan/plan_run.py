"""Plan the quotas of a run, and write the plan into its directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from rankfall._disk import make_directory
from rankfall.data import ImpressionLog
from rankfall.studies.evaluate import scores_of_run
from rankfall.studies.plan.front import default_reach
from rankfall.studies.plan.plan_quotas import plan_quotas
from rankfall.studies.plan.plan_result import PLAN
from rankfall.training.cascade_loaders import measuring_loader
from rankfall.training.cascade_metrics import user_feature, user_numbers
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.evaluation_overrides import with_evaluation_overrides
from rankfall.training.measured_lists import short_lists
from rankfall.training.run_directory import read_config_as
from rankfall.training.stage_figures import ListFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall.studies.plan.plan_quotas import Costs, Metric, OnStep, Target
    from rankfall.studies.plan.plan_result import PlanResult
    from rankfall.studies.plan.priced_lists import Rows
    from rankfall.studies.stage_scores import StageScores


def current_quotas(run_dir: Path, overrides: Sequence[str] = (), *, trust: bool = False) -> dict[str, int]:
    """Return the quota of each stage of a run.

    Args:
        run_dir: Run directory of a cascade.
        overrides: ``key=value`` strings, see :func:`plan_run`.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall._trust`.

    Raises:
        ValueError: The run is not that of a cascade, or an override is wrong.
    """
    config = with_evaluation_overrides(read_config_as(CascadeConfig, run_dir, trust=trust), overrides)
    assert isinstance(config, CascadeConfig)
    return {stage.name: stage.quota for stage in config.stages}


def largest_quotas(current: Mapping[str, int], grid: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the largest quota of each stage that a plan may try."""
    return [max(grid.get(stage, [default_reach(quota)])) for stage, quota in current.items()]


def plan_run(
    run_dir: Path,
    split: str = "test",
    *,
    costs: Costs,
    target: Target | None = None,
    metric: Metric = "joint_recall",
    grid: Mapping[str, Sequence[int]] | None = None,
    data: str | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    trust: bool = False,
    on_impressions: Callable[[int, int], None] = lambda count, of: None,
    on_notice: Callable[[str], None] = lambda text: None,
    on_step: OnStep = lambda step, done, total: None,
) -> PlanResult:
    """Plan the quotas of a run's best checkpoint, and write ``plan.json``.

    Args:
        run_dir: Run directory of a cascade.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        costs: Costs of the stages.
        target: What to plan for. Default: the best value for the cost of the current quotas.
        metric: What to plan: ``"joint_recall"`` or ``"joint_value"``.
        grid: Quotas to try, by stage.
        data: Directory of the log, if it was moved.
        overrides: ``key=value`` strings that change what is measured, such as ``"data.length=all"``. With
            ``stages.0.quota=50`` the current quota is 50.
        out: Directory of ``plan.json``. Default: the run directory.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall._trust`.
        on_impressions: Called with the number of impressions scored since the last call, and of all.
        on_notice: Called with each note about the log.
        on_step: Receives the current step of planning, the number of its finished units and their total.

    Raises:
        ValueError: The run, the grid and the target do not fit together; see
            :func:`~rankfall.studies.plan.plan_quotas.plan_quotas`.
    """
    current = current_quotas(run_dir, overrides, trust=trust)
    # Lists over all items hold as many as the largest quota of the first stage, so that all quotas are exact.
    reach = max(next(iter(current.values())), largest_quotas(current, grid or {})[0])
    config, scores = scores_of_run(
        run_dir,
        split,
        data=data,
        overrides=overrides,
        reach=reach,
        trust=trust,
        on_impressions=on_impressions,
        on_notice=on_notice,
    )
    log = ImpressionLog.load(data or config.data.path)
    result = plan_quotas(
        scores,
        current=list(current.values()),
        costs=costs,
        target=target,
        metric=metric,
        grid=grid,
        reach=reach,
        users=_users(log, scores),
        run=run_dir.name,
        split=split,
        on_step=on_step,
    )
    loader = measuring_loader(log, config, config.data.days("test"))
    catalogue, short = loader.catalogue_size(), short_lists(loader)
    result = replace(
        result,
        lists=None if catalogue is None else _list_figures(scores, catalogue, all_items=config.data.length == "all"),
        warnings=[*result.warnings, *([short] if short else [])],
        overrides=[word for word in overrides if not word.partition("=")[0].endswith(".quota")],
    )
    directory = out or run_dir
    make_directory(directory)
    result.save(directory / PLAN)
    return result


def _users(log: ImpressionLog, scores: StageScores) -> Rows | None:
    """Return a number for the user of each request, own numbers for unknown users; None if the log has no users."""
    feature = user_feature(log.spec)
    if feature is None:
        return None
    days, rows = np.array(scores.days), scores.rows.numpy()
    ids = np.empty(len(scores), np.int64)
    for day in dict.fromkeys(scores.days):
        ids[days == day] = log.days[day].table()[f"user.{feature}"].to_numpy()[rows[days == day]]
    return user_numbers(torch.from_numpy(ids)).numpy()


def _list_figures(scores: StageScores, catalogue: int, *, all_items: bool) -> ListFigures:
    ranked = scores.ranked
    return ListFigures(float(ranked.double().mean()), int(ranked.max()), catalogue, all_items)
