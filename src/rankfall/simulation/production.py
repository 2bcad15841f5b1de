"""The cascade that served the log: pre-ranking, coarse ranking, ranking and mix-ranking, all imperfect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rankfall.simulation.matching import NO_ITEM
from rankfall.simulation.relevance import mixed
from rankfall.simulation.world import DAY, DIMENSION, normal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankfall.simulation.presets import Preset, Production
    from rankfall.simulation.relevance import Requests
    from rankfall.simulation.world import Items, Users

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
