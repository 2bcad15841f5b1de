"""Scorers: the base class of models, linear models and MLPs, the two-tower model (DSSM) and DIN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rankfall import register
from rankfall._checks import WIDEST, check_count
from rankfall._errors import RankfallError
from rankfall.models.embedding import FeatureEmbedding
from rankfall.models.layers import AttentionPooling, Layers, Network, check_widths, initialise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jaxtyping import Bool, Float

    from rankfall.data.impressions.spec import Features
    from rankfall.models.embedding import ImpressionFeatures, RequestFeatures
    from rankfall.models.layers import LayerOptions
    from rankfall.option_types import Activation, Count, Grades, Init, Momentum, NotNegative, Share


class Scorer(nn.Module):
    """Base class of models of embedded features, which can be rebuilt from their description (:func:`from_config`).

    Args:
        features: Features of the impression log that the model is built for.
        dim: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        std: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        only: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        tables: Embedding tables ``(rows, dim)`` by name; see :class:`~rankfall.models.embedding.FeatureEmbedding`.
        sparse: See :class:`~rankfall.models.embedding.FeatureEmbedding`.
        options: Options of the model itself, which :meth:`config` returns.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        features: Features,
        *,
        dim: int,
        std: float,
        only: Iterable[str] | None,
        tables: Mapping[str, nn.Embedding] | None,
        sparse: bool | int,
        **options: Any,
    ) -> None:
        super().__init__()
        only = list(only) if only is not None and not isinstance(only, str) else only
        self.features = features
        self.embedding = FeatureEmbedding(features, dim=dim, std=std, only=only, tables=tables, sparse=sparse)
        if not self.embedding.item_features:
            raise RankfallError(f"{type(self).__name__} needs at least one item feature to rank items")
        self._options = {"dim": dim, "std": std, **options, "only": only, "sparse": sparse}

    def config(self) -> dict[str, Any]:
        """Return the kind and the options of the model as JSON values, without the features it was built for."""
        return {"kind": self.kind, **self._options}


class GradeScorer(Scorer):
    """Base class of models that put out one number per item, or one logit per label grade.

    Args:
        features: Features of the impression log that the model is built for.
        grades: Number of label grades, at least 2, for one logit per grade. The score of an item is its expected grade.
            None for one output, the score.
        options: Options of :class:`Scorer`.
    """

    def __init__(self, features: Features, *, grades: int | None, **options: Any) -> None:
        super().__init__(features, grades=grades, **options)
        if grades is not None:
            check_count("grades", grades, least=2, most=WIDEST)
        self.grades = grades

    def outputs(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n outputs"]:
        """Return the outputs ``(B, N, 1)``, or the logits ``(B, N, grades)``, of the items of a batch."""
        raise NotImplementedError

    def forward(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n"]:
        """Return the scores ``(B, N)`` of the items of a batch."""
        outputs = self.outputs(batch)
        if self.grades is None:
            return outputs.squeeze(-1)
        return (outputs.softmax(-1) * torch.arange(self.grades, device=outputs.device)).sum(-1)


MOST_FEATURES = 1 << 24  # numbers per row


class _Head(nn.Module):
    """The last layer: one score, or one logit per grade."""

    def __init__(self, width: int, grades: int | None) -> None:
        super().__init__()
        check_count("features", width, most=MOST_FEATURES)
        if grades is not None:
            check_count("grades", grades, least=2, most=WIDEST)
        self.grades = grades
        self.out = nn.Linear(width, grades or 1)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.out(hidden)
        return output if self.grades else output.squeeze(-1)


class Linear(nn.Module):
    """Linear model: one weight per feature.

    Use it as a baseline.

    Args:
        features: Number of features per row.
        grades: Number of label grades, at least 2, for logits ``(rows, grades)`` instead of scores. Default: scores
            ``(rows,)``.
    """

    def __init__(self, features: int, *, grades: int | None = None) -> None:
        super().__init__()
        self.head = _Head(features, grades)

    def forward(self, features: Float[Tensor, "rows features"]) -> Tensor:
        """Return scores ``(rows,)``, or logits ``(rows, grades)``."""
        output: Tensor = self.head(features)
        return output


class MLP(nn.Module):
    """Multilayer perceptron on rows of numbers.

    Use it for documents with dense features, such as LETOR data.

    Args:
        features: Number of features per row.
        hidden: Widths of the hidden layers.
        activation: Activation of the hidden layers: ``relu``, ``prelu``, ``leaky_relu``, ``elu``, ``selu``, ``gelu``,
            ``silu``, ``tanh`` or ``sigmoid``.
        batch_norm: Whether to normalise every hidden layer over the rows, none of which may be padding.
        norm_momentum: Weight of a batch in the running mean and variance of batch norm, from 0 to 1. TensorFlow's
            momentum 0.999 is 0.001 here.
        dropout: Share of the hidden units that dropout sets to 0, from 0 to less than 1: one number for all hidden
            layers, or one per layer.
        residual: Whether to add a layer's input to its output where their widths are equal.
        init: Initial weights of linear maps: ``"default"`` for those of torch, ``"he"`` for a normal distribution with
            variance 2 / inputs and biases of 0 (He et al. 2015).
        grades: Number of label grades, at least 2, for logits ``(rows, grades)`` instead of scores. Default: scores
            ``(rows,)``.

    Examples:
        >>> model = MLP(3, [4, 4], residual=True)
        >>> [layer.residual for layer in model.layers]
        [False, True]
    """

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        *,
        activation: str = "relu",
        batch_norm: bool = True,
        norm_momentum: float = 0.1,
        dropout: float | Sequence[float] = 0.0,
        residual: bool = False,
        init: str = "default",
        grades: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = Layers(
            features,
            hidden,
            activation=activation,
            batch_norm=batch_norm,
            norm_momentum=norm_momentum,
            dropout=dropout,
            residual=residual,
            init=init,
        )
        self.head = _Head(([features, *hidden])[-1], grades)
        initialise(self.head, init)

    def forward(self, features: Float[Tensor, "rows features"]) -> Tensor:
        """Return scores ``(rows,)``, or logits ``(rows, grades)``."""
        output: Tensor = self.head(self.layers(features))
        return output


@register.model("mlp")
class EmbeddingMLP(GradeScorer):
    """Multilayer perceptron on embedded features.

    The input of the hidden layers is the request (its context, its user and the mean of each sequence) and the item.
    Use it for pre-ranking, or if the log has no sequences.

    Args:
        features: Features of the impression log that the model is built for.
        dim: Width of the embedding tables, at least 1.
        std: Standard deviation of the normal distribution of the initial embedding rows. With a large value, rows that
            training rarely meets keep their random values; with a small value, all rows need many steps.
        hidden: Widths of the hidden layers. Without any, the model is linear.
        activation: Activation of the hidden layers: ``relu``, ``prelu``, ``leaky_relu``, ``elu``, ``selu``, ``gelu``,
            ``silu``, ``tanh`` or ``sigmoid``.
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

    kind: ClassVar[str] = "mlp"

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
            **layers,
        )
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        width = self.embedding.request_width + events + self.embedding.item_width
        self.head = Network(width, hidden, grades or 1, **layers)

    def outputs(self, batch: ImpressionFeatures) -> Float[Tensor, "batch n outputs"]:
        """Return the outputs ``(B, N, 1)``, or the logits ``(B, N, grades)``, of the items of a batch."""
        request = [*self.embedding.request(batch), *self.embedding.mean_events(batch)]
        items = self.embedding.items(batch.items)
        parts = [torch.cat(request, dim=-1).unsqueeze(-2), items] if request else [items]
        outputs: Tensor = self.head(*parts, mask=batch.mask)
        return outputs


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
            raise RankfallError("hidden must have at least one width, the size of the vectors")
        events = sum(map(self.embedding.event_width, self.embedding.sequences))
        request = self.embedding.request_width + events
        if request == 0:
            raise RankfallError("TwoTower needs a user feature, a context feature or a sequence")
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
            raise RankfallError("DIN needs a sequence; use EmbeddingMLP for features without sequences")
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
