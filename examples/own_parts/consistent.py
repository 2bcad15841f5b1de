"""An objective: all stages learn the relevant items, and early stages also learn the order of the last stage."""

import torch
from torch import Tensor

import rankfall as rf
from rankfall.option_types import NotNegative, Positive


class Consistent(rf.objectives.Objective):
    """Softmax cross-entropy of every stage, and agreement of each stage with the last one.

    A stage that ranks as the last stage does keeps the items that the last stage would choose. The agreement is the
    Kullback-Leibler divergence of the softmax of a stage from that of the last stage, which is not trained by it.

    Args:
        relevant: Number of relevant items per impression, at least 1.
        stages: Number of stages.
        weight: Weight of the agreement.
        temperature: Temperature of both softmaxes in the agreement.
    """

    def __init__(
        self, *, relevant: int, stages: int = 2, weight: NotNegative = 1.0, temperature: Positive = 1.0
    ) -> None:
        super().__init__(stages)
        self.relevant, self.weight, self.temperature = relevant, weight, temperature

    def terms(self, batch: rf.objectives.Impression) -> dict[str, Tensor]:
        """Return the terms of one batch by name; names that begin with stage1/ are those of the first stage."""
        truth = batch.truth(self.relevant)
        target = truth / truth.sum(-1, keepdim=True).clamp(min=1)
        teacher = self._log_softmax(batch.scores[-1].detach() / self.temperature, batch.mask)
        terms = {}
        for number, scores in enumerate(batch.scores, 1):
            log_p = self._log_softmax(scores, batch.mask)
            terms[f"stage{number}/softmax"] = -(target * log_p).sum(-1).mean()
            if number < self.stages:
                student = self._log_softmax(scores / self.temperature, batch.mask)
                divergence = (teacher.exp() * (teacher - student)).sum(-1)
                terms[f"stage{number}/agreement"] = self.weight * divergence.mean()
        return terms

    @staticmethod
    def _log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        return scores.masked_fill(~mask, lowest).log_softmax(-1).masked_fill(~mask, 0.0)
