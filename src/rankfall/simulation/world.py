"""The users and items of a simulated platform: interests drift, items are uploaded and expire."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.simulation.platform import RecentViews
    from rankfall.simulation.presets import Channels, Preset, Shares

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]
    Weights = NDArray[np.float64]

DIMENSION = 16  # of interests
FIRST_DAY = 1_705_075_200  # 2024-01-13 00:00 in Shanghai, seconds since 1970
DAY = 86_400
AGES, GENDERS, PROVINCES, UPLOAD_TYPES = 8, 3, 31, 6

CATEGORY, SUBCATEGORY, AUTHOR, OWN = 0.2, 0.2, 0.2, 0.4  # shares of an item's vector
DEMOGRAPHIC, PERSONAL, RECENT = 0.25, 0.6, 0.15  # shares of a user's vector
DRIFT = 0.03  # the share of the personal part that is replaced each day
MEMORY = 0.8  # the share of the recent part that remains after a day
LIFETIME, LIFETIME_SPREAD = 4.0, 1.0  # days: median, deviation of the logarithm

Purpose = Literal[
    "world", "users", "births", "past", "drift", "requests", "matching", "production", "feedback", "noise"
]


_PURPOSES = get_args(Purpose)


def generator(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """Return random numbers for one purpose and place, independent of what was drawn before."""
    return np.random.default_rng([seed, _PURPOSES.index(purpose), *place])


def normal(random: np.random.Generator, *shape: int) -> Floats:
    """Draw standard normal numbers."""
    return random.standard_normal(shape, np.float32)


def long_tail(random: np.random.Generator, count: int, power: float) -> NDArray[np.float64]:
    """Return shares that decrease with a power of their rank, in random order."""
    weights = (np.arange(count) + 5.0) ** -power
    return random.permutation(weights / weights.sum())


def draw(random: np.random.Generator, shares: NDArray[np.float64], *shape: int) -> Integers:
    """Draw indices with the given shares."""
    edges = np.cumsum(shares)
    drawn: Integers = np.searchsorted(edges, random.random(shape) * edges[-1], side="right").astype(np.int64)
    return drawn


def unit(vectors: Floats) -> Floats:
    """Scale vectors to length 1; 0 stays 0."""
    length: Floats = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return vectors * (1 / np.maximum(length, 1e-6)).astype(np.float32)[:, None]


@dataclass(slots=True)
class Items:
    """All items uploaded until now; the number of a row is the id of the item."""

    author: Integers
    category: Integers
    subcategory: Integers
    upload_type: Integers
    upload_time: Integers  # seconds since 1970
    death: NDArray[np.float64]
    duration: Integers  # ms
    quality: Floats
    vector: Floats
    cold: Floats  # the part of its vector given by category and author
    blur: Floats  # the error of the platform's vector of the item

    def __len__(self) -> int:
        """The number of items."""
        return len(self.author)

    def extend(self, more: Items) -> None:
        """Append new items."""
        for field in fields(self):
            setattr(self, field.name, np.concatenate([getattr(self, field.name), getattr(more, field.name)]))

    def alive(self, time: int) -> Integers:
        """Return the items that are available at a time."""
        return np.flatnonzero((self.upload_time < time) & (self.death > time))


class World:
    """Categories and authors, which do not change, and the items made from them."""

    def __init__(self, preset: Preset, seed: int) -> None:
        random = generator(seed, "world")
        self.preset, self.seed = preset, seed
        subcategories = preset.categories * preset.subcategories
        self.category_of = np.repeat(np.arange(preset.categories), preset.subcategories)
        self.category_vectors = (
            np.sqrt(CATEGORY) * normal(random, preset.categories, DIMENSION)[self.category_of]
            + np.sqrt(SUBCATEGORY) * normal(random, subcategories, DIMENSION)
        ).astype(np.float32)
        self.subcategory_shares = long_tail(random, subcategories, 0.7)
        self.author_shares = long_tail(random, preset.authors, 0.8)
        self.author_subcategory = draw(random, self.subcategory_shares, preset.authors)
        self.author_type = draw(random, long_tail(random, UPLOAD_TYPES, 1.0), preset.authors)
        self.author_vectors = np.float32(np.sqrt(AUTHOR)) * normal(random, preset.authors, DIMENSION)
        self.author_quality = normal(random, preset.authors)
        self.log_duration = np.log(20_000) + 0.5 * normal(random, subcategories, 1) + 0.3 * normal(random, UPLOAD_TYPES)

    def first_items(self) -> Items:
        """Return the items at the beginning of the log, in number and age as in the stationary state."""
        count = round(self.preset.births * LIFETIME * np.exp(LIFETIME_SPREAD**2 / 2))
        random = generator(self.seed, "births", 0)
        # An item observed at a random moment has a length-biased lifetime and is at a uniform point in it.
        lifetime = LIFETIME * np.exp(LIFETIME_SPREAD**2 + LIFETIME_SPREAD * random.standard_normal(count))
        age = lifetime * random.random(count)
        return self._items(random, FIRST_DAY - (age * DAY).astype(np.int64) - 1, lifetime)

    def births(self, day: int) -> Items:
        """Return the items that are uploaded on a day."""
        count = self.preset.births
        random = generator(self.seed, "births", 1 + day)
        lifetime = LIFETIME * np.exp(LIFETIME_SPREAD * random.standard_normal(count))
        return self._items(random, FIRST_DAY + day * DAY + random.integers(0, DAY, count), lifetime)

    def _items(self, random: np.random.Generator, upload_time: Integers, lifetime: NDArray[np.float64]) -> Items:
        count = len(upload_time)
        author = draw(random, self.author_shares, count)
        at_home = random.random(count) < 0.8
        subcategory = np.where(at_home, self.author_subcategory[author], draw(random, self.subcategory_shares, count))
        as_usual = random.random(count) < 0.7
        upload_type = np.where(as_usual, self.author_type[author], random.integers(0, UPLOAD_TYPES, count))
        spread = 0.4 * normal(random, count)
        cold = self.category_vectors[subcategory] + self.author_vectors[author]
        own_quality = random.standard_exponential(count, np.float32) - 1  # few are very good
        return Items(
            author=author,
            category=self.category_of[subcategory],
            subcategory=subcategory,
            upload_type=upload_type,
            upload_time=upload_time,
            death=upload_time + lifetime * DAY,
            duration=np.exp(self.log_duration[subcategory, upload_type] + spread).astype(np.int64),
            quality=np.float32(0.5) * self.author_quality[author] + np.float32(0.75**0.5) * own_quality,
            vector=cold + np.float32(np.sqrt(OWN)) * normal(random, count, DIMENSION),
            cold=cold,
            blur=normal(random, count, DIMENSION),
        )


class Users:
    """The users, and their interests on a day."""

    def __init__(self, preset: Preset, seed: int) -> None:
        random = generator(seed, "users")
        count = preset.users
        self.seed = seed
        self.age = draw(random, long_tail(random, AGES, 0.5), count)
        self.gender = draw(random, np.array([0.1, 0.45, 0.45]), count)
        self.province = draw(random, long_tail(random, PROVINCES, 0.6), count)
        has_second = random.random(count) < 0.1
        self.devices = count + int(has_second.sum())
        # every first device has its own number, and so has every second device of users with two
        self.second_device = np.where(has_second, count - 1 + np.cumsum(has_second), np.arange(count))
        self.activity = np.exp(1.2 * random.standard_normal(count))
        demographic = (
            normal(random, AGES, DIMENSION)[self.age]
            + normal(random, GENDERS, DIMENSION)[self.gender]
            + normal(random, PROVINCES, DIMENSION)[self.province]
        )
        self._demographic = unit(demographic)
        self._personal = normal(random, count, DIMENSION)
        self._recent = np.zeros((count, DIMENSION), np.float32)
        self.blur = normal(random, count, DIMENSION)  # the error of the platform's vectors of users
        self.vectors = self._mixed()
        self.yesterday = self.vectors

    def __len__(self) -> int:
        """The number of users."""
        return len(self.age)

    def begin(self, day: int, viewed: Floats) -> None:
        """Update the interests for a day; `viewed` (users, DIMENSION) is the direction of the items viewed before."""
        fresh = normal(generator(self.seed, "drift", day), len(self), DIMENSION)
        self._personal = np.float32(np.sqrt(1 - DRIFT)) * self._personal + np.float32(np.sqrt(DRIFT)) * fresh
        self._recent = np.float32(MEMORY) * self._recent + viewed
        self.yesterday = self.vectors
        self.vectors = self._mixed()

    def _mixed(self) -> Floats:
        parts = (
            (DEMOGRAPHIC, self._demographic),
            (PERSONAL, unit(self._personal)),
            (RECENT, unit(self._recent)),
        )
        return unit(sum((np.float32(np.sqrt(share)) * part for share, part in parts), np.zeros_like(self._personal)))


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


PEAK = 16.0  # kappa: the higher, the narrower
RECENCY = 12.0  # events after which an event counts 1/e
ENOUGH_OF_CATEGORY, ENOUGH_OF_AUTHOR = 0.15, 0.06  # shares of the history above which more lowers the relevance
FRESHNESS_DAYS = 2.0
PARTS = ("interest", "quality", "freshness", "cross", "history")
_ZONE = 8 * 3600  # Shanghai is eight hours ahead, all year


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order of time."""

    number: Integers
    time: Integers  # ms since 1970
    user: Integers
    device: Integers
    history: RecentViews  # of their users

    @property
    def hour(self) -> Integers:
        """The hour of the day in Shanghai."""
        return (self.time // 1000 + _ZONE) // 3600 % 24

    @property
    def weekday(self) -> Integers:
        """The day of the week, 0 for Monday."""
        return ((self.time // 1000 + _ZONE) // DAY + 3) % 7

    def take(self, some: slice) -> Requests:
        """Return some of the requests."""
        return Requests(self.number[some], self.time[some], self.user[some], self.device[some], self.history.of(some))


class Relevance:
    """The parts of the true relevance of candidates, on one scale."""

    def __init__(self, preset: Preset, seed: int, users: Users, items: Items) -> None:
        random = generator(seed, "world", 1)

        def angles(count: int) -> Floats:
            return random.uniform(0, 2 * np.pi, count).astype(np.float32)

        self._users, self._items = users, items
        self._subcategories = preset.categories * preset.subcategories
        self._authors = preset.authors
        clock = (2 * np.pi / 24 * np.arange(24)).astype(np.float32)
        self._hour, self._hour_of_age = clock, angles(AGES)
        self._hour_of_subcategory = angles(self._subcategories)
        self._province, self._weekday, self._author = angles(PROVINCES), angles(7), angles(preset.authors)
        self._segment = angles(AGES * GENDERS).reshape(AGES, GENDERS)
        self._type, self._upload_hour = angles(UPLOAD_TYPES), clock
        self._scales = {name: (np.float32(1), np.float32(0)) for name in PARTS}

    def calibrate(self, requests: Requests, candidates: NDArray[np.int32]) -> None:
        """Give every part mean 0 and variance 1 among the candidates of a request."""
        real = candidates != NO_ITEM
        for name, values in self.parts(requests, candidates).items():
            mean = values.mean(axis=1, where=real, keepdims=True)
            deviation = np.sqrt(((values - mean) ** 2).mean(where=real))
            self._scales[name] = (np.float32(1 / deviation), np.float32(mean.mean()))

    def parts(self, requests: Requests, candidates: NDArray[np.int32]) -> dict[str, Floats]:
        """Return all parts except the noise, each (requests, n) and of variance 1; undefined for NO_ITEM."""
        items = self._items
        age = (requests.time[:, None] / 1000 - items.upload_time[candidates]) / (FRESHNESS_DAYS * DAY)
        vectors = self._users.vectors[requests.user]
        raw = {
            "interest": np.einsum("rd,rcd->rc", vectors, items.vector[candidates]),
            "quality": items.quality[candidates],
            "freshness": np.exp(-age.astype(np.float32)),
            "cross": self._cross(requests, candidates),
            "history": self._history(requests.history.item, candidates),
        }
        return {name: (values - self._scales[name][1]) * self._scales[name][0] for name, values in raw.items()}

    def _cross(self, requests: Requests, candidates: NDArray[np.int32]) -> Floats:
        users, items, user = self._users, self._items, requests.user
        upload_hour = (items.upload_time + _ZONE) // 3600 % 24
        sides = (
            (
                self._hour[requests.hour] + self._hour_of_age[users.age[user]],
                self._hour_of_subcategory[items.subcategory],
            ),
            (self._province[users.province[user]] + self._weekday[requests.weekday], self._author[items.author]),
            (
                self._segment[users.age[user], users.gender[user]],
                self._type[items.upload_type] + self._upload_hour[upload_hour],
            ),
        )
        total = np.zeros(candidates.shape, np.float32)
        for request_angle, item_angle in sides:
            angle = request_angle[:, None] - item_angle[candidates]
            total += np.exp(np.float32(PEAK) * (np.cos(angle) - np.float32(1)))
        return total

    def _history(self, history: NDArray[np.int32], candidates: NDArray[np.int32]) -> Floats:
        items = self._items
        length = history.shape[1]
        weights = np.exp(-np.arange(length)[::-1] / RECENCY)
        weights = np.where(history == NO_ITEM, 0.0, weights / weights.sum())
        total = np.zeros(candidates.shape, np.float32)
        for group, groups, enough in (
            (items.subcategory, self._subcategories, ENOUGH_OF_CATEGORY),
            (items.author, self._authors, ENOUGH_OF_AUTHOR),
        ):
            rows = np.arange(len(history))[:, None] * groups
            shares = np.bincount((rows + group[history]).ravel(), weights.ravel(), minlength=len(history) * groups)
            share = shares.astype(np.float32)[rows + group[candidates]] / np.float32(enough)
            total += share * np.exp(1 - share)
        return total


def mixed(parts: dict[str, Floats], shares: Shares) -> Floats:
    """Return the sum of parts of variance 1, each weighted with its share of the variance."""
    weighted = [np.float32(np.sqrt(getattr(shares, name))) * values for name, values in parts.items()]
    return sum(weighted[1:], weighted[0])


SHOWN = (4, 10)  # the smallest and the largest number of items shown per request
ATTENTION = 0.35  # position p is examined with probability (1 + p) ** -ATTENTION
WATCHED = (-2.4, 0.9, 0.7)  # log of the watched share of a video: at relevance 0, slope by relevance, deviation
EFFECTIVE, LONG = 0.3, 1.0  # the smallest watched shares of an effective and a long view
REACTIONS = {"like": -4.5, "follow": -6.5, "forward": -6.0, "comment": -5.5}  # log-odds of viewers at relevance 0


def react(
    random: np.random.Generator, position: Integers, relevance: Floats, duration: Integers
) -> dict[str, NDArray[np.int64]]:
    """Return RecFlow's columns of feedback on items, (requests, n) each.

    Args:
        random: The random numbers.
        position: The place of each item in the answer, from 0; -1 if it is not in it.
        relevance: The true relevance.
        duration: The lengths of the videos in ms.
    """
    shown_until = random.integers(SHOWN[0], SHOWN[1] + 1, (len(position), 1))
    shown = (position >= 0) & (position < shown_until)
    looks = random.random(position.shape) < (1.0 + np.maximum(position, 0)) ** -ATTENTION
    base, slope, spread = WATCHED
    watched = np.exp(base + slope * relevance + spread * normal(random, *position.shape))
    playing_time = np.where(shown & looks, np.minimum(watched, 5) * duration, 0).astype(np.int64)
    effective = shown & (playing_time >= EFFECTIVE * duration)
    columns = {
        "realshow": shown,
        "effective_view": effective,
        "long_view": shown & (playing_time >= LONG * duration),
    }
    for name, base_odds in REACTIONS.items():
        odds = np.exp(base_odds + relevance)
        columns[name] = effective & (random.random(position.shape) < odds / (1 + odds))
    return {"playing_time": playing_time, **{name: values.astype(np.int64) for name, values in columns.items()}}
