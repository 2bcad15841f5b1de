"""The bounds of LCRON's survival probability on drawn scores, checked by enumeration of all sets.

The paper models the first stage as a draw of q1 items, a set pi with a probability proportional to the product of its
items' P_M1 (eq. 6), and defines the survival P_CS as an expectation over these sets (eq. 7). It then states that
E(pi) = P_M1, that P_M1 * P_M2 is a lower bound of P_CS (eq. 8), and that the gap is at most Delta' (eq. 14). Short
lists have few sets, so that every expectation here is exact.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall.ops import topk
from rankfall.reporting.figures import Lines
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rankfall.reproductions.paper_schema import Number, SurvivalBounds
    from rankfall.reproductions.task import Task

# --- survival -----------------------------------------------------------------------------------------------------

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


# --- cases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    operator: str
    correlation: Number
    survival: Survival


def _cases(reproduction: SurvivalBounds, operator: dict[str, Any], seed: int) -> Iterator[_Case]:
    """Draw scores for every length, quotas and correlation of the two stages."""
    generator = torch.Generator().manual_seed(seed)
    select = topk(**operator)
    for n, correlation in itertools.product(reproduction.lengths, reproduction.correlations):
        noise = torch.randn(2, reproduction.lists, n, generator=generator, dtype=torch.double)
        scores = noise[0], correlation * noise[0] + (1 - correlation**2) ** 0.5 * noise[1]
        for first, last in itertools.combinations(range(n - 1, 0, -1), 2):  # the first stage keeps more
            inclusions = (select(scores[0], first), select(scores[1], last))
            yield _Case(_name(operator), correlation, survival_of(*inclusions, quota=first))


def _name(operator: dict[str, Any]) -> str:
    return ", ".join([operator["name"], *(f"{key} = {value:g}" for key, value in operator.items() if key != "name")])


def run(reproduction: SurvivalBounds, task: Task) -> Report:
    """Check the claims for every operator."""
    cases = []
    for number, operator in enumerate(reproduction.operators):
        task.progress(_name(operator), number, len(reproduction.operators))
        cases += list(_cases(reproduction, operator, task.seed))
    names = [_name(operator) for operator in reproduction.operators]
    checks = {name: check_claims(one.survival for one in cases if one.operator == name) for name in names}
    return Report(
        sheets=[_sheet(reproduction.title, name, of) for name, of in checks.items()],
        plots={reproduction.id: _figure(reproduction, cases)},
        results={
            "lengths": reproduction.lengths,
            "correlations": reproduction.correlations,
            "lists_per_setting": reproduction.lists,
            "checks": {name: [asdict(one) for one in of] for name, of in checks.items()},
        },
        notes=reproduction.notes,
    )


def _sheet(title: str, operator: str, checks: Sequence[Check]) -> Sheet:
    rows = [
        [one.claim, f"{one.failures:,} of {one.items:,}", f"{one.failures / one.items:.1%}", f"{one.worst:.3g}"]
        for one in checks
    ]
    return Sheet(f"{title}: {operator}", ["claim", "fails for items", "share", "worst by"], rows)


def _figure(reproduction: SurvivalBounds, cases: Sequence[_Case]) -> Lines:
    """Draw the share of items for which each claim fails, by the correlation of the stages."""
    rows = []
    for operator, correlation in dict.fromkeys((one.operator, one.correlation) for one in cases):
        group = [one.survival for one in cases if (one.operator, one.correlation) == (operator, correlation)]
        rows += [
            {"panel": operator, "series": one.claim, "x": correlation, "y": one.failures / one.items}
            for one in check_claims(group)
        ]
    return Lines(
        rows,
        title=f"{reproduction.title}: share of items for which a claim fails",
        subtitle="all sets that the first stage can keep are enumerated",
        x="correlation of the scores of both stages",
        y="share of items",
        series="claim",
    )
