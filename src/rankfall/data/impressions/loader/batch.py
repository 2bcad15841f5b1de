"""A batch of impressions as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(slots=True, repr=False)
class Impressions:
    """Impressions of one day: ``batch.user["age"]``, ``batch.items["author_id"]``.

    A batch has B impressions with lists of N items, both constant where the loader can keep them so. Ids are int32,
    numbers float32; vectors have a last dimension for their numbers. Where `mask` is False there is padding.
    """

    day: str
    rows: Tensor  # (B,) int64, the rows of the impressions in the file of the day
    time: Tensor  # (B,) int64, milliseconds since 1970
    user: dict[str, Tensor]  # (B,)
    context: dict[str, Tensor]  # (B,)
    sequences: dict[str, dict[str, Tensor]]  # (B, L) int32, oldest first, then 0 up to the sequence's maximum length
    sequence_mask: dict[str, Tensor]  # (B, L) bool
    item: Tensor  # (B, N) int32, -1 in padding
    items: dict[str, Tensor]  # (B, N), 0 in padding
    depth: Tensor  # (B, N) int32, -1 for added negatives and padding
    rank: Tensor  # (B, N) int32, -1 for none
    relevance: Tensor  # (B, N) float32, 0 for added negatives and padding
    grade: Tensor  # (B, N) int32, 0 for added negatives and padding
    feedback: dict[str, Tensor]  # (B, N) float32, 0 for added negatives and padding
    mask: Tensor  # (B, N) bool, True for items
    truth: Tensor | None = None  # (B, N) float32, NaN for added negatives, 0 in padding
    position: Tensor | None = None  # (B, N) int32, from 0 for the first; -1 for not shown, added negatives and padding
    inclusion: Tensor | None = None  # (B, N) float32, the probability of the draw; 1 for added negatives and padding

    def __len__(self) -> int:
        """The number of impressions."""
        return len(self.rows)

    def __repr__(self) -> str:
        """Names, types and shapes, one line per attribute."""
        lines = [f"    {field.name}={_shown(getattr(self, field.name))}" for field in fields(self)]
        return "\n".join(["Impressions(", *lines, ")"])

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        sizes: list[int] = []

        def note(tensor: Tensor) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        self._map(note)
        return sum(sizes)

    def take(self, rows: slice) -> Impressions:
        """Return some of the impressions, without copying them."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Impressions:
        """Copy the batch to another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Impressions:
        """Copy the batch to pinned memory, from which a GPU can copy asynchronously."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Impressions:
        return Impressions(**{field.name: _mapped(getattr(self, field.name), change) for field in fields(self)})


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return {name: _mapped(part, change) for name, part in value.items()} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        device = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{device}"
    if isinstance(value, dict):
        alike: dict[str, list[str]] = {}
        for name, part in value.items():
            alike.setdefault(_shown(part), []).append(name)
        return "{" + "; ".join(f"{', '.join(names)}: {shape}" for shape, names in alike.items()) + "}"
    return repr(value)
