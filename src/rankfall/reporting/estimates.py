"""Figures and their 95 % intervals as text, the same in tables of the terminal and on pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankfall.training.cascade_metrics import Estimate


def with_interval(one: Estimate, shape: str = ".4f") -> str:
    """Return a figure and its interval, which is left out if it is unknown.

    Args:
        one: The figure.
        shape: Format of the numbers, such as ``"+.4f"`` for differences.
    """
    if math.isnan(one.low):
        return f"{one.value:{shape}}"
    return f"{one.value:{shape}} [{one.low:{shape}}, {one.high:{shape}}]"


def percent(share: float) -> str:
    """Return a share in percent with one decimal, "-" for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def percents(one: Estimate) -> str:
    """Return a share and its interval in percent."""
    return percent(one.value) if math.isnan(one.low) else f"{percent(one.value)} [{_ends(one, ', ')}]"


def percent_ends(one: Estimate) -> str:
    """Return the interval of a share in percent, nothing if it is unknown."""
    return "" if math.isnan(one.low) else _ends(one, " to ")


def _ends(one: Estimate, between: str) -> str:
    return f"{100 * one.low:.1f}{between}{100 * one.high:.1f}"
