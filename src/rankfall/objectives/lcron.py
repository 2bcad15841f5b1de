"""LCRON: the survival of the relevant items through the whole cascade (ICML 2025)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rankfall._lists import can_miss, check_count, list_mean, mean_over_lists
from rankfall.objectives._stages import Impression, Objective, check_quotas
from rankfall.ops import log_inclusion
from rankfall.ops import topk as make_topk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.ops import TopK


class LCRON(Objective):
    r"""Learning cascade ranking as one network (LCR 11-13).

    .. math:: L_{e2e} + \sum_t \frac{L_t}{2 w_t^2} + \log |w_t|, \quad
              L_{e2e} = BCE\Big(\prod_t p^t, a\Big), \quad L_t = BCE(p^t_{(K)}, a)

    :math:`p^t` is the soft top-:math:`q_t` inclusion by stage t, :math:`p^t_{(K)}` that at K = `relevant`, :math:`a`
    the membership in the ground truth; both cross entropies are means over a list's items. Products stay in log space,
    so an item that is nearly certain to be dropped still has a gradient.

    topk: any operator, default ``topk("neural_sort", tau=50)``. quotas: the numbers of items that the stages keep in
    training, by default K (LCR 5.1). e2e_weight: "fixed" leaves :math:`L_{e2e}` at weight 1, as the published code,
    "learned" gives it a trained weight too (eq. 13, here with natural logarithms); a number is that weight.
    single_weight: "learned" as above, or a number that multiplies every :math:`L_t` (LCR, table 4). What has the
    weight 0 is left out (LCR, table 3). Trained weights are parameters: hand them to the optimiser with the models'.

    Two stages that cannot tell two items apart keep each with probability 1/4: log 4 for the relevant one,
    log 4/3 for the other, and log 2 for every stage alone, halved by its weight:

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
        quotas: Sequence[int] | int | None = None,
        stages: int | None = None,
        e2e_weight: Literal["fixed", "learned"] | float = "fixed",
        single_weight: Literal["learned"] | float = "learned",
    ) -> None:
        count = stages if stages is not None else 2 if quotas is None or isinstance(quotas, int) else len(quotas)
        super().__init__(count)
        self.relevant = check_count("relevant", relevant)
        self.quotas = check_quotas(relevant if quotas is None else quotas, self.stages)
        self.topk: TopK = make_topk("neural_sort", tau=50.0) if topk is None else topk
        self.e2e_weight = _check_weight("e2e_weight", 1.0 if e2e_weight == "fixed" else e2e_weight)
        self.single_weight = _check_weight("single_weight", single_weight)
        if self.e2e_weight == self.single_weight == 0:
            raise ValueError("e2e_weight and single_weight are both 0: nothing would be trained")
        self.kept = [min(self.quotas)] * (self.e2e_weight != 0) + [relevant] * (self.single_weight != 0)
        trained = self.stages * (self.single_weight is None) + (self.e2e_weight is None)
        # that of L_e2e is the last
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
            counts = can_miss(truth, batch.mask, min(self.quotas))
            e2e = _cross_entropy(truth, *survival(at_quota), batch.mask, counts)
            terms["e2e"] = self._weighted(e2e, self.e2e_weight, -1, counts)
        if self.single_weight == 0:
            return terms
        counts = can_miss(truth, batch.mask, self.relevant)
        for t, scores in enumerate(batch.scores):
            if at_quota and self.quotas[t] == self.relevant:
                inclusion = at_quota[t]
            else:
                inclusion = log_inclusion(self.topk, scores, self.relevant, mask=batch.mask)
            single = _cross_entropy(truth, *inclusion, batch.mask, counts)
            terms[f"stage{t + 1}/single"] = self._weighted(single, self.single_weight, t, counts)
        return terms

    def _weighted(self, value: Tensor, fixed: float | None, which: int, counts: Tensor) -> Tensor:
        if fixed is not None:
            return fixed * value
        # lists that do not count must not pull the weight to 0 by its logarithm
        weight, share = self.weights[which], mean_over_lists(counts.to(value.dtype))
        return value / (2 * weight.square()) + share * weight.abs().log()


def _check_weight(name: str, weight: float | str) -> float | None:
    """A number of at least 0, or None for a weight that is learned."""
    if weight == "learned":
        return None
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        words = "'fixed', 'learned'" if name == "e2e_weight" else "'learned'"
        raise ValueError(f"{name} must be {words} or a number of at least 0, got {weight!r}")
    return float(weight)


def survival(inclusions: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    r"""Logarithms of the probability to pass every stage and of that not to, from those of each stage.

    .. math:: 1 - \prod_t p^t = \sum_t \Big(\prod_{u < t} p^u\Big) (1 - p^t)

    is a sum over the stages that drop the item: nothing is subtracted from 1.
    """
    log_passed = torch.zeros_like(inclusions[0][0])
    dropped = []
    for log_p, log_not_p in inclusions:
        dropped.append(log_passed + log_not_p)
        log_passed = log_passed + log_p
    return log_passed, torch.stack(dropped).logsumexp(0)


def _cross_entropy(truth: Tensor, log_p: Tensor, log_not_p: Tensor, mask: Tensor, counts: Tensor) -> Tensor:
    """Mean over lists of the mean over items; lists that do not count are 0."""
    per_list = list_mean(-(truth * log_p + (1 - truth) * log_not_p), mask)
    return mean_over_lists(per_list.masked_fill(~counts, 0.0))
