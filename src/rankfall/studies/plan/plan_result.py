"""The result of ``rankfall plan`` (``plan.json``); :mod:`rankfall._config` defines the JSON form.

Costs are those of one request, in the unit of :attr:`PlanResult.unit`. Values are means of the planned metric over the
requests with a relevant item; costs are means over all requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rankfall._config import Number, Result
from rankfall._tables import Tables
from rankfall.training.cascade_metrics import (
    Estimate,  # noqa: TC001 (dataclass fields)
    ListFigures,  # noqa: TC001 (dataclass fields)
)

PLAN = "plan.json"  # in the run directory


# --- costs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostSample(Result):
    """A measured cost of a stage."""

    items: int
    """Number of items that entered the stage; for the search of an index, the number of items that it returned."""
    cost: Number
    """Median CPU time of a request."""


@dataclass(frozen=True)
class StageCost(Result):
    """Cost of a stage: `fixed` per request, `per_item` for each item that enters it, `per_kept` for each it keeps.

    Costs that a user gives have no `per_kept`. The search of an index has: it takes longer if it returns more items.
    """

    stage: str
    fixed: Number
    per_item: Number
    per_kept: Number = 0.0
    fixed_error: float | None = None
    """Standard error of the least squares line through `samples`."""
    slope_error: float | None = None
    """The same of its slope: of `per_kept` for the search of an index, else of `per_item`."""
    samples: list[CostSample] | None = None
    """None if the costs were given."""


# --- points -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridPoint(Result):
    """One choice of quotas."""

    quotas: list[int]
    """Quota of each stage."""
    cost: Number
    value: Number


@dataclass(frozen=True)
class FrontPoint(Result):
    """One choice of quotas, with the interval of its value."""

    quotas: list[int]
    cost: Number
    stage_costs: list[Number]
    """Cost of each stage; the sum is `cost`."""
    entered: list[Number]
    """Mean number of items that enter each stage."""
    value: Estimate


# --- the plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurrentQuotas(Result):
    """The quotas of the run."""

    point: FrontPoint
    dominated: bool
    """Whether other quotas have at least this value for at most this cost, and are better in one of the two."""
    best_for_cost: GridPoint
    """The best point of the grid that costs no more."""
    cheapest_for_value: GridPoint
    """The cheapest point of the grid that is as good."""


@dataclass(frozen=True)
class ChosenQuotas(Result):
    """The quotas that the plan recommends."""

    point: FrontPoint
    reason: str
    """The rule that chose them, for example "best joint_recall for at most 2.5 ms"."""
    difference: Estimate
    """Value minus the value of the current quotas, paired."""
    cost_ratio: Number
    """Cost divided by the cost of the current quotas."""
    train_overrides: list[str]
    """For ``rankfall train`` and ``rankfall evaluate``: ``stages.0.quota=120`` and so on."""
    export_options: list[str]
    """For ``rankfall export``: ``--quota retrieval=120`` and so on."""


@dataclass(frozen=True, repr=False)
class PlanResult(Tables, Result):
    """Exact values of all quotas of a grid, the Pareto front of value and cost, and the choice for a target."""

    run: str
    split: str
    metric: str
    stages: list[str]
    requests: int
    undefined: int
    """Number of requests without a relevant item. They count for costs, not for values."""
    entered: Number
    """Mean number of items that enter the first stage."""
    unit: Literal["s", "units", "items"]
    """Unit of all costs: seconds, a unit that only the user knows, or the number of scored items."""
    cost_source: Literal["given", "measured", "defaults"]
    costs: list[StageCost]
    grid: dict[str, list[int]]
    """Quotas that were tried for each stage."""
    points: list[GridPoint]
    """All quotas of the grid in which no stage keeps more than the one before it."""
    front: list[FrontPoint]
    """Points that no other point dominates, from the cheapest on."""
    current: CurrentQuotas
    chosen: ChosenQuotas
    resampled: Literal["requests", "users"] = "requests"
    """What the bootstrap of all intervals draws: requests, or users with all their requests."""
    budget: float | None = None
    """Largest cost that was asked for."""
    target: float | None = None
    """Smallest value that was asked for."""
    lists: ListFigures | None = None
    warnings: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    """Values of the run's configuration that were replaced for the plan, such as ``data.length=all``; no quotas."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `front`, of `points` (all quotas of the grid) and of `costs` (one per stage).

        Quotas have one column per stage.
        """
        chosen, current = self.chosen.point.quotas, self.current.point.quotas
        return {
            "front": [
                {
                    **self._quotas(point.quotas),
                    "cost": point.cost,
                    **point.value.columns(self.metric),
                    "chosen": point.quotas == chosen,
                    "current": point.quotas == current,
                }
                for point in self.front
            ],
            "points": [
                {**self._quotas(point.quotas), "cost": point.cost, self.metric: point.value} for point in self.points
            ],
            "costs": [
                {"stage": one.stage, "fixed": one.fixed, "per_item": one.per_item, "per_kept": one.per_kept}
                for one in self.costs
            ],
        }

    def _quotas(self, quotas: list[int]) -> dict[str, int]:
        return dict(zip(self.stages, quotas, strict=True))
