"""The bounds of LCRON's survival probability, checked by enumeration of all sets that the first stage can keep.

The paper models the first stage as a draw of q1 items, a set pi with a probability proportional to the product of its
items' P_M1 (eq. 6), and defines the survival P_CS as an expectation over these sets (eq. 7). It then states that
E(pi) = P_M1, that P_M1 * P_M2 is a lower bound of P_CS (eq. 8), and that the gap is at most Delta' (eq. 14). Short
lists have few sets, so that every expectation here is exact.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLACK = 1e-9  # differences below this are rounding


@dataclass(frozen=True, slots=True)
class Survival:
    """What the paper compares, per item; tensors ``(lists, n)``.

    Attributes:
        first: P_M1, the inclusion of the first stage.
        last: P_M2, the inclusion of the last stage.
        drawn: E(pi), the probability that an item is in the set that the first stage keeps (eq. 6).
        survives: P_CS (eq. 7).
        quota: Number of items that the first stage keeps.
    """

    first: Tensor
    last: Tensor
    drawn: Tensor
    survives: Tensor
    quota: int

    @property
    def product(self) -> Tensor:
        """The lower bound of eq. 8."""
        return self.first * self.last

    @property
    def gap_bound(self) -> Tensor:
        """The upper bound Delta' of the gap, eq. 14."""
        return self.last * (self.last.sum(-1, keepdim=True) / self.product.sum(-1, keepdim=True) - 1)

    @property
    def least_gap_bound(self) -> Tensor:
        """Delta' if the first stage keeps exactly the best items of the last, eq. 15."""
        kept = self.last.topk(self.quota).values.sum(-1, keepdim=True)
        return self.last * (self.last.sum(-1, keepdim=True) / kept - 1)


def survival_of(first: Tensor, last: Tensor, quota: int) -> Survival:
    """Enumerate the sets of `quota` items.

    Args:
        first: P_M1, positive numbers ``(lists, n)``.
        last: P_M2, positive numbers ``(lists, n)``.
        quota: Number of items that the first stage keeps.
    """
    n = first.shape[-1]
    rows = [[float(item in chosen) for item in range(n)] for chosen in itertools.combinations(range(n), quota)]
    sets = first.new_tensor(rows)  # (sets, n)
    probability = (first.log() @ sets.T).softmax(-1)  # (lists, sets)
    kept = (last @ sets.T) / last.sum(-1, keepdim=True)  # the share of the last stage's inclusion in each set
    return Survival(first, last, probability @ sets, last * ((probability / kept) @ sets), quota)


# --- claims -------------------------------------------------------------------------------------------------------

CLAIMS: dict[str, Callable[[Survival], Tensor]] = {  # by how much an item violates the claim; negative: it holds
    "E(pi) = P_M1 (section 4.3)": lambda one: (one.drawn - one.first).abs(),
    "P_CS >= E(pi) P_M2 (eq. 8, line 2)": lambda one: one.drawn * one.last - one.survives,
    "P_CS >= P_M1 P_M2 (eq. 8)": lambda one: one.product - one.survives,
    "P_CS - P_M1 P_M2 <= Delta' (eq. 14)": lambda one: one.survives - one.product - one.gap_bound,
    "Delta' = 0 if both keep the same items (eq. 15)": lambda one: one.least_gap_bound,
    "P_CS <= 1": lambda one: one.survives - 1,
}


@dataclass(frozen=True, slots=True)
class Check:
    """How often a claim fails.

    Attributes:
        claim: The claim.
        items: Number of items it was checked for.
        failures: Number of items for which it fails.
        worst: The largest violation, 0 if it never fails.
    """

    claim: str
    items: int
    failures: int
    worst: float


def check_claims(cases: Iterable[Survival]) -> list[Check]:
    """Check every claim for every item of the cases."""
    found = list(cases)
    checks = []
    for claim, violation in CLAIMS.items():
        values = torch.cat([violation(one).flatten() for one in found])
        worst = max(0.0, float(values.max()))
        checks.append(Check(claim, len(values), int((values > SLACK).sum()), worst if worst > SLACK else 0.0))
    return checks
