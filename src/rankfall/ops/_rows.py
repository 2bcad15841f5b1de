"""Soft permutations whose rows are a softmax over the items: NeuralSort and SoftSort.

Rows are computed on demand, so k rows cost O(k n), and sums over all rows need no n x n matrix.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_ZERO = -1e30
"""Logarithm of an entry that is 0 by definition: finite, so that gradients contain no inf - inf."""

CHUNK = 1 << 20
"""Approximate size of a chunk where all rows are summed: it fits into the cache of a CPU."""

BLOCK, DEVICE_BLOCK = 1 << 17, 1 << 25
"""The same where several such blocks are in use at once: per core of a CPU, and for any other device."""

BLOCK_ROWS = 32
"""Minimal number of rows in a block, if one list has room for them."""


@dataclass(frozen=True)
class SoftRows:
    """The rows of a soft permutation, computed on demand.

    Attributes:
        inputs: Tensors ``(..., n)`` that the logits depend on.
        logits: ``logits(start, stop, mask, *inputs)`` returns the rows ``start .. stop - 1`` (counted from 0) before
            the softmax.
        pull: ``pull(start, stop, gradient, *inputs)`` maps the gradient of these logits to the gradients of the inputs.
        shape: Shape ``(..., n)`` of the scores.
        mask: Boolean tensor ``(..., n)``, or None if all items are real.
        rest: Optional faster implementation of :meth:`sum_rest`.
    """

    inputs: tuple[Tensor, ...]
    logits: Callable[..., Tensor]
    pull: Callable[..., tuple[Tensor, ...]]
    shape: torch.Size
    mask: Tensor | None
    rest: Callable[[int], Tensor] | None = None

    def probabilities(self, start: int, stop: int) -> Tensor:
        """Return the rows ``(..., stop - start, n)``; masked columns and ranks that a list does not have are 0."""
        if self.mask is None:
            return _pad(torch.softmax(self._logits(start, min(stop, self.shape[-1])), -1), stop - start, 0.0)
        rows = torch.softmax(self._masked_logits(start, stop), -1)
        return rows.masked_fill(self._void(start, stop), 0.0)

    def logarithms(self, start: int, stop: int) -> Tensor:
        """Return the logarithm of the same rows, `LOG_ZERO` where they are 0 by definition."""
        if self.mask is None:
            rows = torch.log_softmax(self._logits(start, min(stop, self.shape[-1])), -1)
            return _pad(rows, stop - start, LOG_ZERO)
        rows = torch.log_softmax(self._masked_logits(start, stop), -1)
        return rows.masked_fill(self._void(start, stop), LOG_ZERO)

    def log_rest(self, start: int) -> Tensor:
        """Return the logarithm of the sum of all rows from `start` on, ``(..., n)``, without storing all rows."""
        stop = self.shape[-1]
        if start >= stop:
            return self._filled(LOG_ZERO)
        if torch.compiler.is_compiling():  # it cannot trace a function whose arguments are functions
            return torch.logsumexp(self.logarithms(start, stop), -2)
        total: Tensor = _LogRest.apply(self, start, self.mask, *self.inputs)  # type: ignore[no-untyped-call]
        return total

    def near_logarithms(self, start: int, stop: int) -> Tensor:
        """Return :meth:`logarithms`, with values near `LOG_ZERO` instead of exact ones: faster than filling."""
        logits = self._logits(start, stop)
        if self.mask is None:
            return torch.log_softmax(logits, -1)
        beyond = torch.arange(start, stop, device=self.mask.device) >= self.mask.sum(-1, keepdim=True)
        padding, void = (where.to(logits.dtype) * LOG_ZERO for where in (~self.mask, beyond))
        return torch.log_softmax(logits + padding.unsqueeze(-2), -1) + void.unsqueeze(-1)

    def sum_rest(self, start: int) -> Tensor:
        """Return the sum of all rows from `start` on, ``(..., n)``, computed in chunks and without gradient."""
        with torch.no_grad():
            if self.rest is not None and start < self.shape[-1]:
                return self.rest(start)
            total = self._filled(0.0)
            for first, last in self.chunks(start, CHUNK):
                total = total + self.probabilities(first, last).sum(-2)
        return total

    def blocks(self) -> Iterator[SoftRows]:
        """Iterate over the same rows for a few lists at a time, flattened to one batch dimension."""
        masks = repeat(None) if self.mask is None else self.split_lists(self.mask)
        for mask, *inputs in zip(masks, *map(self.split_lists, self.inputs), strict=False):
            yield replace(self, inputs=tuple(inputs), mask=mask, shape=inputs[0].shape)

    def split_lists(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split values ``(..., n)`` into groups of lists that leave room for a few rows in a block."""
        n = self.shape[-1]
        lists = max(1, _block(values.device) // (BLOCK_ROWS * n))
        return tuple(values.reshape(-1, n).split(lists))

    def chunks(self, start: int, size: int) -> list[tuple[int, int]]:
        """Return ranges (start, stop) of rows, each with about `size` numbers."""
        stop = self.shape[-1]
        step = max(1, size // max(1, self.shape.numel()))
        return [(first, min(first + step, stop)) for first in range(start, stop, step)]

    def _logits(self, start: int, stop: int) -> Tensor:
        return self.logits(start, stop, self.mask, *self.inputs)

    def _filled(self, value: float) -> Tensor:
        return torch.full_like(self._logits(0, 1).squeeze(-2), value)

    def _masked_logits(self, start: int, stop: int) -> Tensor:
        assert self.mask is not None
        return self._logits(start, stop).masked_fill(~self.mask.unsqueeze(-2), LOG_ZERO)

    def _void(self, start: int, stop: int) -> Tensor:
        """Return the entries that are 0 by definition."""
        assert self.mask is not None
        rank = torch.arange(start, stop, device=self.mask.device).unsqueeze(-1)
        beyond = rank >= self.mask.sum(-1)[..., None, None]
        return beyond | ~self.mask.unsqueeze(-2)


class _LogRest(torch.autograd.Function):
    """Computes a few rows of a few lists at a time, and recomputes them in the backward pass."""

    @staticmethod
    def forward(rows: SoftRows, start: int, mask: Tensor | None, *inputs: Tensor) -> Tensor:
        rows = replace(rows, mask=mask, inputs=inputs)
        return torch.cat([_log_rest(block, start) for block in rows.blocks()]).reshape(rows.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.rows, ctx.start, *tensors = inputs
        ctx.save_for_backward(output, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        log_rest, mask, *inputs = ctx.saved_tensors
        rows = replace(ctx.rows, mask=mask, inputs=inputs)
        blocks = list(zip(rows.blocks(), rows.split_lists(log_rest), rows.split_lists(grads[0]), strict=True))
        pulled = zip(*(_pull(block, ctx.start, *given) for block, *given in blocks), strict=True)
        return None, None, None, *(torch.cat(parts).reshape(rows.shape) for parts in pulled)


def _log_rest(rows: SoftRows, start: int) -> Tensor:
    chunks = rows.chunks(start, _block(rows.inputs[0].device))
    parts = (_logsumexp(rows.near_logarithms(*chunk)) for chunk in chunks)
    return functools.reduce(torch.logaddexp, parts).clamp(min=LOG_ZERO)


def _pull(rows: SoftRows, start: int, log_rest: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs from the gradient of `log_rest`.

    With P the rows and R their sum over i, d log R_j is the mean of d log P_ij with the weights P_ij / R_j, and d log P
    is the derivative of a log-softmax.
    """
    # no gradient through padding, nor through a list that has no such rows
    grad = grad.masked_fill(log_rest <= LOG_ZERO / 2, 0.0).unsqueeze(-2)
    total: tuple[Tensor, ...] = ()
    for first, last in rows.chunks(start, _block(grad.device)):
        log_p = rows.near_logarithms(first, last)
        share = grad * _exp(log_p - log_rest.unsqueeze(-2))
        of_logits = torch.addcmul(share, _exp(log_p), share.sum(-1, keepdim=True), value=-1)
        parts = rows.pull(first, last, of_logits, *rows.inputs)
        total = tuple(map(torch.add, total, parts)) if total else parts
    return total


def _block(device: torch.device) -> int:
    return BLOCK * torch.get_num_threads() if device.type == "cpu" else DEVICE_BLOCK


def _logsumexp(rows: Tensor) -> Tensor:
    highest = rows.amax(-2, keepdim=True)
    return highest.squeeze(-2) + _exp(rows - highest).sum(-2).log()


def _exp(x: Tensor) -> Tensor:
    """Exponential with a floor above 0: processors are many times slower if results are subnormal."""
    return torch.exp(x.clamp(min=math.log(torch.finfo(x.dtype).tiny) + 1))


def _pad(rows: Tensor, count: int, value: float) -> Tensor:
    """Append rows for ranks beyond the number of items, so that the result has `count` rows for any n."""
    missing = count - rows.shape[-2]
    return torch.nn.functional.pad(rows, (0, 0, 0, missing), value=value) if missing > 0 else rows
