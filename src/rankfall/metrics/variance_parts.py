"""Parts of the variance of a mean over training runs and queries, for the test over both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class VariancePart(NamedTuple):
    """An estimate of a part of a variance, with its degrees of freedom."""

    variance: float
    freedom: float


def between_runs(values: Tensor, sizes: Sequence[int]) -> list[VariancePart]:
    """Return the variance of the overall mean that comes from runs, for each fold."""
    runs, queries = values.shape
    if runs < 2:  # only a test over queries gets here
        return []
    return [
        VariancePart(float(fold.mean(1).var()) / runs * (fold.shape[1] / queries) ** 2, runs - 1)
        for fold in values.split(list(sizes), 1)
    ]


def within_runs(values: Tensor, sizes: Sequence[int]) -> list[VariancePart]:
    """Return the variance of the overall mean that comes from single values, neither from runs nor from queries."""
    runs, queries = values.shape
    parts = []
    for fold in values.split(list(sizes), 1):
        freedom = (runs - 1) * (fold.shape[1] - 1)
        if freedom > 0:
            rest = fold - fold.mean(0) - fold.mean(1, keepdim=True) + fold.mean()
            variance = float(rest.square().sum()) / freedom
            parts.append(VariancePart(variance * fold.shape[1] / runs / queries**2, freedom))
    return parts


def total_variance(parts: Sequence[VariancePart]) -> float:
    """Return the sum of the parts."""
    return sum(part.variance for part in parts)


def satterthwaite(variance: float, parts: Sequence[VariancePart]) -> float:
    """Return the degrees of freedom of a sum of independent variances.

    A sum never has fewer than its part with the fewest. A part that is subtracted can leave next to nothing, for which
    the formula gives nearly 0.
    """
    freedom = variance**2 / sum(part.variance**2 / part.freedom for part in parts)
    return max(freedom, min(part.freedom for part in parts))
