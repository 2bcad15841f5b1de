"""Ratios of measurements that were taken in turns."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95


@dataclass(frozen=True)
class MedianRatio:
    """The median of ratios, with an interval for the median of infinitely many turns.

    Attributes:
        value: The median.
        low: Lower end of the interval, which makes no assumption about the distribution of the ratios. None if there
            are fewer than six of them, too few for any interval.
        high: Upper end.
    """

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """Return the median and the interval with two decimals."""
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"


def median_ratio(own: Sequence[float], others: Sequence[float]) -> MedianRatio:
    """Return the median of the ratios of paired measurements.

    >>> print(median_ratio([2, 4, 6, 8, 10, 12], [2] * 6))
    3.50 [1.00, 6.00]
    >>> print(median_ratio([2, 4], [2, 2]))
    1.50
    """
    ratios = sorted(one / other for one, other in zip(own, others, strict=True))
    left_out = _left_out(len(ratios))
    ends = (None, None) if left_out is None else (ratios[left_out], ratios[-1 - left_out])
    return MedianRatio(statistics.median(ratios), *ends)


def _left_out(count: int) -> int | None:
    """Return how many values at each end are outside of the interval; None if all of them do not reach the confidence.

    The number of values below the median has a binomial distribution with probability 1/2.
    """
    left_out, outside = None, 0.0
    for place in range(count // 2):
        outside += 2 * math.comb(count, place) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        left_out = place
    return left_out
