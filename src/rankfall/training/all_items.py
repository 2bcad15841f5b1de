"""Score every item of a day's catalogue, as a service does, in bounded memory.

The first stage scores all M items for each request. The lists that later stages and measurements receive are pruned:
the `reach` best items of the first stage, and all items whose fate is measured. The funnel of pruned lists is that of
the whole catalogue as long as the first stage keeps at most `reach` items, since no other item passes it.

Cost: a two-tower model needs one vector per item and day, and one matrix product per block of requests. Every other
first stage scores M items per request. Selection of the best takes O(M) per request.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall.models import TwoTower
from rankfall.models.build import has_vectors
from rankfall.training.scored_batch import ScoredBatch

if TYPE_CHECKING:
    from torch import nn

    from rankfall.cascade import Cascade
    from rankfall.data import ImpressionLoader
    from rankfall.data.impressions.loader import Catalogue, Impressions

SCORES = 1 << 22  # scores of a matrix product at a time: 16 MB
PAIRS = 1 << 14  # requests x items that a model scores at a time; attention needs some 10 kB for each
NOT_LOGGED = {  # values of items that were not logged; others are 0
    "depth": -1,
    "rank": -1,
    "position": -1,
    "inclusion": 1,
    "truth": torch.nan,
}


class AllItemsScorer:
    """Scores the batches of a loader with ``length="all"``.

    Args:
        cascade: The cascade, in evaluation mode.
        loader: The loader, which has the catalogue of each day.
        reach: Number of best items of the first stage in the pruned lists, at least the quota of that stage.
        device: Device of the weights.
    """

    def __init__(self, cascade: Cascade, loader: ImpressionLoader, *, reach: int, device: torch.device) -> None:
        self.cascade, self.loader, self.reach, self.device = cascade, loader, reach, device
        self._day: _DayItems | None = None

    @torch.no_grad()
    def __call__(self, batch: Impressions) -> ScoredBatch:
        """Return pruned lists with the scores of all stages."""
        if self._day is None or self._day.catalogue.day != batch.day:
            self._day = _DayItems(self.cascade, self.loader.catalogue(batch.day), self.device)
        catalogue = self._day.catalogue
        logged = catalogue.places(batch.item, batch.mask)
        best, of_best, of_logged = self._first_stage(self._day, batch, logged)
        further, there = _further_items(best, logged, _is_measured(batch))
        places = torch.cat([best, logged.gather(-1, further).masked_fill(~there, 0)], -1)
        mask = torch.cat([torch.ones_like(best, dtype=torch.bool), there], -1)
        pruned = _lists_of(batch, catalogue, places, mask, logged)
        # A further item may tie with the last of the best, which was drawn; it comes after it.
        below = of_best.amin(-1, keepdim=True).nextafter(torch.tensor(-torch.inf))
        first = torch.cat([of_best, torch.minimum(of_logged.gather(-1, further), below)], -1)
        later = [self._scores(model, pruned) for model in list(self.cascade.models.values())[1:]]
        ranked = torch.full((len(batch),), len(catalogue))
        return ScoredBatch(pruned, [first, *later], ranked, complete=best.shape[-1] == len(catalogue))

    def _first_stage(self, day: _DayItems, batch: Impressions, logged: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places ``(B, K)`` of the best items in the catalogue, their scores, and those of logged items."""
        count = len(day.catalogue)
        generator = torch.Generator().manual_seed(int(batch.rows[0]))
        best, of_best, of_logged = [], [], []
        for rows in _blocks(len(batch), max(1, SCORES // count)):
            scores = day.first_scores(batch.take(rows))
            best.append(best_places(scores, self.reach, generator))
            of_best.append(scores.gather(-1, best[-1]))
            of_logged.append(scores.gather(-1, logged[rows].clamp(max=count - 1)))
        return torch.cat(best), torch.cat(of_best), torch.cat(of_logged)

    def _scores(self, model: nn.Module, batch: Impressions) -> Tensor:
        """Return the scores of the items of a batch by a later stage."""
        rows = _blocks(len(batch), max(1, PAIRS // batch.mask.shape[-1]))
        return torch.cat([model(batch.take(some).to(self.device)).float().cpu() for some in rows])


class _DayItems:
    """The catalogue of a day and how the first stage scores it."""

    def __init__(self, cascade: Cascade, catalogue: Catalogue, device: torch.device) -> None:
        self.catalogue, self._device = catalogue, device
        self._model = next(iter(cascade.models.values()))
        self._features = {name: values.to(device) for name, values in catalogue.features.items()}
        self._vectors = self._item_vectors(self._model) if has_vectors(self._model) else None

    def _item_vectors(self, model: TwoTower) -> Tensor:
        blocks = [model.item_vectors(self._part(items)) for items in _blocks(len(self.catalogue), PAIRS)]
        return torch.cat(blocks).float()

    def first_scores(self, batch: Impressions) -> Tensor:
        """Return the scores ``(B, M)`` of all items by the first stage, on the CPU."""
        if self._vectors is not None:
            assert isinstance(self._model, TwoTower)
            return (self._model.user_vectors(batch.to(self._device)).float() @ self._vectors.T).cpu()
        parts = [self._scored(batch.take(rows)) for rows in _blocks(len(batch), max(1, PAIRS // len(self.catalogue)))]
        return torch.cat(parts)

    def _scored(self, batch: Impressions) -> Tensor:
        on_device = batch.to(self._device)
        parts = []
        for items in _blocks(len(self.catalogue), max(1, PAIRS // len(batch))):
            shared = {name: values.expand(len(batch), *values.shape) for name, values in self._part(items).items()}
            mask = torch.ones(len(batch), items.stop - items.start, dtype=torch.bool, device=self._device)
            parts.append(self._model(replace(on_device, items=shared, mask=mask)).float().cpu())
        return torch.cat(parts, -1)

    def _part(self, items: slice) -> dict[str, Tensor]:
        return {name: values[items] for name, values in self._features.items()}


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def best_places(scores: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Return the places ``(B, reach)`` of the best scores ``(B, M)``; of items that tie at the cut, a random choice.

    Without a random choice the place of an item in the catalogue would decide, and a model with constant scores would
    not have the recall of chance.
    """
    if reach >= scores.shape[-1]:
        return torch.arange(scores.shape[-1]).expand(scores.shape)
    values, places = scores.topk(reach + 1)
    tied = values[:, -1] == values[:, -2]
    places = places[:, :reach].clone()
    if tied.any():
        some, cut = scores[tied], values[tied][:, -1:]
        keys = torch.rand(some.shape, generator=generator).masked_fill(some > cut, 2.0).masked_fill(some < cut, -1.0)
        places[tied] = keys.topk(reach).indices
    return places


def _is_measured(batch: Impressions) -> Tensor:
    """Return the logged items ``(B, N)`` whose fate is measured: relevant ones and those with feedback."""
    measured = batch.relevance > 0
    for values in batch.feedback.values():
        measured = measured | (values != 0)
    return measured & batch.mask


def _further_items(best: Tensor, logged: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Return which measured items have to be added to the best ones.

    Args:
        best: Places ``(B, K)`` in the catalogue.
        logged: Places ``(B, N)`` of the logged items.
        measured: The logged items ``(B, N)`` whose fate is measured.

    Returns:
        Positions ``(B, F)`` in the logged lists, and a mask of the same shape.
    """
    further = measured & (_place_in(best, logged) < 0)
    positions = further.int().argsort(dim=-1, descending=True, stable=True)[:, : int(further.sum(-1).max())]
    return positions, further.gather(-1, positions)


def _place_in(rows: Tensor, asked: Tensor) -> Tensor:
    """Return where numbers ``(B, N)`` are in rows ``(B, K)`` of different numbers, -1 if they are not there."""
    ordered, order = rows.sort(-1)
    found = torch.searchsorted(ordered, asked.contiguous()).clamp(max=rows.shape[-1] - 1)
    return order.gather(-1, found).masked_fill(ordered.gather(-1, found) != asked, -1)


def _lists_of(batch: Impressions, catalogue: Catalogue, places: Tensor, mask: Tensor, logged: Tensor) -> Impressions:
    """Return the impressions with lists of these items of the catalogue, and what the log knows of them."""
    # padding has places of its own, so that no two numbers of a row are equal
    apart = torch.where(logged < len(catalogue), logged, len(catalogue) + torch.arange(logged.shape[-1]))
    source = _place_in(apart, places).masked_fill(~mask, -1)

    def of_log(values: Tensor, other: float) -> Tensor:
        return values.gather(-1, source.clamp(min=0)).masked_fill(source < 0, other)

    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    columns: dict[str, Any] = {
        name: of_log(values, NOT_LOGGED.get(name, 0))
        for name, values in tensors.items()
        if isinstance(values, Tensor) and values.shape == batch.mask.shape and name not in ("item", "mask")
    }
    if batch.truth is not None:
        columns["truth"] = columns["truth"].masked_fill(~mask, 0.0)
    return replace(
        batch,
        item=catalogue.item[places].masked_fill(~mask, -1),
        items={name: _masked(values[places], mask) for name, values in catalogue.features.items()},
        feedback={name: of_log(values, 0.0) for name, values in batch.feedback.items()},
        mask=mask,
        **columns,
    )


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~(mask if values.ndim == mask.ndim else mask.unsqueeze(-1)), 0)
