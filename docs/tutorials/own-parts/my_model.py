import torch
from torch import Tensor, nn

import rankfall as rf


class Bilinear(nn.Module):
    """Score = item * (M request), plus a bias of the item."""

    def __init__(self, features: rf.data.Features, *, dim: int = 8) -> None:
        super().__init__()
        self.embedding = rf.models.FeatureEmbedding(features, dim=dim)
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        self.matrix = nn.Linear(self.embedding.request_width + events, self.embedding.item_width)
        self.bias = nn.Linear(self.embedding.item_width, 1)

    def forward(self, batch: rf.models.ImpressionFeatures) -> Tensor:
        request = torch.cat([*self.embedding.request(batch), *self.embedding.mean_events(batch)], dim=-1)
        items = self.embedding.items(batch.items)  # (B, N, width)
        products = items @ self.matrix(request).unsqueeze(-1)  # (B, N, 1)
        return (products + self.bias(items)).squeeze(-1)  # (B, N)
