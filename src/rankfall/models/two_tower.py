"""The two-tower model (DSSM): a vector for the request, a vector for each item, and their dot product."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from rankfall.models.layers import Network
from rankfall.models.scorer import Scorer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    from rankfall.data.impressions.spec import Features
    from rankfall.models.inputs import Batch, Request
    from rankfall.models.layers import LayerOptions


class TwoTower(Scorer):
    """Vectors of requests and of items, which know nothing of each other; a score is their dot product.

    The request is its context, its user and the mean of each sequence. hidden: widths of the layers of both towers, the
    last of which, a linear map, is that of the vectors. Other options: see
    :class:`~rankfall.models.layers.Layers` and :class:`~rankfall.models.embedding.FeatureEmbedding`.
    """

    kind: ClassVar[str] = "two_tower"

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
        if not hidden:
            raise ValueError("hidden must have at least one width, that of the vectors")
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        request = self.embedding.request_width + events
        if request == 0:
            raise ValueError("TwoTower needs a feature of the user or the context, or a sequence")
        *widths, size = hidden
        self.user_tower = Network(request, widths, size, **layers)
        self.item_tower = Network(self.embedding.item_width, widths, size, **layers)

    def forward(self, batch: Batch) -> Float[Tensor, "batch n"]:
        users = self.user_vectors(batch)
        items = self.item_vectors(batch.items, mask=batch.mask)
        return (items @ users.unsqueeze(-1)).squeeze(-1)

    def user_vectors(self, batch: Request) -> Float[Tensor, "batch size"]:
        """A vector for each request."""
        parts = [*self.embedding.request(batch), *self.embedding.mean_events(batch)]
        vectors: Tensor = self.user_tower(torch.cat(parts, dim=-1))
        return vectors

    def item_vectors(
        self, items: Mapping[str, Tensor], *, mask: Bool[Tensor, "*items"] | None = None
    ) -> Float[Tensor, "*items size"]:
        """A vector for each item. mask: which are real; batch norm must know it in training."""
        vectors: Tensor = self.item_tower(self.embedding.items(items), mask=mask)
        return vectors
