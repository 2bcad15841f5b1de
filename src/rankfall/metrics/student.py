"""Student's t distribution, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache


def student_survival(t: float, freedom: float) -> float:
    """Probability that Student's t with `freedom` degrees of freedom exceeds `t`.

    >>> round(student_survival(1.0, freedom=1.0), 4)  # Cauchy: 1/2 - atan(1) / pi
    0.25
    """
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, odds=t * t / freedom)
    return tail if t > 0 else 1 - tail


@lru_cache(maxsize=1024)  # tests over the same queries have the same degrees of freedom
def student_quantile(tail: float, freedom: float) -> float:
    """The t > 0 that is exceeded with the probability `tail` < 1/2, by bisection."""
    high = 1.0
    while student_survival(high, freedom) > tail:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_survival(middle, freedom) > tail else (low, middle)
    return middle


def _incomplete_beta(p: float, q: float, *, odds: float) -> float:
    """Regularised incomplete beta function I_x(p, q) at x = 1 / (1 + odds)."""
    if odds == 0:
        return 1.0
    log_x, log_rest = -math.log1p(odds), math.log(odds) - math.log1p(odds)
    front = math.exp(p * log_x + q * log_rest + math.lgamma(p + q) - math.lgamma(p) - math.lgamma(q))
    x = 1 / (1 + odds)
    # The fraction converges fast below the mean of the distribution, and I_x(p, q) = 1 - I_{1-x}(q, p).
    if x < (p + 1) / (p + q + 2):
        return front * _beta_fraction(p, q, x) / p
    return 1 - front * _beta_fraction(q, p, odds / (1 + odds)) / q


def _beta_fraction(p: float, q: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    tiny = 1e-300  # stands for a zero denominator
    value, numerator, denominator = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        half = step // 2
        if step % 2 == 0:
            term = half * (q - half) * x / ((p + step - 1) * (p + step))
        else:
            term = -(p + half) * (p + q + half) * x / ((p + step - 1) * (p + step))
        denominator = 1 / ((1 + term * denominator) or tiny)
        numerator = (1 + term / numerator) or tiny
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-15:
            break
    return 1 / value
