"""Trails: what the stages of a bundle did with sampled requests, from which their samples are drawn later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rankfall.serving.encoded_requests import NO_ITEM, EncodedRequests
from rankfall.serving.onnx_stages import best_order, by_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.serving.onnx_stages import Rows, Scores, Stage


@dataclass(frozen=True, slots=True)
class StageItems:
    """The items of a stage for each of several requests.

    Args:
        stage: The stage.
        rows: Items that it scored, best first, or the best of all items that it found (S, N).
        scores: Their scores; None if it found them and kept all.
        kept: How many of them it kept for each request (S,).
        is_search: Whether it found them among all items.
    """

    stage: Stage
    rows: Rows
    scores: Scores | None
    kept: Rows
    is_search: bool


@dataclass(frozen=True, slots=True)
class Trails:
    """What the stages of a bundle did with several requests.

    Args:
        encoded: The requests.
        items: Number of items of the bundle.
        stages: The items of each stage.
        rows: The items of the answers (S, N), best first, and -1.
        scores: Their scores.
    """

    encoded: EncodedRequests
    items: int
    stages: list[StageItems]
    rows: Rows
    scores: Scores

    def take(self, places: Sequence[int]) -> Trails:
        """Return the trails of the requests at these indices."""
        stages = [
            replace(
                one,
                rows=one.rows[places],
                scores=None if one.scores is None else one.scores[places],
                kept=one.kept[places],
            )
            for one in self.stages
        ]
        return Trails(self.encoded.take(places), self.items, stages, self.rows[places], self.scores[places])

    @classmethod
    def join(cls, parts: Sequence[Trails]) -> Trails:
        """Concatenate trails of the same bundle whose first stages all searched, or all scored a list."""
        stages = []
        for of_stage in zip(*(part.stages for part in parts), strict=True):
            given = [one.scores for one in of_stage if one.scores is not None]
            joined = _stacked([one.rows for one in of_stage], NO_ITEM), _stacked(given, -np.inf) if given else None
            kept = np.concatenate([one.kept for one in of_stage])
            stages.append(StageItems(of_stage[0].stage, *joined, kept, of_stage[0].is_search))
        rows = _stacked([part.rows for part in parts], NO_ITEM)
        scores = _stacked([part.scores for part in parts], -np.inf)
        return cls(EncodedRequests.join([part.encoded for part in parts]), parts[0].items, stages, rows, scores)

    @property
    def bytes_each(self) -> int:
        """About the number of bytes per request."""
        arrays: list[NDArray[Any]] = [self.rows, self.scores, *self.encoded.arrays.values()]
        arrays += [array for one in self.stages for array in (one.rows, one.scores) if array is not None]
        return sum(array.nbytes for array in arrays) // len(self.rows)


class Trail(NamedTuple):
    """One of the requests of trails."""

    trails: Trails
    place: int


class TrailKeeper:
    """Keeps what the stages do with the sampled requests of a batch.

    Args:
        encoded: The requests of the batch.
        sampled: Which of them are sampled (B,), at least one.
        items: Number of items of the bundle.
    """

    def __init__(self, encoded: EncodedRequests, sampled: NDArray[np.bool_], items: int) -> None:
        self._places = np.flatnonzero(sampled)
        self._encoded = encoded if sampled.all() else encoded.take(self._places)
        self._items = items
        self._stages: list[StageItems] = []

    def add_list(self, stage: Stage, rows: Rows, scores: Scores, order: Rows, kept: Rows) -> None:
        """Keep a list of items that a stage scored.

        Args:
            stage: The stage.
            rows: The items of each request (B, N).
            scores: Their scores.
            order: Their positions in the order of the scores, best first.
            kept: How many of the best were kept for each request (B,).
        """
        order = order[self._places]
        ordered = by_row(rows[self._places], order), by_row(scores[self._places], order)
        self._stages.append(StageItems(stage, *ordered, kept[self._places], is_search=False))

    def add_search(self, stage: Stage, rows: Rows, scores: Scores | None, kept: Rows) -> None:
        """Keep what a stage found among all items.

        Args:
            stage: The stage.
            rows: The best items, which it found (B, N).
            scores: Their scores, which may be None if all of them were kept.
            kept: How many of them were kept for each request (B,).
        """
        rows = rows[self._places]
        if scores is not None:
            scores = scores[self._places]
            order = best_order(scores)
            rows, scores = by_row(rows, order), by_row(scores, order)
        self._stages.append(StageItems(stage, rows, scores, kept[self._places], is_search=True))

    def trails(self, rows: Rows, scores: Scores, counts: Rows) -> list[Trail | None]:
        """Return the trail of each request of the batch, None for those that are not sampled.

        Args:
            rows: Items in the order of the answers (B, N).
            scores: Their scores.
            counts: The number of items of each answer (B,).
        """
        is_answered = np.arange(rows.shape[1]) < counts[self._places, None]
        answered = np.where(is_answered, rows[self._places], NO_ITEM)
        trails = Trails(self._encoded, self._items, self._stages, answered, scores[self._places])
        found: list[Trail | None] = [None] * len(rows)
        for number, place in enumerate(self._places.tolist()):
            found[place] = Trail(trails, number)
        return found


def _stacked(arrays: Sequence[NDArray[Any]], fill: float) -> NDArray[Any]:
    """Concatenate arrays (S, N) of different widths; shorter rows are filled."""
    widest = max(array.shape[1] for array in arrays)
    if all(array.shape[1] == widest for array in arrays):
        return np.concatenate(arrays)
    joined = np.full((sum(map(len, arrays)), widest), fill, arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return joined
