"""Bootstrap intervals of means and ratios (Efron and Tibshirani 1993): requests, or users, are drawn again and again.

A figure is a function of sums over requests: a mean is a sum of values divided by a count, a ratio of means is a sum
divided by another sum. So all figures of an evaluation share one set of resampled sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall._checks import check_count, check_none, check_share

if TYPE_CHECKING:
    from jaxtyping import Float, Integer

RESAMPLES = 1000
MOST_RESAMPLES = 10**7
LARGEST_VALUE = 1e25  # whose sums over requests are finite in float32
LEVEL = 0.95  # of confidence intervals
_DRAWN_AT_ONCE = 1 << 21  # draws in memory: 16 MB of indices, and 8 MB of counts


def resampled_sums(
    columns: Float[Tensor, "requests columns"],
    *,
    units: Integer[Tensor, " requests"] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Float[Tensor, "resamples columns"]:
    """Draw as many requests as there are, with replacement, and return the sums of their values for each resample.

    Args:
        columns: Values of each request, without NaN.
        units: What is drawn: requests with the same number, such as those of one user, are drawn together. Default:
            every request by itself.
        resamples: Number of resamples.
        seed: Seed of the draws.

    Returns:
        One row of sums per resample.

    Examples:
        Two requests with the values 0 and 1 are drawn as (0, 0), (0, 1), (1, 0) or (1, 1):

        >>> sums = resampled_sums(torch.tensor([[0.0], [1.0]]), resamples=4000)
        >>> sums.unique().tolist(), round(float((sums == 1).double().mean()), 1)
        ([0.0, 1.0, 2.0], 0.5)
    """
    check_count("resamples", resamples, most=MOST_RESAMPLES)
    check_none("columns", ~(columns.detach().abs() <= LARGEST_VALUE), f"NaN, inf or numbers beyond {LARGEST_VALUE:g}")
    values = columns.float() if units is None else sums_by(units, columns).float()
    count = len(values)
    if count == 0:
        return torch.zeros(resamples, columns.shape[1], dtype=torch.double)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _DRAWN_AT_ONCE // count)
    blocks = [min(rows, resamples - first) for first in range(0, resamples, rows)]
    return torch.cat([_counts(block, count, generator) @ values for block in blocks]).double()


def sums_by(
    units: Integer[Tensor, " requests"], columns: Float[Tensor, "requests columns"]
) -> Float[Tensor, "units columns"]:
    """Return the sums of the values of each unit, in the order of the numbers of the units."""
    found, place = units.unique(return_inverse=True)
    return columns.new_zeros(len(found), columns.shape[1], dtype=torch.double).index_add(0, place, columns.double())


def _counts(rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Return how often each of `count` units is drawn in each of `rows` resamples."""
    drawn = torch.randint(count, (rows, count), generator=generator, dtype=torch.int32).long()
    return torch.zeros(rows, count).scatter_add_(1, drawn, torch.ones(()).expand(rows, count))


def interval(figures: Tensor, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """Return both ends of the percentile interval of figures ``(resamples, ...)``.

    Resamples in which a figure is undefined (NaN) are left out.
    """
    check_share("level", level)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=figures.dtype)
    low, high = figures.nanquantile(tails, dim=0)
    return low, high
