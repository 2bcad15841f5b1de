"""Standardisation of features, stored with the weights of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rankfall._checks import check_none, check_shape, widen, widest

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from jaxtyping import Float


class FeatureScaling(nn.Module):
    """Standardisation, after an optional logarithm that keeps the sign: sign(v) log(1 + abs(v)).

    Mean and deviation are stored and applied in float64: for values far from 0, float32 would leave few digits after
    the mean is subtracted. On a device without float64 they are float32.

    Args:
        mean: Tensor ``(features,)``, subtracted from the features.
        deviation: Tensor ``(features,)``, by which the features are divided.
        log1p: Whether to apply the logarithm first.

    Examples:
        >>> scale = FeatureScaling(torch.tensor([1.0]), torch.tensor([2.0]))
        >>> scale(torch.tensor([[5.0], [1.0]])).squeeze()
        tensor([2., 0.])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor, *, log1p: bool = False) -> None:
        super().__init__()
        for name, tensor in {"mean": mean, "deviation": deviation}.items():
            if not isinstance(tensor, Tensor) or tensor.ndim != 1 or tensor.is_complex():
                raise TypeError(f"{name} must be a tensor of one real number per feature, got {type(tensor).__name__}")
        check_shape("deviation", deviation, mean.shape, of="mean")
        check_none("mean", ~mean.isfinite(), "NaN or inf")
        check_none("deviation", ~((deviation > 0) & deviation.isfinite()), "values that are not positive and finite")
        self.log1p = log1p
        self.register_buffer("mean", mean.double())
        self.register_buffer("deviation", deviation.double())

    @classmethod
    def identity(cls, features: int, *, log1p: bool = False) -> FeatureScaling:
        """Return a scaling with mean 0 and deviation 1, whose values can be loaded later."""
        return cls(torch.zeros(features), torch.ones(features), log1p=log1p)

    def forward(self, features: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows features"]:
        """Return the scaled features ``(..., features)`` in float32."""
        values = widen(features)
        if self.log1p:
            values = torch.copysign(values.abs().log1p(), values)
        return ((values - self.mean) / self.deviation).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if widest(fn(torch.empty(0)).device) == torch.float32:
            self.mean, self.deviation = self.mean.float(), self.deviation.float()  # float64 cannot be moved there
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return f"{len(self.mean)}, log1p={self.log1p}"
