"""Time and memory of operators and losses, and of their textbook forms.

The forms of operators are in `rankfall.reproductions.textbook`; those of losses are here. They take a batch of full
lists ``(..., n)``. They support no mask and no ties at the boundary, and do not try to save memory. Tests compare their
values and gradients with those of the library.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from benchmarks import parse_settings, print_report, show_step
from rankfall.benchmarks import operators
from rankfall.benchmarks.operators import list_tau
from rankfall.benchmarks.timing import Case, CostLimit, linear, measure_cases, square
from rankfall.reproductions import textbook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from rankfall.benchmarks.timing import Shape, Step

# --- losses: one value per list -----------------------------------------------------------------------------


def mse_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Mean squared error over the items."""
    return (scores - labels).square().mean(-1)


def bce_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Binary cross entropy against the target "label > 0", mean over the items."""
    return F.binary_cross_entropy_with_logits(scores, (labels > 0).to(scores.dtype), reduction="none").mean(-1)


def softmax_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Softmax cross entropy (LLK, eq. 7)."""
    return -(labels * scores.log_softmax(-1)).sum(-1)


def listmle_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Plackett-Luce likelihood of the label order, ties by position (Xia et al. 2008)."""
    ordered = scores.gather(-1, labels.argsort(dim=-1, descending=True, stable=True))
    return (ordered.flip(-1).logcumsumexp(-1).flip(-1) - ordered).sum(-1)


def ranknet_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """RankNet (LLK, eq. 6), mean over the pairs with different labels."""
    better = _better(labels)
    return (_pair_loss(scores) * better).sum((-1, -2)) / better.sum((-1, -2)).clamp(min=1)


def lambdarank_loss(scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """LambdaRank (LLK, eq. 11)."""
    discount = textbook.rank_discount(_ranks(scores))
    swap = (discount.unsqueeze(-1) - discount.unsqueeze(-2)).abs()
    return _weighted_pairs(scores, labels, swap, labels.shape[-1])


def lambda_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], k: int
) -> Float[Tensor, "*batch"]:
    """LambdaLoss@K (LLK, eq. 16 and 17)."""
    rank = _ranks(scores)
    gap = (rank.unsqueeze(-1) - rank.unsqueeze(-2)).abs()
    delta = torch.where(gap > 0, textbook.rank_discount(gap.clamp(min=1)) - textbook.rank_discount(gap + 1), 0)
    deepest = torch.maximum(rank.unsqueeze(-1), rank.unsqueeze(-2))
    mu = torch.where(deepest > k, 1 / (1 - textbook.rank_discount(deepest)), 1)
    return _weighted_pairs(scores, labels, delta * mu, k)


def lambda_recall_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], m: int, k: int
) -> Float[Tensor, "*batch"]:
    """Lambda-Recall@m@k (ARF, eq. 6 and 7) for labels without a tie at the k-th place."""
    relevant = _relevant(labels, k)
    kept = (_ranks(scores) <= m).to(scores.dtype)
    weight = (relevant.unsqueeze(-1) - relevant.unsqueeze(-2)).abs() * (kept.unsqueeze(-1) - kept.unsqueeze(-2)).abs()
    return (weight * _pair_loss(scores) * _better(labels)).sum((-1, -2)) / k


def approx_ndcg_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """ApproxNDCG (LLK, eq. 8), from the matrix of all differences."""
    gain = torch.exp2(labels) - 1
    before = torch.sigmoid((scores.unsqueeze(-2) - scores.unsqueeze(-1)) / tau)
    rank = 0.5 + before.sum(-1)  # the item itself adds sigmoid(0) = 1/2
    return 1 - (gain * textbook.rank_discount(rank)).sum(-1) / textbook.ideal_dcg(gain, labels.shape[-1])


def sort_cross_entropy_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """L_Global (ARF, eq. 12): cross entropy of the rows of both orders; equal labels share their ranks."""
    equal = labels.sort(-1, descending=True).values.unsqueeze(-1) == labels.unsqueeze(-2)
    target = equal / equal.sum(-1, keepdim=True)
    return -(target * textbook.neural_sort(scores, tau).log()).sum(-1).mean(-1)


def relax_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], m: int, k: int, tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """L_Relax (ARF, eq. 11) for labels without a tie at the k-th place."""
    relevant = _relevant(labels, k)
    kept = textbook.neural_sort(scores, tau)[..., :m, :].sum(-2) / m
    return -(relevant * kept.log()).sum(-1) / relevant.sum(-1)


def topk_bce_loss(
    scores: Float[Tensor, "*batch n"], labels: Float[Tensor, "*batch n"], k: int, tau: float = 1.0
) -> Float[Tensor, "*batch"]:
    """TopK-BCE (DFTopK): cross entropy of the inclusions, for labels without a tie at the k-th place."""
    return F.binary_cross_entropy(textbook.dftopk(scores, k, tau), _relevant(labels, k), reduction="none").mean(-1)


def _better(labels: Tensor) -> Tensor:
    return (labels.unsqueeze(-1) > labels.unsqueeze(-2)).to(labels.dtype)


def _pair_loss(scores: Tensor) -> Tensor:
    return F.softplus(scores.unsqueeze(-2) - scores.unsqueeze(-1))


def _weighted_pairs(scores: Tensor, labels: Tensor, rank_weight: Tensor, k: int) -> Tensor:
    gain = torch.exp2(labels) - 1
    gap = (gain.unsqueeze(-1) - gain.unsqueeze(-2)).abs()
    pairs = gap * rank_weight * _pair_loss(scores) * _better(labels)
    return pairs.sum((-1, -2)) / textbook.ideal_dcg(gain, k)


def _ranks(scores: Tensor) -> Tensor:
    order = scores.detach().argsort(dim=-1, descending=True, stable=True)
    rank: Tensor = order.argsort(-1) + 1
    return rank.to(scores.dtype)


def _relevant(labels: Tensor, k: int) -> Tensor:
    kth = labels.topk(k, -1).values[..., -1:]
    return ((labels >= kth) & (labels > 0)).to(labels.dtype)


# --- the comparison -----------------------------------------------------------------------------------------

LOSSES = {
    "mse_loss": Case(lambda s, y, k: mse_loss(s, y), linear),
    "bce_loss": Case(lambda s, y, k: bce_loss(s, y), linear),
    "softmax_loss": Case(lambda s, y, k: softmax_loss(s, y), linear),
    "listmle_loss": Case(lambda s, y, k: listmle_loss(s, y), linear),
    "ranknet_loss": Case(lambda s, y, k: ranknet_loss(s, y), square(4)),
    "lambdarank_loss": Case(lambda s, y, k: lambdarank_loss(s, y), square(7)),
    "lambda_loss": Case(lambda s, y, k: lambda_loss(s, y, k), square(12)),
    "lambda_recall_loss": Case(lambda s, y, k: lambda_recall_loss(s, y, k, k), square(5)),
    "approx_ndcg_loss": Case(lambda s, y, k: approx_ndcg_loss(s, y), square(2)),
    "pirank_ndcg_loss": Case(lambda s, y, k: textbook.pirank_ndcg_loss(s, y, k, list_tau(s)), square(4)),
    "sort_cross_entropy_loss": Case(lambda s, y, k: sort_cross_entropy_loss(s, y, list_tau(s)), square(4)),
    "relax_loss": Case(lambda s, y, k: relax_loss(s, y, k, k, list_tau(s)), square(4)),
    "topk_bce_loss": Case(lambda s, y, k: topk_bce_loss(s, y, k), linear),
}

TEXTBOOK = ", textbook"
CASES = operators.OPERATORS | operators.LOSSES
CASES |= {f"{name}{TEXTBOOK}": case for name, case in (textbook.CASES | LOSSES).items()}


@dataclass(frozen=True)
class Settings:
    """Extent of the comparison."""

    sizes: tuple[int, ...] = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
    seconds: float = 0.3  # per case
    memory: bool = True


def prepare(name: str, shape: Shape) -> Step:
    """Return one forward and backward pass of a case."""
    return CASES[name].step(shape)


def measure(settings: Settings) -> list[dict[str, Any]]:
    """Measure all cases at all lengths; each row has a function, its textbook form and how much faster it is."""
    limit, found = CostLimit(), list[dict[str, Any]]()
    for number, shape in enumerate(operators.shapes(settings.sizes, quick=False)):
        show_step(f"n = {shape.n}, k = {shape.k}", number, 2 * len(settings.sizes))
        measured = measure_cases(
            CASES, shape, settings.seconds, limit, floors=(), prepare=prepare if settings.memory else None
        )
        rows = {row.name: row for row in measured}
        for name in (one for one in rows if f"{one}{TEXTBOOK}" in rows):
            own, other = rows[name], rows[f"{name}{TEXTBOOK}"]
            faster = other.cpu_ms / own.cpu_ms if own.cpu_ms is not None and other.cpu_ms is not None else None
            found.append({"own": asdict(own), "textbook": asdict(other), "faster": faster})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    settings, _ = parse_settings(__doc__, Settings, arguments)
    return print_report({"rows": measure(settings), "problems": []})


if __name__ == "__main__":
    sys.exit(main())
