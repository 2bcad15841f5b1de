"""A simulated platform, day by day: requests arrive, the cascade serves them, users react and interests drift.

All random numbers come from separate generators per purpose, day and portion of requests: a seed reproduces a log, and
a longer log begins with the same days as a shorter one. Memory contains the users, the items and one portion.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import numpy as np

from rankfall.data.sources.recflow_spec import HISTORY_LENGTH
from rankfall.simulation.feedback import react
from rankfall.simulation.matching import NO_ITEM, Catalogue
from rankfall.simulation.production import Models, serve
from rankfall.simulation.recent_events import RecentViews, Views
from rankfall.simulation.relevance import Relevance, Requests, mixed
from rankfall.simulation.world import DAY, DIMENSION, FIRST_DAY, Users, World, generator, normal, unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.simulation.presets import Preset
    from rankfall.simulation.production import Scores, Served

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

LARGEST_PORTION = 1024  # requests at a time
PORTIONS = 8  # per day, at least: views count from the next portion on
FORGET = 0.7  # the share of an item's views that still counts a day later
PAST_DAYS, PAST_VIEWS = 3.0, 25  # the days before the log with views of users, and the mean number of views
CALIBRATION = 512  # requests from which the scale of the parts of relevance is estimated
# the relative number of requests in each hour of the day
_HOURS = np.array([3, 2, 1, 1, 1, 1, 2, 4, 5, 5, 5, 6, 8, 7, 5, 5, 5, 6, 7, 9, 10, 10, 8, 5], np.float64)


@dataclass(frozen=True, slots=True)
class ServedPortion:
    """Requests and their results. Candidates are (requests, n), logged items (requests, logged)."""

    day: str
    requests: Requests
    candidates: NDArray[np.int32]
    parts: dict[str, Floats]  # of the true relevance of candidates, each of variance 1, without noise
    scores: Scores
    served: Served
    items: NDArray[np.int32]  # the logged items,
    relevance: Floats  # their true relevance
    feedback: dict[str, Integers]  # and their feedback


class Platform:
    """A platform before its first day.

    Args:
        preset: The size and the settings of the platform.
        seed: The seed of everything random.
        requests_per_day: The number of requests per day.
    """

    def __init__(self, preset: Preset, seed: int, requests_per_day: int) -> None:
        self.preset, self.seed, self.requests_per_day = preset, seed, requests_per_day
        self.world = World(preset, seed)
        self.users = Users(preset, seed)
        self.items = self.world.first_items()
        self.views = np.zeros(len(self.items))  # recent views of every item
        self.recent = RecentViews.empty(len(self.users))
        self.relevance = Relevance(preset, seed, self.users, self.items)
        self._viewed = np.zeros((len(self.users), DIMENSION), np.float32)  # the sum of the items viewed today, per user
        self._activity = np.cumsum(self.users.activity)
        self._catalogue = Catalogue(self.world, self.items, self.views, FIRST_DAY)
        self._make_past()
        self._models = Models(preset, self.users, self.items, FIRST_DAY)
        self._calibrate()

    def run(self, days: int) -> Iterator[ServedPortion]:
        """Simulate days; a platform can be run only once."""
        for day in range(days):
            if day:
                self.begin(day)
            edges = portion_edges(self.requests_per_day)
            for number in range(len(edges) - 1):
                yield self._serve(day, number, int(edges[number]), int(edges[number + 1]))

    def _make_past(self) -> None:
        """Give users a history from before the log."""
        random = generator(self.seed, "past")
        item = self._catalogue.choose_by_interest(random, self.users.vectors, HISTORY_LENGTH)
        age = FIRST_DAY - self.items.upload_time[item]
        time = FIRST_DAY * 1000 - 1 - (np.minimum(age, PAST_DAYS * DAY) * 1000 * random.random(item.shape)).astype(int)
        typical = PAST_VIEWS * self.users.activity / self.users.activity.mean()
        count = np.minimum(random.poisson(typical), HISTORY_LENGTH)
        user, place = np.nonzero(np.arange(HISTORY_LENGTH) < count[:, None])
        order = np.lexsort((time[user, place], user))
        user, item, time = user[order], item[user, place][order], time[user, place][order]
        share = 0.3 + random.standard_exponential(len(item))
        playing_time = (np.minimum(share, 5) * self.items.duration[item]).astype(np.int64)
        self._remember(Views(user, item, time, playing_time, np.full(len(user), NO_ITEM)))
        self._update_interests(0)

    def _calibrate(self) -> None:
        requests = self._requests(generator(self.seed, "past", 1), 0, 0, CALIBRATION, CALIBRATION)
        self.relevance.calibrate(requests, self._match(generator(self.seed, "past", 2), requests))

    def begin(self, day: int) -> None:
        """Begin a day after the first: items are uploaded, interests drift."""
        self.items.extend(self.world.births(day - 1))
        self.views = np.concatenate([FORGET * self.views, np.zeros(len(self.items) - len(self.views))])
        self._update_interests(day)
        time = FIRST_DAY + day * DAY
        self._catalogue = Catalogue(self.world, self.items, self.views, time)
        self._models = Models(self.preset, self.users, self.items, time)

    def _update_interests(self, day: int) -> None:
        """Update the interests for a day by the items viewed before it."""
        self.users.begin(day, unit(self._viewed))
        self._viewed[:] = 0

    def _serve(self, day: int, number: int, first: int, last: int) -> ServedPortion:
        place = (day, number)
        requests = self.arrivals(day, number, first, last)
        candidates = self._match(generator(self.seed, "matching", *place), requests)
        parts = self.relevance.parts(requests, candidates)
        random = generator(self.seed, "production", *place)
        scores = self._models.score(random, requests, candidates, parts)
        served = serve(random, self.preset.production, self.items.subcategory, candidates, scores)
        relevance = np.take_along_axis(mixed(parts, self.preset.shares), served.place, axis=1)
        noise = normal(generator(self.seed, "noise", *place), *relevance.shape)
        relevance += np.float32(np.sqrt(self.preset.shares.noise)) * noise
        items = np.take_along_axis(candidates, served.place, axis=1)
        position, duration = served.rerank_index, self.items.duration[items]
        feedback = react(generator(self.seed, "feedback", *place), position, relevance, duration)
        self.remember(requests, items, position, feedback)
        return ServedPortion(day_name(day), requests, candidates, parts, scores, served, items, relevance, feedback)

    def arrivals(self, day: int, number: int, first: int, last: int) -> Requests:
        """Return the requests `first` to `last` of a day, its portion of that number."""
        random = generator(self.seed, "requests", day, number)
        return self._requests(random, day, first, last, self.requests_per_day)

    def _requests(self, random: np.random.Generator, day: int, first: int, last: int, of: int) -> Requests:
        count = last - first
        user = np.searchsorted(self._activity, random.random(count) * self._activity[-1], side="right")
        on_second = random.random(count) < 0.3
        return Requests(
            number=day * of + np.arange(first, last),
            time=(FIRST_DAY + day * DAY) * 1000 + _times(random, first, last, of),
            user=user,
            device=np.where(on_second, self.users.second_device[user], user),
            history=self.recent.of(user),
        )

    def _match(self, random: np.random.Generator, requests: Requests) -> NDArray[np.int32]:
        vectors = self.users.yesterday[requests.user]
        return self._catalogue.match(random, vectors, requests.history.item, self.preset.production.channels)

    def remember(
        self, requests: Requests, items: NDArray[np.int32], position: Integers, feedback: dict[str, Integers]
    ) -> None:
        """Add the effective views among the feedback on items (requests, n) to the views of users."""
        self._remember(_views(requests, items, position, feedback))

    def _remember(self, events: Views) -> None:
        self.recent.add(events)
        self.views += np.bincount(events.item, minlength=len(self.views))
        np.add.at(self._viewed, events.user, self.items.cold[events.item])


def day_name(day: int) -> str:
    """Return the date of a day of the log."""
    return str(date(2024, 1, 13) + timedelta(days=day))


def portion_edges(requests: int) -> Integers:
    """Return the edges of the portions of a day with that many requests."""
    portions = max(PORTIONS, -(-requests // LARGEST_PORTION))
    return np.unique(np.linspace(0, requests, portions + 1).astype(np.int64))


def _times(random: np.random.Generator, first: int, last: int, of: int) -> Integers:
    """Return sorted times in ms of the requests `first` to `last` of a day with `of` requests; spans do not overlap."""
    shares = np.concatenate([[0], np.cumsum(_HOURS / _HOURS.sum())])
    edges = np.arange(25) * 3_600_000.0
    low, high = (int(edge) for edge in np.interp([first / of, last / of], shares, edges))
    quantiles = np.sort(random.uniform(first / of, last / of, last - first))
    times: Integers = np.clip(np.interp(quantiles, shares, edges).astype(np.int64), low, max(low, high - 1))
    return times


def _views(requests: Requests, items: NDArray[np.int32], position: Integers, feedback: dict[str, Integers]) -> Views:
    """Return the effective views by time and position."""
    row, place = np.nonzero(feedback["effective_view"])
    order = np.lexsort((position[row, place], row))
    row, place = row[order], place[order]
    return Views(
        user=requests.user[row],
        item=items[row, place].astype(np.int64),
        time=requests.time[row],
        playing_time=feedback["playing_time"][row, place],
        request=requests.number[row],
    )
