"""The multilayer perceptron on embedded features."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from rankfall.models.layers import Network
from rankfall.models.scorer import Scorer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor, nn

    from rankfall.data.impressions.spec import Features
    from rankfall.models.inputs import Batch
    from rankfall.models.layers import LayerOptions


class EmbeddingMLP(Scorer):
    """The request and the item side by side, then hidden layers, then a score.

    The request is its context, its user and the mean of each sequence. hidden: widths of the hidden layers; without
    any, the model is linear. Other options: see :class:`~rankfall.models.layers.Layers` and
    :class:`~rankfall.models.embedding.FeatureEmbedding`.
    """

    kind: ClassVar[str] = "mlp"

    def __init__(
        self,
        features: Features,
        *,
        dim: int = 8,
        std: float = 0.2,
        hidden: Sequence[int] = (128, 64, 32),
        activation: str = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
        residual: bool = False,
        only: Iterable[str] | None = None,
        tables: Mapping[str, nn.Embedding] | None = None,
        sparse: bool | int = False,
    ) -> None:
        layers: LayerOptions = {
            "activation": activation,
            "batch_norm": batch_norm,
            "dropout": dropout,
            "residual": residual,
        }
        super().__init__(
            features, dim=dim, std=std, only=only, tables=tables, sparse=sparse, hidden=list(hidden), **layers
        )
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        width = self.embedding.request_width + events + self.embedding.item_width
        self.head = Network(width, hidden, 1, **layers)

    def forward(self, batch: Batch) -> Float[Tensor, "batch n"]:
        request = [*self.embedding.request(batch), *self.embedding.mean_events(batch)]
        items = self.embedding.items(batch.items)
        parts = [torch.cat(request, dim=-1).unsqueeze(-2), items] if request else [items]
        scores: Tensor = self.head(*parts, mask=batch.mask)
        return scores.squeeze(-1)
