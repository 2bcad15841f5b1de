"""Matching: a few hundred candidates per request, from several channels, without scoring all items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankfall.simulation.world import DAY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.simulation.presets import Channels
    from rankfall.simulation.world import Items, World

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]
    Weights = NDArray[np.float64]

NO_ITEM = -1  # marks positions for which a channel found no item, or one that is a candidate already
SHARPNESS = 3.0  # of the choice among categories
POPULARITY = 0.75  # the exponent of the number of recent views
FRESH_DAYS = 1.0


class Catalogue:
    """The items of one day, stored so that a draw is a binary search in cumulative sums."""

    def __init__(self, world: World, items: Items, views: Weights, time: int) -> None:
        """Build the catalogue of the items alive at `time`; `views` are the recent views of every item."""
        alive = items.alive(time)
        self._categories = world.category_vectors
        popularity = (1 + views[alive]) ** POPULARITY
        freshness = np.exp((items.upload_time[alive] - time) / (FRESH_DAYS * DAY))
        self._alive, self._author_of = alive, items.author
        self._popular, self._fresh = np.cumsum(popularity), np.cumsum(freshness)
        self._by_category = _Groups(alive, items.subcategory[alive], len(self._categories), np.sqrt(popularity))
        self._by_author = _Groups(alive, items.author[alive], world.preset.authors, np.ones(len(alive)))

    def match(
        self, random: np.random.Generator, vectors: Floats, viewed: NDArray[np.int32], channels: Channels
    ) -> NDArray[np.int32]:
        """Draw candidates (requests, n).

        Args:
            random: The random numbers.
            vectors: The interests of the user of each request.
            viewed: The last items that the users viewed, NO_ITEM for none.
            channels: The number of draws of each channel.

        Returns:
            Different items per row, none of them viewed lately; the remaining positions are NO_ITEM.
        """
        count = len(vectors)

        def uniform(width: int) -> Weights:
            return random.random((count, width))

        categories = self._choose_categories(vectors, uniform(channels.interest))
        event = (uniform(channels.authors) * viewed.shape[1]).astype(np.int64)
        example = np.take_along_axis(viewed, event, axis=1)
        authors = np.where(example == NO_ITEM, NO_ITEM, self._author_of[example])
        drawn = [
            self._by_category.pick(categories, uniform(channels.interest)),
            self._by_author.pick(authors, uniform(channels.authors)),
            self._alive[_search(self._popular, uniform(channels.popular))],
            self._alive[_search(self._fresh, uniform(channels.fresh))],
            self._alive[(uniform(channels.random) * len(self._alive)).astype(np.int64)],
        ]
        return _new_ones(np.concatenate(drawn, axis=1).astype(np.int32), viewed)

    def choose_by_interest(self, random: np.random.Generator, vectors: Floats, width: int) -> Integers:
        """Draw items (users, width) of the categories that users like; an item may occur twice in a row."""
        categories = self._choose_categories(vectors, random.random((len(vectors), width)))
        return self._by_category.pick(categories, random.random((len(vectors), width)))

    def _choose_categories(self, vectors: Floats, uniform: Weights) -> Integers:
        # einsum instead of a matrix product, whose rounding may depend on the number of threads
        liking = np.einsum("rd,cd->rc", vectors, self._categories).astype(np.float64)
        weights = np.exp(SHARPNESS * liking) * np.sqrt(self._by_category.sizes)
        sums = np.cumsum(weights, axis=1)
        sums /= sums[:, -1:]
        # row r of the sums is in (r, r + 1], so that one search serves all rows
        rows = np.arange(len(sums))[:, None]
        found = np.searchsorted((sums + rows).ravel(), (uniform + rows).ravel(), side="right").reshape(uniform.shape)
        chosen: Integers = np.minimum(found - rows * sums.shape[1], sums.shape[1] - 1)
        return chosen


class _Groups:
    """Items by group, drawn with their weight inside the group."""

    def __init__(self, items: Integers, group: Integers, groups: int, weights: Weights) -> None:
        order = np.argsort(group, kind="stable")
        self._items = items[order]
        self.sizes = np.bincount(group, minlength=groups)
        self._edges = np.concatenate([[0], np.cumsum(self.sizes)])
        self._sums = np.concatenate([[0.0], np.cumsum(weights[order])])

    def pick(self, group: Integers, uniform: Weights) -> Integers:
        """Draw one item of each group; NO_ITEM if the group is empty or negative."""
        first, last = self._edges[group], self._edges[group + 1]
        low, high = self._sums[first], self._sums[last]
        place = np.searchsorted(self._sums, low + uniform * (high - low), side="right") - 1
        empty = (group < 0) | (last == first)
        return np.where(empty, NO_ITEM, self._items[np.where(empty, 0, np.minimum(place, last - 1))])


def _search(sums: Weights, uniform: Weights) -> Integers:
    found: Integers = np.minimum(np.searchsorted(sums, uniform * sums[-1], side="right"), len(sums) - 1)
    return found


def _new_ones(candidates: NDArray[np.int32], viewed: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sort the candidates of each row and replace viewed items and duplicates by NO_ITEM."""
    # viewed items are even, candidates odd: after sorting, an item to remove follows an equal item
    marked = np.sort(np.concatenate([2 * viewed, 2 * candidates + 1], axis=1), axis=1)
    item = marked >> 1
    item[:, 1:][item[:, 1:] == item[:, :-1]] = NO_ITEM
    item[marked % 2 == 0] = NO_ITEM
    return np.sort(item, axis=1)[:, viewed.shape[1] :]  # at least this many are NO_ITEM, which is sorted first
