"""What every objective agrees on: the scores of all stages, and what the items of an impression are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankfall._lists import check_count, check_lists, check_shape, top_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float


@dataclass(frozen=True, eq=False)
class Impression:
    """Checked input of an objective; every tensor is ``(..., n)``."""

    scores: list[Tensor]  # one a stage
    grades: Tensor  # full-stage: the higher, the better
    relevance: Tensor  # grades of the relevant items, 0 for all others
    depth: Tensor | None  # the deepest logged stage of each item
    mask: Tensor

    def truth(self, k: int) -> Tensor:
        """Membership of each item in the ground truth: the k best of the relevant items."""
        return top_labels(self.relevance, k, self.mask)

    def seen(self, min_depth: int) -> Tensor:
        """The items that a stage of a logged cascade sees: those that got at least so far."""
        return self.mask if self.depth is None else self.mask & (self.depth >= min_depth)


class Objective(nn.Module):
    """A function of all stages' scores. The terms in :meth:`parts` add up to the value."""

    kept: Sequence[int] = ()  # numbers of items of which it learns whether they are kept; longer lists alone can tell

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.stages = check_count("stages", stages)

    def forward(
        self,
        scores: Sequence[Float[Tensor, "*batch n"]],
        labels: Float[Tensor, "*batch n"],
        *,
        relevance: Tensor | None = None,
        depth: Tensor | None = None,
        mask: Bool[Tensor, "*batch n"] | None = None,
    ) -> Tensor:
        """The value of a batch of impressions: the mean over its lists."""
        return torch.stack(list(self.parts(scores, labels, relevance=relevance, depth=depth, mask=mask).values())).sum()

    def parts(
        self,
        scores: Sequence[Float[Tensor, "*batch n"]],
        labels: Float[Tensor, "*batch n"],
        *,
        relevance: Tensor | None = None,
        depth: Tensor | None = None,
        mask: Bool[Tensor, "*batch n"] | None = None,
    ) -> dict[str, Tensor]:
        """The terms of the value by name."""
        return self.terms(self._check(scores, labels, relevance, depth, mask))

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        """The terms of checked input; what an objective is."""
        raise NotImplementedError

    def _check(
        self,
        scores: Sequence[Tensor],
        labels: Tensor,
        relevance: Tensor | None,
        depth: Tensor | None,
        mask: Tensor | None,
    ) -> Impression:
        if not isinstance(scores, list | tuple):
            raise TypeError(f"scores must be a list of tensors, one a stage, got {type(scores).__name__}")
        if len(scores) != self.stages:
            raise ValueError(f"scores must be a list of {self.stages} tensors, one a stage, got {len(scores)}")
        checked = [check_lists(stage, labels, mask) for stage in scores]
        _, grades, real = checked[0]
        if relevance is None:
            best = grades
        else:
            check_shape("relevance", relevance, scores[0].shape)
            best = ((grades - grades.amin(-1, keepdim=True) + 1) * (relevance > 0)).masked_fill(~real, 0.0)
        if depth is not None:
            check_shape("depth", depth, scores[0].shape)
        return Impression([stage for stage, _, _ in checked], grades, best, depth, real)


def per_stage(name: str, value: int | Sequence[int], stages: int) -> list[int]:
    """One number for each stage; a single one is for all of them."""
    numbers = [value] * stages if isinstance(value, int) else list(value)
    if len(numbers) != stages:
        raise ValueError(f"{name} must be one number, or one for each of {stages} stages, got {len(numbers)}")
    return numbers


def check_quotas(quotas: int | Sequence[int], stages: int) -> list[int]:
    """The numbers of items that the stages keep, none more than the one before it."""
    numbers = [check_count("quotas", quota) for quota in per_stage("quotas", quotas, stages)]
    if sorted(numbers, reverse=True) != numbers:
        raise ValueError(f"quotas must not grow from stage to stage, got {numbers}")
    return numbers
