"""The users and items of a simulated platform: interests drift, items are uploaded and expire."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.simulation.presets import Preset

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

DIMENSION = 16  # of interests
FIRST_DAY = 1_705_075_200  # 2024-01-13 00:00 in Shanghai, seconds since 1970
DAY = 86_400
AGES, GENDERS, PROVINCES, UPLOAD_TYPES = 8, 3, 31, 6

CATEGORY, SUBCATEGORY, AUTHOR, OWN = 0.2, 0.2, 0.2, 0.4  # shares of an item's vector
DEMOGRAPHIC, PERSONAL, RECENT = 0.25, 0.6, 0.15  # shares of a user's vector
DRIFT = 0.03  # the share of the personal part that is replaced each day
MEMORY = 0.8  # the share of the recent part that remains after a day
LIFETIME, LIFETIME_SPREAD = 4.0, 1.0  # days: median, deviation of the logarithm

_PURPOSES = ("world", "users", "births", "past", "drift", "requests", "matching", "production", "feedback", "noise")
Purpose = Literal[
    "world", "users", "births", "past", "drift", "requests", "matching", "production", "feedback", "noise"
]


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
