"""Plan the quotas of a cascade: exact values and costs of a grid, the front, and the choice for a target."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from rankfall._errors import did_you_mean
from rankfall._lists import safe_divide
from rankfall.data import ImpressionLog
from rankfall.storage.disk import make_directory
from rankfall.studies.evaluate import scores_of_run
from rankfall.studies.plan.plan_result import PLAN, ChosenQuotas, CurrentQuotas, GridPoint, PlanResult, StageCost
from rankfall.studies.plan.quota_search import (
    PricedLists,
    best_for_budget,
    cheapest_for_value,
    default_reach,
    make_grid,
    pareto,
    quota_tuples,
)
from rankfall.training.cascade_loaders import measuring_loader
from rankfall.training.cascade_metrics import ListFigures, user_feature, user_numbers
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import with_evaluation_overrides
from rankfall.training.measured_lists import short_lists
from rankfall.training.run_directory import read_config_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rankfall.studies.evaluate import StageScores
    from rankfall.studies.plan.plan_result import FrontPoint
    from rankfall.studies.plan.quota_search import Floats, Rows

    OnStep = Callable[[str, int, int | None], None]  # name of the step, completed amount, total amount

Unit = Literal["s", "units", "items"]

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
MODEL_COSTS = {"two_tower": 0.1, "mlp": 1.0, "din": 4.0}  # of an item; other models as mlp
DEFAULTS = (
    "an item costs 1 in a small network (mlp), 4 in a din model, 0.1 in a two_tower model, and the first stage, which "
    "ranks all items whatever the quotas are, is not counted"
)
EXPECTED = "a number with or without one of the units s, ms, us, ns"
_NUMBER = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)", re.IGNORECASE)


def parse_costs(words: Sequence[str], stages: Sequence[str]) -> tuple[list[StageCost], Unit]:
    """Return the costs of all stages, and their unit.

    Args:
        words: ``STAGE=COST`` or ``STAGE=FIXED+COST``, for example ``ranking=0.2ms+3us``: a request costs 0.2 ms, and
            each item that enters the stage costs 3 us. Several may be joined by commas.
        stages: Names of all stages.

    Raises:
        ValueError: A cost is wrong or missing. The message names all problems.

    Examples:
        >>> costs, unit = parse_costs(["retrieval=1ms+0", "ranking=2us"], ["retrieval", "ranking"])
        >>> [(cost.stage, cost.fixed, cost.per_item) for cost in costs], unit
        ([('retrieval', 0.001, 0.0), ('ranking', 0.0, 2e-06)], 's')
    """
    costs: dict[str, StageCost] = {}
    units: set[Unit] = set()
    problems: list[str] = []
    for word in (part.strip() for one in words for part in one.split(",")):
        try:
            cost, used = _parse_word(word, stages)
        except ValueError as error:
            problems.append(str(error))
            continue
        if cost.stage in costs:
            problems.append(f"found {cost.stage} twice")
        costs[cost.stage] = cost
        units |= used
    missing = [stage for stage in stages if stage not in costs]
    if missing and not problems:
        problems.append(f"found none for {', '.join(missing)}, expected one for each of {', '.join(stages)}")
    if len(units) > 1:
        problems.append("found costs with and without a unit of time, expected one kind")
    if problems:
        raise ValueError("cost: " + "; ".join(problems))
    return [costs[stage] for stage in stages], next(iter(units), "units")


def _parse_word(word: str, stages: Sequence[str]) -> tuple[StageCost, set[Unit]]:
    """Return the cost of one stage, and the kinds of units in it; 0 has none."""
    stage, equals, text = word.partition("=")
    if not equals:
        raise ValueError(f"found {word!r}, expected STAGE=COST such as {stages[-1]}=2us")
    if stage not in stages:
        raise ValueError(f"found the stage {stage!r}, expected one of {', '.join(stages)}{did_you_mean(stage, stages)}")
    parts = [parse_cost(part) for part in text.split("+")]
    numbers = [part for part in parts if part is not None]
    if len(numbers) < len(parts) or len(parts) > 2:
        raise ValueError(f"found {word!r}, expected {stage}=COST or {stage}=FIXED+COST, each {EXPECTED}")
    fixed = numbers[0][0] if len(numbers) == 2 else 0.0
    return StageCost(stage, fixed, numbers[-1][0]), {unit for value, unit in numbers if value}


def parse_cost(text: str) -> tuple[float, Unit] | None:
    """Return a cost and its kind of unit, or None if the text is no cost.

    >>> parse_cost("1.5ms"), parse_cost("30"), parse_cost("3 apples")
    ((0.0015, 's'), (30.0, 'units'), None)
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2].lower()
    if unit and unit not in SECONDS:
        return None
    try:
        value = float(match[1])
    except ValueError:  # several points
        return None
    return (value * SECONDS[unit], "s") if unit else (value, "units")


def parse_budget(text: str, unit: Unit) -> float:
    """Return a budget in the unit of the costs.

    Raises:
        ValueError: It is no positive cost, or has another kind of unit.
    """
    parsed = parse_cost(text)
    if parsed is None or not 0 < parsed[0] < math.inf:
        raise ValueError(f"budget: found {text!r}, expected {EXPECTED}, more than 0")
    if (parsed[1] == "s") != (unit == "s"):
        expected = "a time such as 5ms" if unit == "s" else "a number without a unit, as the costs have none"
        raise ValueError(f"budget: found {text!r}, expected {expected}")
    return parsed[0]


def default_costs(kinds: Mapping[str, str]) -> list[StageCost]:
    """Return costs of items by the kind of model of each stage, in items of a small network.

    The first stage ranks all items whatever the quotas are. It costs nothing here, or else it would hide what the
    quotas decide.

    Args:
        kinds: Kinds of models by stage, in the order of the cascade.

    >>> [cost.per_item for cost in default_costs({"retrieval": "two_tower", "preranking": "mlp", "ranking": "din"})]
    [0.0, 1.0, 4.0]
    """
    return [
        StageCost(stage, 0.0, MODEL_COSTS.get(kind, 1.0) if place else 0.0)
        for place, (stage, kind) in enumerate(kinds.items())
    ]


def show_cost(value: float, unit: str) -> str:
    """Return a cost for people.

    >>> show_cost(0.00123, "s"), show_cost(1234.5, "items"), show_cost(0.05, "units")
    ('1.23 ms', '1,234 items', '0.05')
    """
    if unit == "s":
        name, factor = next(((name, one) for name, one in SECONDS.items() if value >= one), ("ns", 1e-9))
        return f"{value / factor:.3g} {name}"
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{text} items" if unit == "items" else text


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


def current_quotas(run_dir: Path, overrides: Sequence[str] = (), *, trust: bool = False) -> dict[str, int]:
    """Return the quota of each stage of a run.

    Args:
        run_dir: Run directory of a cascade.
        overrides: ``key=value`` strings, see :func:`plan_run`.
        trust: Import the code that the configuration of the run names; see :mod:`rankfall.storage.trust`.

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
        trust: Import the code that the configuration of the run names; see :mod:`rankfall.storage.trust`.
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
