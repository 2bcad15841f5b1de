"""The attention of DIN: the weight of each event of a behaviour sequence for each candidate.

An attention unit of one hidden layer takes the embeddings of an event and of a candidate side by side. The columns of
its weight for the event and for the candidate are applied separately, so the remaining work per pair is the sum of two
vectors, an activation and a dot product. There are still B N L H of these numbers, a thousand times more than weights,
so they are computed block by block, never all at once, and recomputed in the backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rankfall._checks import WIDEST, check_count
from rankfall.models.layers import initialise, make_activation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Bool, Float

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
