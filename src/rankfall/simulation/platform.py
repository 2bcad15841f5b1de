"""A simulated platform, day by day: requests arrive, the cascade serves them, users react and interests drift.

All random numbers come from separate generators per purpose, day and portion of requests: a seed reproduces a log, and
a longer log begins with the same days as a shorter one. Memory contains the users, the items and one portion.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date, timedelta
from typing import TYPE_CHECKING, Self

import numpy as np

from rankfall.data.sources.recflow import HISTORY_LENGTH
from rankfall.simulation.world import (
    DAY,
    DIMENSION,
    FIRST_DAY,
    NO_ITEM,
    Catalogue,
    Relevance,
    Requests,
    Users,
    World,
    generator,
    mixed,
    normal,
    react,
    unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.simulation.presets import Preset, Production
    from rankfall.simulation.world import Items

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]
    Candidates = NDArray[np.int32]

PRERANK, COARSE, RANK, MIX = 1, 2, 3, 4  # the models in their order
POSITIVES = 10  # the number of best items of ranking and of mix-ranking that are positive


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of candidates, (requests, n) per model; the lowest for NO_ITEM."""

    prerank: Floats
    coarse: Floats
    rank: Floats


@dataclass(frozen=True, slots=True)
class Served:
    """The logged items of each request: (requests, logged)."""

    place: Integers  # the position among the candidates
    last_model: Integers  # the model that dropped the item; MIX for all that reached mix-ranking
    rank_index: Integers  # its position in ranking, from 0 on, -1 if it did not reach ranking
    rerank_index: Integers  # its position in mix-ranking


class Models:
    """The models of one day, trained on the days before it."""

    def __init__(self, preset: Preset, users: Users, items: Items, time: int) -> None:
        self._production, self._shares = preset.production, preset.shares
        # pre-ranking uses noisy vectors of yesterday, and for the newest items only category and author
        self._noise = np.float32(preset.production.stale_noise)
        new = items.upload_time > time - DAY
        self._users = users.yesterday + self._noise / np.float32(np.sqrt(DIMENSION)) * users.blur
        self._items = np.where(new[:, None], items.cold, items.vector) + self._noise * items.blur

    def score(
        self, random: np.random.Generator, requests: Requests, candidates: Candidates, parts: dict[str, Floats]
    ) -> Scores:
        """Score candidates with the given parts of the true relevance."""
        production, shares = self._production, self._shares
        dots = np.einsum("rd,rcd->rc", self._users[requests.user], self._items[candidates])
        stale = dots / (1 + self._noise**2)
        half_stale = (parts["interest"] + stale) / np.float32(2)
        known = {name: parts[name] for name in ("quality", "freshness")}
        some_cross = np.float32(production.coarse_cross) * parts["cross"]
        most_cross = np.float32(production.rank_cross) * parts["cross"]
        most_history = np.float32(production.rank_history) * parts["history"]
        noise = np.float32(production.rank_noise) * normal(random, *candidates.shape)
        early_favour, rank_favour = (
            np.float32(favour) * parts["quality"] for favour in (production.early_favour, production.rank_favour)
        )
        scores = (
            mixed({"interest": stale, **known}, shares) + early_favour,
            mixed({"interest": half_stale, **known, "cross": some_cross}, shares) + early_favour,
            mixed({"interest": parts["interest"], **known, "cross": most_cross, "history": most_history}, shares)
            + noise
            + rank_favour,
        )
        if production.early_noise:
            deviation = np.float32(production.early_noise)
            prerank, coarse = (values + deviation * normal(random, *candidates.shape) for values in scores[:2])
            scores = (prerank, coarse, scores[2])
        is_padding = candidates == NO_ITEM
        return Scores(*(np.where(is_padding, np.float32(-np.inf), values) for values in scores))


def serve(
    random: np.random.Generator, production: Production, kinds: Integers, candidates: Candidates, scores: Scores
) -> Served:
    """Run the cascade.

    Args:
        random: The random numbers.
        production: The settings of the cascade.
        kinds: The category of every item; mix-ranking diversifies by it.
        candidates: The candidates of each request.
        scores: Their scores.
    """
    place = _best_first(scores.prerank)
    logged, rank_index, rerank_index, last_model = [], [], [], []
    for model, keeps, next_scores in (
        (PRERANK, production.prerank_keeps, scores.coarse),
        (COARSE, production.coarse_keeps, scores.rank),
        (RANK, production.rank_keeps, None),
    ):
        dropped = place[:, keeps:]
        drawn = _some(random, np.take_along_axis(candidates, dropped, 1) == NO_ITEM, production.logged)
        logged.append(np.take_along_axis(dropped, drawn, 1))
        rank_index.append(keeps + drawn if model == RANK else np.full_like(drawn, -1))
        rerank_index.append(np.full_like(drawn, -1))
        last_model.append(np.full_like(drawn, model))
        place = place[:, :keeps]
        if next_scores is not None:
            place = np.take_along_axis(place, _best_first(np.take_along_axis(next_scores, place, 1)), 1)
    logged.append(place)
    rank_index.append(np.broadcast_to(np.arange(place.shape[1]), place.shape))
    rerank_index.append(_mix_rank(random, production, kinds[np.take_along_axis(candidates, place, 1)], scores, place))
    last_model.append(np.full_like(place, MIX))
    return Served(*(np.concatenate(columns, axis=1) for columns in (logged, last_model, rank_index, rerank_index)))


def _best_first(scores: Floats) -> Integers:
    return np.argsort(-scores, axis=1, kind="stable")


def _some(random: np.random.Generator, unwanted: NDArray[np.bool_], count: int) -> Integers:
    """Draw columns at random from each row, unwanted ones last."""
    keys = random.random(unwanted.shape, np.float32) + unwanted
    return np.argsort(keys, axis=1, kind="stable")[:, :count]


def _mix_rank(
    random: np.random.Generator, production: Production, kinds: Integers, scores: Scores, place: Integers
) -> Integers:
    """Return the position in mix-ranking of the items in the order of ranking."""
    same = kinds[:, :, None] == kinds[:, None, :]
    better = np.tril(same, -1).sum(axis=2)  # better ranked items of the same kind
    noise = np.float32(production.mix_noise) * normal(random, *place.shape)
    final = np.take_along_axis(scores.rank, place, 1) - np.float32(production.diversity) * better + noise
    return np.argsort(_best_first(final.astype(np.float32)), axis=1, kind="stable")


@dataclass(frozen=True, slots=True)
class Views:
    """Effective views, in the order of time."""

    user: Integers
    item: Integers
    time: Integers  # of the request, ms since 1970
    playing_time: Integers
    request: Integers


@dataclass(frozen=True, slots=True)
class RecentViews:
    """The last views of users, (users, 50) each, the newest last; item NO_ITEM and time 0 before the first view."""

    item: NDArray[np.int32]
    time: Integers
    playing_time: Integers
    request: Integers

    @classmethod
    def empty(cls, users: int) -> Self:
        """Return the views of users without any."""
        shape = (users, HISTORY_LENGTH)
        return cls(np.full(shape, NO_ITEM, np.int32), *(np.zeros(shape, np.int64) for _ in range(3)))

    def of(self, users: Integers | slice) -> RecentViews:
        """Return a copy for some users, who may occur several times."""
        return RecentViews(*(getattr(self, field.name)[users] for field in fields(self)))

    def add(self, events: Views) -> None:
        """Append views to those of their users."""
        order = np.argsort(events.user, kind="stable")
        user = events.user[order]
        users, first, count = np.unique(user, return_index=True, return_counts=True)
        from_end = np.repeat(first + count, count) - np.arange(len(user))  # 1 for a user's newest
        kept = from_end <= HISTORY_LENGTH
        place = (user[kept], HISTORY_LENGTH - from_end[kept])
        comes_from = np.minimum(np.arange(HISTORY_LENGTH) + count[:, None], HISTORY_LENGTH - 1)
        for field in fields(self):
            table = getattr(self, field.name)
            table[users] = np.take_along_axis(table[users], comes_from, axis=1)  # older views move to the front
            table[place] = getattr(events, field.name)[order][kept]


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
