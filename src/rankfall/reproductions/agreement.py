"""How far the order of methods here is the published one. Only pairs that differ by more than their interval count."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall.metrics.significance import student_quantile
from rankfall.reproductions.paper_schema import Measured, mean_of
from rankfall.studies.compare import LEAST_SEEDS, LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rankfall.reproductions.paper_schema import PrintedNumber
    from rankfall.studies.results import ComparisonResult

    Apart = Callable[[str, str], bool]  # whether two methods are distinguishable

NO_CLAIM = "too few seeds: no claim"
ROWS = ("pairs in published order", "not distinguishable here", "not distinguishable in print")  # of sheets


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs of methods that a paper and we have both measured.

    Attributes:
        same: Pairs that are distinguishable here and in print, in the same order.
        opposite: Those in the opposite order.
        open_here: Pairs that are distinguishable in print, but not here.
        open_in_print: Pairs that are not distinguishable in print.
        same_means: Pairs whose means have the published order, whether distinguishable or not.
        printed_pairs: Pairs with different printed means.
        claims: Whether we have three seeds or more. Fewer say nothing about the order of methods.
    """

    same: int
    opposite: int
    open_here: int
    open_in_print: int
    same_means: int
    printed_pairs: int
    claims: bool = True

    def __str__(self) -> str:
        """As in ``12 of 14 in order, 7 not distinguishable here, 3 not distinguishable in print``."""
        if not self.claims:
            return NO_CLAIM
        counts = f"{self.same} of {self.same + self.opposite} in order"
        return f"{counts}, {self.open_here} not distinguishable here, {self.open_in_print} not distinguishable in print"

    def cells(self) -> list[str]:
        """The cells of a column below the headings `ROWS`."""
        if not self.claims:
            return [NO_CLAIM, "", str(self.open_in_print)]
        return [f"{self.same} of {self.same + self.opposite}", str(self.open_here), str(self.open_in_print)]

    def to_json(self) -> dict[str, Any]:
        """Content of ``results.json``; without a claim, only what is in print."""
        counts = {"same": self.same, "opposite": self.opposite, "not_distinguishable_here": self.open_here}
        return {
            "claim": self.claims,
            **(counts if self.claims else {}),
            "not_distinguishable_in_print": self.open_in_print,
            "text": str(self),
        }


def agreement(
    ours: Mapping[str, float], printed: Mapping[str, PrintedNumber], apart: Apart | None, *, runs: int = 5
) -> Agreement:
    """Compare the order of the methods that both have.

    Args:
        ours: Our means by name.
        printed: Printed numbers by name.
        apart: Whether two methods are distinguishable here. None: too few seeds, so nothing is claimed.
        runs: Training runs behind a printed standard deviation.

    Returns:
        The counts.

    Examples:
        >>> printed = {"a": 0.9, "b": 0.7, "c": 0.8, "d": 0.7}
        >>> str(agreement({"a": 0.4, "b": 0.2, "c": 0.1, "d": 0.3}, printed, lambda *pair: pair != ("a", "d")))
        '2 of 4 in order, 1 not distinguishable here, 1 not distinguishable in print'
    """
    names = [name for name in printed if name in ours and mean_of(printed[name]) is not None]
    same = opposite = open_here = open_in_print = same_means = printed_pairs = 0
    for first, second in itertools.combinations(names, 2):
        there = _difference(printed[first], printed[second])
        here = ours[first] - ours[second]
        printed_pairs += there != 0
        same_means += here * there > 0
        if not apart_in_print(printed[first], printed[second], runs=runs):
            open_in_print += 1
        elif apart is None or not apart(first, second):
            open_here += 1
        elif here * there > 0:
            same += 1
        else:
            opposite += 1
    return Agreement(same, opposite, open_here, open_in_print, same_means, printed_pairs, claims=apart is not None)


def apart_in_print(first: PrintedNumber, second: PrintedNumber, *, runs: int) -> bool:
    """Whether two printed numbers differ by more than their 95 % interval.

    The interval is Welch's if both have a standard deviation. Else only the rounding is known, and any two different
    numbers differ by more than that.

    >>> apart_in_print(Measured(value=0.8732, std=0.0005), Measured(value=0.8678, std=0.0009), runs=5)
    True
    >>> apart_in_print(Measured(value=0.8678, std=0.0009), Measured(value=0.8666, std=0.0016), runs=5)
    False
    """
    difference = abs(_difference(first, second))
    if not isinstance(first, Measured) or not isinstance(second, Measured) or runs < 2:
        return difference > 0
    variances = [first.std**2 / runs, second.std**2 / runs]
    if sum(variances) == 0:
        return difference > 0
    freedom = sum(variances) ** 2 / sum(variance**2 / (runs - 1) for variance in variances)
    return difference > student_quantile(0.025, freedom) * math.sqrt(sum(variances))


def apart_here(comparison: ComparisonResult, metric: str, labels: Mapping[str, str]) -> Apart | None:
    """Return whether two methods differ at 5 % over seeds and queries, or None if there are too few seeds.

    Args:
        comparison: Our comparison.
        metric: The metric.
        labels: Names in the comparison, by the names that are asked for.
    """
    if len(comparison.seeds) < LEAST_SEEDS:
        return None
    differing = {
        frozenset((pair.first, pair.second))
        for pair in comparison.pairs
        if pair.metric == metric and pair.p_value < LEVEL
    }
    return lambda first, second: frozenset((labels[first], labels[second])) in differing


def agreement_rows(columns: Iterable[Agreement | None]) -> list[list[str]]:
    """Return the rows of a sheet that show agreement; columns without one are empty, and empty rows are left out."""
    cells = [["", "", ""] if one is None else one.cells() for one in columns]
    return [[heading, *of] for heading, *of in zip(ROWS, *cells, strict=True) if any(of)]


def _difference(first: PrintedNumber, second: PrintedNumber) -> float:
    """Return the difference of two numbers that are printed."""
    return float(mean_of(first) or 0) - float(mean_of(second) or 0)
