"""The deep interest network (DIN): every candidate picks what matters to it from what the user did before."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from rankfall.models.attention import AttentionPooling
from rankfall.models.layers import Network
from rankfall.models.scorer import Scorer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from rankfall.data.impressions.spec import Features
    from rankfall.models.inputs import Batch
    from rankfall.models.layers import LayerOptions


class DIN(Scorer):
    """Context, user, the sequence as the candidate sees it, and the candidate; then hidden layers, then a score.

    An event and a candidate are compared by the features that the sequence keeps. hidden: widths of the hidden
    layers. attention, attention_activation: width and activation of the hidden layer of the attention unit. Other
    options: see :class:`~rankfall.models.layers.Layers` and :class:`~rankfall.models.embedding.FeatureEmbedding`.
    """

    kind: ClassVar[str] = "din"

    def __init__(
        self,
        features: Features,
        *,
        dim: int = 8,
        std: float = 0.2,
        hidden: Sequence[int] = (128, 128, 32),
        attention: int = 80,
        activation: str = "relu",
        attention_activation: str = "relu",
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
            features,
            dim=dim,
            std=std,
            only=only,
            tables=tables,
            sparse=sparse,
            hidden=list(hidden),
            attention=attention,
            attention_activation=attention_activation,
            **layers,
        )
        if not self.embedding.sequences:
            raise ValueError("DIN needs a sequence; without one it would be an EmbeddingMLP")
        widths = [self.embedding.event_width(sequence) for sequence in self.embedding.sequences]
        self.attention = nn.ModuleList(
            AttentionPooling(width, attention, activation=attention_activation) for width in widths
        )
        width = self.embedding.request_width + sum(widths) + self.embedding.item_width
        self.head = Network(width, hidden, 1, **layers)

    def forward(self, batch: Batch) -> Float[Tensor, "batch n"]:
        request = self.embedding.request(batch)
        item = self.embedding.by_name(batch.items)
        interests = []
        for sequence, pool in zip(self.embedding.sequences, self.attention, strict=True):
            events = self.embedding.events(batch, sequence)
            targets = torch.cat([item[name] for name in sequence.features], dim=-1)
            interests.append(pool(events, targets, batch.sequence_mask[sequence.name]))
        candidates = [item[feature.name] for feature in self.embedding.item_features]
        parts = [torch.cat([*interests, *candidates], dim=-1)]
        if request:
            parts.insert(0, torch.cat(request, dim=-1).unsqueeze(-2))
        scores: Tensor = self.head(*parts, mask=batch.mask)
        return scores.squeeze(-1)
