"""Bootstrap intervals of many ratios of sums over requests at once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rankfall._lists import safe_divide
from rankfall.training.stage_figures import Estimate

if TYPE_CHECKING:
    from torch import Tensor

DRAWS = 1000
SEED = 0
_LEVELS = (0.025, 0.975)
_BLOCK = 100  # draws that are summed at once


class Resampler:
    """Draws requests, or users with all of their requests, with replacement.

    Every figure is computed on the same draws.

    Args:
        groups: Number ``(R,)`` of the user of each request, from 0; by default every request is drawn by itself.
        requests: Number of requests.
    """

    def __init__(self, requests: int, groups: Tensor | None = None) -> None:
        self.requests = requests
        self.groups = torch.arange(requests) if groups is None else groups
        self.count = int(self.groups.max()) + 1

    @cached_property
    def _draws(self) -> Tensor:
        """How often each group is in each draw, ``(draws, groups)`` uint8."""
        generator = torch.Generator().manual_seed(SEED)
        drawn = torch.empty((DRAWS, self.count), dtype=torch.uint8)
        for draw in drawn:
            chosen = torch.randint(self.count, (self.count,), generator=generator)
            draw[:] = torch.bincount(chosen, minlength=self.count).clamp_(max=255)
        return drawn

    def per_group(self, values: Tensor) -> Tensor:
        """Return the sums ``(groups, ...)`` of values ``(R, ...)`` per request."""
        if self.count == self.requests:
            return values
        return values.new_zeros((self.count, *values.shape[1:])).index_add_(0, self.groups, values)

    def ratios(self, numerator: Tensor, denominator: Tensor) -> list[Estimate]:
        """Return the ratio of the sums over all requests, and its interval, for each column.

        Args:
            numerator: Values ``(R, columns)``.
            denominator: Values ``(R, columns)``; draws in which their sum is 0 are left out.
        """
        value = safe_divide(numerator.double().sum(0), denominator.double().sum(0))
        both = self.per_group(torch.cat([numerator, denominator], -1).float())
        sums = torch.cat([self._draws[at : at + _BLOCK].float() @ both for at in range(0, DRAWS, _BLOCK)])
        above, below = sums.double().chunk(2, -1)
        drawn = torch.where(below > 0, above / below, torch.nan)
        low, high = drawn.nanquantile(torch.tensor(_LEVELS, dtype=torch.double), dim=0)
        nothing = denominator.sum(0) <= 0
        return [
            Estimate(float(v), float(a), float(b))
            for v, a, b in zip(
                value.masked_fill(nothing, torch.nan),
                low.masked_fill(nothing, torch.nan),
                high.masked_fill(nothing, torch.nan),
                strict=True,
            )
        ]

    def ratio(self, numerator: Tensor, denominator: Tensor) -> Estimate:
        """Return the ratio of the sums of two values ``(R,)`` per request, and its interval."""
        return self.ratios(numerator[:, None], denominator[:, None])[0]

    def mean(self, values: Tensor) -> Estimate:
        """Return the mean of values ``(R,)``, and its interval."""
        return self.ratio(values, torch.ones_like(values))
