"""Objectives that train stages separately or in a chain: BCE, full-stage learning to rank, any loss, ICC, RankFlow."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from rankfall import register
from rankfall._checks import check_choice, check_count, check_none, check_scale, check_share, is_published
from rankfall._errors import RankfallError
from rankfall._lists import has_order, list_mean, mean_over_lists, rank_order
from rankfall.losses import bce_loss, lambda_loss, lambdarank_loss, ranknet_loss
from rankfall.objectives._stages import Impression, Objective, check_quotas, grades_order, per_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from rankfall.option_types import Count, Depth, Fraction, Scale


ALL_ITEMS = -1  # the depth of items that were drawn at random


@register.objective("bce")
class BCE(Objective):
    r"""Binary cross entropy of each stage, on the items that the logged cascade shows to it.

    .. math:: \sum_t BCE(\sigma(s^t), a) \text{ over the items with } depth \ge min\_depth_t

    where :math:`a` is the membership in the ground truth. An item weight multiplies the cross entropy of the item. Use
    it as the usual baseline of industrial cascades: every stage is trained separately, on the items that reached it.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        stages: Number of stages, at least 1.
        min_depth: Smallest logged depth (a stage's number, or its name in configurations) of the items that a stage
            sees; one value for all stages or one per stage. With 0 or less, all stages see all samples. Default: -1
            (all items) for the first stage and t - 1 for stage t, the items that its predecessor kept. On two simulated
            platforms, all samples gave .030 and .011 more joint recall.

    Examples:
        The loss is log 2 in both stages:

        >>> objective = BCE(relevant=1)
        >>> zeros, grades = torch.zeros(2), torch.tensor([1.0, 0.0])
        >>> objective([zeros, zeros], grades, depth=torch.tensor([1, 0]))
        tensor(1.3863)
    """

    def __init__(self, *, relevant: int, stages: int = 2, min_depth: Depth | Sequence[Depth] | None = None) -> None:
        super().__init__(stages)
        self.relevant = check_count("relevant", relevant)
        default = [ALL_ITEMS, *range(1, stages)]
        self.min_depth = default if min_depth is None else per_stage("min_depth", min_depth, stages)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        return {
            f"stage{t}/bce": bce_loss(scores, truth, mask=batch.seen(least), weight=batch.weight, threshold=None)
            for t, (scores, least) in enumerate(zip(batch.scores, self.min_depth, strict=True), 1)
        }

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        return {f"stage{t}": has_order(truth, batch.seen(least)) for t, least in enumerate(self.min_depth, 1)}


@register.objective("fs_ranknet")
class FSRankNet(Objective):
    """RankNet of each stage on all samples of the funnel, by full-stage grades (Zheng et al. 2024).

    Every stage is trained with :func:`~rankfall.losses.ranknet_loss` on the same labels. A pair has the weight of the
    item with the better grade. Use it as a baseline that needs no number of relevant items and no quotas.

    Args:
        stages: Number of stages, at least 1.
    """

    def __init__(self, *, stages: int = 2) -> None:
        super().__init__(stages)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        return {
            f"stage{t}/ranknet": ranknet_loss(scores, batch.grades, mask=batch.mask, weight=batch.weight)
            for t, scores in enumerate(batch.scores, 1)
        }

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return {"grades": grades_order(batch)}


@register.objective("fs_lambda_loss")
class FSLambdaLoss(Objective):
    """LambdaLoss@K of each stage on all samples of the funnel, by full-stage grades (Zheng et al. 2024).

    Every stage is trained with :func:`~rankfall.losses.lambda_loss` on the same labels. A pair has the weight of the
    item with the better grade. Use it as a strong baseline that weights the top ranks.

    Args:
        k: Cutoff K of NDCG@K, at least 1. Default: the whole list.
        mix: Share of LambdaRank in the pair weights, from 0 to 1 (the "smooth fraction" of the paper).
        gain: ``"linear"`` uses the grade itself as gain, as published. ``"exp2"`` uses 2^y - 1; full-stage grades grow
            up to the length of the list, so that all but the best few items would have a negligible gain.
        version: Truncation of the pair weights at K, ``"sound"`` or ``"heuristic"``; see
            :func:`~rankfall.losses.lambda_loss`. Default: that of the variant.
        stages: Number of stages, at least 1.
        variant: ``"published"`` is the baseline of LCRON's code, as in TF-Ranking: another default of `version`,
            ``"heuristic"`` (LLK, eq. 15). On random scores of 40 items, the gradients of the two variants have a cosine
            of 0.5 at `k` = 10 and 0.7 at `k` = 20, without `mix`. They are equal if `k` is the whole list, which tuning
            chose on one of two simulated platforms; on the other one it chose `mix` = 1.
    """

    def __init__(
        self,
        *,
        k: Count | None = None,
        mix: Fraction = 0.0,
        gain: Literal["linear", "exp2"] = "linear",
        version: Literal["sound", "heuristic"] | None = None,
        stages: int = 2,
        variant: Literal["sound", "published"] = "sound",
    ) -> None:
        super().__init__(stages)
        published = is_published(variant)
        self.variant = variant
        self.k = None if k is None else check_count("k", k)
        self.mix = mix
        self.gain = check_choice("gain", gain, ("linear", "exp2"))
        self.version: Literal["sound", "heuristic"] = version or ("heuristic" if published else "sound")

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        check_none("labels", batch.grades < 0, "values below 0")
        # the gain of LambdaLoss, 2^y - 1, of the label log2(1 + y) is y
        labels = torch.log2(1 + batch.grades) if self.gain == "linear" else batch.grades
        return {
            f"stage{t}/lambda": lambda_loss(
                scores, labels, mask=batch.mask, weight=batch.weight, k=self.k, mix=self.mix, version=self.version
            )
            for t, scores in enumerate(batch.scores, 1)
        }

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return {"grades": grades_order(batch)}


@register.objective("per_stage")
class PerStage(Objective):
    """Any loss of each stage's scores, with the full-stage grades as labels (rankfall).

    Use it to train a cascade with a loss of :mod:`rankfall.losses` that has no objective of its own. With
    ``grade_softmax_loss`` the stages put out one logit per grade, ``(..., n, grades)`` instead of scores. Item weights
    act as the loss defines them.

    Args:
        loss: A module of :mod:`rankfall.losses`; in configurations, the name of a loss or a mapping of its name and
            options. Every stage gets a copy with its own trained weights.
        labels: ``"grades"`` for the full-stage grades, or ``"relevance"`` for 1 if an item is one of the `relevant`
            best and 0 otherwise, which is the information that BCE and LCRON get.
        relevant: Number of relevant items per impression, at least 1. Required if `labels` is ``"relevance"``.
        stages: Number of stages, at least 1.

    Examples:
        The loss is log 2 in both stages:

        >>> from rankfall.losses import RankNetLoss
        >>> objective = PerStage(loss=RankNetLoss(), stages=2)
        >>> objective([torch.zeros(2), torch.zeros(2)], torch.tensor([1.0, 0.0]))
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
            raise RankfallError("relevant: found None, expected a number of items for labels='relevance'")
        self.relevant = None if labels == "grades" or relevant is None else check_count("relevant", relevant)
        self.losses = nn.ModuleList(copy.deepcopy(loss) for _ in range(stages))

    def _check(self, scores: Sequence[Tensor], labels: Tensor, *others: Tensor | None) -> Impression:
        logits = isinstance(labels, Tensor) and isinstance(scores, list | tuple)
        if logits and all(isinstance(one, Tensor) and one.ndim == labels.ndim + 1 for one in scores):
            batch = super()._check([one[..., 0] for one in scores], labels, *others)
            return replace(batch, scores=list(scores))
        return super()._check(scores, labels, *others)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        labels = batch.grades if self.relevant is None else batch.truth(self.relevant)
        given = {"mask": batch.mask}
        if batch.weight is not None:
            _check_takes_weight(self.losses[0])
            given["weight"] = batch.weight
        return {
            f"stage{t}/loss": loss(scores, labels, **given)
            for t, (loss, scores) in enumerate(zip(self.losses, batch.scores, strict=True), 1)
        }

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        if self.relevant is None:
            return {"grades": grades_order(batch)}
        return {"relevance": has_order(batch.truth(self.relevant), batch.mask)}


def _check_takes_weight(loss: nn.Module) -> None:
    if "weight" not in inspect.signature(loss.forward).parameters:
        raise RankfallError(
            f"weight: {type(loss).__name__} takes no item weights; leave weight out, or use another loss"
        )


@register.objective("icc")
class ICC(Objective):
    r"""Ranking loss on scores that are fused by soft cutoffs (Gallagher et al. 2019).

    .. math:: \sum_{t < T} \Big(\prod_{u < t} I_u\Big) (1 - I_t)\, s^t + \Big(\prod_{u < T} I_u\Big) s^T, \quad
              I_t = \sigma\Big(\frac{s^t - s^t_{[q_t]}}{temperature}\Big)

    The q-th largest score carries gradient. The labels of the ranking loss are the membership in the ground truth. A
    pair has the weight of its relevant item. Use it as a baseline that trains all stages jointly through one fused
    score.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        quotas: Number of items that each stage keeps; must not grow from stage to stage. The length is the number of
            stages.
        temperature: Positive temperature of the soft cutoffs. The smaller it is, the harder they are.
        loss: Ranking loss of the fused scores: ``"lambdarank"`` as in the paper (the default of the sound variant), or
            ``"ranknet"`` (the default of the published variant).
        variant: ``"published"`` is the baseline of LCRON's code: another default of `loss`. That code also trains pairs
            of equal labels, in a direction that depends on the order of the items; here such pairs do not count.

    Examples:
        The cutoff is sharp, so the first item has the score 2 in either stage, and the second item the score of stage
        1, 1:

        >>> scores = torch.tensor([2.0, 1.0])
        >>> ICC(relevant=1, quotas=[1, 1], temperature=1e-3, loss="ranknet")([scores, scores], torch.tensor([1.0, 0.0]))
        tensor(0.3133)
    """

    def __init__(
        self,
        *,
        relevant: int,
        quotas: Sequence[Count],
        temperature: Scale = 1.0,
        loss: Literal["lambdarank", "ranknet"] | None = None,
        variant: Literal["sound", "published"] = "sound",
    ) -> None:
        super().__init__(len(check_quotas(quotas)))
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(quotas)
        self.temperature = check_scale("temperature", temperature)
        default = "ranknet" if is_published(variant) else "lambdarank"
        self.variant = variant
        self.loss = check_choice("loss", loss or default, ("lambdarank", "ranknet"))

    def fuse(self, batch: Impression) -> Tensor:
        """Return the fused scores ``(..., n)``."""
        reached = torch.ones_like(batch.scores[0])
        fused = torch.zeros_like(reached)
        for scores, quota in zip(batch.scores[:-1], self.quotas[:-1], strict=True):
            stays = torch.sigmoid((scores - _kth(scores, quota, batch.mask)) / self.temperature)
            fused = fused + reached * (1 - stays) * scores
            reached = reached * stays
        return fused + reached * batch.scores[-1]

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        rank = lambdarank_loss if self.loss == "lambdarank" else ranknet_loss
        truth = batch.truth(self.relevant)
        return {f"fused/{self.loss}": rank(self.fuse(batch), truth, mask=batch.mask, weight=batch.weight)}

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return {"relevance": has_order(batch.truth(self.relevant), batch.mask)}


def _kth(scores: Tensor, k: int, mask: Tensor) -> Tensor:
    """Return the k-th largest real score of each list, or the smallest one of a list with fewer items."""
    order = rank_order(scores, mask)
    last = (mask.sum(-1, keepdim=True).clamp(max=k) - 1).clamp(min=0)
    return scores.gather(-1, order.gather(-1, last))


@register.objective("rankflow")
class RankFlow(Objective):
    r"""Each stage learns from the items that its predecessor keeps, and from its successor (Qin et al. 2022).

    Stage 1 is trained with BCE on all items, stage t + 1 on the items that stage t keeps. On the kept items, stage t is
    distilled from stage t + 1 by

    .. math:: (1 - \alpha) \overline{(s^t - s^{t+1})^2} - \alpha \log \sigma(\bar s^t_{best} - \bar s^t_{rest})

    where the scores of the next stage carry no gradient, and :math:`\bar s^t` are the mean scores of the next stage's
    best `relevant` items and of the rest. An item weight multiplies the cross entropy and the squared error of the
    item; the last term has the mean weight of the next stage's best items. Use it as a baseline in which stages teach
    each other.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        quotas: Number of items that each stage keeps; must not grow from stage to stage. The length is the number of
            stages.
        alpha: Share of the ranking term in the distillation, from 0 to 1.
        schedule: ``"joint"`` trains all stages in each step, as LCRON's code does. ``"alternate"`` trains one stage per
            step, in turn, and keeps the others fixed, as Qin et al. describe it. The number of steps is a buffer, so
            that a training run that is continued from a checkpoint continues with the right stage. It trains in one
            process only, since several would wait for the gradients of the other stages.
    """

    calls: Tensor

    def __init__(
        self,
        *,
        relevant: int,
        quotas: Sequence[Count],
        alpha: Fraction = 0.5,
        schedule: Literal["joint", "alternate"] = "joint",
    ) -> None:
        super().__init__(len(check_quotas(quotas)))
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(quotas)
        self.alpha = check_share("alpha", alpha)
        self.schedule = check_choice("schedule", schedule, ("joint", "alternate"))
        if schedule == "alternate":
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.turns = self.stages

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        kept = batch.mask
        terms = {}
        for t, scores in enumerate(batch.scores, 1):
            terms[f"stage{t}/bce"] = bce_loss(scores, truth, mask=kept, weight=batch.weight, threshold=None)
            if t < self.stages:
                kept = _best(scores, self.quotas[t - 1], kept)
                terms[f"stage{t}/distilled"] = self._distil(scores, batch.scores[t].detach(), kept, batch.weight)
        return terms if self.schedule == "joint" else self._alternate(terms)

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return {"relevance": has_order(batch.truth(self.relevant), batch.mask)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        counters = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update(counters)  # the host reads the counter in every step, so it stays on the CPU
        return self

    def _alternate(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep the gradient of one stage's terms. Weights without a gradient are left alone by the optimizer."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise RankfallError("schedule: found 'alternate', expected 'joint' in training by several processes")
        turn = int(self.calls) % self.stages + 1
        if torch.is_grad_enabled():  # a step, not an evaluation
            self.calls += 1
        return {name: term if name.startswith(f"stage{turn}/") else term.detach() for name, term in terms.items()}

    def _distil(self, scores: Tensor, teacher: Tensor, kept: Tensor, weight: Tensor | None) -> Tensor:
        errors = (scores - teacher).square()
        squared = list_mean(errors if weight is None else errors * weight, kept)
        best = _best(teacher, self.relevant, kept)
        rest = kept & ~best
        ahead = list_mean(scores, best) - list_mean(scores, rest)
        ranked = -F.logsigmoid(ahead).masked_fill(~rest.any(-1), 0.0)  # no loss if there is no other item
        ranked = ranked if weight is None else ranked * list_mean(weight, best)
        return mean_over_lists((1 - self.alpha) * squared + self.alpha * ranked)


def _best(scores: Tensor, k: int, mask: Tensor) -> Tensor:
    """Return the mask of the k best real items, without gradient; ties by position."""
    order = rank_order(scores, mask)
    place = order.argsort(-1)
    return mask & (place < k)
