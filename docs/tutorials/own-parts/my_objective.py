import torch
from torch import Tensor

import rankfall as rf
from rankfall.option_types import Positive


class CutMargin(rf.objectives.Objective):
    """In every stage, each relevant item should be above the last kept item by a margin."""

    def __init__(self, *, relevant: int, stages: int, quotas: list[int], margin: Positive = 1.0) -> None:
        super().__init__(stages)
        self.relevant, self.quotas, self.margin = relevant, quotas, margin

    def terms(self, batch: rf.objectives.Impression) -> dict[str, Tensor]:
        truth = batch.truth(self.relevant)  # 1 for the relevant items, 0 for all others
        terms = {}
        for number, (scores, quota) in enumerate(zip(batch.scores, self.quotas, strict=True), 1):
            count = min(quota, scores.shape[-1])  # lists may be shorter than the quota
            kept = scores.masked_fill(~batch.mask, -torch.inf).topk(count, dim=-1).values
            below = (kept[..., -1:] + self.margin - scores).clamp(min=0) * truth
            terms[f"stage{number}/margin"] = below.sum(-1).mean()
        return terms
