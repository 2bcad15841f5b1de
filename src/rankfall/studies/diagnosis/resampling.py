"""Bootstrap intervals of means and ratios of sums over requests or users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rankfall.metrics.bootstrap import interval, resampled_sums
from rankfall.training.stage_figures import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Resampler:
    """Draws requests, or users with all of their requests, with replacement; every figure is computed on these draws.

    Args:
        users: Number ``(R,)`` of the user of each request, from 0; by default every request is drawn by itself.
    """

    def __init__(self, users: Tensor | None = None) -> None:
        self.users = users

    def per_user(self, values: Tensor) -> Tensor:
        """Return the sums ``(users, ...)`` of values ``(R, ...)`` per request."""
        if self.users is None:
            return values
        return values.new_zeros((int(self.users.max()) + 1, *values.shape[1:])).index_add_(0, self.users, values)

    def ratios(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Estimate]:
        """Return ratios of sums over all requests, and their intervals.

        The draws take most of the time, so that many ratios at once cost little more than one.

        Args:
            pairs: Values ``(R,)`` per request in the numerator and in the denominator of each ratio. A ratio is NaN if
                its denominator is 0; draws with such a denominator are left out of its interval.
        """
        columns = torch.stack([column.double() for pair in pairs for column in pair], -1)
        sums = torch.cat([columns.sum(0, keepdim=True), resampled_sums(columns, units=self.users)])
        above, below = sums[:, ::2], sums[:, 1::2]
        figures = torch.where(below > 0, above / below, torch.nan)
        low, high = interval(figures[1:])
        return [
            Estimate(float(value), *((float(a), float(b)) if value == value else (torch.nan, torch.nan)))
            for value, a, b in zip(figures[0], low, high, strict=True)
        ]

    def means(self, values: Sequence[Tensor]) -> list[Estimate]:
        """Return the means of values ``(R,)`` per request, and their intervals."""
        return self.ratios([(one, torch.ones_like(one)) for one in values])
