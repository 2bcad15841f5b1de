"""Text of figures with intervals."""

from __future__ import annotations

import math

from rankfall.reporting.blocks import Cell, estimate_cell, percent, share_cell, with_interval
from rankfall.training.cascade_metrics import Estimate

KNOWN = Estimate(0.125, 0.1, 0.15)
ALONE = Estimate(0.125, math.nan, math.nan)
NOTHING = Estimate(math.nan, math.nan, math.nan)


def test_figures_have_their_intervals() -> None:
    assert with_interval(KNOWN) == "0.1250 [0.1000, 0.1500]"
    assert with_interval(KNOWN, "+.2f") == "+0.12 [+0.10, +0.15]"
    assert share_cell(KNOWN).line() == "12.5 % [10.0, 15.0]"
    assert share_cell(KNOWN).below == "10.0 to 15.0"
    assert estimate_cell(KNOWN, "{:.3f}".format, "best") == Cell("0.125", "best", ends=("0.100", "0.150"))


def test_unknown_intervals_are_left_out() -> None:
    assert with_interval(ALONE) == "0.1250"
    assert (share_cell(ALONE).line(), share_cell(ALONE).below) == ("12.5 %", "")
    assert estimate_cell(ALONE, "{:.3f}".format) == Cell("0.125")


def test_undefined_figures() -> None:
    assert (percent(math.nan), share_cell(NOTHING).line()) == ("-", "-")
    assert estimate_cell(NOTHING, "{:.3f}".format) == Cell("none")
