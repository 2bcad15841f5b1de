"""The linear scorer and the multilayer perceptron.

Both take features ``(rows, features)`` of documents, of any lists, and return one score per document ``(rows,)``; with
`grades` they return logits ``(rows, grades)`` of the label grades instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from rankfall._checks import WIDEST, check_count
from rankfall.models.layers import Layers, initialise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float


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
