"""Base class of the loss modules: options at construction, tensors at the call."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float


class LossModule(nn.Module):
    """Base class of the modules that hold the options of a loss function.

    The signature of a subclass consists of the options of its `function`, whose doc string describes them.
    """

    function: ClassVar[Callable[..., Tensor]]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        passed_at_call = ("mask", "weight")
        parameters = inspect.signature(cls.function).parameters.values()
        cls.__signature__ = inspect.Signature(
            [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in passed_at_call]
        )

    def __init__(self, **options: Any) -> None:
        super().__init__()
        allowed = self.__signature__.parameters
        for name in options:
            if name not in allowed:
                raise TypeError(f"{type(self).__name__} has no option {name!r}; its options are {', '.join(allowed)}")
        for name, parameter in allowed.items():
            if parameter.default is parameter.empty and name not in options:
                raise TypeError(f"{type(self).__name__} needs the option {name!r}")
        self.options = options

    def forward(
        self,
        scores: Float[Tensor, "*batch n"],
        labels: Float[Tensor, "*batch n"],
        *,
        mask: Bool[Tensor, "*batch n"] | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Call the loss function with the options of this module.

        Args:
            scores: Floating tensor ``(..., n)`` (logits ``(..., n, grades)`` for :class:`GradeSoftmaxLoss`).
            labels: Tensor ``(..., n)`` of relevance labels.
            mask: Boolean tensor ``(..., n)``, True for real items. Default: all items are real.
            weight: Tensor of item weights ``(..., n)`` or list weights ``(...)``. Default: no weights.
        """
        return type(self).function(scores, labels, mask=mask, weight=weight, **self.options)

    def extra_repr(self) -> str:
        return _options_text(self.options)


def _options_text(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={getattr(value, '__name__', repr(value))}" for name, value in options.items())


# Pairs computed at a time: larger blocks do not fit into the cache, smaller ones have more overhead.
BLOCK = 2**17
# Largest number of pairs that autograd keeps. Beyond it, pairs are recomputed in the backward pass: more work, but
# linear memory.
KEPT = 2**22


def row_blocks(rows: int, width: int) -> list[tuple[int, int]]:
    """Return consecutive ranges (start, stop) of the rows of a matrix with `width` pairs in each row."""
    if torch.compiler.is_compiling():
        return [(0, rows)]  # the compiler makes better blocks, in one graph for lists of any length
    step = max(1, BLOCK // max(1, width))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def map_rows(function: Callable[[int, int], Tensor], rows: int, width: int) -> list[Tensor]:
    """Call `function(start, stop)` for each block of rows, under autograd."""
    blocks = row_blocks(rows, width)
    if len(blocks) == 1 or rows * width <= KEPT:
        return [function(*block) for block in blocks]
    return [
        cast("Tensor", checkpoint(function, *block, use_reentrant=False, preserve_rng_state=False)) for block in blocks
    ]
