"""Figures of the stages of a cascade with confidence intervals: what each stage kept, lost, and what chance would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rankfall._results import Number, Result
from rankfall.metrics.bootstrap import interval, resampled_sums

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


@dataclass(frozen=True)
class Estimate(Result):
    """A figure and its 95 % bootstrap interval."""

    value: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class StageFigures(Result):
    """What a stage did with the ground truth, as means over requests.

    The product of `kept` over all stages is the joint recall. The sum of `lost` over all stages is 1 minus the joint
    recall, and the sum of `loss_share` is 1.
    """

    stage: str
    quota: int
    """Number of items that the stage keeps."""
    entered: Number
    """Mean number of items that arrived."""
    survived: Estimate
    """Share of the ground truth that is left after the stage."""
    kept: Estimate
    """Share that the stage kept of the ground truth that arrived."""
    chance: Number
    """What a random stage would keep of the ground truth that arrived."""
    lost: Estimate
    """Share of the whole ground truth that the stage dropped; lower is better."""
    loss_share: Estimate
    """Share of all losses that happened at this stage. NaN if nothing was lost."""
    alone: Estimate | None = None
    """Recall of the stage by itself, over the whole list. None if later stages did not score the whole list."""
    alone_chance: float | None = None
    """The same for a random stage."""


@dataclass(frozen=True)
class ListFigures(Result):
    """How long the measured lists were, beside the number of items that a service would rank."""

    mean_length: Number
    longest: int
    catalogue: int
    """Number of items that were in the log by the end of the last measured day."""
    all_items: bool
    """Whether every item of the catalogue was ranked (``data.length: all``)."""


def stage_figures(
    stages: Sequence[str],
    quotas: Sequence[int],
    left: Tensor,
    ranked: Tensor,
    *,
    alone: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
) -> list[StageFigures]:
    """Return the figures of all stages from what is left of the ground truth of each request.

    Args:
        stages: Names of the T stages.
        quotas: Number of items that each stage keeps.
        left: Shares ``(R, T)`` of the ground truth of R requests that are left after each stage. NaN for requests
            without a relevant item, which do not count.
        ranked: Number of items ``(R,)`` that the first stage ranked.
        alone: Recall ``(R,)`` of a stage over the whole list, by name; stages may be missing.
        units: What the bootstrap draws, as in :func:`~rankfall.metrics.bootstrap.resampled_sums`.
    """
    counts = ~left.isnan().any(-1)
    entered = items_entered(ranked[counts], quotas)
    before = torch.cat([left.new_ones(len(left), 1), left], -1)[counts].double()
    by_itself = {name: values[counts].double() for name, values in (alone or {}).items()}
    columns = torch.cat([before, *(values.unsqueeze(-1) for values in by_itself.values())], -1)
    units = None if units is None else units[counts]
    sums = torch.cat(
        [columns.sum(0, keepdim=True), resampled_sums(columns, units=units)]
    )  # the first row: all requests
    few = _count(units, len(columns)) < 2
    places = {name: len(quotas) + 1 + place for place, name in enumerate(by_itself)}
    figures = []
    for t, (stage, quota) in enumerate(zip(stages, quotas, strict=True)):
        chance = (quota / entered[:, t]).clamp(max=1.0)
        figures.append(
            StageFigures(
                stage=stage,
                quota=quota,
                entered=float(entered[:, t].mean()),
                survived=_estimate(sums[:, t + 1] / sums[:, 0], few=few),
                kept=_estimate(sums[:, t + 1] / sums[:, t], few=few),
                chance=float((before[:, t] * chance).sum() / before[:, t].sum()),
                lost=_estimate((sums[:, t] - sums[:, t + 1]) / sums[:, 0], few=few),
                loss_share=_estimate((sums[:, t] - sums[:, t + 1]) / (sums[:, 0] - sums[:, len(quotas)]), few=few),
                alone=_estimate(sums[:, places[stage]] / sums[:, 0], few=few) if stage in places else None,
                alone_chance=float((quota / ranked[counts]).clamp(max=1.0).mean()) if stage in places else None,
            )
        )
    return figures


def items_entered(ranked: Tensor, quotas: Sequence[int]) -> Tensor:
    """Return the number of items ``(R, T)`` that arrive at each stage: all that are ranked, then what is kept.

    >>> items_entered(torch.tensor([100, 3]), [10, 5]).tolist()
    [[100.0, 10.0], [3.0, 3.0]]
    """
    entered = [ranked.double()]
    for quota in quotas[:-1]:
        entered.append(entered[-1].clamp(max=quota))
    return torch.stack(entered, -1)


def estimates(values: Mapping[str, Tensor], weights: Mapping[str, Tensor], units: Tensor | None) -> dict[str, Estimate]:
    """Return the mean of each metric over the requests on which it is defined, with its interval.

    Args:
        values: Values ``(R,)`` of each metric, NaN where it is undefined.
        weights: Weights ``(R,)`` of the requests in the mean, for metrics that have some.
        units: What the bootstrap draws.
    """
    if not values:
        return {}
    columns: list[Tensor] = []

    def place(column: Tensor) -> int:
        # most metrics are defined on the same requests: their counts are drawn once
        for known, other in enumerate(columns):
            if torch.equal(other, column):
                return known
        columns.append(column)
        return len(columns) - 1

    places = {}
    for name, value in values.items():
        weight = (~value.isnan()).double() * (weights[name].double().nan_to_num() if name in weights else 1.0)
        places[name] = place(value.double().nan_to_num() * weight), place(weight)
    table = torch.stack(columns, -1)
    sums = torch.cat([table.sum(0, keepdim=True), resampled_sums(table, units=units)])
    few = _count(units, len(table)) < 2
    return {name: _estimate(sums[:, of] / sums[:, by], few=few) for name, (of, by) in places.items()}


def _count(units: Tensor | None, requests: int) -> int:
    """Return the number of units that the bootstrap draws."""
    return requests if units is None else len(units.unique())


def _estimate(figures: Tensor, *, few: bool) -> Estimate:
    """Return the first figure, which is that of all requests, and the interval of the others."""
    low, high = interval(figures[1:])
    unknown = few or bool(figures[0].isnan())  # one unit says nothing about others
    return Estimate(float(figures[0]), *((torch.nan, torch.nan) if unknown else (float(low), float(high))))
