"""Figures of the stages of a cascade with confidence intervals: what each stage kept, lost, and what chance would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall._results import Number, Result
from rankfall.metrics.bootstrap import interval, resampled_sums, sums_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor


@dataclass(frozen=True)
class Estimate(Result):
    """A figure and its 95 % bootstrap interval."""

    value: Number
    low: Number
    high: Number

    def columns(self, name: str) -> dict[str, Any]:
        """Return the figure and its interval as columns `name`, `name_low` and `name_high` of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


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

    def row(self) -> dict[str, Any]:
        """Return the stage as a row of a table."""
        return {
            "stage": self.stage,
            "quota": self.quota,
            "entered": self.entered,
            **self.kept.columns("kept"),
            "chance": self.chance,
            **self.lost.columns("lost"),
            **self.survived.columns("survived"),
            "loss_share": self.loss_share.value,
        }


@dataclass(frozen=True)
class ListFigures(Result):
    """How long the measured lists were, beside the number of items that a service would rank."""

    mean_length: Number
    longest: int
    catalogue: int
    """Number of items that were in the log by the end of the last measured day."""
    all_items: bool
    """Whether every item of the catalogue was ranked (``data.length: all``)."""


class Resampler:
    """Sums of columns over all requests and over bootstrap resamples of them.

    All columns are summed over the same draws, and equal columns once, so figures of one evaluation can share one.

    Args:
        units: What the bootstrap draws, as in :func:`~rankfall.metrics.bootstrap.resampled_sums`.
    """

    def __init__(self, units: Tensor | None = None) -> None:
        self.units = units
        self._columns: list[Tensor] = []
        self._sums: list[Tensor] = []

    def place(self, column: Tensor) -> int:
        """Add a column ``(R,)`` without NaN, and return its place."""
        for known, other in enumerate(self._columns):
            if torch.equal(other, column):
                return known
        self._columns.append(column)
        return len(self._columns) - 1

    def __getitem__(self, place: int) -> Tensor:
        """Return the sum of a column over all requests, followed by its sum over each resample."""
        if place >= len(self._sums):
            new = torch.stack(self._columns[len(self._sums) :], -1)
            sums = torch.cat([new.sum(0, keepdim=True), resampled_sums(new, units=self.units)])
            self._sums += sums.unbind(-1)
        return self._sums[place]

    def are_few(self, place: int) -> bool:
        """Return whether fewer than two units have a request with a value above 0 in a column."""
        return bool(self._are_few(self._columns[place].unsqueeze(-1)))

    def per_unit(self, columns: Tensor) -> Tensor:
        """Return the sums ``(units, C)`` of values ``(R, C)`` per request."""
        return columns if self.units is None else sums_by(self.units, columns)

    def ratios(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Estimate]:
        """Return ratios of sums over all requests with their intervals. The columns are not kept.

        Drawing the samples takes most of the time, so it is faster to pass all ratios in one call.

        Args:
            pairs: Values ``(R,)`` per request in the numerator and in the denominator of each ratio. A ratio is NaN if
                its denominator is 0; draws with such a denominator are left out of its interval.
        """
        above, below = (torch.stack([column.double() for column in side], -1) for side in zip(*pairs, strict=True))
        return self._ratios(above, below)

    def means(self, values: Iterable[Tensor]) -> list[Estimate]:
        """Return means of values ``(R,)`` per request with their intervals. The columns are not kept."""
        above = torch.stack([column.double() for column in values], -1)
        return self._ratios(above, torch.ones_like(above[:, :1]))

    def _ratios(self, above: Tensor, below: Tensor) -> list[Estimate]:
        """Return the ratios of columns ``(R, C)``; the denominators ``(R, C)`` or ``(R, 1)``."""
        columns = torch.cat([above, below], -1)
        sums = torch.cat([columns.sum(0, keepdim=True), resampled_sums(columns, units=self.units)])
        numerators, denominators = sums.split([above.shape[1], below.shape[1]], -1)
        figures = torch.where(denominators > 0, numerators / denominators, torch.nan)
        few = self._are_few(below).expand(above.shape[1]).tolist()
        return [_estimate(figure, few=one) for figure, one in zip(figures.unbind(-1), few, strict=True)]

    def _are_few(self, columns: Tensor) -> Tensor:
        """Return for columns ``(R, C)`` whether fewer than two units have a request with a value above 0."""
        return (self.per_unit((columns > 0).double()) > 0).sum(0) < 2


def stage_figures(
    stages: Sequence[str],
    quotas: Sequence[int],
    left: Tensor,
    ranked: Tensor,
    *,
    alone: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
    resampler: Resampler | None = None,
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
        resampler: Sums of the same requests that other figures have drawn. Default: one of `units`.
    """
    resampler = resampler or Resampler(units)
    counts = ~left.isnan().any(-1)
    entered = items_entered(ranked[counts], quotas)
    # Requests that do not count are drawn too, as in `estimates`, so that equal figures have equal intervals.
    shares = [counts.double(), *(left.nan_to_num().double() * counts.unsqueeze(-1)).unbind(-1)]
    by_itself = {name: values.nan_to_num().double() * counts for name, values in (alone or {}).items()}
    places = [resampler.place(column) for column in shares]
    places_alone = {name: resampler.place(column) for name, column in by_itself.items()}
    few = resampler.are_few(places[0])
    sums = [resampler[place] for place in places]
    figures = []
    for t, (stage, quota) in enumerate(zip(stages, quotas, strict=True)):
        arrived, lost = shares[t][counts], sums[t] - sums[t + 1]
        by_chance = (quota / entered[:, t]).clamp(max=1.0)
        is_alone = stage in places_alone
        figures.append(
            StageFigures(
                stage=stage,
                quota=quota,
                entered=float(entered[:, t].mean()),
                survived=_estimate(sums[t + 1] / sums[0], few=few),
                kept=_estimate(sums[t + 1] / sums[t], few=few),
                chance=float((arrived * by_chance).sum() / arrived.sum()),
                lost=_estimate(lost / sums[0], few=few),
                loss_share=_estimate(lost / (sums[0] - sums[-1]), few=few),
                alone=_estimate(resampler[places_alone[stage]] / sums[0], few=few) if is_alone else None,
                alone_chance=float((quota / ranked[counts]).clamp(max=1.0).mean()) if is_alone else None,
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


def estimates(values: Mapping[str, Tensor], wholes: Mapping[str, Tensor], resampler: Resampler) -> dict[str, Estimate]:
    """Return the mean of each metric over the requests on which it is defined, with its interval.

    Args:
        values: Values ``(R,)`` of each metric, NaN where it is undefined.
        wholes: For metrics that are pooled over requests, what the values ``(R,)`` are parts of: the figure is the sum
            of the values divided by the sum of these.
        resampler: Sums over the requests.
    """
    places = {}
    for name, value in values.items():
        whole = wholes[name].double().nan_to_num() if name in wholes else (~value.isnan()).double()
        places[name] = resampler.place(value.double().nan_to_num()), resampler.place(whole)
    few = {whole: resampler.are_few(whole) for whole in {whole for _, whole in places.values()}}
    return {
        name: _estimate(resampler[part] / resampler[whole], few=few[whole]) for name, (part, whole) in places.items()
    }


def _estimate(figures: Tensor, *, few: bool) -> Estimate:
    """Return the first figure, which is that of all requests, and the interval of the others."""
    low, high = interval(figures[1:])
    unknown = few or bool(figures[0].isnan())  # one unit says nothing about others
    return Estimate(float(figures[0]), *((torch.nan, torch.nan) if unknown else (float(low), float(high))))
