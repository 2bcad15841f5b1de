"""Lists of scores and relevant items for reproductions of properties of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from rankfall.reproductions.paper_schema import SyntheticLists


def make_lists(settings: SyntheticLists, seed: int) -> tuple[Tensor, Tensor]:
    """Return scores in float64 and the mask of relevant items, both ``(lists, items)``.

    Relevant items are at random places, because the result of DiffSort depends on the order of the items.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (settings.lists, settings.items)
    relevant = torch.rand(shape, generator=generator).argsort(-1) < settings.relevant
    scores = torch.randn(shape, generator=generator, dtype=torch.double) + settings.shift * relevant
    return scores, relevant
