"""The linear scorer and the multilayer perceptron.

Both take features ``(rows, features)`` of documents, whatever lists these belong to, and give a score a document
``(rows,)``; with `grades` they give logits ``(rows, grades)`` of that many label grades instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


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
    """Hidden layers of any widths, each a linear map, batch norm, an activation and dropout.

    hidden: their widths. activation: a key of `ACTIVATIONS`. batch_norm: normalise over the rows, of which none may
    be padding. norm_momentum: share of a batch in the running mean and variance. dropout: one share for all hidden
    layers or one for each. residual: add a layer's input to its output where the two are of one width.

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
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        shares = [dropout] * len(hidden) if isinstance(dropout, int | float) else list(dropout)
        if len(shares) != len(hidden):
            raise ValueError(f"dropout must be one number or {len(hidden)}, one a hidden layer, got {len(shares)}")
        widths = [features, *hidden]
        self.layers = nn.ModuleList(
            _Layer(
                width_in,
                width_out,
                activation=ACTIVATIONS[activation](),
                norm=_RowNorm(width_out, momentum=norm_momentum) if batch_norm else None,
                dropout=share,
                residual=residual and width_in == width_out,
            )
            for width_in, width_out, share in zip(widths, hidden, shares, strict=False)
        )
        self.head = _Head(widths[-1], grades)

    def forward(self, features: Float[Tensor, "rows features"]) -> Tensor:
        for layer in self.layers:
            features = layer(features)
        output: Tensor = self.head(features)
        return output


class _Layer(nn.Module):
    def __init__(
        self,
        width_in: int,
        width_out: int,
        *,
        activation: nn.Module,
        norm: nn.Module | None,
        dropout: float,
        residual: bool,
    ) -> None:
        super().__init__()
        # A bias before batch norm would be taken away again with the mean.
        parts = [nn.Linear(width_in, width_out, bias=norm is None), norm, activation, _dropout(dropout, activation)]
        self.layers = nn.Sequential(*(part for part in parts if part is not None))
        self.residual = residual

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.residual else outputs


def _dropout(share: float, activation: nn.Module) -> nn.Module | None:
    if share == 0:
        return None
    # SELU keeps mean and variance, and its dropout must not undo that.
    return nn.AlphaDropout(share) if isinstance(activation, nn.SELU) else nn.Dropout(share)


class _RowNorm(nn.BatchNorm1d):
    """Batch norm that takes a single row, which has no variance, as in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) > 1:
            return super().forward(input)
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
