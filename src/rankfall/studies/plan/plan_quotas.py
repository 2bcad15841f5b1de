"""Plan the quotas of a cascade: exact values and costs of a grid, the front, and the choice for a target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from rankfall.studies.plan.costs import Unit, items_scored, show_cost
from rankfall.studies.plan.front import best_for_budget, cheapest_for_value, make_grid, pareto, quota_tuples
from rankfall.studies.plan.plan_result import ChosenQuotas, CurrentQuotas, GridPoint, PlanResult, StageCost
from rankfall.studies.plan.priced_lists import PricedLists, estimate_means
from rankfall.studies.plan.thresholds import FEWEST, compare_thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.studies.plan.plan_result import FrontPoint
    from rankfall.studies.plan.priced_lists import Measured
    from rankfall.studies.plan.quota_search import Floats
    from rankfall.studies.stage_scores import StageScores

    OnStep = Callable[[str, int, int | None], None]  # name of the step, completed amount, total amount

Metric = Literal["joint_recall", "joint_value"]
METRICS: tuple[Metric, ...] = ("joint_recall", "joint_value")


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of all stages, their unit and their origin."""

    stages: list[StageCost]
    unit: Unit
    source: Literal["given", "measured", "items scored"]

    @classmethod
    def items_scored(cls, stages: Sequence[str]) -> Costs:
        """Return costs for which every scored item costs 1."""
        return cls(items_scored(stages), "items", "items scored")


@dataclass(frozen=True, slots=True)
class Target:
    """What to plan for: the best value for a budget, or the smallest cost for a value; neither: the current cost."""

    budget: float | None = None
    value: float | None = None


def plan_quotas(
    scores: StageScores,
    *,
    current: Sequence[int],
    costs: Costs,
    target: Target = Target(),
    metric: Metric = "joint_recall",
    grid: Mapping[str, Sequence[int]] | None = None,
    reach: int | None = None,
    run: str = "",
    split: str = "test",
    on_step: OnStep = lambda step, done, total: None,
) -> PlanResult:
    """Find the quotas with the best joint recall, or joint value, for their cost.

    Args:
        scores: Scores of all stages, one list per request.
        current: Quotas of the run.
        costs: Costs of the stages.
        target: What to plan for.
        metric: What to plan: ``"joint_recall"`` or ``"joint_value"``.
        grid: Quotas to try, by stage. Default: around the current ones; the last quota stays as it is.
        reach: Number of best items of the first stage that the lists hold, if they are not complete.
        run: Name of the run, for the result.
        split: Name of the measured requests, for the result.
        on_step: Receives the current step, the number of its finished units and their total.

    Raises:
        ValueError: The grid or the metric do not fit the lists, or no quotas of the grid reach the target. The message
            says what can be reached.
    """
    if len(scores.stages) < 2:
        raise ValueError(
            "stages: found one stage, expected at least two; the quota of the last stage has no cost, so there is "
            "nothing to plan"
        )
    weight = _weight(scores, metric)
    longest = int(scores.mask.sum(1).max()) if scores.complete or reach is None else reach
    tried = make_grid(scores.stages, current, grid or {}, longest)
    if not scores.complete and reach is not None and max(tried[scores.stages[0]]) > reach:
        raise ValueError(f"grid: found quotas of {scores.stages[0]} above {reach}, which the lists do not hold")
    choices = list(dict.fromkeys([*quota_tuples(tried), tuple(current)]))
    lists = PricedLists(scores, weight, costs.stages)
    done = 0

    def on_requests(count: int) -> None:
        nonlocal done
        on_step("quotas", done := done + count, len(scores))

    on_step("quotas", 0, len(scores))
    cost, value = lists.price(choices, on_requests)
    chosen, reason = _choose(choices, cost, value, target, choices.index(tuple(current)), metric, costs.unit)
    front = pareto(cost, value)
    on_step("intervals", 0, None)
    places = list(dict.fromkeys([*front, choices.index(tuple(current)), chosen]))
    found = lists.measure([choices[place] for place in places])
    points = {place: found.quota_point(number) for number, place in enumerate(places)}
