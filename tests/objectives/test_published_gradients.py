"""The published variants of the objectives against the published formulas in plain torch, gradient by gradient."""

from __future__ import annotations

import pytest
import torch

from experiments.published_gradients import Case, cases, compare, impressions, main
from rankfall.objectives import LCRON
from support.paths import ROOT

CASES = cases()
SAME = {"RankFlow"}  # one form in the paper, the code and here


@pytest.mark.witness("derivation", "LCRON")
@pytest.mark.witness("derivation", "ARF")
@pytest.mark.witness("derivation", "ARFv2")
@pytest.mark.witness("derivation", "SortCE")
@pytest.mark.witness("derivation", "FSLambdaLoss")
@pytest.mark.witness("derivation", "ICC")
@pytest.mark.witness("derivation", "RankFlow")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_published_variants_have_the_gradient_of_their_formula(case: Case) -> None:
    scores, grades, relevance = impressions(8, seed=1)
    found = case.published(scores, grades, relevance=relevance)
    torch.testing.assert_close(found, case.formula(scores, grades, relevance))
    for row in compare(case, lists=8, seed=1):
        assert row.cosine >= 0.999999
        assert row.error <= 1e-9


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in SAME], ids=lambda case: case.name)
def test_sound_variants_have_another_gradient(case: Case) -> None:
    first, *_ = compare(case, lists=8, seed=1)
    assert first.sound < 0.99


@pytest.mark.witness("derivation", "LCRON")
def test_variants_of_lcron_differ_in_the_gradient_of_the_first_stage_alone() -> None:
    """L_e2e: the last stage drops an item only after all others kept it, so both forms give it the same gradient."""
    scores, grades, relevance = impressions(8, seed=2)
    scores = [stage.requires_grad_() for stage in scores]
    variants = LCRON(relevant=10, single_weight=0), LCRON(relevant=10, single_weight=0, variant="published")
    parts = [one.parts(scores, grades, relevance=relevance)["e2e"] for one in variants]
    torch.testing.assert_close(parts[0], parts[1])
    (first, last), (published_first, published_last) = (torch.autograd.grad(part, scores) for part in parts)
    torch.testing.assert_close(last, published_last)
    error = (first - published_first).norm(dim=-1) / published_first.norm(dim=-1)
    assert ((error > 0.1) & (error < 0.6)).all()


def test_the_documentation_has_the_table_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = [cells(line) for line in capsys.readouterr().out.splitlines()]
    page = (ROOT / "docs" / "reference" / "methods-in-short.md").read_text()
    documented = [cells(line) for line in page.splitlines() if line.startswith("|")]
    start = documented.index(printed[0])
    assert documented[start : start + len(printed)] == printed
    assert len(printed) == 2 + 2 * len(CASES)


def cells(line: str) -> list[str]:
    """The cells of a line of a table, without the relative error, which is rounding."""
    found = [cell.strip() for cell in line.strip("|").split("|")]
    return [cell for place, cell in enumerate(found) if place != 3]
