"""RankFlow: each stage learns from the items that its predecessor keeps, and from its successor (Qin et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from rankfall import register
from rankfall._checks import check_choice, check_count, check_share
from rankfall._lists import has_order, list_mean, mean_over_lists, rank_order
from rankfall.losses import bce_loss
from rankfall.objectives._stages import Impression, Objective, check_quotas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from rankfall.option_types import Count, Fraction


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
            raise ValueError("schedule: found 'alternate', expected 'joint' in training by several processes")
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
