"""The deep interest network (DIN): each candidate attends to the user's behaviour sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from rankfall import register
from rankfall.models.attention import AttentionPooling
from rankfall.models.layers import Network, check_widths
from rankfall.models.scorer import GradeScorer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from rankfall.data.impressions.spec import Features
    from rankfall.models.inputs import ImpressionFeatures
    from rankfall.models.layers import LayerOptions
    from rankfall.option_types import Activation, Count, Grades, Init, Momentum, NotNegative, Share


@register.model("din")
class DIN(GradeScorer):
    """Deep interest network (Zhou et al. 2018).

    The input of the hidden layers is the context, the user, the candidate, and each sequence pooled by an attention
    between its events and the candidate. Events and candidates are compared by the features that the sequence holds.
    Needs at least one sequence. Use it for ranking, where few candidates are left.

    Args:
        features: Features of the impression log that the model is built for.
        dim: Width of the embedding tables, at least 1.
        std: Standard deviation of the normal distribution of the initial embedding rows. With a large value, rows that
            training rarely meets keep their random values; with a small value, all rows need many steps.
        hidden: Widths of the hidden layers.
        attention: Width of the hidden layer of the attention unit.
        activation: Activation of the hidden layers: ``relu``, ``prelu``, ``leaky_relu``, ``elu``, ``selu``, ``gelu``,
            ``silu``, ``tanh`` or ``sigmoid``.
        attention_activation: Activation of the hidden layer of the attention unit, with the same choices as
            `activation`.
        batch_norm: Whether to normalise every hidden layer over the real items of a batch.
        norm_momentum: Weight of a batch in the running mean and variance of batch norm, from 0 to 1. TensorFlow's
            momentum 0.999 is 0.001 here.
        dropout: Share of the hidden units that dropout sets to 0, from 0 to less than 1.
        residual: Whether to add a layer's input to its output where their widths are equal.
        init: Initial weights of linear maps: ``"default"`` for those of torch, ``"he"`` for a normal distribution with
            variance 2 / inputs and biases of 0 (He et al. 2015).
        grades: Number of label grades, at least 2, for a model with one logit per grade, which `grade_softmax_loss`
            trains. The score of an item is its expected grade. Default: one output, the score.
        only: Names of the features that the model uses, such as ``user.age``, ``context.hour``, ``item.author`` and
            ``sequence.history``. Default: all features.
        tables: Embedding tables ``(rows, dim)`` by name that are used instead of new ones, such as those of another
            model.
        sparse: Whether the gradients of the tables hold only the rows of the batch. A number: only for tables with at
            least that many rows.
    """

    kind: ClassVar[str] = "din"

    def __init__(
        self,
        features: Features,
        *,
        dim: Count = 8,
        std: NotNegative = 0.2,
        hidden: Sequence[Count] = (128, 128, 32),
        attention: Count = 80,
        activation: Activation = "relu",
        attention_activation: Activation = "relu",
        batch_norm: bool = False,
        norm_momentum: Momentum = 0.1,
        dropout: Share | Sequence[Share] = 0.0,
        residual: bool = False,
        init: Init = "default",
        grades: Grades | None = None,
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
            features,
            dim=dim,
            std=std,
            only=only,
            tables=tables,
            sparse=sparse,
            grades=grades,
            hidden=check_widths(hidden),
            attention=attention,
            attention_activation=attention_activation,
            **layers,
        )
        if not self.embedding.sequences:
            raise ValueError("DIN needs a sequence; use EmbeddingMLP for features without sequences")
        widths = [self.embedding.event_width(sequence) for sequence in self.embedding.sequences]
        self.attention = nn.ModuleList(
            AttentionPooling(width, attention, activation=attention_activation, init=init) for width in widths
        )
        width = self.embedding.request_width + sum(widths) + self.embedding.item_width
        self.head = Network(width, hidden, grades or 1, **layers)

    def outputs(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n outputs"]:
        """Return the outputs ``(B, N, 1)``, or the logits ``(B, N, grades)``, of the items of a batch."""
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
        outputs: Tensor = self.head(*parts, mask=batch.mask)
        return outputs
