"""Users of a simulated platform whose requests are answered by another system, such as a service.

The first days are served by the platform's own cascade. After them, requests are answered from outside::

    users = LiveUsers(platform, first_days=3)
    while True:
        portion = users.arrive()
        reactions = users.react(portion, answers)    # items (requests, n), NO_ITEM at the end of shorter answers

All items that are alive may be answered, and the true relevance of each of them is known. Noise and reactions have
their own random numbers per request and item or position, so that two models that answer the same requests meet the
same users.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rankfall._errors import RankfallError
from rankfall.data.impressions.spec import validate_spec
from rankfall.data.sources.recflow import FEEDBACK, HISTORY, HISTORY_LENGTH, ITEM_IDS, USER_IDS, ZONE, sequence_column
from rankfall.simulation.platform import MIX, PRERANK, portion_edges
from rankfall.simulation.simulate import RecFlowTables, item_columns, user_columns
from rankfall.simulation.world import (
    DAY,
    FIRST_DAY,
    NO_ITEM,
    generator,
    mixed,
    normal,
    react,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rankfall.data.impressions.spec import Spec
    from rankfall.simulation.platform import Platform, ServedPortion
    from rankfall.simulation.presets import Production
    from rankfall.simulation.world import Items, Requests

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]
    Answers = NDArray[np.int32]

BEST = 10  # items of a request that a perfect cascade keeps
OPENING = 0.013  # share of a day's requests in its first half hour, which are a portion of their own
_LIVE = 1  # distinguishes random numbers from those of the platform's own cascade
_AT_ONCE = 2**18  # pairs of requests and items whose relevance is computed at once


@dataclass(frozen=True, slots=True)
class LivePortion:
    """Requests that arrived together. Columns of `relevance` are the items `alive`."""

    day: int
    number: int
    is_last: bool  # of its day
    requests: Requests
    alive: Integers  # items that may be answered, in ascending order
    relevance: Floats  # (requests, alive), without noise
    best: Answers  # (requests, BEST): the most relevant items, except those that the user viewed lately


@dataclass(frozen=True, slots=True)
class LiveReactions:
    """What users did with the answers of a portion, (requests, n) per kind of feedback."""

    answers: Answers
    feedback: dict[str, Integers]
    recall: NDArray[np.float64]  # share of the best items that was answered, per request
    reward: Integers  # effective views per request


class LiveUsers:
    """Users of a platform after the days that its own cascade served.

    Args:
        platform: A platform before its first day.
        first_days: The number of days that the platform serves itself, see :meth:`past`.

    Attributes:
        day: The number of the current day.
    """

    def __init__(self, platform: Platform, first_days: int) -> None:
        if first_days < 1:
            raise RankfallError(f"first_days: found {first_days}, expected at least 1")
        self.platform = platform
        self._first_days = first_days
        self.day, self._number = first_days - 1, 0
        self._edges = np.zeros(1, np.int64)  # of the portions of the day
        self._alive = np.zeros(0, np.int64)
        self._waiting: LivePortion | None = None

    def past(self) -> Iterator[ServedPortion]:
        """Simulate the days that the platform serves itself; to be exhausted before requests arrive."""
        return self.platform.run(self._first_days)

    def arrive(self) -> LivePortion:
        """Return the next requests, on the next day if all of a day were answered."""
        if self._waiting is not None:
            raise RankfallError("portion: the answers of the last one are missing; users react before others arrive")
        if self._number + 1 >= len(self._edges):
            self._begin_day()
        first, last = self._edges[self._number : self._number + 2].tolist()
        requests = self.platform.arrivals(self.day, self._number, first, last)
        relevance = self._relevance(requests)
        best = _best(relevance, self._alive, requests.history.item)
        is_last = self._number + 2 == len(self._edges)
        self._waiting = LivePortion(self.day, self._number, is_last, requests, self._alive, relevance, best)
        return self._waiting

    def react(self, portion: LivePortion, answers: Answers) -> LiveReactions:
        """Let users react to the answers, and remember what they viewed.

        Users are not shown items that have expired or do not exist yet.

        Args:
            portion: The portion that arrived last.
            answers: Items per request, best first; NO_ITEM after the last one.

        Raises:
            ValueError: If it is not the portion that waits, or the answers are not lists of different items.
        """
        if portion is not self._waiting:
            raise RankfallError(
                f"portion: found {portion.number} of day {portion.day}, which does not wait for answers"
            )
        self._check(answers, len(portion.requests.user))
        place = (portion.day, portion.number, _LIVE)
        seed = self.platform.seed
        column = np.minimum(np.searchsorted(portion.alive, answers), len(portion.alive) - 1)
        is_alive = portion.alive[column] == answers
        noise = normal(generator(seed, "noise", *place), *portion.relevance.shape)
        relevance = portion.relevance + np.float32(np.sqrt(self.platform.preset.shares.noise)) * noise
        position = np.where(is_alive, np.arange(answers.shape[1]), -1)
        feedback = react(
            generator(seed, "feedback", *place),
            position,
            np.take_along_axis(relevance, column, axis=1),
            self.platform.items.duration[answers],
        )
        self.platform.remember(portion.requests, answers, position, feedback)
        self._waiting, self._number = None, self._number + 1
        found = (portion.best[:, :, None] == answers[:, None, :]).any(axis=2)
        return LiveReactions(answers, feedback, found.mean(axis=1), feedback["effective_view"].sum(axis=1))

    def tomorrow(self) -> tuple[Items, Integers]:
        """Return all items uploaded by the end of the day, and the numbers of those alive when the next one begins."""
        items = copy(self.platform.items)
        items.extend(self.platform.world.births(self.day))
        return items, items.alive(FIRST_DAY + (self.day + 1) * DAY)

    def _begin_day(self) -> None:
        self.day, self._number = self.day + 1, 0
        self.platform.begin(self.day)
        count = self.platform.requests_per_day
        edges = portion_edges(count)
        self._edges = np.unique(np.concatenate([edges, [min(count, max(1, round(OPENING * count)))]]))
        self._alive = self.platform.items.alive(FIRST_DAY + self.day * DAY)

    def _relevance(self, requests: Requests) -> Floats:
        """Return the true relevance of all items that are alive, without noise."""
        platform, count = self.platform, len(requests.user)
        relevance = np.empty((count, len(self._alive)), np.float32)
        rows = max(1, _AT_ONCE // len(self._alive))
        for start in range(0, count, rows):
            some = requests.take(slice(start, start + rows))
            candidates = np.broadcast_to(self._alive.astype(np.int32), (len(some.user), len(self._alive)))
            relevance[start : start + rows] = mixed(platform.relevance.parts(some, candidates), platform.preset.shares)
        return relevance

    def _check(self, answers: Answers, requests: int) -> None:
        if answers.ndim != 2 or len(answers) != requests:
            raise RankfallError(
                f"answers: found the shape {answers.shape}, expected one row for each of {requests} requests"
            )
        if answers.size and (answers.min() < NO_ITEM or answers.max() >= len(self.platform.items)):
            wrong = answers.min() if answers.min() < NO_ITEM else answers.max()
            raise RankfallError(f"answers: found the item {wrong}, expected items below {len(self.platform.items)}")
        ordered = np.sort(answers, axis=1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_ITEM)
        if repeated.any():
            raise RankfallError(f"answers: found the item {ordered[:, 1:][repeated][0]} twice in one answer")


def _best(relevance: Floats, alive: Integers, viewed: NDArray[np.int32]) -> Answers:
    column = np.minimum(np.searchsorted(alive, viewed), len(alive) - 1)
    row, place = np.nonzero(alive[column] == viewed)
    open_to = relevance.copy()
    open_to[row, column[row, place]] = -np.inf
    return alive[np.argsort(-open_to, axis=1, kind="stable")[:, :BEST]].astype(np.int32)


STAGES = ("retrieval_neg", "preranking_neg", "ranking_neg", "answered")
RELEVANT = "effective_view"
INCLUSION = "inclusion"
ITEM = "video_id"
GROWING = ("user_id", "device_id", "video_id", "author_id")  # ids with a vocabulary
_PARTS = ("weekday", "hour")
SECOND = 1000  # ms


def loop_spec(platform: Platform) -> Spec:
    """Return the spec of the platform's log.

    Users, items and authors have vocabularies, which can grow. Relevant items are those that were viewed: stages are
    what the models of earlier days decided, and a model that learned from them would imitate itself.
    """
    counts = RecFlowTables(platform, days=1).id_counts
    fixed = {name: {"kind": "categorical", "num_buckets": count} for name, count in counts.items()}
    growing = {name: {"kind": "categorical", "vocabulary": True} for name in GROWING}
    ids = {name: (fixed | growing)[name] for name in (*USER_IDS, *ITEM_IDS)}
    times = {part: {"kind": "time", "part": part, "embedding": part} for part in _PARTS}
    upload = {"column": "upload_timestamp", "unit": "s"}
    content: dict[str, Any] = {
        "request": "request_id",
        "item": "video_id",
        "user": "user_id",
        "time": {"column": "request_timestamp", "unit": "ms", "zone": ZONE},
        "stage": "stage",
        "rank": "rank",
        "stages": [{"name": name} for name in STAGES],
        "relevant": {"column": RELEVANT},
        "feedback": list(FEEDBACK),
        "position": "position",
        "inclusion": INCLUSION,
        "features": {
            "user": {name: ids[name] for name in USER_IDS},
            "context": times,
            "item": {
                **{name: ids[name] for name in ITEM_IDS},
                **{f"upload_{part}": {**times[part], **upload} for part in _PARTS},
            },
        },
        "sequences": {
            HISTORY: {
                "max_length": HISTORY_LENGTH,
                "features": list(ITEM_IDS),
                "columns": {name: sequence_column(name) for name in ITEM_IDS},
            }
        },
    }
    return validate_spec(content)


def item_rows(items: Items, chosen: Integers) -> pl.DataFrame:
    """Return one row per item."""
    return pl.DataFrame(item_columns(items, chosen))


def past_rows(platform: Platform, portion: ServedPortion) -> pl.DataFrame:
    """Return one row per request and item that the platform's own cascade logged, without features."""
    served = portion.served
    real = portion.items != NO_ITEM
    is_answered = served.last_model == MIX
    rank = np.where(is_answered, served.rerank_index, served.rank_index)
    columns = {
        "request_id": _request_ids(portion.requests)[np.nonzero(real)[0]],
        "video_id": portion.items[real].astype(np.int64),
        "stage": np.array(STAGES)[served.last_model[real] - PRERANK],  # models are numbered in their order
        "rank": rank[real],
        "position": np.where(is_answered, rank, -1)[real],
        INCLUSION: _inclusion(platform.preset.production, portion)[real],
        **{name: portion.feedback[name][real] for name in FEEDBACK},
    }
    unknown = pl.when(pl.col("rank") >= 0).then(pl.col("rank"))
    return pl.DataFrame(columns).with_columns(unknown)


def _inclusion(production: Production, portion: ServedPortion) -> NDArray[np.float32]:
    """Return the probability with which each logged item was drawn from what its model dropped."""
    candidates = (portion.candidates != NO_ITEM).sum(axis=1)
    keeps = [np.minimum(candidates, most) for most in (production.prerank_keeps, production.coarse_keeps)]
    keeps = [candidates, *keeps, np.minimum(candidates, production.rank_keeps)]
    inclusion = np.ones(portion.items.shape, np.float32)
    for model, (entered, kept) in enumerate(pairwise(keeps), PRERANK):
        share = np.minimum(1, production.logged / np.maximum(1, entered - kept)).astype(np.float32)
        inclusion = np.where(portion.served.last_model == model, share[:, None], inclusion)
    return inclusion


def request_rows(platform: Platform, requests: Requests) -> pl.DataFrame:
    """Return one row per request: its id and time, the features of its user, and earlier views as lists."""
    columns = {
        "request_id": _request_ids(requests),
        "request_timestamp": requests.time,
        **user_columns(platform.users, requests.user, requests.device),
    }
    lists = {sequence_column(name): values for name, values in _history(platform.items, requests).items()}
    return pl.DataFrame(columns).with_columns(pl.Series(name, values) for name, values in lists.items())


def request_bodies(platform: Platform, requests: Requests, k: int) -> list[dict[str, Any]]:
    """Return the bodies of ``POST /rank``. Items that the user viewed lately are not wanted again."""
    ids, times = _request_ids(requests).tolist(), requests.time.tolist()
    users = pl.DataFrame(user_columns(platform.users, requests.user, requests.device)).to_dicts()
    history = pl.DataFrame(_history(platform.items, requests)).to_dicts()
    return [
        {
            "request": request,
            "time": time,
            "user": user,
            "sequences": {HISTORY: events},
            "k": k,
            "exclude": sorted(set(events[ITEM])),
        }
        for request, time, user, events in zip(ids, times, users, history, strict=True)
    ]


def request_events(portion: LivePortion, reactions: LiveReactions) -> list[list[dict[str, Any]]]:
    """Return the events of each request for ``POST /events``: one per item and kind of feedback that is not 0."""
    events: list[list[dict[str, Any]]] = [[] for _ in portion.requests.user]
    ids, times = _request_ids(portion.requests).tolist(), portion.requests.time.tolist()
    for kind, values in reactions.feedback.items():
        rows, places = np.nonzero(values)
        found = zip(rows.tolist(), places.tolist(), reactions.answers[rows, places].tolist(), strict=True)
        for row, place, item in found:
            events[row].append(
                {
                    "id": f"{ids[row]}-{item}-{kind}",
                    "request": ids[row],
                    "item": item,
                    "kind": kind,
                    "value": int(values[row, place]),
                    "time": times[row] + SECOND * (1 + place),
                }
            )
    return events


def _request_ids(requests: Requests) -> NDArray[np.str_]:
    return requests.number.astype(str)


def _history(items: Items, requests: Requests) -> dict[str, list[list[int]]]:
    """Return the ids of earlier views, oldest first."""
    viewed = requests.history.item
    columns = item_columns(items, viewed)
    return {
        name: [row[-count:].tolist() if count else [] for row, count in zip(columns[name], counts, strict=True)]
        for counts in [(viewed != NO_ITEM).sum(axis=1).tolist()]
        for name in ITEM_IDS
    }
