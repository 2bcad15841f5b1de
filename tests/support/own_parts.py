"""Components of a user, as a file that tests write and change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.training.config.load_config import merge
from support.cascades import content

if TYPE_CHECKING:
    from pathlib import Path

PARTS = '''
import torch
from torch import nn

import rankfall as rf


class Tower(nn.Module):
    """A linear model of the price and an embedding of the item."""

    def __init__(self, features, *, width: int = 4):
        super().__init__()
        self.table = nn.Embedding(features.tables["video"], width)
        self.out = nn.Linear(width + 1, 1)

    def forward(self, batch):
        items = torch.cat([self.table(batch.items["video"]), batch.items["price"].unsqueeze(-1)], -1)
        return self.out(items).squeeze(-1).masked_fill(~batch.mask, 0.0)


class Rows(nn.Module):
    """A ranker."""

    def __init__(self, features, *, scale: float = 1.0):
        super().__init__()
        self.out = nn.Linear(features, 1)
        self.scale = scale

    def forward(self, rows):
        return self.scale * self.out(rows).squeeze(-1)


class Mine(rf.objectives.Objective):
    """Cross-entropy of all stages with one soft top-k."""

    def __init__(self, *, relevant: int, stages: int, quotas: list[int], keep: rf.ops.TopK | None = None):
        super().__init__(stages)
        self.relevant, self.quotas = relevant, list(quotas)
        self.keep = keep or rf.ops.topk("dftopk")

    def terms(self, batch):
        truth = batch.truth(self.relevant)
        terms = {}
        for number, (scores, quota) in enumerate(zip(batch.scores, self.quotas), 1):
            log_p, _ = rf.ops.log_inclusion(self.keep, scores, quota, mask=batch.mask)
            terms[f"stage{number}/kept"] = -(truth * log_p).sum(-1).mean()
        return terms


def squared(scores, labels, *, mask=None, weight=None, margin: float = 0.0):
    real = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    return (((scores - labels).abs() - margin).clamp(min=0) ** 2 * real).sum() / real.sum()


def graded(logits, labels, *, mask=None):
    return nn.functional.cross_entropy(logits[mask], labels[mask].long())


def soft(scores, k, *, mask=None, tau: float = 1.0):
    return rf.ops.lapsum_topk(scores, k, mask=mask, tau=tau)


def first(scores, labels, *, mask=None, empty=float("nan"), k: int = 1):
    """Label of the best item."""
    real = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return labels.gather(-1, real.topk(k, -1).indices).float().mean(-1)
'''


def write_parts(directory: Path, text: str = PARTS) -> Path:
    """Write the file of the components."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "parts.py"
    path.write_text(text)
    return path


def cascade(log: Path, parts: Path, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a cascade with an own model, objective and operator."""
    base = content(log, training={"epochs": 1}, objective={"name": f"{parts}:Mine", "keep": {"name": f"{parts}:soft"}})
    base["stages"][1]["model"] = {"kind": f"{parts}:Tower", "width": 3}
    return merge(base, changes)
