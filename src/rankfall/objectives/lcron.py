"""LCRON: the survival of the relevant items through the whole cascade (ICML 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rankfall import register
from rankfall._checks import check_choice, check_count, is_published
from rankfall._errors import RankfallError
from rankfall._lists import has_order, has_recall_signal, list_mean, mean_over_lists
from rankfall.objectives._stages import Impression, Objective, check_quotas, count_stages
from rankfall.ops import log_inclusion
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.ops import TopK
    from rankfall.option_types import Count, NotNegative


HEAVIEST = 1e5
"""Largest weight of a term."""


@register.objective("lcron")
class LCRON(Objective):
    r"""LCRON: cross entropy of the items' survival through the whole cascade (LCR, eq. 11-13).

    .. math:: L_{e2e} + \sum_t \frac{L_t}{2 w_t^2} + \log |w_t|, \quad
              L_{e2e} = BCE\Big(\prod_t p^t, a\Big), \quad L_t = BCE(p^t_{(K)}, a)

    :math:`p^t` is the soft top-:math:`q_t` inclusion of stage t, :math:`p^t_{(K)}` the inclusion at K = `relevant`, and
    :math:`a` the membership in the ground truth. Both cross entropies are means over the items of a list; an item
    weight multiplies the two cross entropies of the item. Products are computed in log space, so that an item that is
    nearly certain to be dropped still has a gradient. Trained weights are parameters: pass them to the optimizer
    together with those of the models. Use it to train all stages jointly for the recall of the whole cascade.

    Args:
        relevant: Size of the ground truth, at least 1: the most relevant items, of these those with the best grades.
        topk: A soft top-k from :func:`rankfall.ops.topk`; in configurations, the name of any operator or a mapping of
            its name and options. Default: ``topk("neural_sort", tau=50)``.
        quotas: Number of items that the stages keep in training: one number, or one per stage. Default: `relevant`
            (LCR, sec. 5.1).
        stages: Number of stages, at least 1. Default: the number of quotas, or 2.
        e2e_weight: Weight of :math:`L_{e2e}`. ``"fixed"`` is 1, as in the published code. ``"learned"`` is a trained
            weight (LCR, eq. 13, here with natural logarithms). A number from 0 to 1e5 is the weight itself; 0 drops the
            term (LCR, table 3).
        single_weight: Weight of every :math:`L_t`: ``"learned"`` as in the formula, or a number from 0 to 1e5 (LCR,
            table 4); 0 drops the terms (LCR, table 3).
        variant: Gradient of :math:`1 - \prod_t p^t` in :math:`L_{e2e}`; values do not change. ``"sound"`` adds up the
            stages that can drop an item, :math:`\sum_t (\prod_{u < t} p^u) (1 - p^t)`. ``"published"`` is the gradient
            of LCRON's code, which computes :math:`1 - \prod_t (1 - d^t)` from :math:`d^t = 1 - p^t` alone. The two
            differ only where :math:`p` and :math:`1 - p` have separate gradients, that is for a soft sort with
            ``gradient="rows"``, the default of `topk`. On random scores of 40 items and with ``tau=50``, the two
            gradients of :math:`L_{e2e}` have a cosine of 0.94 in the first of two stages and are equal in the second.
            Three seeds on two simulated platforms do not distinguish cascades trained with the published variant from
            those with ``gradient="exact"``.
        scale: ``"mean"`` over the items of a list, or their ``"sum"`` as in LCR, eq. 11 and 12. The learned weights
            settle at the square root of their loss, so with sums each :math:`L_t` has a much smaller share.

    Examples:
        Two stages with equal scores keep each item with probability 1/4: log 4 for the relevant item, log 4/3 for the
        other, and log 2 for each single stage, halved by its weight:

        >>> objective = LCRON(relevant=1, topk=make_topk("dftopk"))
        >>> zeros = torch.zeros(2)
        >>> objective([zeros, zeros], torch.tensor([1.0, 0.0])).detach()
        tensor(1.5301)
    """

    def __init__(
        self,
        *,
        relevant: int,
        topk: TopK | None = None,
        quotas: Sequence[Count] | Count | None = None,
        stages: int | None = None,
        e2e_weight: Literal["fixed", "learned"] | NotNegative = "fixed",
        single_weight: Literal["learned"] | NotNegative = "learned",
        variant: Literal["sound", "published"] = "sound",
        scale: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(count_stages(quotas, stages))
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(relevant if quotas is None else quotas, self.stages)
        self.topk: TopK = make_topk("neural_sort", tau=50.0) if topk is None else topk
        self.e2e_weight = _check_weight("e2e_weight", 1.0 if e2e_weight == "fixed" else e2e_weight)
        self.single_weight = _check_weight("single_weight", single_weight)
        self._survival = published_survival if is_published(variant) else survival
        self.variant = variant
        self.scale = check_choice("scale", scale, ("mean", "sum"))
        if self.e2e_weight == self.single_weight == 0:
            raise RankfallError("e2e_weight and single_weight are both 0, so nothing would be trained")
        self.kept = [min(self.quotas)] * (self.e2e_weight != 0) + [relevant] * (self.single_weight != 0)
        trained = self.stages * (self.single_weight is None) + (self.e2e_weight is None)
        # the weight of L_e2e is the last one
        self.weights: Tensor = nn.Parameter(torch.ones(trained)) if trained else torch.ones(0)

    def terms(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        terms = {}
        at_quota: list[tuple[Tensor, Tensor]] = []
        if self.e2e_weight != 0:
            at_quota = [
                log_inclusion(self.topk, scores, quota, mask=batch.mask)
                for scores, quota in zip(batch.scores, self.quotas, strict=True)
            ]
            counts = has_recall_signal(truth, batch.mask, min(self.quotas))
            e2e = self._cross_entropy(batch, truth, *self._survival(at_quota), counts)
            terms["e2e"] = self._weighted(e2e, self.e2e_weight, -1, counts)
        if self.single_weight == 0:
            return terms
        counts = has_recall_signal(truth, batch.mask, self.relevant)
        for t, scores in enumerate(batch.scores):
            if at_quota and self.quotas[t] == self.relevant:
                inclusion = at_quota[t]
            else:
                inclusion = log_inclusion(self.topk, scores, self.relevant, mask=batch.mask)
            single = self._cross_entropy(batch, truth, *inclusion, counts)
            terms[f"stage{t + 1}/single"] = self._weighted(single, self.single_weight, t, counts)
        return terms

    def informs(self, batch: Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)
        return {"relevance": has_order(truth, batch.mask) & has_recall_signal(truth, batch.mask, min(self.kept))}

    def _cross_entropy(
        self, batch: Impression, truth: Tensor, log_p: Tensor, log_not_p: Tensor, counts: Tensor
    ) -> Tensor:
        """Return the mean over lists of the mean or sum over items; lists where `counts` is False have loss 0."""
        costs, mask = -(truth * log_p + (1 - truth) * log_not_p), batch.mask
        costs = costs if batch.weight is None else costs * batch.weight
        per_list = list_mean(costs, mask) if self.scale == "mean" else costs.masked_fill(~mask, 0.0).sum(-1)
        return mean_over_lists(per_list.masked_fill(~counts, 0.0))

    def _weighted(self, value: Tensor, fixed: float | None, which: int, counts: Tensor) -> Tensor:
        if fixed is not None:
            return fixed * value
        # the logarithm would pull the weight to 0 on lists that do not count
        weight, share = self.weights[which], mean_over_lists(counts.to(value.dtype))
        return value / (2 * weight.square()) + share * weight.abs().log()


def _check_weight(name: str, weight: float | str) -> float | None:
    """Return the weight, a number of at least 0, or None for a weight that is learned."""
    if weight == "learned":
        return None
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= HEAVIEST:
        words = "'fixed', 'learned'" if name == "e2e_weight" else "'learned'"
        raise RankfallError(f"{name} must be {words} or a number from 0 to {HEAVIEST:g}, got {weight!r:.40}")
    return float(weight)


def survival(inclusions: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    r"""Return the log-probabilities that an item passes all stages and that some stage drops it.

    .. math:: 1 - \prod_t p^t = \sum_t \Big(\prod_{u < t} p^u\Big) (1 - p^t)

    is a sum over the stages that drop the item, which avoids a subtraction from 1.

    Args:
        inclusions: Logarithms of p and of 1 - p for each stage, tensors ``(..., n)``.
    """
    log_passed = torch.zeros_like(inclusions[0][0])
    dropped = []
    for log_p, log_not_p in inclusions:
        dropped.append(log_passed + log_not_p)
        log_passed = log_passed + log_p
    return log_passed, torch.stack(dropped).logsumexp(0)


def published_survival(inclusions: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    r"""Return the values of :func:`survival`, with the gradient that LCRON's code has.

    It is the gradient of :math:`\log(1 - \prod_t (1 - d^t))` with respect to :math:`d^t = 1 - p^t`,

    .. math:: \frac{d^t \prod_{u \ne t} p^u}{1 - \prod_u p^u} \, \partial \log d^t

    The factor is the share of the items dropped that only stage t drops, at most 1.

    Args:
        inclusions: Logarithms of p and of 1 - p for each stage, tensors ``(..., n)``.
    """
    log_passed, log_dropped = survival(inclusions)
    passed, dropped = log_passed.detach(), log_dropped.detach()
    slopes = [
        # at most 1, but for rounding errors, which are large for logarithms of 1e20
        torch.exp((log_not_p.detach() + passed - log_p.detach() - dropped).clamp(max=1.0))
        * (log_not_p - log_not_p.detach())
        for log_p, log_not_p in inclusions
    ]
    return log_passed, dropped + torch.stack(slopes).sum(0)
