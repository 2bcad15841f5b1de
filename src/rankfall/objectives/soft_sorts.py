"""Objectives that train every stage separately with a soft sort: its cross entropy, ARF and ARF-v2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rankfall import register
from rankfall._checks import check_choice, check_count, is_published
from rankfall._errors import RankfallError
from rankfall._lists import counts_for_order, has_order, mean_over_lists
from rankfall.losses import relax_loss, sort_cross_entropy_loss, topk_bce_loss
from rankfall.losses.adaptive import adaptive_scales
from rankfall.objectives._stages import Impression, Objective, check_quotas, count_stages, grades_order
from rankfall.ops import neural_sort
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.ops import SoftSort, TopK
    from rankfall.option_types import Count, Scale


class _Ordered(Objective):
    """Base class of objectives with a loss of the order of the grades in every stage."""

    def __init__(
        self,
        stages: int,
        tau: float | Tensor | None,
        sort: SoftSort,
        label_tau: float | Tensor | None,
        ties: Literal["average", "position"] | None,
        variant: str,
    ) -> None:
        super().__init__(stages)
        self.tau = tau
        self.sort = sort
        self.label_tau = label_tau
        self.ties: Literal["average", "position"] = ties or ("position" if is_published(variant) else "average")
        check_choice("ties", self.ties, ("average", "position"))
        self.variant = variant

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return {"grades": grades_order(batch)}

    def order(self, batch: Impression, stage: int, scale: Literal["mean", "sum"] = "mean") -> Tensor:
        """Return the loss of the order of one stage."""
        return sort_cross_entropy_loss(
            batch.scores[stage],
            batch.grades,
            mask=batch.mask,
            weight=batch.weight,
            tau=self.tau,
            sort=self.sort,
            label_tau=self.label_tau,
            ties=self.ties,
            scale=scale,
        )


@register.objective("sort_ce")
class SortCE(_Ordered):
    """Cross entropy of each stage's soft permutation with the permutation of the full-stage grades (LCR, table 7).

    Every stage is trained with :func:`~rankfall.losses.sort_cross_entropy_loss`. An item weight multiplies the cross
    entropy of the item's place. Use it to train each stage on the whole order of the items.

    Args:
        tau: Positive temperature of `sort`: a number or a scalar tensor. Default: the default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        label_tau: None for the hard permutation of the grades. Otherwise the positive temperature at which `sort` is
            applied to the grades.
        ties: Hard permutation of equal grades. ``"average"`` (the default of the sound variant) is the mean over all
            their orders. ``"position"`` (the default of the published variant) puts the item that is given first before
            the others, so that the loss depends on the order of the items.
        variant: ``"published"`` is the loss of LCRON's code: another default of `ties`.
        stages: Number of stages, at least 1.
    """

    def __init__(
        self,
        *,
        tau: Scale | Tensor | None = None,
        sort: SoftSort = neural_sort,
        label_tau: Scale | Tensor | None = None,
        ties: Literal["average", "position"] | None = None,
        variant: Literal["sound", "published"] = "sound",
        stages: int = 2,
    ) -> None:
        super().__init__(stages, tau, sort, label_tau, ties, variant)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        return {f"stage{t + 1}/sort": self.order(batch, t) for t in range(self.stages)}


class _Adaptive(_Ordered):
    """A loss of the recall plus a loss of the whole order, balanced by one trained weight per stage (ARF, eq. 13)."""

    relevant: int

    def __init__(
        self,
        stages: int,
        tau: float | Tensor | None,
        sort: SoftSort,
        label_tau: float | Tensor | None,
        ties: Literal["average", "position"] | None,
        variant: str,
        scale: str,
    ) -> None:
        super().__init__(stages, tau, sort, label_tau, ties, variant)
        self.scale = scale
        self.of_recall, self.of_order = adaptive_scales(scale)
        self.alpha = nn.Parameter(torch.ones(stages))

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        return super().informs(batch) | {"relevance": has_order(batch.truth(self.relevant), batch.mask)}

    def recall(self, batch: Impression, stage: int) -> Tensor:
        """Return the loss of the recall of one stage."""
        raise NotImplementedError

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        # the logarithm would pull alpha to 0 on lists without information about the order
        share = mean_over_lists(counts_for_order(batch.grades, batch.mask).to(batch.grades.dtype))
        terms = {}
        for t in range(self.stages):
            order = self.order(batch, t, scale=self.of_order)
            terms[f"stage{t + 1}/recall"] = self.recall(batch, t)
            terms[f"stage{t + 1}/order"] = order / (2 * self.alpha[t].square()) + share * self.alpha[t].abs().log()
        return terms


@register.objective("arf")
class ARF(_Adaptive):
    r"""ARF for each stage, with its quota as m and `relevant` as k (ARF, eq. 13).

    .. math:: L_{Relax} + \frac{1}{2 \alpha^2} L_{Global} + \log |\alpha|

    The weights :math:`\alpha`, one per stage, are parameters: pass them to the optimizer together with those of the
    models. An item weight multiplies the item's term in both losses. Use it to train each stage for the recall at its
    quota.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        quotas: Number of items that each stage keeps; must not grow from stage to stage. The length is the number of
            stages.
        tau: Positive temperature of `sort`: a number or a scalar tensor. Default: the default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        label_tau: None for the hard permutation of the grades. Otherwise the positive temperature at which `sort` is
            applied to the grades.
        ties: Hard permutation of equal grades. ``"average"`` (the default of the sound variant) is the mean over all
            their orders. ``"position"`` (the default of the published variant) puts the item that is given first before
            the others, so that the loss depends on the order of the items.
        variant: ``"published"`` is the baseline of LCRON's code: other defaults of `ties` and `scale`. The equations of
            ARF as printed are the published variant of :class:`~rankfall.losses.ARFLoss`. On two simulated platforms
            the sound variant had .008 and .003 more joint recall, which three seeds do not establish.
        scale: ``"mean"`` of both losses (the default of the sound variant), ``"sum"`` of both as in ARF, eq. 11 and 12,
            or ``"mixed"`` (the default of the published variant): the sum for the recall and the mean for the order, as
            in LCRON's code. The trained weight starts at 1, so the scale decides the balance at the start: with 10
            relevant of 40 items and equal scores, the ratio of recall to order is 1, 1/4 and 10.
    """

    def __init__(
        self,
        *,
        relevant: int,
        quotas: Sequence[Count],
        tau: Scale | Tensor | None = None,
        sort: SoftSort = neural_sort,
        label_tau: Scale | Tensor | None = None,
        ties: Literal["average", "position"] | None = None,
        variant: Literal["sound", "published"] = "sound",
        scale: Literal["mean", "sum", "mixed"] | None = None,
    ) -> None:
        chosen = scale or ("mixed" if is_published(variant) else "mean")
        super().__init__(len(check_quotas(quotas)), tau, sort, label_tau, ties, variant, chosen)
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(quotas)

    def recall(self, batch: Impression, stage: int) -> Tensor:
        return relax_loss(
            batch.scores[stage],
            batch.relevant(),
            mask=batch.mask,
            weight=batch.weight,
            m=self.quotas[stage],
            k=self.relevant,
            tau=self.tau,
            sort=self.sort,
            scale=self.of_recall,
        )


@register.objective("arf_v2")
class ARFv2(_Adaptive):
    r"""ARF with :math:`L_{single}` of LCRON instead of :math:`L_{Relax}` (LCR, baseline).

    .. math:: L_{single} + \frac{1}{2 \alpha^2} L_{Global} + \log |\alpha|

    The weights :math:`\alpha`, one per stage, are parameters, as in :class:`ARF`. An item weight multiplies the item's
    term in both losses. Use it as a baseline for :class:`LCRON` that trains each stage separately.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        topk: A soft top-k from :func:`rankfall.ops.topk`; in configurations, the name of any operator or a mapping of
            its name and options. Default: NeuralSort at `tau`.
        tau: Positive temperature of `sort`, and of the default of `topk`: a number or a scalar tensor. Default: the
            default of `sort`.
        sort: A soft sort of :mod:`rankfall.ops`; in configurations, its name or a mapping of its name and options.
        label_tau: None for the hard permutation of the grades. Otherwise the positive temperature at which `sort` is
            applied to the grades.
        ties: Hard permutation of equal grades. ``"average"`` (the default of the sound variant) is the mean over all
            their orders. ``"position"`` (the default of the published variant) puts the item that is given first before
            the others, so that the loss depends on the order of the items.
        variant: ``"published"`` is the baseline of LCRON's code: another default of `ties`, and the inclusion in
            :math:`L_{single}` is that at the quota of the stage (LCR, sec. 5.2) instead of at `relevant`. The loss then
            cannot reach 0: the inclusion adds up to the quota, but only `relevant` items have the target 1. Three seeds
            on two simulated platforms do not distinguish cascades trained with the two variants.
        scale: ``"mean"`` of both losses, ``"sum"`` of both, or ``"mixed"``: the sum for the inclusion and the mean for
            the order.
        quotas: Number of items that each stage keeps; must not grow from stage to stage. Needed, and used, by the
            published variant only.
        stages: Number of stages, at least 1. Default: the number of quotas, or 2.
    """

    def __init__(
        self,
        *,
        relevant: int,
        topk: TopK | None = None,
        tau: Scale | Tensor | None = None,
        sort: SoftSort = neural_sort,
        label_tau: Scale | Tensor | None = None,
        ties: Literal["average", "position"] | None = None,
        variant: Literal["sound", "published"] = "sound",
        scale: Literal["mean", "sum", "mixed"] = "mean",
        quotas: Sequence[Count] | Count | None = None,
        stages: int | None = None,
    ) -> None:
        super().__init__(count_stages(quotas, stages), tau, sort, label_tau, ties, variant, scale)
        self.relevant = check_count("relevant", relevant)
        if variant == "published" and quotas is None:
            raise RankfallError("quotas: found None, expected one number of items per stage for variant='published'")
        self.quotas = None if quotas is None else check_quotas(quotas, self.stages)
        self.kept = [relevant] * self.stages if variant == "sound" or self.quotas is None else self.quotas
        if topk is None:
            topk = make_topk("neural_sort") if tau is None else make_topk("neural_sort", tau=tau)
        self.topk = topk

    def recall(self, batch: Impression, stage: int) -> Tensor:
        return topk_bce_loss(
            batch.scores[stage],
            batch.relevant(),
            mask=batch.mask,
            weight=batch.weight,
            k=self.relevant,
            m=self.kept[stage],
            topk=self.topk,
            scale=self.of_recall,
        )
