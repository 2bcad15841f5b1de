"""Metrics of a cascade: which relevant items it keeps, and at which stage it loses the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rankfall._checks import (
    check_choice,
    check_count,
    check_generator,
    check_like,
    check_membership,
    check_ranking,
    widen,
    widest,
)
from rankfall._errors import RankfallError
from rankfall._lists import operator, rank_order, safe_divide
from rankfall.metrics.ranking import ndcg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float


@dataclass(frozen=True, eq=False)
class FunnelResult:
    """Result of :func:`funnel`. All measures are 0 for a list without a relevant item.

    Attributes:
        survivors: Boolean tensor ``(..., stages, n)``, the items that are left after each stage.
        joint_recall: ``(...)``, share of the relevant items that survive all stages.
        survived: ``(..., stages)``, share of the relevant items that is left after each stage.
        stage_recall: ``(..., stages)``, recall of each stage alone, on the whole list and at its quota.
        stage_ndcg: ``(..., stages)``, NDCG of each stage alone on the whole list, with the membership as gain and no
            cutoff.
        lost: ``(..., stages)``, share of the relevant items that each stage drops. These and `joint_recall` sum to 1.
        chance: ``(...)``, expected joint recall of a cascade with random scores.
        defined: Boolean tensor ``(...)``, lists with a relevant item.
    """

    survivors: Bool[Tensor, "*batch stages n"]
    joint_recall: Float[Tensor, "*batch"]
    survived: Float[Tensor, "*batch stages"]
    stage_recall: Float[Tensor, "*batch stages"]
    stage_ndcg: Float[Tensor, "*batch stages"]
    lost: Float[Tensor, "*batch stages"]
    chance: Float[Tensor, "*batch"]
    defined: Bool[Tensor, "*batch"]


def funnel(
    stage_scores: Sequence[Float[Tensor, "*batch n"]],
    relevant: Tensor,
    *,
    quotas: Sequence[int],
    mask: Bool[Tensor, "*batch n"] | None = None,
    ties: Literal["random", "position"] = "random",
    generator: torch.Generator | None = None,
) -> FunnelResult:
    r"""Run lists through a cascade and measure which relevant items it keeps (LCR, eq. 1 and 2).

    Stage t keeps the :math:`q_t` best items, by its own scores, of those that the stages before it kept. With the set
    :math:`C_T` that the last stage keeps and the relevant items :math:`a`,

    .. math:: \text{joint recall} = \sum_{j \in C_T} a_j \Big/ \sum_j a_j

    Use it to find out where a cascade loses relevant items.

    Args:
        stage_scores: One floating tensor ``(..., n)`` per stage, over the same items.
        relevant: Boolean tensor ``(..., n)``, or membership in [0, 1].
        quotas: Number of items that each stage keeps, at least 1.
        mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
        ties: Order of equal scores: ``"random"``, drawn for each stage, so that a constant scorer gets `chance` on
            average; or ``"position"``. `stage_ndcg` needs no draw: it is the expected value over the orders of ties.
        generator: Random generator of the order of ties. Default: a generator with a fixed seed, so that results
            repeat.

    Returns:
        A :class:`FunnelResult`.

    Examples:
        The first stage drops item 2, which is relevant; the second one keeps item 0 of the items 0 and 1:

        >>> scores = [torch.tensor([2.0, 3.0, 1.0]), torch.tensor([2.0, 1.0, 3.0])]
        >>> result = funnel(scores, torch.tensor([True, False, True]), quotas=[2, 1])
        >>> result.joint_recall, result.lost, result.chance
        (tensor(0.5000), tensor([0.5000, 0.0000]), tensor(0.3333))
    """
    check_choice("ties", ties, ("random", "position"))
    check_generator(generator)
    scores, relevant, mask = _check(stage_scores, relevant, quotas, mask)
    real, truth = mask.unsqueeze(-2).expand_as(scores), relevant.unsqueeze(-2).expand_as(scores)
    order = rank_order(scores, real) if ties == "position" else _random_order(scores, real, generator)
    alone, alive = [], [mask]
    for stage, quota in enumerate(quotas):
        alone.append(_first(order[..., stage, :], mask, quota))
        alive.append(_first(order[..., stage, :], alive[-1], quota))

    total = relevant.sum(-1, keepdim=True)
    kept = torch.stack([(relevant * items).sum(-1) for items in alive], -1)
    items = widen(mask.sum(-1))
    chance = safe_divide(items.clamp(max=min(quotas)), items)
    defined = total.squeeze(-1) > 0
    quality = ndcg(scores, truth, mask=real, gain="linear", ties="position" if ties == "position" else "average")
    return FunnelResult(
        survivors=torch.stack(alive[1:], -2),
        joint_recall=safe_divide(kept[..., -1:], total).squeeze(-1).to(scores.dtype),
        survived=safe_divide(kept[..., 1:], total).to(scores.dtype),
        stage_recall=safe_divide((truth * torch.stack(alone, -2)).sum(-1), total).to(scores.dtype),
        stage_ndcg=quality,
        lost=safe_divide(kept[..., :-1] - kept[..., 1:], total).to(scores.dtype),
        chance=chance.masked_fill(~defined, 0.0).to(scores.dtype),
        defined=defined,
    )


def _check(
    stage_scores: Sequence[Tensor], relevant: Tensor, quotas: Sequence[int], mask: Tensor | None
) -> tuple[Float[Tensor, "*batch stages n"], Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Return the scores of all stages in one tensor, the relevant items in the widest type, and the mask."""
    if not isinstance(quotas, list | tuple):
        raise TypeError(f"quotas must be a sequence with one number per stage, got {quotas!r}")
    if not isinstance(stage_scores, list | tuple):
        raise TypeError(f"stage_scores must be a list of tensors, one per stage, got {type(stage_scores).__name__}")
    if len(stage_scores) == 0:
        raise RankfallError("stage_scores must hold the scores of at least one stage, got none")
    if len(quotas) != len(stage_scores):
        raise RankfallError(f"quotas must have one number per stage, {len(stage_scores)}, got {len(quotas)}")
    for stage, quota in enumerate(quotas):
        check_count(f"quotas[{stage}]", quota)
    first, truth, real = check_ranking(stage_scores[0], relevant, mask, names=("stage_scores[0]", "relevant"))
    check_membership("relevant", truth)
    checked = [first]
    for stage, scores in enumerate(stage_scores[1:], 1):
        name = f"stage_scores[{stage}]"
        check_like(name, scores, first, of="stage_scores[0]")
        checked.append(check_ranking(scores, relevant, mask, names=(name, "relevant"))[0])
    dtype = torch.double if any(scores.dtype == torch.double for scores in checked) else torch.float
    return torch.stack([scores.to(dtype) for scores in checked], -2), widen(truth), real


def _first(order: Tensor, alive: Tensor, quota: int) -> Tensor:
    """Return the first `quota` of the items that are alive, in the given order."""
    in_order = alive.gather(-1, order)
    kept = in_order & (in_order.cumsum(-1) <= quota)
    return torch.zeros_like(alive).scatter(-1, order, kept)


def _random_order(scores: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the indices of the items by descending score, ties in random order, masked items last."""
    if generator is None:
        keys: Tensor = torch.ops.rankfall.repeatable_keys(scores.detach())
    else:
        keys = torch.rand(scores.shape, generator=generator, device=scores.device, dtype=widest(scores.device))
    shuffle = keys.argsort(-1)
    return shuffle.gather(-1, rank_order(scores.gather(-1, shuffle), mask.gather(-1, shuffle)))


@operator(
    "repeatable_keys(Tensor like) -> Tensor",
    like=lambda like: torch.empty(like.shape, device=like.device, dtype=widest(like.device)),
    device="default",
)
def _repeatable_keys(like: Tensor) -> Tensor:
    # A custom operator, because torch.compile cannot create a generator inside a graph.
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=widest(like.device))
