"""Items that were not in an impression, added to its list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.data.impressions.loader.window import Column, lengths_of, mask_of, numbers
from rankfall.data.impressions.log import item_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.data.impressions.loader.item_first_seen import FirstDays
    from rankfall.data.impressions.loader.order import Rows
    from rankfall.data.impressions.loader.window import Arrays, Layout
    from rankfall.data.impressions.log import ImpressionLog

ROOMY = 4  # with so many items for each that is taken or wanted, three of four draws are good


NOTHING = np.array([-1], np.int32)  # a pool of padding, of which lists without items get nothing


@dataclass(frozen=True, slots=True)
class Pool:
    """Items to draw from, each once and sorted."""

    items: NDArray[np.int32]
    features: Arrays
    places: Rows | None = None  # of the items' features; by default they are in the order of the items


class KnownItems:
    """The items of a log, each from the first day on which an impression has it, or leaves it out.

    What is known later is not drawn before: it would be seen as a negative alone, and what a model learns of it by that
    is wrong on the days that it comes up.
    """

    def __init__(self, log: ImpressionLog, layout: Layout, last: str, first_days: FirstDays) -> None:
        """Look at the days up to the `last`, those that `first_days` has not read yet."""
        self._pool = _all_items(log, layout)
        self._days = list(log.days)[: list(log.days).index(last) + 1]
        self._first = first_days.numbers(log, self._days, self._pool.items)

    def until(self, day: str) -> Pool:
        """What is known at the end of that day."""
        places = np.flatnonzero(self._first <= self._days.index(day))
        if len(places) == len(self._first):
            return self._pool
        if not len(places):
            return Pool(NOTHING, self._pool.features)
        return Pool(self._pool.items[places], self._pool.features, places)


def _all_items(log: ImpressionLog, layout: Layout) -> Pool:
    table = log.items().combine_chunks()
    ids = table.schema.field("id").type if "id" in table.schema.names else None
    if table.schema != item_schema(log.spec, ids=ids):
        raise ValueError(f"path: {log.path / 'items.arrow'} does not fit the spec of its log")
    if not len(table):
        raise ValueError(f"negatives: the table of items of {log.path} is empty, there is nothing to draw from")
    features = {column.name: numbers(table[column.name].chunk(0), column) for column in _features(layout)}
    return Pool(table["item"].chunk(0).to_numpy(), features)


def pool_of_batch(arrays: Arrays, layout: Layout) -> Pool:
    """Every item of a batch, with the features of one of its impressions."""
    mask = mask_of(arrays[lengths_of(layout.items)], layout.items.width)
    places = np.flatnonzero(mask)
    keys = np.sort(arrays["item"].reshape(-1)[places].astype(np.int64) << 32 | places)
    keys = keys[np.diff(keys >> 32, prepend=-1) > 0]
    features = {column.name: arrays[column.name].reshape(column.shape(-1)) for column in _features(layout)}
    if not len(keys):
        return Pool(NOTHING, features)
    return Pool((keys >> 32).astype(np.int32), features, keys & 0xFFFFFFFF)


def append(arrays: Arrays, layout: Layout, pool: Pool, drawn: Rows) -> NDArray[np.bool_]:
    """Put the items `drawn` from the pool, -1 for none, behind the padded lists; the mask of the longer lists."""
    (rows, count), width = drawn.shape, layout.items.width
    found = drawn >= 0
    places = drawn if pool.places is None else pool.places[drawn]
    for column in layout.items.columns:
        longer = np.empty(column.shape(rows, width + count), column.dtype)
        longer[:, :width] = arrays[column.name]
        added = longer[:, width:]
        if column.name == "item":
            added[...] = np.where(found, pool.items[drawn], column.padding)
        elif column.name in pool.features:
            added[...] = pool.features[column.name].take(places, axis=0, mode="clip")  # below 0 is outside
            added[~found] = column.padding
        else:
            added[...] = column.padding if column.name != "truth" else np.where(found, np.nan, column.padding)
        arrays[column.name] = longer
    return np.concatenate([mask_of(arrays[lengths_of(layout.items)], width), found], axis=1)


def close_up(arrays: Arrays, layout: Layout, mask: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Leave out the padding between the items of lists and the items behind it, and what is beyond `length`."""
    width = layout.items.width
    slots, lengths = np.arange(length), arrays[lengths_of(layout.items)][:, None]
    index = np.where(slots < lengths, slots, slots - lengths + width)
    for column in layout.items.columns:
        at = index if column.size == 1 else index[..., None]
        arrays[column.name] = np.take_along_axis(arrays[column.name], at, axis=1)
    return np.take_along_axis(mask, index, axis=1)


def _features(layout: Layout) -> list[Column]:
    return [column for column in layout.items.columns if column.name.startswith("item.")]


# --- the draw ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Takers:
    """The lists of a `part` of a batch of `rows` impressions, which are to get items."""

    own: NDArray[np.int32]  # what they have
    rows: int
    part: slice
    left_out: Rows | None = None  # what they must not get either, as LeftOut gives it
    most_left_out: int = 0  # of any impression, whatever the part


def draw(takers: Takers, pool: NDArray[np.int32], count: int, rng: np.random.Generator) -> Rows:
    """For each impression `count` different places of the pool, at random, that hold none of its own items.

    What a list gets does not depend on the part. Where the pool has not enough, the last places are -1.
    """
    if len(pool) >= ROOMY * (takers.own.shape[1] + takers.most_left_out + count):
        return _draw_again(takers, pool, count, rng)
    return _draw_from_all(takers, pool, count, rng)


def _draw_again(takers: Takers, pool: NDArray[np.int32], count: int, rng: np.random.Generator) -> Rows:
    """Draw, and draw again what was there already. No item is preferred, so the outcome is uniform."""

    def fresh() -> Rows:  # for all of the batch, so that the luck of others changes nothing
        return rng.integers(len(pool), size=(takers.rows, count))[takers.part]

    drawn, lists = fresh(), np.arange(len(takers.own))
    while True:
        items = pool[drawn[lists]]
        again = _repeated(takers.own[lists], items)
        if takers.left_out is not None:
            again |= _among(takers.left_out, lists[:, None] << 32 | items)
        unlucky = again.any(axis=1)
        lists, again = lists[unlucky], again[unlucky]
        if not len(lists):
            return drawn
        drawn[lists] = np.where(again, fresh()[lists], drawn[lists])


def _repeated(own: NDArray[np.int32], drawn: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which of the drawn items stand in their list already, or before them among the drawn ones."""
    items = np.concatenate([own, drawn], axis=1).astype(np.int64)
    keys = np.sort(items << 32 | np.arange(items.shape[1]), axis=1)
    lists, at = np.nonzero((keys[:, 1:] ^ keys[:, :-1]).view(np.uint64) < 1 << 32)  # neighbours of the same item
    repeated = np.zeros(items.shape, bool)
    repeated[lists, keys[lists, at + 1] & 0xFFFFFFFF] = True
    return repeated[:, own.shape[1] :]


def _among(known: NDArray[Any], asked: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers stand among the known ones, which are sorted and some."""
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked
    return found


def _draw_from_all(takers: Takers, pool: NDArray[np.int32], count: int, rng: np.random.Generator) -> Rows:
    """Put the whole pool in a random order and take the first that are allowed: for pools that are nearly used up."""
    keys: NDArray[Any] = rng.random((takers.rows, len(pool)))[takers.part]
    places = np.minimum(np.searchsorted(pool, takers.own), len(pool) - 1)
    lists, at = np.nonzero(pool[places] == takers.own)
    keys[lists, places[lists, at]] = np.inf
    if takers.left_out is not None:
        lists, items = takers.left_out >> 32, (takers.left_out & 0xFFFFFFFF).astype(np.int32)
        known = _among(pool, items)
        keys[lists[known], np.searchsorted(pool, items[known])] = np.inf
    order = np.argsort(keys, axis=1)[:, :count]
    drawn: Rows = np.full((len(takers.own), count), -1, np.int64)
    drawn[:, : order.shape[1]] = np.where(np.isinf(np.take_along_axis(keys, order, axis=1)), -1, order)
    return drawn
