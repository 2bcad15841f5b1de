"""LCRON's bounds of the survival: the enumeration against two other ones, and what the report says about them."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

import pytest
import torch

from rankfall.ops import topk
from rankfall.reproductions.catalogue import run
from rankfall.reproductions.data import DataSource
from rankfall.reproductions.operator_properties import CLAIMS, check_claims, survival_of
from rankfall.reproductions.paper_schema import SurvivalBounds
from rankfall.reproductions.task import Size, Task
from support.reproductions import check_figures, check_report, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    Numbers = Sequence[Fraction]

EQUAL_MEANS, AT_LEAST_DRAWN, AT_LEAST_PRODUCT, GAP, NO_GAP, AT_MOST_ONE = CLAIMS


def by_bit_masks(first: Numbers, last: Numbers, quota: int) -> tuple[list[Fraction], list[Fraction]]:
    """E(pi) and P_CS from all 2^n subsets as bit masks, of which those of the right size count; exact fractions."""
    n, total = len(first), Fraction(0)
    drawn, survives = [Fraction(0)] * n, [Fraction(0)] * n
    for mask in range(2**n):
        chosen = [i for i in range(n) if mask >> i & 1]
        if len(chosen) != quota:
            continue
        weight = prod((first[i] for i in chosen), start=Fraction(1))
        total += weight
        share = sum((last[i] for i in chosen), start=Fraction(0)) / sum(last, start=Fraction(0))
        for i in chosen:
            drawn[i] += weight
            survives[i] += weight * last[i] / share
    return [one / total for one in drawn], [one / total for one in survives]


def by_recursion(first: Numbers, last: Numbers, quota: int) -> tuple[list[Fraction], list[Fraction]]:
    """The same by deciding item after item, with the weight and the sum of P_M2 of the items kept so far."""
    n = len(first)
    sums: dict[int | None, tuple[Fraction, Fraction]] = {}

    def visit(item: int, left: int, weight: Fraction, kept: Fraction, forced: int | None) -> None:
        if left > n - item or left < 0:
            return
        if item == n:
            mass, inverse = sums.get(forced, (Fraction(0), Fraction(0)))
            sums[forced] = (mass + weight, inverse + weight / kept)
            return
        visit(item + 1, left - 1, weight * first[item], kept + last[item], forced)
        if item != forced:
            visit(item + 1, left, weight, kept, forced)

    for forced in (None, *range(n)):  # an item that is forced is in every set
        visit(0, quota, Fraction(1), Fraction(0), forced)
    total = sums[None][0]
    return (
        [sums[i][0] / total for i in range(n)],
        [last[i] * sum(last, start=Fraction(0)) * sums[i][1] / total for i in range(n)],
    )


def by_elementary_symmetric_polynomials(first: Numbers, quota: int) -> list[Fraction]:
    """E(pi) alone, without any set: p_i e_{q-1}(others) / e_q(all)."""

    def polynomial(values: Numbers, degree: int) -> Fraction:
        found = [Fraction(1)] + [Fraction(0)] * degree
        for value in values:
            for power in range(degree, 0, -1):
                found[power] += value * found[power - 1]
        return found[degree]

    whole = polynomial(first, quota)
    return [first[i] * polynomial([*first[:i], *first[i + 1 :]], quota - 1) / whole for i in range(len(first))]


def exact(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.tolist()]


def doubles(values: Sequence[Fraction]) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.double)


@pytest.mark.parametrize("operator", ["neural_sort", "soft_sort", "sigmoid_topk"])
@pytest.mark.parametrize(("n", "quota"), [(3, 2), (5, 1), (5, 4), (6, 3)])
def test_the_enumeration_agrees_with_two_others(operator: str, n: int, quota: int) -> None:
    scores = torch.randn(2, 3, n, generator=torch.Generator().manual_seed(n), dtype=torch.double)
    select = topk(operator, tau=0.7)
    first, last = select(scores[0], quota), select(scores[1], 1)
    found = survival_of(first, last, quota)
    for row in range(3):
        p, r = exact(first[row]), exact(last[row])
        drawn, survives = by_bit_masks(p, r, quota)
        assert (drawn, survives) == by_recursion(p, r, quota)
        assert drawn == by_elementary_symmetric_polynomials(p, quota)
        torch.testing.assert_close(found.drawn[row], doubles(drawn))
        torch.testing.assert_close(found.survives[row], doubles(survives))
        shared = sum((a * b for a, b in zip(p, r, strict=True)), start=Fraction(0))
        delta = [r[i] * (sum(r, start=Fraction(0)) / shared - 1) for i in range(n)]
        torch.testing.assert_close(found.gap_bound[row], doubles(delta))


def test_a_case_by_hand() -> None:
    """Two of three items are kept with weights 1/2 1/2, 1/2 1, 1/2 1, so that the third is in 4/5 of the sets."""
    first = torch.tensor([[0.5, 0.5, 1.0]], dtype=torch.double)
    last = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.double)
    found = survival_of(first, last, 2)
    torch.testing.assert_close(found.drawn, torch.tensor([[0.6, 0.6, 0.8]], dtype=torch.double))
    # the sets {0, 1}, {0, 2}, {1, 2} have shares .5, .75, .75 of P_M2 and probabilities .2, .4, .4
    expected = [0.25 * (0.2 / 0.5 + 0.4 / 0.75)] * 2 + [0.5 * 2 * 0.4 / 0.75]
    torch.testing.assert_close(found.survives, torch.tensor([expected], dtype=torch.double))
    checks = {one.claim: one for one in check_claims([found])}
    # the best two items of P_M2 hold .75 of it: .5 (1 / .75 - 1) for the third item
    assert checks[NO_GAP].worst == pytest.approx(1 / 6)
    assert (checks[EQUAL_MEANS].failures, checks[EQUAL_MEANS].items) == (3, 3)
    assert checks[EQUAL_MEANS].worst == pytest.approx(0.2)
    assert checks[AT_LEAST_PRODUCT].failures == 0


def test_the_first_step_of_equation_8_always_holds() -> None:
    """The sum of P_M2 over a set is at most that over all items, whatever the set is drawn from."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(3, 2, 20, 6, generator=generator, dtype=torch.double)
    cases = [survival_of(first, last, quota) for (first, last), quota in zip(scores, (1, 3, 5), strict=True)]
    assert {one.claim: one.failures for one in check_claims(cases)}[AT_LEAST_DRAWN] == 0


def test_a_certain_item_breaks_the_lower_bound() -> None:
    """P_M1 of 1 does not make an item certain in eq. 6, which weighs sets by products."""
    first = torch.tensor([[1.0, 0.9, 0.1]], dtype=torch.double)  # the inclusions add up to 2
    last = torch.tensor([[1.0, 1e-3, 1e-3]], dtype=torch.double)
    found = survival_of(first, last, 2)
    assert found.drawn[0, 0] < 0.95
    assert found.survives[0, 0] < found.product[0, 0]
    checks = {one.claim: one for one in check_claims([found])}
    assert checks[AT_LEAST_PRODUCT].failures >= 1
    assert checks[AT_LEAST_PRODUCT].worst == pytest.approx(float(found.product[0, 0] - found.survives[0, 0]))


def test_the_gap_can_exceed_its_bound() -> None:
    """A first stage that keeps one item: every set is one item, which then has all of P_M2."""
    first = torch.tensor([[0.1, 0.45, 0.45]], dtype=torch.double)
    last = torch.tensor([[0.98, 0.01, 0.01]], dtype=torch.double)
    found = survival_of(first, last, 1)
    torch.testing.assert_close(found.survives, first)
    gap, bound = 0.45 * 0.99, 0.01 * (1 / (0.1 * 0.98 + 2 * 0.45 * 0.01) - 1)
    checks = {one.claim: one for one in check_claims([found])}
    assert checks[GAP].failures == 2
    assert checks[GAP].worst == pytest.approx(gap - bound)


def test_the_survival_can_exceed_1() -> None:
    """The set of items 0, 2 and 3 is nearly certain; item 0 then gets .9 / 1.1 of two places."""
    first = torch.tensor([[1.0, 1e-9, 1.0, 1.0]], dtype=torch.double)
    last = torch.tensor([[0.9, 0.9, 0.1, 0.1]], dtype=torch.double)
    checks = {one.claim: one for one in check_claims([survival_of(first, last, 3)])}
    assert checks[AT_MOST_ONE].failures == 1
    assert checks[AT_MOST_ONE].worst == pytest.approx(1.8 / 1.1 - 1)


def test_claims_count_items_of_all_cases() -> None:
    cases = [survival_of(torch.ones(2, n).double(), torch.ones(2, n).double(), 2) for n in (3, 4)]
    checks = check_claims(cases)
    assert {one.items for one in checks} == {2 * 3 + 2 * 4}
    equal = {one.claim: one for one in checks}[EQUAL_MEANS]  # uniform sets: E(pi) = 2 / n
    assert equal.failures == 14
    assert equal.worst == pytest.approx(0.5)


def test_the_report_names_every_operator_and_claim(tmp_path: Path) -> None:
    reproduction = load(SurvivalBounds, "lcron-appendixA")
    small = reproduction.model_copy(update={"lengths": [4, 5], "lists": 5, "correlations": [0.0, 0.9]})
    task = Task(out=tmp_path, source=DataSource("no data", "none", {}), size=Size(tune=False))
    report = run(small, task)
    check_report(report, small.id)
    check_figures(report, tmp_path)
    assert len(report.sheets) == len(small.operators)
    for sheet, checks in zip(report.sheets, report.results["checks"].values(), strict=True):
        assert [row[0] for row in sheet.rows] == list(CLAIMS)
        pairs = sum(n * len(list(itertools.combinations(range(1, n), 2))) for n in small.lengths)
        assert {one["items"] for one in checks} == {5 * 2 * pairs}
    assert report.results == run(small, task).results  # seeded
