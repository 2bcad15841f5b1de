"""Hidden layers, for inputs in several parts and rows of which some are padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfall._checks import WIDEST, at_least_float32, check_count, check_real, full_precision
from rankfall._suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class PReLU(nn.Module):
    """ReLU with a trained slope of negative inputs (He et al. 2015), one slope per unit of the last dimension.

    :class:`torch.nn.PReLU` has one slope per entry of the second dimension instead.

    Args:
        width: Number of units; 1 for one slope of all units.
        slope: Initial slope.
    """

    def __init__(self, width: int = 1, slope: float = 0.25) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), slope))

    def forward(self, input: Tensor) -> Tensor:
        return torch.where(input > 0, input, self.weight * input)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "prelu": PReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


INITS = ("default", "he")
"""Initial weights of linear maps: torch's, or normal with variance 2 / inputs and biases of 0 (He et al. 2015)."""


def make_activation(name: str, width: int, *, where: str = "activation") -> nn.Module:
    """Create an activation of `width` units by its name. `where` is the name of the argument, for messages."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{where} must be one of {', '.join(ACTIVATIONS)}, got {name!r}{did_you_mean(name, ACTIVATIONS)}"
        )
    return PReLU(width) if name == "prelu" else ACTIVATIONS[name]()


def initialise(module: nn.Module, init: str) -> None:
    """Initialise the linear maps of a module anew, unless `init` is ``"default"``: then they keep torch's weights."""
    if init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}{did_you_mean(init, INITS)}")
    if init == "default":
        return
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class LayerOptions(TypedDict, total=False):
    """Keyword arguments of :class:`Layers`."""

    activation: str
    batch_norm: bool
    norm_momentum: float
    dropout: float | Sequence[float]
    residual: bool
    init: str


class Layers(nn.ModuleList):
    """Hidden layers: each is a linear map, optional batch norm, an activation and dropout.

    The input is one tensor ``(..., width)``, or several tensors that broadcast against each other and are concatenated
    in the last dimension. The concatenation is never computed: each part is multiplied with its own columns of the
    first weight, and the products are added. A part that is the same for all items of an impression, ``(B, 1, width)``,
    is multiplied once per impression instead of once per item. `forward` takes an optional boolean `mask` of the
    broadcast shape without its last dimension; rows where it is False are ignored by batch norm.

    Args:
        width: Width of the input.
        hidden: Widths of the layers.
        activation: Activation, a key of `ACTIVATIONS`.
        batch_norm: Whether to normalise every layer over the real rows.
        norm_momentum: Weight of a batch in the running mean and variance, from 0 to 1.
        dropout: Share of units that dropout sets to 0: one number for all layers, or one per layer.
        residual: Whether to add a layer's input to its output where their widths are equal.
        init: Initial weights, one of `INITS`.

    Examples:
        >>> users, items = torch.randn(2, 1, 3), torch.randn(2, 5, 4)
        >>> layers = Layers(7, [8])
        >>> joined = torch.cat([users.expand(2, 5, 3), items], -1)
        >>> torch.allclose(layers(users, items), layers(joined), atol=1e-6)
        True
    """

    def __init__(
        self,
        width: int,
        hidden: Sequence[int],
        *,
        activation: str = "relu",
        batch_norm: bool = False,
        norm_momentum: float = 0.1,
        dropout: float | Sequence[float] = 0.0,
        residual: bool = False,
        init: str = "default",
    ) -> None:
        hidden = check_widths(hidden)
        shares = _check_dropout(dropout, len(hidden))
        if not 0 < check_real("norm_momentum", norm_momentum) <= 1:
            raise ValueError(f"norm_momentum must be above 0 and at most 1, got {norm_momentum}")
        widths = [width, *hidden]
        super().__init__(
            _Layer(
                width_in,
                width_out,
                activation=make_activation(activation, width_out),
                norm=RowNorm(width_out, momentum=norm_momentum) if batch_norm else None,
                dropout=share,
                residual=residual and width_in == width_out,
            )
            for width_in, width_out, share in zip(widths, hidden, shares, strict=False)
        )
        initialise(self, init)

    def forward(self, *parts: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self:
            parts = (layer(parts, mask),)
        return join(parts)


def check_widths(hidden: Sequence[int]) -> list[int]:
    """Return the widths of hidden layers. Raises an error unless `hidden` is a list of them."""
    if not isinstance(hidden, list | tuple):
        raise TypeError(f"hidden must be a list of widths, got {type(hidden).__name__}")
    return [check_count("hidden", width, most=WIDEST) for width in hidden]


def _check_dropout(dropout: float | Sequence[float], layers: int) -> list[float]:
    """Return the share of each layer."""
    shares = list(dropout) if isinstance(dropout, list | tuple) else [check_real("dropout", dropout)] * layers
    if len(shares) != layers:
        raise ValueError(f"dropout must be one number, or one per hidden layer ({layers}), got {len(shares)}")
    for share in shares:
        if not 0 <= check_real("dropout", share) < 1:
            raise ValueError(f"dropout must be from 0 to less than 1, got {share}")
    return shares


class Network(nn.Module):
    """Hidden layers and a linear map to `width_out` numbers. Inputs and options are those of :class:`Layers`."""

    def __init__(self, width: int, hidden: Sequence[int], width_out: int, **options: Unpack[LayerOptions]) -> None:
        super().__init__()
        self.layers = Layers(width, hidden, **options)
        self.out = nn.Linear([width, *hidden][-1], width_out)
        initialise(self.out, options.get("init", "default"))

    def forward(self, *parts: Tensor, mask: Tensor | None = None) -> Tensor:
        if len(self.layers):
            parts = (self.layers(*parts, mask=mask),)
        return linear_of_parts(parts, self.out.weight, self.out.bias)


class _Layer(nn.Module):
    def __init__(
        self,
        width_in: int,
        width_out: int,
        *,
        activation: nn.Module,
        norm: RowNorm | None,
        dropout: float,
        residual: bool,
    ) -> None:
        super().__init__()
        # Batch norm subtracts the mean, which would cancel a bias.
        self.linear = nn.Linear(width_in, width_out, bias=norm is None)
        self.norm = norm
        self.activation = activation
        self.dropout = _dropout(dropout, activation)
        self.residual = residual

    def forward(self, parts: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        outputs: Tensor = linear_of_parts(parts, self.linear.weight, self.linear.bias)
        if self.norm is not None:
            outputs = self.norm(outputs, mask)
        outputs = self.activation(outputs)
        if self.dropout is not None:
            outputs = self.dropout(outputs)
        return join(parts) + outputs if self.residual else outputs


def linear_of_parts(parts: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear map to the concatenated parts, without concatenating them."""
    first, *others = parts
    if not others:
        return F.linear(first, weight, bias)
    columns = weight.split([part.shape[-1] for part in parts], dim=1)
    output = F.linear(first, columns[0], bias)
    for part, own in zip(others, columns[1:], strict=True):
        output = output + F.linear(part, own)
    return output


def join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate parts in the last dimension, broadcast against each other in all others."""
    if len(parts) == 1:
        return parts[0]
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], dim=-1)


def _dropout(share: float, activation: nn.Module) -> nn.Module | None:
    if share == 0:
        return None
    # AlphaDropout preserves mean and variance, which SELU relies on.
    return nn.AlphaDropout(share) if isinstance(activation, nn.SELU) else nn.Dropout(share)


class RowNorm(nn.BatchNorm1d):
    """Batch norm over all leading dimensions that ignores padding.

    A single row, which has no variance, is normalised as in evaluation.

    Attributes:
        total: Function that sums over the processes which hold parts of the rows, if there are several. Then all of
            them normalise by the rows of all processes.
    """

    total: Callable[[Tensor], Tensor] | None = None

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = input.reshape(-1, self.num_features)
        if self.training and self.total is not None and mask is None:
            mask = rows.new_ones(len(rows), dtype=torch.bool)
        if self.training and mask is not None:
            return self._over_real_rows(rows, mask.reshape(-1)).view_as(input)
        if self.training and len(rows) > 1:
            return super().forward(rows).view_as(input)
        normed = F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return normed.view_as(input)

    def _over_real_rows(self, rows: Tensor, mask: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        # Not rows[mask]: its shape would depend on the data, which requires a synchronisation with the GPU.
        rows = at_least_float32(rows)
        real = mask.to(rows.dtype)
        total = self.total or (lambda part: part)
        with full_precision(rows.device):  # three digits of a mean are not enough to subtract it
            count = total(real.sum())
            share = real / count.clamp_min(1)
            mean = total(share @ rows)
            variance = total(share @ (rows - mean).square())
        enough = count > 1
        with torch.no_grad():
            assert self.momentum is not None
            momentum = enough * self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            unbiased = variance * (count / (count - 1).clamp_min(1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
            self.num_batches_tracked.add_(1)
        mean = torch.where(enough, mean, self.running_mean)
        scale = self.weight * torch.where(enough, variance, self.running_var).add(self.eps).rsqrt()
        return torch.addcmul(self.bias - mean * scale, rows, scale)
