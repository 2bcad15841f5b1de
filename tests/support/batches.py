"""Random batches of impressions, for tests of models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall.data.impressions.spec import Feature, Features, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

# Every kind of feature: shared and own tables, a number, a vector; two sequences.
FEATURES = Features(
    (
        Feature("hour", "context", "hour", 26),
        Feature("load", "context"),
        Feature("id", "user", "user.id", 12),
        Feature("taste", "user", size=3),
        Feature("video", "item", "video", 30),
        Feature("author", "item", "item.author", 9),
        Feature("upload_hour", "item", "hour", 26),
        Feature("price", "item"),
    ),
    (Sequence("history", 6, ("video", "author")), Sequence("likes", 4, ("video",))),
)

_KEPT = ("video", "author", "category_two", "category_one", "upload_type")
_TIMES = {"weekday": 9, "hour": 26, "minute": 62}

# The widths of the published two-stage cascade: 3 + 5 features of the request, 8 of an item, 5 of an event.
RECFLOW = Features(
    (
        *(Feature(name, "context", name, rows) for name, rows in _TIMES.items()),
        *(Feature(name, "user", f"user.{name}", 20) for name in ("id", "device", "age", "gender", "province")),
        *(Feature(name, "item", f"item.{name}", 40) for name in _KEPT),
        *(Feature(f"upload_{name}", "item", name, rows) for name, rows in _TIMES.items()),
    ),
    (Sequence("history", 50, _KEPT),),
)


@dataclass
class Impressions:
    """The attributes of a batch that models read."""

    user: dict[str, Tensor]
    context: dict[str, Tensor]
    items: dict[str, Tensor]
    sequences: dict[str, dict[str, Tensor]]
    sequence_mask: dict[str, Tensor]
    mask: Tensor


def random_batch(
    features: Features = FEATURES, *, count: int = 5, n: int = 7, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Impressions:
    """Return a batch with ids from 0 on, an empty history in the second impression, and padded lists."""
    generator = torch.Generator().manual_seed(seed)

    def values(feature: Feature, *shape: int) -> Tensor:
        if feature.embedding is not None:
            return torch.randint(0, feature.rows, shape, generator=generator, dtype=torch.int32)
        shape = shape if feature.size == 1 else (*shape, feature.size)
        return torch.randn(shape, generator=generator, dtype=dtype)

    def first(most: int) -> Tensor:
        """Return a bool tensor ``(count, most)`` that is True in a random number of leading places per row."""
        lengths = torch.randint(1, 2 * most, (count, 1), generator=generator)
        return torch.arange(most) < lengths

    mask = first(n)
    sequence_mask = {sequence.name: first(sequence.max_length) for sequence in features.sequences}
    for events in sequence_mask.values():
        events[1:2] = False
    return Impressions(
        user={feature.name: values(feature, count) for feature in features.of("user")},
        context={feature.name: values(feature, count) for feature in features.of("context")},
        items={feature.name: blank(values(feature, count, n), mask) for feature in features.of("item")},
        sequences={
            sequence.name: {
                name: blank(values(features.item(name), count, sequence.max_length), sequence_mask[sequence.name])
                for name in sequence.features
            }
            for sequence in features.sequences
        },
        sequence_mask=sequence_mask,
        mask=mask,
    )


def blank(values: Tensor, mask: Tensor) -> Tensor:
    """Set padding to 0."""
    return torch.where(mask if values.ndim == mask.ndim else mask.unsqueeze(-1), values, 0)


def take(batch: Impressions, which: slice) -> Impressions:
    """Return a slice of the impressions."""
    return Impressions(
        user={name: values[which] for name, values in batch.user.items()},
        context={name: values[which] for name, values in batch.context.items()},
        items={name: values[which] for name, values in batch.items.items()},
        sequences={name: {key: ids[which] for key, ids in values.items()} for name, values in batch.sequences.items()},
        sequence_mask={name: mask[which] for name, mask in batch.sequence_mask.items()},
        mask=batch.mask[which],
    )


def map_items(batch: Impressions, change: Callable[[Tensor], Tensor]) -> Impressions:
    """Apply `change` to all tensors with one value per item."""
    items = {name: change(values) for name, values in batch.items.items()}
    return replace(batch, items=items, mask=change(batch.mask))


def map_events(batch: Impressions, change: Callable[[Tensor], Tensor]) -> Impressions:
    """Apply `change` to all tensors with one value per event."""
    return replace(
        batch,
        sequences={
            name: {feature: change(ids) for feature, ids in values.items()} for name, values in batch.sequences.items()
        },
        sequence_mask={name: change(mask) for name, mask in batch.sequence_mask.items()},
    )


def spread(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Move values ``(B, n, ...)`` to the places ``(n,)`` of lists of length `size`, and pad the rest."""
    wide = values.new_zeros(values.shape[0], size, *values.shape[2:])
    wide[:, places] = values
    return wide
