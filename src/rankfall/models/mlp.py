"""The linear scorer and the multilayer perceptron.

Both take features ``(rows, features)`` of documents, whatever lists these belong to, and give a score a document
``(rows,)``; with `grades` they give logits ``(rows, grades)`` of that many label grades instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from rankfall.models.layers import Layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float


class _Head(nn.Module):
    """The last layer: one score, or one logit a grade."""

    def __init__(self, width: int, grades: int | None) -> None:
        super().__init__()
        if grades is not None and grades < 2:
            raise ValueError(f"grades must be at least 2, got {grades}")
        self.grades = grades
        self.out = nn.Linear(width, grades or 1)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.out(hidden)
        return output if self.grades else output.squeeze(-1)


class Linear(nn.Module):
    """A weight for each feature."""

    def __init__(self, features: int, *, grades: int | None = None) -> None:
        super().__init__()
        self.head = _Head(features, grades)

    def forward(self, features: Float[Tensor, "rows features"]) -> Tensor:
        output: Tensor = self.head(features)
        return output


class MLP(nn.Module):
    """Hidden layers and a score; the options are those of :class:`~rankfall.models.layers.Layers`.

    batch_norm: normalise over the rows, of which none may be padding.

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
        )
        self.head = _Head(([features, *hidden])[-1], grades)

    def forward(self, features: Float[Tensor, "rows features"]) -> Tensor:
        output: Tensor = self.head(self.layers(features))
        return output
