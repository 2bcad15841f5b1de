"""Hidden layers, for inputs in several parts and rows of which some are padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rankfall._checks import (
    WIDEST,
    at_least_float32,
    check_count,
    check_none,
    check_real,
    check_shape,
    full_precision,
    widen,
    widest,
)
from rankfall._errors import RankfallError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from jaxtyping import Bool, Float


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
        raise RankfallError(
            f"{where} must be one of {', '.join(ACTIVATIONS)}, got {name!r}{did_you_mean(name, ACTIVATIONS)}"
        )
    return PReLU(width) if name == "prelu" else ACTIVATIONS[name]()


def initialise(module: nn.Module, init: str) -> None:
    """Initialise the linear maps of a module anew, unless `init` is ``"default"``: then they keep torch's weights."""
    if init not in INITS:
        raise RankfallError(f"init must be one of {', '.join(INITS)}, got {init!r}{did_you_mean(init, INITS)}")
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
            raise RankfallError(f"norm_momentum must be above 0 and at most 1, got {norm_momentum}")
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
        raise RankfallError(f"dropout must be one number, or one per hidden layer ({layers}), got {len(shares)}")
    for share in shares:
        if not 0 <= check_real("dropout", share) < 1:
            raise RankfallError(f"dropout must be from 0 to less than 1, got {share}")
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


# Size of a block. On a CPU a block must fit into the cache, which is ten times faster than whole tensors; on other
# devices each block costs kernel launches.
_BLOCK_ON_CPU = 2**20
_BLOCK_ON_ACCELERATOR = 2**26


class AttentionPooling(nn.Module):
    """Mean of a sequence's events for each candidate, weighted by a softmax of the attention unit's output.

    The unit has no bias in its last layer, since a softmax would cancel it.

    Args:
        width: Width of events and candidates.
        hidden: Width of the hidden layer of the unit.
        activation: Activation of the hidden layer, a key of `ACTIVATIONS`.
        init: Initial weights, one of `INITS`.
    """

    def __init__(self, width: int, hidden: int = 80, *, activation: str = "relu", init: str = "default") -> None:
        super().__init__()
        check_count("attention", hidden, most=WIDEST)
        self.hidden = nn.Linear(2 * width, hidden)
        self.activation = make_activation(activation, hidden, where="attention_activation")
        self.out = nn.Linear(hidden, 1, bias=False)
        initialise(self, init)

    def forward(
        self,
        events: Float[Tensor, "batch length width"],
        targets: Float[Tensor, "batch n width"],
        mask: Bool[Tensor, "batch length"],
    ) -> Float[Tensor, "batch n width"]:
        """Return the pooled events per candidate, ``(B, N, width)``.

        Args:
            events: Tensor ``(B, L, width)``.
            targets: Tensor ``(B, N, width)`` of candidates.
            mask: Boolean tensor ``(B, L)``, True for real events.
        """
        for_events, for_targets = self.hidden.weight.chunk(2, dim=1)
        weights = attention_weights(
            nn.functional.linear(events, for_events, self.hidden.bias),
            nn.functional.linear(targets, for_targets),
            self.out.weight.squeeze(0),
            mask,
            self.activation,
        )
        return weights.to(events.dtype) @ events


def attention_weights(
    events: Float[Tensor, "batch length hidden"],
    targets: Float[Tensor, "batch n hidden"],
    weight: Float[Tensor, " hidden"],
    mask: Bool[Tensor, "batch length"],
    activation: nn.Module,
) -> Float[Tensor, "batch n length"]:
    """Return the softmax over the real events of ``activation(events + targets) @ weight``; 0 if there are none."""
    weight = weight.to(events.dtype)
    if torch.compiler.is_compiling():  # it would unroll the loops
        return _weights(events, targets, weight, mask, activation)
    per_item = events.shape[1] * events.shape[2]
    items = max(1, _block(events) // max(1, per_item))
    found = [_weights_of_block(events, part, weight, mask, activation) for part in targets.split(items, dim=1)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


def _weights_of_block(events: Tensor, targets: Tensor, weight: Tensor, mask: Tensor, activation: nn.Module) -> Tensor:
    if isinstance(activation, nn.ReLU):
        weights: Tensor = _ReLUWeights.apply(events, targets, weight, mask)  # type: ignore[no-untyped-call]
        return weights
    parts = [
        checkpoint(
            _weights,
            events[block],
            targets[block],
            weight,
            mask[block],
            activation,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for block in _blocks(events, targets)
    ]
    return torch.cat(parts)


def _weights(events: Tensor, targets: Tensor, weight: Tensor, mask: Tensor, activation: nn.Module) -> Tensor:
    hidden = activation(events.unsqueeze(1) + targets.unsqueeze(2))
    # A matrix-vector product would be shorter, but compilers would store all of `hidden` for it.
    return _softmax((hidden * weight).sum(-1), mask)


def _softmax(logits: Tensor, mask: Tensor) -> Tensor:
    mask = mask.unsqueeze(1)
    # without real events the weights are equal, and the mask sets them to 0
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1) * mask


def _block(events: Tensor) -> int:
    return _BLOCK_ON_CPU if events.device.type == "cpu" else _BLOCK_ON_ACCELERATOR


def _blocks(events: Tensor, targets: Tensor) -> Iterator[slice]:
    """Iterate over slices of impressions that fit into a block."""
    batch, length, hidden = events.shape
    size = max(1, _block(events) // max(1, targets.shape[1] * length * hidden))
    for start in range(0, max(1, batch), size):
        yield slice(start, min(start + size, batch))


class _ReLUWeights(torch.autograd.Function):
    """:func:`_weights` with ReLU, implemented by hand with fewer passes over the pairs.

    Forward: relu(e + t) = max(e, -t) + t, and t cancels in the softmax, since it is the same for all events.
    Backward: the gradient of e + t is [e > -t] times the gradient of the logit, times the weight. The gradient of e (or
    t) is the sum over candidates (or events). Since relu(x) = [x > 0] x, these sums times e (or t), without the weight,
    give the gradient of the weight.
    """

    @staticmethod
    def forward(ctx: Any, events: Tensor, targets: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        logits = events.new_empty(targets.shape[0], targets.shape[1], events.shape[1])
        negative = -targets
        for block, hidden in _pairs(events, targets):
            torch.maximum(events[block].unsqueeze(1), negative[block].unsqueeze(2), out=hidden)
            torch.mv(hidden.view(-1, len(weight)), weight, out=logits[block].view(-1))
        weights = _softmax(logits, mask)
        ctx.save_for_backward(events, targets, weight, weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        events, targets, weight, weights = ctx.saved_tensors
        of_logits = weights * (grad - (weights * grad).sum(-1, keepdim=True))
        of_logits = of_logits.to(events.dtype).unsqueeze(-1)
        negative = -targets
        of_events, of_targets = torch.empty_like(events), torch.empty_like(targets)
        of_weight = torch.zeros_like(weight)
        for block, hidden in _pairs(events, targets):
            torch.gt(events[block].unsqueeze(1), negative[block].unsqueeze(2), out=hidden)
            hidden.mul_(of_logits[block])
            for values, grads, others in ((events, of_events, 1), (targets, of_targets, 2)):
                sums = torch.sum(hidden, others, out=grads[block])
                of_weight += (sums * values[block]).sum((0, 1))
                sums *= weight
        return of_events, of_targets, of_weight, None


def _pairs(events: Tensor, targets: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over blocks of impressions, each with a buffer for the hidden units of its pairs."""
    buffer: Tensor | None = None
    for block in _blocks(events, targets):
        shape = (block.stop - block.start, targets.shape[1], *events.shape[1:])
        if buffer is None or buffer.shape != shape:
            buffer = events.new_empty(shape)
        yield block, buffer
