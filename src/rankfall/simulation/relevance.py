r"""The true relevance of items for requests, in parts.

.. math::
    \text{interest} &= p_u \cdot q_i \\
    \text{cross} &= \sum_c \exp(\kappa (\cos(\varphi_c - \psi_c) - 1)) \\
    \text{history} &= \sum_g (s_g / a_g) \exp(1 - s_g / a_g)

with vectors of user and item, angles :math:`\varphi` of traits of user and request and :math:`\psi` of the item, and
shares :math:`s` of the item's subcategory and of its author in the recent views of the user. Every part is scaled to
variance 1 among the candidates of a request.

A dot product would need two more dimensions for every harmonic of each peak, and as many as there are authors for the
history, which is not a sum over events either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rankfall.simulation.matching import NO_ITEM
from rankfall.simulation.world import AGES, DAY, GENDERS, PROVINCES, UPLOAD_TYPES, generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.simulation.presets import Preset, Shares
    from rankfall.simulation.recent_events import RecentViews
    from rankfall.simulation.world import Items, Users

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

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
