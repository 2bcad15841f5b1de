"""A model: a deep and cross network (DCN-V2, Wang et al. 2021), which multiplies features with each other."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

import rankfall as rf
from rankfall.option_types import Count


class CrossNetwork(nn.Module):
    """Cross layers x <- x0 * (W x + b) + x on the embedded features of request and item, then hidden layers.

    Args:
        features: Features of the log.
        dim: Width of the embedding tables.
        crosses: Number of cross layers.
        hidden: Widths of the hidden layers.
        tables: Embedding tables that are shared with other stages.
    """

    def __init__(
        self,
        features: rf.data.Features,
        *,
        dim: Count = 8,
        crosses: Count = 2,
        hidden: Sequence[Count] = (32,),
        tables: Mapping[str, nn.Embedding] | None = None,
    ) -> None:
        super().__init__()
        self.embedding = rf.models.FeatureEmbedding(features, dim=dim, tables=tables)  # shared if it has this name
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        width = self.embedding.request_width + events + self.embedding.item_width
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        widths = [width, *hidden]
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        self.deep = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, batch: rf.models.ImpressionFeatures) -> Tensor:
        """Return the scores ``(B, N)`` of the items of a batch."""
        items = self.embedding.items(batch.items)  # (B, N, width)
        request = torch.cat([*self.embedding.request(batch), *self.embedding.mean_events(batch)], dim=-1)
        request = request.unsqueeze(1).expand(-1, items.shape[1], -1)
        first = x = torch.cat([request, items], dim=-1)
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.deep(x).squeeze(-1)
