"""The two-tower model (DSSM): a vector per request, a vector per item, and their dot product."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from rankfall import register
from rankfall.models.layers import Network, check_widths
from rankfall.models.scorer import Scorer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    from rankfall.data.impressions.spec import Features
    from rankfall.models.inputs import ImpressionFeatures, RequestFeatures
    from rankfall.models.layers import LayerOptions
    from rankfall.option_types import Activation, Count, Init, Momentum, NotNegative, Share


@register.model("two_tower")
class TwoTower(Scorer):
    """Two-tower model (Huang et al. 2013).

    The score is the dot product of a vector of the request (its context, its user and the mean of each sequence) and a
    vector of the item. Neither vector depends on the other, so items can be indexed: use it for retrieval.

    Args:
        features: Features of the impression log that the model is built for.
        dim: Width of the embedding tables, at least 1.
        std: Standard deviation of the normal distribution of the initial embedding rows. With a large value, rows that
            training rarely meets keep their random values; with a small value, all rows need many steps.
        hidden: Widths of the layers of both towers, at least one. The last width, of a linear map, is the size of the
            vectors.
        activation: Activation of the hidden layers: ``relu``, ``prelu``, ``leaky_relu``, ``elu``, ``selu``, ``gelu``,
            ``silu``, ``tanh`` or ``sigmoid``.
        batch_norm: Whether to normalise every hidden layer over the real items of a batch.
        norm_momentum: Weight of a batch in the running mean and variance of batch norm, from 0 to 1. TensorFlow's
            momentum 0.999 is 0.001 here.
        dropout: Share of the hidden units that dropout sets to 0, from 0 to less than 1.
        residual: Whether to add a layer's input to its output where their widths are equal.
        init: Initial weights of linear maps: ``"default"`` for those of torch, ``"he"`` for a normal distribution with
            variance 2 / inputs and biases of 0 (He et al. 2015).
        only: Names of the features that the model uses, such as ``user.age``, ``context.hour``, ``item.author`` and
            ``sequence.history``. Default: all features.
        tables: Embedding tables ``(rows, dim)`` by name that are used instead of new ones, such as those of another
            model.
        sparse: Whether the gradients of the tables hold only the rows of the batch. A number: only for tables with at
            least that many rows.
    """

    kind: ClassVar[str] = "two_tower"

    def __init__(
        self,
        features: Features,
        *,
        dim: Count = 8,
        std: NotNegative = 0.2,
        hidden: Sequence[Count] = (128, 64, 32),
        activation: Activation = "relu",
        batch_norm: bool = False,
        norm_momentum: Momentum = 0.1,
        dropout: Share | Sequence[Share] = 0.0,
        residual: bool = False,
        init: Init = "default",
        only: Iterable[str] | None = None,
        tables: Mapping[str, nn.Embedding] | None = None,
        sparse: bool | int = False,
    ) -> None:
        layers: LayerOptions = {
            "activation": activation,
            "batch_norm": batch_norm,
            "norm_momentum": norm_momentum,
            "dropout": dropout,
            "residual": residual,
            "init": init,
        }
        super().__init__(
            features, dim=dim, std=std, only=only, tables=tables, sparse=sparse, hidden=check_widths(hidden), **layers
        )
        if not hidden:
            raise ValueError("hidden must have at least one width, the size of the vectors")
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        request = self.embedding.request_width + events
        if request == 0:
            raise ValueError("TwoTower needs a user feature, a context feature or a sequence")
        *widths, size = hidden
        self.user_tower = Network(request, widths, size, **layers)
        self.item_tower = Network(self.embedding.item_width, widths, size, **layers)

    def forward(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n"]:
        """Return the scores ``(B, N)`` of the items of a batch."""
        users = self.user_vectors(batch)
        items = self.item_vectors(batch.items, mask=batch.mask)
        return (items @ users.unsqueeze(-1)).squeeze(-1)

    def user_vectors(self, batch: RequestFeatures) -> Float[Tensor, "batch size"]:
        """Return a vector per request, ``(B, size)``."""
        parts = [*self.embedding.request(batch), *self.embedding.mean_events(batch)]
        vectors: Tensor = self.user_tower(torch.cat(parts, dim=-1))
        return vectors

    def item_vectors(
        self, items: Mapping[str, Tensor], *, mask: Bool[Tensor, "*items"] | None = None
    ) -> Float[Tensor, "*items size"]:
        """Return a vector per item, ``(..., size)``.

        Args:
            items: Features of items by name, tensors ``(...)``, or ``(..., size)`` for vectors.
            mask: Boolean tensor ``(...)``, True for real items. Batch norm needs it in training. Default: all items are
                real.
        """
        vectors: Tensor = self.item_tower(self.embedding.items(items), mask=mask)
        return vectors
