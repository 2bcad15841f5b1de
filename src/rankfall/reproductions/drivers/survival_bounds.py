"""The bounds of LCRON's survival probability on drawn scores; :mod:`rankfall.metrics.cascade_survival` checks them."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from rankfall.metrics.cascade_survival import Survival, check_claims, survival_of
from rankfall.ops import topk
from rankfall.reporting.figures import Lines
from rankfall.reproductions.task import Report, Sheet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rankfall.metrics.cascade_survival import Check
    from rankfall.reproductions.paper_schema import Number, SurvivalBounds
    from rankfall.reproductions.task import Task

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
