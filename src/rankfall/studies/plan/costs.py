"""Costs of the stages of a cascade: how they are written, and what a request costs.

A request costs the sum over stages of a fixed cost and a cost per item that enters the stage. So the quota of a stage
decides the cost of the next stage, and the quota of the last stage costs nothing. Measured costs of the search of an
index also grow with the number of items that it returns.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal

from rankfall._suggestions import did_you_mean
from rankfall.studies.plan.plan_result import StageCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
