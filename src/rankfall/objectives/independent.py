"""Every stage on its own: binary cross entropy, full-stage learning to rank, ARF, soft sorts, any loss."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rankfall._lists import check_choice, check_count, has_positive, mean_over_lists
from rankfall.losses import (
    bce_loss,
    lambda_loss,
    ranknet_loss,
    relax_loss,
    sort_cross_entropy_loss,
    topk_bce_loss,
)
from rankfall.objectives._stages import Impression, Objective, check_quotas, per_stage
from rankfall.ops import neural_sort
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.ops import SoftSort, TopK

EVERYTHING = -1  # also the depth of items that were drawn at random


class BCE(Objective):
    """Binary cross entropy of each stage on the items that a logged cascade lets it see.

    Stage t sees the items with a depth of at least ``min_depth[t]``; by default the first one sees everything and
    each following one what its predecessor kept, t - 1. A single number 0 or below lets all of them see all samples.

    relevant: the number of relevant items, those of the best grades.

    >>> objective = BCE(relevant=1)
    >>> zeros, grades = torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> objective([zeros, zeros], grades, depth=torch.tensor([1, 0]))  # log 2 in both stages
    tensor(1.3863)
    """

    def __init__(self, *, relevant: int, stages: int = 2, min_depth: int | Sequence[int] | None = None) -> None:
        super().__init__(stages)
        self.relevant = check_count("relevant", relevant)
        default = [EVERYTHING, *range(1, stages)]
        self.min_depth = default if min_depth is None else per_stage("min_depth", min_depth, stages)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        return {
            f"stage{t}/bce": bce_loss(scores, truth, mask=batch.seen(least), threshold=None)
            for t, (scores, least) in enumerate(zip(batch.scores, self.min_depth, strict=True), 1)
        }


class FSRankNet(Objective):
    """RankNet of each stage on all samples of the funnel, by full-stage grades (Zheng et al. 2024)."""

    def __init__(self, *, stages: int = 2) -> None:
        super().__init__(stages)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        return {
            f"stage{t}/ranknet": ranknet_loss(scores, batch.grades, mask=batch.mask)
            for t, scores in enumerate(batch.scores, 1)
        }


class FSLambdaLoss(Objective):
    """LambdaLoss@K of each stage on all samples of the funnel, by full-stage grades (Zheng et al. 2024).

    k: cut-off K. mix: the "smooth fraction", LambdaRank's share of the pair weights. gain: "linear" takes the grade
    itself as gain, as published; full-stage grades run to the length of the list, and with 2^y - 1 ("exp2") all but
    the best few would count nothing.
    """

    def __init__(
        self,
        *,
        k: int | None = None,
        mix: float = 0.0,
        gain: Literal["linear", "exp2"] = "linear",
        version: Literal["sound", "heuristic"] = "sound",
        stages: int = 2,
    ) -> None:
        super().__init__(stages)
        self.k = None if k is None else check_count("k", k)
        self.mix = mix
        self.gain = check_choice("gain", gain, ("linear", "exp2"))
        self.version = version

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        # LambdaLoss has the gain 2^y - 1, which of log2(1 + y) is y
        labels = torch.log2(1 + batch.grades) if self.gain == "linear" else batch.grades
        return {
            f"stage{t}/lambda": lambda_loss(
                scores, labels, mask=batch.mask, k=self.k, mix=self.mix, version=self.version
            )
            for t, scores in enumerate(batch.scores, 1)
        }


class SortCE(Objective):
    """Cross entropy of each stage's soft permutation with that of the full-stage grades (LCR, table 7)."""

    def __init__(self, *, tau: float | Tensor | None = None, sort: SoftSort = neural_sort, stages: int = 2) -> None:
        super().__init__(stages)
        self.tau = tau
        self.sort = sort

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        return {
            f"stage{t}/sort": sort_cross_entropy_loss(
                scores, batch.grades, mask=batch.mask, tau=self.tau, sort=self.sort
            )
            for t, scores in enumerate(batch.scores, 1)
        }


class PerStage(Objective):
    """Any loss of each stage's scores, with the full-stage grades as labels (rankfall).

    loss: a module of :mod:`rankfall.losses`. Every stage has its own copy, and so its own trained weights.
    labels: "grades", or "relevance" for 1 where an item is one of the `relevant` best and 0 elsewhere: what is left of
    a loss if it hears no more than BCE and LCRON do.

    >>> from rankfall.losses import RankNetLoss
    >>> objective = PerStage(loss=RankNetLoss(), stages=2)
    >>> objective([torch.zeros(2), torch.zeros(2)], torch.tensor([1.0, 0.0]))  # log 2 in both stages
    tensor(1.3863)
    """

    def __init__(
        self,
        *,
        loss: nn.Module,
        labels: Literal["grades", "relevance"] = "grades",
        relevant: int | None = None,
        stages: int = 2,
    ) -> None:
        super().__init__(stages)
        if not isinstance(loss, nn.Module):
            raise TypeError(f"loss must be a module of rankfall.losses, got {loss!r}")
        check_choice("labels", labels, ("grades", "relevance"))
        if labels == "relevance" and relevant is None:
            raise ValueError("relevant: found None, expected a number of items for labels='relevance'")
        self.relevant = None if labels == "grades" or relevant is None else check_count("relevant", relevant)
        self.losses = nn.ModuleList(copy.deepcopy(loss) for _ in range(stages))

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        labels = batch.grades if self.relevant is None else batch.truth(self.relevant)
        return {
            f"stage{t}/loss": loss(scores, labels, mask=batch.mask)
            for t, (loss, scores) in enumerate(zip(self.losses, batch.scores, strict=True), 1)
        }


class _Adaptive(Objective):
    """A loss of the recall plus one of the whole order, balanced by a trained weight for each stage (ARF 13)."""

    def __init__(self, stages: int, tau: float | Tensor | None, sort: SoftSort) -> None:
        super().__init__(stages)
        self.tau = tau
        self.sort = sort
        self.alpha = nn.Parameter(torch.ones(stages))

    def recall(self, batch: Impression, stage: int) -> Tensor:
        """The loss of the recall, one value a list."""
        raise NotImplementedError

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        # a list that says nothing about the order must not pull alpha to 0 by its logarithm
        share = mean_over_lists(has_positive(batch.grades, batch.mask).to(batch.grades.dtype))
        terms = {}
        for t, scores in enumerate(batch.scores):
            order = sort_cross_entropy_loss(scores, batch.grades, mask=batch.mask, tau=self.tau, sort=self.sort)
            terms[f"stage{t + 1}/recall"] = self.recall(batch, t)
            terms[f"stage{t + 1}/order"] = order / (2 * self.alpha[t].square()) + share * self.alpha[t].abs().log()
        return terms


class ARF(_Adaptive):
    r"""ARF for each stage, with its quota as m and `relevant` as k (ARF 13).

    .. math:: L_{Relax} + \frac{1}{2 \alpha^2} L_{Global} + \log |\alpha|

    The weights :math:`\alpha` are parameters: hand them to the optimiser with the models'.
    """

    def __init__(
        self,
        *,
        relevant: int,
        quotas: Sequence[int],
        tau: float | Tensor | None = None,
        sort: SoftSort = neural_sort,
    ) -> None:
        super().__init__(len(quotas), tau, sort)
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(quotas, self.stages)

    def recall(self, batch: Impression, stage: int) -> Tensor:
        return relax_loss(
            batch.scores[stage],
            batch.relevance,
            mask=batch.mask,
            m=self.quotas[stage],
            k=self.relevant,
            tau=self.tau,
            sort=self.sort,
        )


class ARFv2(_Adaptive):
    r"""ARF with :math:`L_{single}` of LCRON in the place of :math:`L_{Relax}` (LCR, baseline)."""

    def __init__(
        self,
        *,
        relevant: int,
        topk: TopK | None = None,
        tau: float | Tensor | None = None,
        sort: SoftSort = neural_sort,
        stages: int = 2,
    ) -> None:
        super().__init__(stages, tau, sort)
        self.relevant = check_count("relevant", relevant)
        self.kept = [relevant]
        if topk is None:
            topk = make_topk("neural_sort") if tau is None else make_topk("neural_sort", tau=tau)
        self.topk = topk

    def recall(self, batch: Impression, stage: int) -> Tensor:
        return topk_bce_loss(batch.scores[stage], batch.relevance, mask=batch.mask, k=self.relevant, topk=self.topk)
