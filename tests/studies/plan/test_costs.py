"""Costs as text, grids as text, and the front of cost and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from rankfall.studies.plan.plan_quotas import parse_budget, parse_costs, show_cost
from rankfall.studies.plan.quota_search import (
    best_for_budget,
    cheapest_for_value,
    make_grid,
    pareto,
    parse_grid,
    quota_tuples,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGES = ["retrieval", "prerank", "ranking"]


def test_costs_have_units_and_a_fixed_part() -> None:
    costs, unit = parse_costs(["retrieval=100ns,prerank=2us", "ranking=1.5ms+3e-5s"], STAGES)
    assert unit == "s"
    assert [(cost.stage, cost.fixed) for cost in costs] == [("retrieval", 0), ("prerank", 0), ("ranking", 0.0015)]
    assert [cost.per_item for cost in costs] == pytest.approx([1e-7, 2e-6, 3e-5])
    assert parse_costs(["retrieval=0,prerank=1,ranking=5+20"], STAGES)[1] == "units"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["retrieval=1us"], "found none for prerank, ranking, expected one for each of retrieval, prerank, ranking"),
        (["retrival=1", "ranking=x"], "found the stage 'retrival'.*did you mean 'retrieval'; found 'ranking=x'"),
        (["retrieval=1us,prerank=1us,ranking=2"], "with and without a unit of time"),
        (["ranking=1+2+3"], "expected ranking=COST or ranking=FIXED[+]COST"),
        (["ranking"], "expected STAGE=COST such as ranking=2us"),
        (["ranking=1..2us"], "found 'ranking=1..2us'"),
        (["ranking=-1us"], "found 'ranking=-1us'"),
        (["retrieval=1,prerank=1,ranking=2,ranking=3"], "found ranking twice"),
    ],
)
def test_wrong_costs_are_named(words: Sequence[str], expected: str) -> None:
    with pytest.raises(ValueError, match=f"^cost: .*{expected}"):
        parse_costs(words, STAGES)


def test_a_budget_has_the_unit_of_the_costs() -> None:
    assert parse_budget("5ms", "s") == 0.005
    assert parse_budget("500", "items") == 500
    for text, unit in (("5", "s"), ("5ms", "items"), ("0", "units"), ("much", "s")):
        with pytest.raises(ValueError, match=r"^budget: found"):
            parse_budget(text, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5, "s", "2.5 s"), (4.2e-7, "s", "420 ns"), (0, "s", "0 ns"), (12.5, "items", "12.5 items"), (2, "units", "2")],
)
def test_costs_are_shown_with_three_digits(value: float, unit: str, text: str) -> None:
    assert show_cost(value, unit) == text


def test_grids_are_checked() -> None:
    assert parse_grid(["prerank=30,10", "prerank=20"], STAGES) == {"prerank": [30, 10, 20]}
    with pytest.raises(ValueError, match=r"grid: found the stage 'rank'.*; found 'ranking=0', expected ranking=N,N"):
        parse_grid(["rank=1", "ranking=0"], STAGES)


def test_a_default_grid_surrounds_the_current_quotas() -> None:
    grid = make_grid(STAGES, [100, 40, 10], {}, 300)
    assert grid["ranking"] == [10]  # costs nothing, and is what is shown
    for stage, quota, largest in (("retrieval", 100, 300), ("prerank", 40, 160)):
        assert quota in grid[stage]
        assert (grid[stage][0], grid[stage][-1]) == (10, largest)
    tuples = quota_tuples(grid)
    assert len(tuples) == len(set(tuples)) <= 1000
    assert all(a >= b >= c for a, b, c in tuples)
    given = make_grid(STAGES, [100, 40, 10], {"retrieval": [50, 20, 50]}, 300)
    assert given["retrieval"] == [20, 50]


def test_the_front_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        cost, value = rng.integers(0, 8, 20).astype(float), rng.integers(0, 8, 20).astype(float)
        front = pareto(cost, value)
        beaten = [
            any(
                cost[other] <= cost[one]
                and value[other] >= value[one]
                and (cost[other] < cost[one] or value[other] > value[one])
                for other in range(20)
            )
            for one in range(20)
        ]
        expected = {(cost[one], value[one]) for one in range(20) if not beaten[one]}
        assert [(cost[one], value[one]) for one in front] == sorted(expected)
        for level in range(-1, 9):
            best = best_for_budget(cost, value, level)
            assert (None if best is None else value[best]) == max(value[cost <= level], default=None)
            cheapest = cheapest_for_value(cost, value, level)
            assert (None if cheapest is None else cost[cheapest]) == min(cost[value >= level], default=None)
