"""Plans: exact values and costs against loops, choices and intervals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from rankfall.studies.plan.plan_quotas import Costs, Target, parse_costs, plan_quotas, weight_of
from rankfall.studies.plan.plan_result import PLAN, PlanResult, StageCost
from support.plan_scores import random_scores, survivors

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.studies.evaluate import StageScores

GRID = {"stage0": [2, 5, 9, 40], "stage1": [2, 4, 9], "stage2": [1, 3]}


def plan(scores: StageScores, *words: str, target: Target | None = None, **options: object) -> PlanResult:
    stages = scores.stages
    items = [StageCost(stage, 0.0, 1.0) for stage in stages]  # the number of items that all stages score
    costs = Costs(*parse_costs(words, stages), "given") if words else Costs(items, "items", "given")
    settings = {"current": [9, 4, 3][: len(stages)], "grid": {stage: GRID[stage] for stage in stages}, "costs": costs}
    return plan_quotas(scores, target=target, **settings | options)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["joint_recall", "joint_value"])
def test_a_plan_is_that_of_a_loop_over_requests_and_quotas(metric: str) -> None:
    scores = random_scores(60, 14, 3, masked=True, seed=1)
    result = plan(scores, "stage0=10+1,stage1=5,stage2=100+7", metric=metric)
    size = scores.truth * (scores.relevance if metric == "joint_value" else 1)
    found = {tuple(point.quotas): point for point in result.points}
    assert set(found) == {quotas for quotas in product(*GRID.values()) if quotas[0] >= quotas[1] >= quotas[2]}
    for quotas, point in found.items():
        values, costs = [], []
        for request in range(60):
            kept = survivors(scores, request, quotas)
            entered = [int(scores.mask[request].sum()), len(kept[0]), len(kept[1])]
            costs.append(110 + entered[0] + 5 * entered[1] + 7 * entered[2])
            if size[request].sum() > 0:
                values.append(float(size[request, kept[-1]].sum() / size[request].sum()))
        assert point.value == pytest.approx(np.mean(values))
        assert point.cost == pytest.approx(np.mean(costs))
    assert result.undefined == 60 - len(values)
    assert [point.quotas for point in result.front] == [
        list(quotas)
        for quotas, point in sorted(found.items(), key=lambda pair: pair[1].cost)
        if not any(
            other.cost <= point.cost
            and other.value >= point.value
            and (other.cost, other.value) != (point.cost, point.value)
            for other in found.values()
        )
    ]
    for one in (*result.front, result.current.point, result.chosen.point):
        assert one.value.value == pytest.approx(found[tuple(one.quotas)].value)
        assert one.value.low <= one.value.value <= one.value.high
        assert sum(one.stage_costs) == pytest.approx(one.cost) == pytest.approx(found[tuple(one.quotas)].cost)


def test_a_budget_gives_the_best_and_a_recall_the_cheapest_quotas() -> None:
    scores = random_scores(200, 14, 2)
    grid = {"stage0": list(range(3, 15)), "stage1": [3]}
    default = plan(scores, grid=grid, costs=Costs.defaults(dict.fromkeys(scores.stages, "mlp")))
    assert {point.cost for point in default.points} == {*range(3, 15)}  # items that enter the second stage
    assert default.warnings[0].startswith("no costs were given")
    assert (default.unit, default.current.point.quotas) == ("items", [9, 4])  # is not in the grid, but measured
    budget = plan(scores, grid=grid, target=Target(budget=21.5), current=[9, 3])
    values = {point.quotas[0]: point.value for point in budget.points}
    first = max(range(3, 8), key=lambda quota: values[quota])  # 14 items and at most 7
    assert budget.chosen.point.quotas == [first, 3]
    assert budget.chosen.train_overrides == [f"stages.0.quota={first}", "stages.1.quota=3"]
    assert budget.chosen.export_options == [f"--quota stage0={first}", "--quota stage1=3"]
    difference = budget.chosen.difference
    assert difference.value == pytest.approx(values[first] - values[9])
    assert difference.low <= difference.value <= difference.high
    assert budget.chosen.cost_ratio == pytest.approx((14 + first) / 23)
    wanted = values[4]
    cheapest = plan(scores, grid=grid, target=Target(value=wanted), current=[9, 3]).chosen.point
    assert cheapest.quotas[0] == min(quota for quota, value in values.items() if value >= wanted)


def test_targets_out_of_reach_say_what_is_possible() -> None:
    scores = random_scores(50, 14, 2)
    best = max(point.value for point in plan(scores).points)
    with pytest.raises(ValueError, match=f"recall: found 0.99, expected at most {best:.4f}, the largest joint_recall"):
        plan(scores, target=Target(value=0.99))
    with pytest.raises(ValueError, match=r"budget: found 3 items, expected at least the cost .* quotas 2, 2 at 16 it"):
        plan(scores, target=Target(budget=3.0))
    with pytest.raises(ValueError, match="found joint_value, but all relevant items have the same relevance"):
        plan(replace(scores, relevance=scores.truth), metric="joint_value")
    with pytest.raises(ValueError, match="found one stage"):
        plan(random_scores(5, 4, 1))
    with pytest.raises(ValueError, match=r"grid: found stage0=2, stage1=4,9, expected quotas of which no stage keeps"):
        plan(scores, grid={"stage0": [2], "stage1": [4, 9]})


def test_pruned_lists_limit_the_grid() -> None:
    scores = replace(random_scores(50, 14, 2), complete=False)
    assert max(plan(scores, reach=7, grid={}, current=[6, 2]).grid["stage0"]) == 7
    with pytest.raises(ValueError, match="grid: found a quota of stage0 of 40, expected at most 7"):
        plan(scores, reach=7)


def test_dominated_quotas_are_found() -> None:
    """A second stage that orders as the first does cannot repair it: a larger first quota only costs."""
    scores = random_scores(100, 14, 2)
    scores = replace(scores, scores=[scores.scores[0]] * 2)
    grid = {"stage0": [4, 9], "stage1": [4]}
    wasteful = plan(scores, grid=grid, current=[9, 4])
    assert wasteful.current.dominated
    assert wasteful.current.cheapest_for_value.quotas == [4, 4]
    assert [point.quotas for point in wasteful.front] == [[4, 4]]
    assert not plan(scores, grid=grid, current=[4, 4]).current.dominated


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    result = plan(random_scores(120, 14, 3))
    result.save(tmp_path / PLAN)
    assert PlanResult.load(tmp_path / PLAN) == result


def test_the_interval_is_that_of_a_bootstrap_of_single_requests() -> None:
    scores = random_scores(300, 14, 2)
    point = plan(scores).current.point
    weight = weight_of(scores, "joint_recall")
    values = np.array([weight[request, survivors(scores, request, [9, 4])[-1]].sum() for request in range(300)])
    rng = np.random.default_rng(1)
    means = rng.choice(values, (4000, 300)).mean(1)
    assert [point.value.low, point.value.high] == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.004)


def test_intervals_over_users_are_wider_if_a_user_repeats() -> None:
    one = random_scores(150, 14, 2)
    users = np.repeat(np.arange(150), 4)  # every user asks the same four times
    again = {name: getattr(one, name)[users] for name in ("rows", "mask", "truth", "relevance", "item", "ranked")}
    scores = replace(
        one,
        requests=[one.requests[user] for user in users],
        days=[one.days[user] for user in users],
        scores=[stage[users] for stage in one.scores],
        depth=one.depth[users],
        rank=one.rank[users],
        **again,
    )
    by_request, by_user, alone = plan(scores), plan(scores, users=torch.from_numpy(users)), plan(one)
    widths = [found.current.point.value.high - found.current.point.value.low for found in (by_request, by_user, alone)]
    assert widths[1] == pytest.approx(widths[2], rel=0.15)
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.15)
    assert (by_request.resampled, by_user.resampled) == ("requests", "users")
