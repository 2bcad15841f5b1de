"""The catalogue of a day: every item that is in the log by its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rankfall.data.impressions.loader.negatives import Pool

PREFIX = "item."  # of the columns of item features


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """M items and their features in the item table, as a service has them.

    Attributes:
        day: The day.
        item: Item numbers ``(M,)``, sorted.
        features: Features by name, ``(M,)``, or ``(M, size)`` for vectors.
    """

    day: str
    item: Tensor
    features: dict[str, Tensor]

    def __len__(self) -> int:
        """The number of items."""
        return len(self.item)

    def places(self, item: Tensor, mask: Tensor) -> Tensor:
        """Return the places of items in the catalogue, in any shape; the number of items where masked.

        Raises:
            ValueError: If a real item is not in the catalogue.
        """
        found = torch.searchsorted(self.item, item)
        known = self.item[found.clamp(max=len(self) - 1)] == item
        if not bool((known | ~mask).all()):
            missing = int(item[~known & mask][0])
            raise ValueError(f"path: item {missing} of {self.day} is not in the item table of its log")
        return found.masked_fill(~mask, len(self))


def catalogue_of(day: str, pool: Pool) -> Catalogue:
    """Return the catalogue of the items known at the end of a day."""
    chosen = slice(None) if pool.places is None else pool.places
    features = {
        name.removeprefix(PREFIX): torch.from_numpy(values[chosen].copy()) for name, values in pool.features.items()
    }
    return Catalogue(day, torch.from_numpy(pool.items.copy()), features)
