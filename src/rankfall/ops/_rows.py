"""Soft permutations whose rows are a softmax over the items: NeuralSort and SoftSort.

A row is computed when it is asked for, so k rows cost O(k n) and sums over all rows need no n x n matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_ZERO = -1e30
"""Logarithm of an entry that is 0 by definition: finite, so that no inf - inf turns up in a gradient."""

CHUNK = 1 << 20
"""About how many numbers to compute at a time where all rows are summed: what fits a CPU's cache."""


@dataclass(frozen=True)
class SoftRows:
    """`logits(start, stop)` gives the rows ``start .. stop - 1`` (counted from 0) before the softmax.

    `rest(start)`, if there is one, is a faster way to the sum of all rows from `start` on.
    """

    logits: Callable[[int, int], Tensor]
    shape: torch.Size
    mask: Tensor | None
    rest: Callable[[int], Tensor] | None = None

    def probabilities(self, start: int, stop: int) -> Tensor:
        """Rows (..., stop - start, n). Masked columns and ranks that a list does not have are 0."""
        if self.mask is None:
            return _pad(torch.softmax(self.logits(start, min(stop, self.shape[-1])), -1), stop - start, 0.0)
        rows = torch.softmax(self._masked_logits(start, stop), -1)
        return rows.masked_fill(self._void(start, stop), 0.0)

    def logarithms(self, start: int, stop: int) -> Tensor:
        """The logarithm of the same, `LOG_ZERO` where they are 0 by definition."""
        if self.mask is None:
            rows = torch.log_softmax(self.logits(start, min(stop, self.shape[-1])), -1)
            return _pad(rows, stop - start, LOG_ZERO)
        rows = torch.log_softmax(self._masked_logits(start, stop), -1)
        return rows.masked_fill(self._void(start, stop), LOG_ZERO)

    def log_rest(self, start: int) -> Tensor:
        """Logarithm of the sum of all rows from `start` on, (..., n), a few at a time and without gradient."""
        with torch.no_grad():
            total = self._filled(LOG_ZERO)
            for first, last in self._chunks(start):
                total = torch.logaddexp(total, torch.logsumexp(self.logarithms(first, last), -2))
        return total

    def sum_rest(self, start: int) -> Tensor:
        """Sum of all rows from `start` on, (..., n), a few at a time and without gradient."""
        with torch.no_grad():
            if self.rest is not None:
                return self.rest(start)
            total = self._filled(0.0)
            for first, last in self._chunks(start):
                total = total + self.probabilities(first, last).sum(-2)
        return total

    def _chunks(self, start: int) -> list[tuple[int, int]]:
        stop = self.shape[-1]
        step = max(1, CHUNK // max(1, self.shape.numel()))
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]

    def _filled(self, value: float) -> Tensor:
        return torch.full_like(self.logits(0, 1).squeeze(-2), value)

    def _masked_logits(self, start: int, stop: int) -> Tensor:
        assert self.mask is not None
        return self.logits(start, stop).masked_fill(~self.mask.unsqueeze(-2), LOG_ZERO)

    def _void(self, start: int, stop: int) -> Tensor:
        """Entries that are 0 by definition."""
        assert self.mask is not None
        rank = torch.arange(start, stop, device=self.mask.device).unsqueeze(-1)
        beyond = rank >= self.mask.sum(-1)[..., None, None]
        return beyond | ~self.mask.unsqueeze(-2)


def _pad(rows: Tensor, count: int, value: float) -> Tensor:
    """Rows for ranks beyond the number of items, so that `count` rows come out whatever n is."""
    missing = count - rows.shape[-2]
    return torch.nn.functional.pad(rows, (0, 0, 0, missing), value=value) if missing > 0 else rows
