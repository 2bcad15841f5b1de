"""Plan the quotas of a cascade: exact values and costs of a grid, the front, and the choice for a target."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np
import torch

from rankfall._errors import RankfallError, did_you_mean
from rankfall._lists import safe_divide
from rankfall.storage.disk import make_directory
from rankfall.studies.evaluate import Measuring, scores_of_run, user_groups
from rankfall.studies.plan.plan_result import (
    PLAN,
    ChosenQuotas,
    CurrentQuotas,
    FrontPoint,
    GridPoint,
    PlanResult,
    StageCost,
)
from rankfall.studies.plan.quota_search import (
    best_for_budget,
    cheapest_for_value,
    default_reach,
    make_grid,
    pareto,
    quota_tuples,
    search,
)
from rankfall.training.cascade_loaders import measuring_loader
from rankfall.training.cascade_metrics import ListFigures, Resampler
from rankfall.training.config.cascade_config import CascadeConfig
from rankfall.training.config.load_config import with_evaluation_overrides
from rankfall.training.measured_lists import short_lists
from rankfall.training.run_directory import read_config_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rankfall.studies.evaluate import StageScores
    from rankfall.studies.plan.quota_search import Floats

    OnStep = Callable[[str, int, int | None], None]  # name of the step, completed amount, total amount

Unit = Literal["s", "units", "items"]

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
MODEL_COSTS = {"two_tower": 0.1, "mlp": 1.0, "din": 4.0}  # of an item; other models as mlp
DEFAULTS = (
    "an item costs 1 in a small network (mlp), 4 in a din model, 0.1 in a two_tower model, and the first stage, which "
    "ranks all items whatever the quotas are, is not counted"
)
EXPECTED = "a number with or without one of the units s, ms, us, ns"
_NUMBER = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)", re.IGNORECASE)


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
        stage, equals, text = word.partition("=")
        numbers = [number for part in text.split("+") if (number := parse_cost(part)) is not None]
        if not equals:
            problems.append(f"found {word!r}, expected STAGE=COST such as {stages[-1]}=2us")
        elif stage not in stages:
            hint = did_you_mean(stage, stages)
            problems.append(f"found the stage {stage!r}, expected one of {', '.join(stages)}{hint}")
        elif len(numbers) != text.count("+") + 1 or len(numbers) > 2:
            problems.append(f"found {word!r}, expected {stage}=COST or {stage}=FIXED+COST, each {EXPECTED}")
        elif stage in costs:
            problems.append(f"found {stage} twice")
        else:
            costs[stage] = StageCost(stage, numbers[0][0] if len(numbers) == 2 else 0.0, numbers[-1][0])
            units |= {unit for value, unit in numbers if value}
    missing = [stage for stage in stages if stage not in costs]
    if missing and not problems:
        problems.append(f"found none for {', '.join(missing)}, expected one for each of {', '.join(stages)}")
    if len(units) > 1:
        problems.append("found costs with and without a unit of time, expected one kind")
    if problems:
        raise RankfallError("cost: " + "; ".join(problems))
    return [costs[stage] for stage in stages], next(iter(units), "units")


def parse_cost(text: str) -> tuple[float, Unit] | None:
    """Return a cost and its kind of unit, or None if the text is no cost.

    >>> parse_cost("1.5ms"), parse_cost("30"), parse_cost("3 apples")
    ((0.0015, 's'), (30.0, 'units'), None)
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (unit := match[2].lower()) not in ("", *SECONDS):
        return None
    return (float(match[1]) * SECONDS[unit], "s") if unit else (float(match[1]), "units")


def parse_budget(text: str, unit: Unit) -> float:
    """Return a budget in the unit of the costs.

    Raises:
        ValueError: It is no positive cost, or has another kind of unit.
    """
    parsed = parse_cost(text)
    if parsed is None or not 0 < parsed[0] < math.inf:
        raise RankfallError(f"budget: found {text!r}, expected {EXPECTED}, more than 0")
    if (parsed[1] == "s") != (unit == "s"):
        expected = "a time such as 5ms" if unit == "s" else "a number without a unit, as the costs have none"
        raise RankfallError(f"budget: found {text!r}, expected {expected}")
    return parsed[0]


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
        """Return costs of items by the kind of model of each stage, in items of a small network.

        The first stage ranks all items whatever the quotas are. It costs nothing here, or else it would hide what the
        quotas decide.

        Args:
            kinds: Kinds of models by stage, in the order of the cascade.

        >>> stages = Costs.defaults({"retrieval": "two_tower", "preranking": "mlp", "ranking": "din"}).stages
        >>> [cost.per_item for cost in stages]
        [0.0, 1.0, 4.0]
        """
        per_item = [MODEL_COSTS.get(kind, 1.0) for kind in kinds.values()]
        stages = [StageCost(stage, 0.0, cost) for stage, cost in zip(kinds, [0.0, *per_item[1:]], strict=True)]
        return cls(stages, "items", "defaults")


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
    users: Tensor | None = None,
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
    if len(scores.stages) < 2:
        raise RankfallError(
            "stages: found one stage, expected at least two; the quota of the last stage has no cost, so there is "
            "nothing to plan"
        )
    longest = int(scores.mask.sum(1).max())
    limit = longest if scores.complete else min(longest, reach or longest)
    tried = make_grid(scores.stages, current, grid or {}, limit)
    largest_first = max(tried[scores.stages[0]])
    if not scores.complete and reach is not None and largest_first > reach:
        raise RankfallError(
            f"grid: found a quota of {scores.stages[0]} of {largest_first:,}, expected at most {reach:,}, the number "
            "of items that the lists hold"
        )
    combined = quota_tuples(tried)
    if not combined:
        shown = ", ".join(f"{stage}={','.join(map(str, quotas))}" for stage, quotas in tried.items())
        raise RankfallError(f"grid: found {shown}, expected quotas of which no stage keeps more than the one before it")
    choices = list(dict.fromkeys([*combined, tuple(current)]))
    done = 0

    def on_requests(count: int) -> None:
        nonlocal done
        on_step("quotas", done := done + count, len(scores))

    on_step("quotas", 0, len(scores))
    weight = weight_of(scores, metric)
    defined = weight.sum(1) > 0
    outcomes = search(scores, weight, choices, on_requests=on_requests)
    value, kept = outcomes.values / defined.sum(), outcomes.kept / len(scores)
    ranked = float(scores.ranked.double().mean())
    entered = np.hstack([np.full((len(choices), 1), ranked), kept[:, :-1]])  # mean number of items, by stage
    fixed, per_item, per_kept = np.array([(one.fixed, one.per_item, one.per_kept) for one in costs.stages]).T
    stage_costs = fixed + per_item * entered + per_kept * kept
    cost, now = stage_costs.sum(1), choices.index(tuple(current))

    def shown_quotas(place: int) -> str:
        return f"quotas {', '.join(map(str, choices[place]))} at {show_cost(cost[place], costs.unit)}"

    budget = float(cost[now]) if target.budget is None else target.budget
    if target.value is not None:
        found = cheapest_for_value(cost, value, target.value)
        reason = f"cheapest quotas with {metric} of at least {target.value:g}"
        if found is None:
            largest = int(value.argmax())
            raise RankfallError(
                f"recall: found {target.value:g}, expected at most {value[largest]:.4f}, the largest {metric} of the "
                f"grid, for {shown_quotas(largest)}"
            )
    else:
        found = best_for_budget(cost, value, budget)
        what = "the cost of the current quotas, " if target.budget is None else ""
        reason = f"best {metric} for at most {what}{show_cost(budget, costs.unit)}"
        if found is None:
            least = pareto(cost, value)[0]
            raise RankfallError(
                f"budget: found {show_cost(budget, costs.unit)}, expected at least the cost of the cheapest quotas of "
                f"the grid, {shown_quotas(least)}, which have {metric} {value[least]:.4f}"
            )
    chosen: int = found
    on_step("intervals", 0, None)
    front = pareto(cost, value)
    places = list(dict.fromkeys([*front, now, chosen]))
    values = search(scores, weight, [choices[place] for place in places], per_request=True).values[:, defined]
    # all rows have the same resamples, so that the interval of a difference is that of a paired comparison
    resampler = Resampler(None if users is None else users[torch.from_numpy(defined)])
    estimates = resampler.means(torch.from_numpy(values).unbind())
    points = {
        place: FrontPoint(
            quotas=list(choices[place]),
            cost=float(cost[place]),
            stage_costs=stage_costs[place].tolist(),
            entered=entered[place].tolist(),
            value=estimate,
        )
        for place, estimate in zip(places, estimates, strict=True)
    }
    difference = values[places.index(chosen)] - values[places.index(now)]
    grid_points = [GridPoint(list(choices[at]), float(cost[at]), float(value[at])) for at in range(len(choices))]
    better = (cost <= cost[now]) & (value >= value[now]) & ((cost < cost[now]) | (value > value[now]))
    best, cheapest = best_for_budget(cost, value, cost[now]), cheapest_for_value(cost, value, value[now])
    assert best is not None  # the current quotas themselves, at least
    assert cheapest is not None
    return PlanResult(
        run=run,
        split=split,
        metric=metric,
        stages=scores.stages,
        requests=len(scores),
        resampled="requests" if users is None else "users",
        undefined=len(scores) - int(defined.sum()),
        entered=ranked,
        unit=costs.unit,
        cost_source=costs.source,
        costs=costs.stages,
        grid=tried,
        points=grid_points,
        front=[points[place] for place in front],
        current=CurrentQuotas(points[now], bool(better.any()), grid_points[best], grid_points[cheapest]),
        chosen=ChosenQuotas(
            point=points[chosen],
            reason=reason,
            difference=resampler.means([torch.from_numpy(difference)])[0],
            cost_ratio=float(cost[chosen] / cost[now]),
            train_overrides=[f"stages.{place}.quota={quota}" for place, quota in enumerate(choices[chosen])],
            export_options=[
                f"--quota {stage}={quota}" for stage, quota in zip(scores.stages, choices[chosen], strict=True)
            ],
        ),
        budget=target.budget,
        target=target.value,
        warnings=[f"no costs were given: {DEFAULTS}; give --cost, or measure with --bundle"]
        if costs.source == "defaults"
        else [],
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
            raise RankfallError(
                "metric: found joint_value, but all relevant items have the same relevance, so that it equals "
                "joint_recall; expected joint_recall"
            )
        weight *= scores.relevance
    return safe_divide(weight, weight.sum(1, keepdim=True)).numpy()


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
    return _quotas(config)


def _quotas(config: CascadeConfig) -> dict[str, int]:
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
    out: Path | None = None,
    on_step: OnStep = lambda step, done, total: None,
    **measuring: Unpack[Measuring],
) -> PlanResult:
    """Plan the quotas of a run's best checkpoint, and write ``plan.json``.

    Args:
        run_dir: Run directory of a cascade.
        split: ``"train"``, ``"valid"`` or ``"test"`` of the configuration, or the name of a day.
        costs: Costs of the stages.
        target: What to plan for. Default: the best value for the cost of the current quotas.
        metric: What to plan: ``"joint_recall"`` or ``"joint_value"``.
        grid: Quotas to try, by stage.
        out: Directory of ``plan.json``. Default: the run directory.
        on_step: Receives the current step of planning, the number of its finished units and their total.
        measuring: See :class:`~rankfall.studies.evaluate.Measuring`. With the override ``stages.0.quota=50`` the
            current quota is 50.

    Raises:
        ValueError: The run, the grid and the target do not fit together; see
            :func:`~rankfall.studies.plan.plan_quotas.plan_quotas`.
    """

    def reach(config: CascadeConfig) -> int:
        # Lists over all items hold as many as the largest quota of the first stage, so that all quotas are exact.
        current = _quotas(config)
        return max(next(iter(current.values())), largest_quotas(current, grid or {})[0])

    config, scores, log = scores_of_run(run_dir, split, reach=reach, **measuring)
    result = plan_quotas(
        scores,
        current=list(_quotas(config).values()),
        costs=costs,
        target=target,
        metric=metric,
        grid=grid,
        reach=reach(config),
        users=user_groups(log, scores),
        run=run_dir.name,
        split=split,
        on_step=on_step,
    )
    loader = measuring_loader(log, config, config.data.days("test"))
    catalogue, short, ranked = loader.catalogue_size(), short_lists(loader), scores.ranked
    lists = None
    if catalogue is not None:
        all_items = config.data.length == "all"
        lists = ListFigures(float(ranked.double().mean()), int(ranked.max()), catalogue, all_items)
    result = replace(
        result,
        lists=lists,
        warnings=[*result.warnings, *([short] if short else [])],
        overrides=[word for word in measuring.get("overrides", ()) if not word.partition("=")[0].endswith(".quota")],
    )
    directory = out or run_dir
    make_directory(directory)
    result.save(directory / PLAN)
    return result
