"""The answers to requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.serving.trails import Trail

Id = int | str
TOLERANCE = 1e-4  # of scores, relative to max(1, score)


@dataclass(frozen=True, slots=True)
class StageTrace:
    """The items that one stage of the cascade scored for a request.

    `ids` are in the order of their scores, best first; the stage kept the first `kept` of them. A stage that searches
    an index has scores of the kept items only.
    """

    name: str
    ids: list[Id]
    scores: list[float]
    kept: int
    threshold: float | None  # the lowest kept score, None if no item was kept
    milliseconds: float  # that the stage took for the whole batch


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best items for a request by the scores of the last stage, best first."""

    ids: list[Id]
    scores: list[float]
    unknown: list[Id]  # candidates that the bundle does not have
    stages: list[StageTrace] | None = None  # with `explain`
    notes: list[str] = field(default_factory=list)  # values of the request that were never seen in training
    trail: Trail | None = field(default=None, compare=False, repr=False)  # if the request is sampled


@dataclass(frozen=True, slots=True)
class Answers:
    """The rankings of a batch, and the milliseconds that each stage took for the whole batch."""

    rankings: list[Ranking]
    milliseconds: dict[str, float]


def is_same(ranking: Ranking, ids: Sequence[Id], scores: Sequence[float]) -> bool:
    """Return whether a ranking has the expected scores, and the expected items except for ties."""
    if len(ranking.ids) != len(ids):
        return False
    of_item = dict(zip(ids, scores, strict=True))
    own = [of_item.get(one, scores[-1]) for one in ranking.ids]
    found = np.array(ranking.scores)
    return all(
        np.all(np.abs(found - expected) <= TOLERANCE * np.maximum(1, np.abs(expected)))
        for expected in (np.array(scores), np.array(own))
    )
