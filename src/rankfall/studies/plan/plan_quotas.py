"""Plan the quotas of a cascade: exact values and costs of a grid, the front, and the choice for a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rankfall._lists import safe_divide
from rankfall.studies.plan.costs import DEFAULTS, Unit, default_costs, show_cost
from rankfall.studies.plan.front import best_for_budget, cheapest_for_value, make_grid, pareto, quota_tuples
from rankfall.studies.plan.plan_result import ChosenQuotas, CurrentQuotas, GridPoint, PlanResult
from rankfall.studies.plan.priced_lists import PricedLists

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankfall.studies.plan.plan_result import FrontPoint, StageCost
    from rankfall.studies.plan.priced_lists import Rows
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
    source: Literal["given", "measured", "defaults"]

    @classmethod
    def defaults(cls, kinds: Mapping[str, str]) -> Costs:
        """Return the default costs of the kinds of models of all stages."""
        return cls(default_costs(kinds), "items", "defaults")


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
    target: Target | None = None,
    metric: Metric = "joint_recall",
    grid: Mapping[str, Sequence[int]] | None = None,
    reach: int | None = None,
    users: Rows | None = None,
    run: str = "",
    split: str = "test",
    on_step: OnStep = lambda step, done, total: None,
) -> PlanResult:
    """Find the quotas with the best joint recall, or joint value, for their cost.

    Args:
        scores: Scores of all stages, one list per request.
        current: Quotas of the run.
        costs: Costs of the stages.
        target: What to plan for. Default: the best value for the cost of the current quotas.
        metric: What to plan: ``"joint_recall"`` or ``"joint_value"``.
        grid: Quotas to try, by stage. Default: around the current ones; the last quota stays as it is.
        reach: Number of best items of the first stage that the lists hold, if they are not complete.
        users: Number ``(R,)`` of the user of each request, for intervals over users. Default: over requests.
        run: Name of the run, for the result.
        split: Name of the measured requests, for the result.
        on_step: Receives the current step, the number of its finished units and their total.

    Raises:
        ValueError: The grid or the metric do not fit the lists, or no quotas of the grid reach the target. The message
            says what can be reached.
    """
    target = target or Target()
    tried = _make_grid(scores, current, grid or {}, reach)
    lists = PricedLists(scores, weight_of(scores, metric), costs.stages, users)
    combined = quota_tuples(tried)
    if not combined:
        shown = ", ".join(f"{stage}={','.join(map(str, quotas))}" for stage, quotas in tried.items())
        raise ValueError(f"grid: found {shown}, expected quotas of which no stage keeps more than the one before it")
    choices = list(dict.fromkeys([*combined, tuple(current)]))
    done = 0

    def on_requests(count: int) -> None:
        nonlocal done
        on_step("quotas", done := done + count, len(scores))

    on_step("quotas", 0, len(scores))
    priced = _Priced(choices, *lists.price(choices, on_requests), choices.index(tuple(current)), metric, costs.unit)
    chosen, reason = priced.choose(target)
    on_step("intervals", 0, None)
    front = pareto(priced.cost, priced.value)
    places = list(dict.fromkeys([*front, priced.current, chosen]))
    found = lists.measure([choices[place] for place in places])
    points = {place: found.quota_point(number) for number, place in enumerate(places)}
    return PlanResult(
        run=run,
        split=split,
        metric=metric,
        stages=scores.stages,
        requests=len(scores),
        resampled="requests" if users is None else "users",
        undefined=len(scores) - int(lists.defined.sum()),
        entered=lists.ranked,
        unit=costs.unit,
        cost_source=costs.source,
        costs=costs.stages,
        grid=tried,
        points=[priced.point(place) for place in range(len(choices))],
        front=[points[place] for place in front],
        current=priced.describe_current(points[priced.current]),
        chosen=ChosenQuotas(
            point=points[chosen],
            reason=reason,
            difference=found.difference(places.index(chosen), places.index(priced.current)),
            cost_ratio=float(priced.cost[chosen] / priced.cost[priced.current]),
            train_overrides=[f"stages.{place}.quota={quota}" for place, quota in enumerate(choices[chosen])],
            export_options=[
                f"--quota {stage}={quota}" for stage, quota in zip(scores.stages, choices[chosen], strict=True)
            ],
        ),
        budget=target.budget,
        target=target.value,
        warnings=_warnings(costs),
    )


def weight_of(scores: StageScores, metric: Metric) -> Floats:
    """Return the weights ``(R, N)`` of items whose sum over the survivors is the metric; 0 where it is undefined.

    Raises:
        ValueError: The relevance has one size, for which the joint value is the joint recall.
    """
    weight = scores.truth.double()
    if metric == "joint_value":
        sizes = scores.relevance[scores.truth > 0].unique()
        if len(sizes) < 2:
            raise ValueError(
                "metric: found joint_value, but all relevant items have the same relevance, so that it equals "
                "joint_recall; expected joint_recall"
            )
        weight *= scores.relevance
    return safe_divide(weight, weight.sum(1, keepdim=True)).numpy()


def _make_grid(
    scores: StageScores, current: Sequence[int], grid: Mapping[str, Sequence[int]], reach: int | None
) -> dict[str, list[int]]:
    """Return the quotas to try, for which the lists are exact."""
    if len(scores.stages) < 2:
        raise ValueError(
            "stages: found one stage, expected at least two; the quota of the last stage has no cost, so there is "
            "nothing to plan"
        )
    longest = int(scores.mask.sum(1).max())
    tried = make_grid(scores.stages, current, grid, longest if scores.complete else min(longest, reach or longest))
    largest = max(tried[scores.stages[0]])
    if not scores.complete and reach is not None and largest > reach:
        raise ValueError(
            f"grid: found a quota of {scores.stages[0]} of {largest:,}, expected at most {reach:,}, the number of "
            "items that the lists hold"
        )
    return tried


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """All choices of quotas with their costs and values; `current` is the place of the quotas of the run."""

    choices: list[tuple[int, ...]]
    cost: Floats
    value: Floats
    current: int
    metric: str
    unit: Unit

    def point(self, place: int) -> GridPoint:
        return GridPoint(list(self.choices[place]), float(self.cost[place]), float(self.value[place]))

    def choose(self, target: Target) -> tuple[int, str]:
        """Return the place of the best choice for a target, and the rule that chose it."""
        if target.value is not None:
            place = cheapest_for_value(self.cost, self.value, target.value)
            if place is None:
                best = int(self.value.argmax())
                raise ValueError(
                    f"recall: found {target.value:g}, expected at most {self.value[best]:.4f}, the largest "
                    f"{self.metric} of the grid, for {self._shown(best)}"
                )
            return place, f"cheapest quotas with {self.metric} of at least {target.value:g}"
        budget = float(self.cost[self.current]) if target.budget is None else target.budget
        place = best_for_budget(self.cost, self.value, budget)
        if place is None:
            least = pareto(self.cost, self.value)[0]
            raise ValueError(
                f"budget: found {show_cost(budget, self.unit)}, expected at least the cost of the cheapest quotas of "
                f"the grid, {self._shown(least)}, which have {self.metric} {self.value[least]:.4f}"
            )
        what = "the cost of the current quotas, " if target.budget is None else ""
        return place, f"best {self.metric} for at most {what}{show_cost(budget, self.unit)}"

    def describe_current(self, point: FrontPoint) -> CurrentQuotas:
        cost, value = self.cost[self.current], self.value[self.current]
        better = (self.cost <= cost) & (self.value >= value) & ((self.cost < cost) | (self.value > value))
        best, cheapest = best_for_budget(self.cost, self.value, cost), cheapest_for_value(self.cost, self.value, value)
        assert best is not None  # the current quotas themselves, at least
        assert cheapest is not None
        return CurrentQuotas(point, bool(better.any()), self.point(best), self.point(cheapest))

    def _shown(self, place: int) -> str:
        return f"quotas {', '.join(map(str, self.choices[place]))} at {show_cost(self.cost[place], self.unit)}"


def _warnings(costs: Costs) -> list[str]:
    if costs.source != "defaults":
        return []
    return [f"no costs were given: {DEFAULTS}; give --cost, or measure with --bundle"]
