"""Base class of objectives, their checked input, and checks of numbers per stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rankfall._checks import check_count, check_lists, check_none, check_numbers, check_shape
from rankfall._errors import RankfallError
from rankfall._lists import has_order, item_weight, relevant_order, top_labels
from rankfall.option_types import LARGEST_COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Float


STAGES = 100
"""Largest number of stages."""


@dataclass(frozen=True, eq=False)
class Impression:
    """Checked input of an objective. Every tensor is ``(..., n)``.

    Attributes:
        scores: One tensor per stage.
        grades: Full-stage grades. Higher is better.
        relevance: Numbers above 0 that order the relevant items by relevance, then by grade; 0 for all others. The
            grades if no relevance was given; see :meth:`relevant`.
        depth: The deepest logged stage of each item, or None if it is unknown.
        mask: True for real items.
        weight: Weights of the items, 0 where masked, or None if every item has the weight 1.
    """

    scores: list[Tensor]
    grades: Tensor
    relevance: Tensor
    depth: Tensor | None
    mask: Tensor
    weight: Tensor | None = None

    def truth(self, k: int) -> Tensor:
        """Return the membership of each item in the ground truth: the k best of the relevant items."""
        return top_labels(self.relevant(), k, self.mask)

    def relevant(self) -> Tensor:
        """Return the relevance. Negative grades in its place are an error: all of their items would be irrelevant."""
        check_none("labels", self.relevance < 0, "values below 0 unless relevance is given")
        return self.relevance

    def seen(self, min_depth: int) -> Tensor:
        """Return the items that a stage of a logged cascade sees: real items with a depth of at least `min_depth`."""
        return self.mask if self.depth is None else self.mask & (self.depth >= min_depth)


class Objective(nn.Module):
    """Base class of objectives: functions of the scores of all stages.

    Subclasses implement :meth:`terms`. The value is the sum of the terms. Those that also implement :meth:`informs` are
    refused for data from which they cannot learn.

    Args:
        stages: Number of stages, at least 1.

    Attributes:
        kept: Numbers of items whose selection the objective learns. Only lists with more items carry information about
            it.
        turns: Number of steps in which every stage is trained at least once.
    """

    kept: Sequence[int] = ()
    turns: int = 1

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.stages = check_count("stages", stages, most=STAGES)

    def forward(
        self,
        scores: Sequence[Float[Tensor, "*batch n"]],
        labels: Float[Tensor, "*batch n"],
        *,
        relevance: Tensor | None = None,
        depth: Tensor | None = None,
        mask: Bool[Tensor, "*batch n"] | None = None,
        weight: Float[Tensor, "*batch n"] | None = None,
    ) -> Tensor:
        """Return the value of a batch of impressions, the mean over its lists.

        Args:
            scores: One floating tensor ``(..., n)`` per stage.
            labels: Tensor ``(..., n)`` of full-stage grades. Higher is better.
            relevance: Tensor ``(..., n)``, above 0 for relevant items. The ground truth consists of the most relevant
                ones, of equally relevant ones those with the best grades. Default: items with a grade above 0 are
                relevant, all equally.
            depth: Tensor ``(..., n)`` of the deepest stage that each item reached in the log. Default: unknown, every
                stage sees all items.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
            weight: Tensor ``(..., n)`` of item weights. They multiply the terms of the items, and do not change the
                counts by which terms are divided. Default: every item has the weight 1.
        """
        parts = self.parts(scores, labels, relevance=relevance, depth=depth, mask=mask, weight=weight)
        return torch.stack(list(parts.values())).sum()

    def parts(
        self,
        scores: Sequence[Float[Tensor, "*batch n"]],
        labels: Float[Tensor, "*batch n"],
        *,
        relevance: Tensor | None = None,
        depth: Tensor | None = None,
        mask: Bool[Tensor, "*batch n"] | None = None,
        weight: Float[Tensor, "*batch n"] | None = None,
    ) -> dict[str, Tensor]:
        """Return the terms of the value by name.

        Args:
            scores: One floating tensor ``(..., n)`` per stage.
            labels: Tensor ``(..., n)`` of full-stage grades. Higher is better.
            relevance: Tensor ``(..., n)``, above 0 for relevant items. The ground truth consists of the most relevant
                ones, of equally relevant ones those with the best grades. Default: items with a grade above 0 are
                relevant, all equally.
            depth: Tensor ``(..., n)`` of the deepest stage that each item reached in the log. Default: unknown, every
                stage sees all items.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
            weight: Tensor ``(..., n)`` of item weights. They multiply the terms of the items, and do not change the
                counts by which terms are divided. Default: every item has the weight 1.
        """
        return self.terms(self._check(scores, labels, relevance, depth, mask, weight))

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        """Return the terms of checked input by name. Subclasses implement this method."""
        raise NotImplementedError

    def informative(
        self,
        labels: Float[Tensor, "*batch n"],
        *,
        relevance: Tensor | None = None,
        depth: Tensor | None = None,
        mask: Bool[Tensor, "*batch n"] | None = None,
    ) -> dict[str, Bool[Tensor, "*batch"]]:
        """Return which lists have labels from which an order of items can be learned.

        Args:
            labels: Tensor ``(..., n)`` of full-stage grades. Higher is better.
            relevance: Tensor ``(..., n)``, above 0 for relevant items. Default: items with a grade above 0 are
                relevant.
            depth: Tensor ``(..., n)`` of the deepest stage that each item reached in the log. Default: unknown.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.

        Returns:
            One boolean tensor ``(...)`` for each kind of labels that the objective learns from: ``"grades"``,
            ``"relevance"``, or ``"stage1"`` and so on if the stages learn from the relevance of different items.
        """
        scores = [torch.zeros_like(labels, dtype=torch.float32)] * self.stages
        return self.informs(self._check(scores, labels, relevance, depth, mask))

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        """Return the result of :meth:`informative` for checked input. By default nothing is known."""
        return {}

    def _check(
        self,
        scores: Sequence[Tensor],
        labels: Tensor,
        relevance: Tensor | None,
        depth: Tensor | None,
        mask: Tensor | None,
        weight: Tensor | None = None,
    ) -> Impression:
        if not isinstance(scores, list | tuple):
            raise TypeError(f"scores must be a list of tensors, one per stage, got {type(scores).__name__}")
        if len(scores) != self.stages:
            raise RankfallError(f"scores must be a list of {self.stages} tensors, one per stage, got {len(scores)}")
        checked = [check_lists(stage, labels, mask) for stage in scores]
        _, grades, real = checked[0]
        if relevance is None:
            best = grades
        else:
            check_numbers("relevance", relevance, scores[0], real)
            best = relevant_order(relevance, grades, real)
        if depth is not None:
            check_numbers("depth", depth, scores[0], real)
        if weight is not None:
            check_shape("weight", weight, scores[0].shape)  # one weight per list would be ambiguous in a sum of terms
            weight = item_weight(weight, grades, real)
        return Impression([stage for stage, _, _ in checked], grades, best, depth, real, weight)


def grades_order(batch: Impression) -> Tensor:
    """Return which lists have different grades: all others have no order to learn."""
    return has_order(batch.grades, batch.mask)


def per_stage(name: str, value: int | Sequence[int], stages: int | None, *, least: int = -LARGEST_COUNT) -> list[int]:
    """Return one number of at least `least` per stage. A single number is used for all stages, if these are known."""
    if stages is not None and isinstance(value, int | np.integer):
        value = [value] * stages
    if not isinstance(value, list | tuple):
        one = "one number per stage" if stages is None else f"one number, or one for each of {stages} stages"
        raise TypeError(f"{name} must be {one}, got {type(value).__name__}")
    if stages is not None and len(value) != stages:
        raise RankfallError(f"{name} must be one number, or one for each of {stages} stages, got {len(value)}")
    return [check_count(name, one, least=least) for one in value]


def count_stages(quotas: int | Sequence[int] | None, stages: int | None) -> int:
    """Return the number of stages: the one that is given, or that of the quotas, or 2."""
    if stages is not None:
        return check_count("stages", stages, most=STAGES)
    return 2 if quotas is None or isinstance(quotas, int | np.integer) else len(check_quotas(quotas))


def check_quotas(quotas: int | Sequence[int], stages: int | None = None) -> list[int]:
    """Return the numbers of items that the stages keep. Raises ValueError if they grow from stage to stage.

    Args:
        quotas: One number per stage; if `stages` is given, one number for all of them is allowed.
        stages: Number of stages. Default: the number of quotas.
    """
    numbers = per_stage("quotas", quotas, stages, least=1)
    if not numbers:
        raise RankfallError("quotas must have one number per stage, got none")
    if len(numbers) > STAGES:
        raise RankfallError(f"quotas must have at most {STAGES} numbers, one per stage, got {len(numbers)}")
    if sorted(numbers, reverse=True) != numbers:
        raise RankfallError(f"quotas must not grow from stage to stage, got {numbers}")
    return numbers
