"""Scored lists together with the costs of the stages: what each choice of quotas gives, and costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from rankfall.studies.plan.plan_result import FrontPoint
from rankfall.studies.plan.quota_search import search
from rankfall.training.stage_figures import Resampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankfall.studies.plan.plan_result import StageCost
    from rankfall.studies.plan.quota_search import Floats, Outcomes
    from rankfall.studies.stage_scores import StageScores
    from rankfall.training.stage_figures import Estimate

    Rows = NDArray[np.int64]


class PricedLists:
    """Lists, weights of their items, and costs of the stages.

    Args:
        scores: Scores of all stages, one list per request.
        weight: Weights ``(R, N)`` of the items, which sum to 1 in each list. Lists of zeros count for costs only.
        costs: Cost of each stage.
        users: Number ``(R,)`` of the user of each request, for intervals over users. Default: over requests.
    """

    def __init__(
        self, scores: StageScores, weight: Floats, costs: Sequence[StageCost], users: Rows | None = None
    ) -> None:
        self.scores = scores
        self.weight = weight
        self.costs = list(costs)
        self.users = users

    @cached_property
    def defined(self) -> NDArray[np.bool_]:
        """The requests with a value."""
        defined: NDArray[np.bool_] = self.weight.sum(1) > 0
        return defined

    @cached_property
    def ranked(self) -> float:
        """Mean number of items that enter the first stage."""
        return float(self.scores.ranked.double().mean())

    def price(
        self, choices: Sequence[Sequence[int]], on_requests: Callable[[int], None] = lambda count: None
    ) -> tuple[Floats, Floats]:
        """Return the cost and the value of each choice."""
        outcomes = search(self.scores, self.weight, choices, on_requests=on_requests)
        return self._stage_costs(outcomes).sum(1), outcomes.values / self.defined.sum()

    def measure(self, choices: Sequence[Sequence[int]]) -> Measured:
        """Return the same with the values of single requests."""
        outcomes = search(self.scores, self.weight, choices, per_request=True)
        return Measured(
            list(choices),
            self._stage_costs(outcomes),
            self._entered(outcomes),
            outcomes.values[:, self.defined],
            None if self.users is None else self.users[self.defined],
        )

    def _stage_costs(self, outcomes: Outcomes) -> Floats:
        """Return the cost ``(choices, stages)`` of each stage."""
        fixed, per_item, per_kept = np.array([(cost.fixed, cost.per_item, cost.per_kept) for cost in self.costs]).T
        kept = outcomes.kept / len(self.scores)
        costs: Floats = fixed + per_item * self._entered(outcomes) + per_kept * kept
        return costs

    def _entered(self, outcomes: Outcomes) -> Floats:
        """Return the mean number of items ``(choices, stages)`` that enter each stage."""
        kept = outcomes.kept[:, :-1] / len(self.scores)
        return np.hstack([np.full((len(kept), 1), self.ranked), kept])


@dataclass(frozen=True, eq=False)
class Measured:
    """Choices, the costs of their stages, and their values.

    Attributes:
        choices: The choices.
        stage_costs: Mean cost ``(choices, stages)``.
        entered: Mean number of items ``(choices, stages)`` that enter each stage.
        values: Values ``(choices, requests)`` of the requests that have one.
        users: Number of the user of each of these requests, if known.
    """

    choices: list[Sequence[int]]
    stage_costs: Floats
    entered: Floats
    values: Floats
    users: Rows | None = None

    @cached_property
    def cost(self) -> Floats:
        """Cost of each choice."""
        total: Floats = self.stage_costs.sum(1)
        return total

    @cached_property
    def estimates(self) -> list[Estimate]:
        """Mean value of each choice with its interval."""
        return estimate_means(self.values, self.users)

    def difference(self, place: int, other: int) -> Estimate:
        """Return the mean difference of the values of two choices with its interval."""
        (found,) = estimate_means(self.values[[place]] - self.values[[other]], self.users)
        return found

    def quota_point(self, place: int) -> FrontPoint:
        """Return a choice of quotas."""
        return FrontPoint(
            quotas=list(self.choices[place]),
            cost=float(self.cost[place]),
            stage_costs=self.stage_costs[place].tolist(),
            entered=self.entered[place].tolist(),
            value=self.estimates[place],
        )


def estimate_means(values: Floats, users: Rows | None = None) -> list[Estimate]:
    """Return the mean of each row with its bootstrap interval over requests, or over users with all their requests.

    All rows have the same resamples, so that the interval of a row of differences is that of a paired comparison.
    """
    resampler = Resampler(None if users is None else torch.from_numpy(users))
    return resampler.means(torch.from_numpy(values).unbind())
