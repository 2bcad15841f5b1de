"""Gradients of the objectives beside those of the published formulas, written out in plain torch.

``python -m experiments.published_gradients`` prints the table. The formulas take a batch of full lists and
build n x n matrices. They follow the papers' equations where the text is complete, and otherwise what is known of
LCRON's code: L_e2e and L_single take 1 - p from the rows behind the first k, FS-LambdaLoss is that of TF-Ranking, ICC
uses RankNet, and RankFlow trains all stages in one step.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from rankfall import objectives, ops
from rankfall.reproductions.textbook import neural_sort

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rankfall.objectives import Objective

    Formula = Callable[[list[Tensor], Tensor, Tensor], Tensor]

RELEVANT, QUOTAS, ITEMS = 10, (30, 20), 40
"""The two-stage cascade of LCRON's table 2."""

TAU, TEMPERATURE, ALPHA, MIX = 50.0, 0.5, 0.25, 0.25


# --- the formulas: scores of the stages, grades and relevance of the items -> value ------------------------------


def lcron(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """LCRON (eq. 11-13): L_e2e at weight 1, and L_single of each stage at the start of its trained weight, 1."""
    singles = [_cross_entropy(relevance, *_shares(stage, RELEVANT)) / 2 for stage in scores]
    return end_to_end(scores, grades, relevance) + torch.stack(singles).sum()


def end_to_end(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """L_e2e of LCRON (eq. 11): p from the first rows, and 1 - p from the product over the other rows alone."""
    passed, kept = torch.ones_like(relevance), torch.ones_like(relevance)
    for stage in scores:
        p, d = _shares(stage, RELEVANT)
        passed, kept = passed * p, kept * (1 - d)
    return _cross_entropy(relevance, passed, 1 - kept)


def arf(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """ARF (eq. 11-13) with the sum over items and the mean over rows of LCRON's code, at the start of its weight."""
    total = torch.zeros((), dtype=grades.dtype)
    for stage, quota in zip(scores, QUOTAS, strict=True):
        inclusion = neural_sort(stage, TAU)[..., :quota, :].sum(-2) / quota
        total = total - (relevance * inclusion.log()).sum(-1).mean() + _order(stage, grades) / 2
    return total


def arf_v2(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """ARF with L_single (LCRON, eq. 12) at the quota of the stage (sec. 5.2) instead of L_Relax."""
    total = torch.zeros((), dtype=grades.dtype)
    for stage, quota in zip(scores, QUOTAS, strict=True):
        total = total + _cross_entropy(relevance, *_shares(stage, quota)) + _order(stage, grades) / 2
    return total


def sort_ce(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """Cross entropy of the rows of NeuralSort and of the hard permutation of the grades (LCRON, table 7)."""
    return torch.stack([_order(stage, grades) for stage in scores]).sum()


def fs_lambda_loss(scores: list[Tensor], grades: Tensor, relevance: Tensor, *, k: int, mix: float) -> Tensor:
    """LambdaLoss@K (eq. 15) with linear gain, and a share of LambdaRank, as in TF-Ranking."""
    ideal = (
        grades.sort(-1, descending=True).values[..., :k] * _discount(torch.arange(1, k + 1, dtype=grades.dtype))
    ).sum(-1)
    total = torch.zeros((), dtype=grades.dtype)
    for stage in scores:
        rank = stage.argsort(-1, descending=True).argsort(-1).to(grades.dtype) + 1
        apart = _pairs(rank).abs()
        inside = rank <= k
        by_distance = _discount(apart.clamp(min=1)) - _discount(apart.clamp(min=1) + 1)
        by_distance = by_distance * (inside.unsqueeze(-1) | inside.unsqueeze(-2))
        by_swap = _pairs(_discount(rank) * inside).abs()
        weight = _pairs(grades).clamp(min=0) * ((1 - mix) * by_distance + mix * by_swap)
        total = total + ((weight * F.softplus(-_pairs(stage))).sum((-2, -1)) / ideal).mean()
    return total


def icc(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """ICC of two stages: RankNet on the fused scores, the mean over the pairs with different labels."""
    first, second = scores
    threshold = first.sort(-1, descending=True).values[..., QUOTAS[0] - 1, None]
    stays = torch.sigmoid((first - threshold) / TEMPERATURE)
    fused = (1 - stays) * first + stays * second
    better = (_pairs(relevance) > 0).to(fused.dtype)
    return ((better * F.softplus(-_pairs(fused))).sum((-2, -1)) / better.sum((-2, -1))).mean()


def rankflow(scores: list[Tensor], grades: Tensor, relevance: Tensor) -> Tensor:
    """RankFlow of two stages in one step: BCE of both, and the distillation of the second into the first."""
    first, second = scores
    kept = first.topk(QUOTAS[0], -1).indices
    student, teacher = first.gather(-1, kept), second.gather(-1, kept)
    own = F.binary_cross_entropy_with_logits(first, relevance) + F.binary_cross_entropy_with_logits(
        teacher, relevance.gather(-1, kept)
    )
    order = teacher.argsort(-1, descending=True)
    best, rest = student.gather(-1, order[..., :RELEVANT]), student.gather(-1, order[..., RELEVANT:])
    ahead = -F.logsigmoid(best.mean(-1) - rest.mean(-1)).mean()
    return own + (1 - ALPHA) * (student - teacher.detach()).square().mean() + ALPHA * ahead


def _shares(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the shares of the first k rows of NeuralSort and of the others; their sum carries no gradient."""
    rows = neural_sort(scores, TAU)
    columns = rows.sum(-2).detach()
    return rows[..., :k, :].sum(-2) / columns, rows[..., k:, :].sum(-2) / columns


def _cross_entropy(truth: Tensor, p: Tensor, not_p: Tensor) -> Tensor:
    return -(truth * p.log() + (1 - truth) * not_p.log()).mean()


def _order(scores: Tensor, grades: Tensor) -> Tensor:
    target = F.one_hot(grades.argsort(dim=-1, descending=True, stable=True), grades.shape[-1])
    return -(target * neural_sort(scores, TAU).log()).sum(-1).mean()


def _pairs(values: Tensor) -> Tensor:
    return values.unsqueeze(-1) - values.unsqueeze(-2)


def _discount(rank: Tensor) -> Tensor:
    return math.log(2) / torch.log1p(rank)


# --- the comparison ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An objective in both variants, and the published formula.

    Attributes:
        name: Name in the table.
        formula: The published formula.
        published: The published variant.
        sound: The default of the library.
    """

    name: str
    formula: Formula
    published: Objective
    sound: Objective


@dataclass(frozen=True)
class Agreement:
    """Agreement of the gradients of one stage's scores, means over the lists.

    Attributes:
        name: Name of the objective.
        stage: Number of the stage, from 1.
        cosine: Cosine of the published variant with the published formula.
        error: Length of their difference, relative to the formula's gradient.
        sound: Cosine of the sound variant with the published formula.
    """

    name: str
    stage: int
    cosine: float
    error: float
    sound: float


def cases() -> list[Case]:
    """Return the objectives of LCRON's tables with a published formula."""
    relevant: dict[str, Any] = {"relevant": RELEVANT}
    quotas: dict[str, Any] = {"relevant": RELEVANT, "quotas": QUOTAS}
    sort = ops.topk("neural_sort", tau=TAU)
    one = objectives

    def fs(k: int, mix: float) -> Case:
        return Case(
            f"FS-LambdaLoss, k = {k}, mix = {mix:g}",
            lambda scores, grades, relevance: fs_lambda_loss(scores, grades, relevance, k=k, mix=mix),
            one.FSLambdaLoss(k=k, mix=mix, variant="published"),
            one.FSLambdaLoss(k=k, mix=mix),
        )

    rows = [
        Case("LCRON", lcron, one.LCRON(topk=sort, variant="published", **relevant), one.LCRON(topk=sort, **relevant)),
        Case(
            "LCRON, L_e2e alone",
            end_to_end,
            one.LCRON(topk=sort, variant="published", single_weight=0, **relevant),
            one.LCRON(topk=sort, single_weight=0, **relevant),
        ),
        Case("ARF", arf, one.ARF(tau=TAU, variant="published", **quotas), one.ARF(tau=TAU, **quotas)),
        Case("ARF-v2", arf_v2, one.ARFv2(tau=TAU, variant="published", **quotas), one.ARFv2(tau=TAU, **quotas)),
        Case("NeuralSort", sort_ce, one.SortCE(tau=TAU, variant="published"), one.SortCE(tau=TAU)),
        fs(10, 0.0),
        fs(10, MIX),
        fs(20, 0.0),
        Case(
            "ICC",
            icc,
            one.ICC(temperature=TEMPERATURE, variant="published", **quotas),
            one.ICC(temperature=TEMPERATURE, **quotas),
        ),
        Case("RankFlow", rankflow, one.RankFlow(alpha=ALPHA, **quotas), one.RankFlow(alpha=ALPHA, **quotas)),
    ]
    for row in rows:
        row.published.double()
        row.sound.double()
    return rows


def impressions(lists: int, seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return random scores of two stages, grades as in LCRON's table 1 and the relevance, ``(lists, 40)`` in float64.

    Ten relevant items have grades of their own; the three groups of negatives have one grade each.
    """
    generator = torch.Generator().manual_seed(seed)
    grades = torch.cat([torch.arange(13, 3, -1), torch.tensor([3, 2, 1]).repeat_interleave(10)]).double()
    order = torch.rand(lists, ITEMS, generator=generator).argsort(-1)
    grades = grades.expand(lists, ITEMS).gather(-1, order)
    scores = [torch.randn(lists, ITEMS, generator=generator, dtype=torch.float64) for _ in QUOTAS]
    return scores, grades, (grades > 3).double()


def compare(case: Case, *, lists: int = 64, seed: int = 0) -> list[Agreement]:
    """Compare the gradients of one objective with those of its published formula, for each stage.

    Args:
        case: The objective and its formula.
        lists: Number of random impressions of 40 items.
        seed: Seed of the impressions.
    """
    scores, grades, relevance = impressions(lists, seed)
    scores = [stage.requires_grad_() for stage in scores]
    expected = torch.autograd.grad(case.formula(scores, grades, relevance), scores)
    found, better = (
        torch.autograd.grad(objective(scores, grades, relevance=relevance), scores)
        for objective in (case.published, case.sound)
    )
    return [
        Agreement(
            case.name,
            stage,
            cosine=_mean(F.cosine_similarity(found[stage - 1], expected[stage - 1], -1)),
            error=_mean((found[stage - 1] - expected[stage - 1]).norm(dim=-1) / expected[stage - 1].norm(dim=-1)),
            sound=_mean(F.cosine_similarity(better[stage - 1], expected[stage - 1], -1)),
        )
        for stage in range(1, len(scores) + 1)
    ]


def _mean(values: Tensor) -> float:
    return float(values.mean())


def main() -> None:
    """Print the table as Markdown."""
    lines = [
        "| objective | stage | published variant: cosine | relative error | sound variant: cosine |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {row.name} | {row.stage} | {row.cosine:.6f} | {row.error:.0e} | {row.sound:.3f} |"
            for case in cases()
            for row in compare(case)
        ),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
