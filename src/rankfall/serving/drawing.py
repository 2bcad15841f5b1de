"""Samples of what a cascade did with a request: what it answered, and random draws of what each stage dropped.

Items are drawn uniformly, without replacement. The draws of a request are a function of its seed: the batch in which it
was computed, and the number of threads and processes, have no effect on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.serving.encoded_requests import NO_ITEM
from rankfall.serving.onnx_stages import NotFiniteError, best_order, by_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.serving.encoded_requests import EncodedRequests
    from rankfall.serving.onnx_stages import Rows, Scores, Stage

    Seeds = NDArray[np.uint64]

UNKNOWN_RANK = -1
_MOST_KEYS = 2**20  # random numbers at once
_FEW = 4  # an index is drawn from by row numbers if it has more than this many times the items to draw
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64 (Steele et al. 2014)


@dataclass(frozen=True, slots=True)
class Draw:
    """Which requests of a batch are sampled, and how many items are drawn from what each stage dropped.

    Args:
        counts: Number of items per stage; further stages have that of the last one.
        sampled: Which requests are sampled (B,).
        seeds: A random number for each request (B,).
    """

    counts: tuple[int, ...]
    sampled: NDArray[np.bool_]
    seeds: Seeds

    def take(self, places: Sequence[int]) -> Draw:
        """Return the draw of the requests at these indices."""
        return Draw(self.counts, self.sampled[places], self.seeds[places])

    @classmethod
    def join(cls, parts: Sequence[Draw]) -> Draw:
        """Concatenate the draws of several batches, which have the same counts."""
        sampled, seeds = (np.concatenate([getattr(part, name) for part in parts]) for name in ("sampled", "seeds"))
        return cls(parts[0].counts, sampled, seeds)


@dataclass(frozen=True, slots=True)
class Sample:
    """The sample of a request: arrays with one element per item; elements whose row is -1 are padding.

    Attributes:
        rows: Items, as rows of the bundle's table.
        stages: The stage that dropped the item, from 0; the number of stages if it was answered.
        ranks: Its rank by the score of that stage, from 0, or its place in the answer; -1 if a stage that searched all
            items did not find it.
        scores: Its score by that stage; that of the last stage if it was answered.
        inclusion: The probability with which it was drawn; 1 if it was answered.
    """

    rows: Rows
    stages: NDArray[np.int8]
    ranks: NDArray[np.int32]
    scores: Scores
    inclusion: NDArray[np.float32]


class BatchSampler:
    """Draws items stage by stage while a batch is computed.

    Args:
        encoded: The requests of the batch.
        draw: Which of them are sampled.
        items: Number of items of the bundle.
    """

    def __init__(self, encoded: EncodedRequests, draw: Draw, items: int) -> None:
        self._places = np.flatnonzero(draw.sampled)
        self._encoded = encoded if draw.sampled.all() else encoded.take(self._places)
        self._counts = draw.counts
        self._seeds = draw.seeds[self._places]
        self._items = items
        self._failed = np.zeros(len(self._places), np.bool_)
        self._parts: list[_Part] = []

    def add_list(self, number: int, rows: Rows, scores: Scores, order: Rows, kept: Rows) -> None:
        """Draw from what a stage dropped of a list of items.

        Args:
            number: Number of the stage.
            rows: The items of each request (B, N).
            scores: Their scores.
            order: Their positions in the order of the scores, best first.
            kept: How many of the best were kept for each request (B,).
        """
        order = order[self._places]
        rows, scores = by_row(rows[self._places], order), by_row(scores[self._places], order)
        seeds, count = self._of_stage(number)
        self._parts.append(_draw_from_lists(number, rows, scores, kept[self._places], seeds, count))

    def add_search(self, number: int, stage: Stage, rows: Rows, scores: Scores | None, kept: Rows) -> None:
        """Draw from what a stage dropped of all items.

        Args:
            number: Number of the stage.
            stage: The stage, which scores the draws.
            rows: The best items, which it found (B, N).
            scores: Their scores, which may be None if all of them were kept.
            kept: How many of them were kept for each request (B,).
        """
        rows, kept = rows[self._places], kept[self._places]
        if scores is not None:
            scores = scores[self._places]
            order = best_order(scores)
            rows, scores = by_row(rows, order), by_row(scores, order)
        seeds, count = self._of_stage(number)
        taken = np.where(np.arange(rows.shape[1]) < kept[:, None], rows, NO_ITEM)
        drawn, inclusion = draw_from_all(self._items, taken, self._encoded.exclude, seeds, count)
        part = _Part(number, drawn, np.full(drawn.shape, UNKNOWN_RANK), self._scored(stage, drawn), inclusion)
        if scores is not None:
            _copy_found(part, rows, scores)
        self._parts.append(part)

    def samples(self, rows: Rows, scores: Scores, counts: Rows) -> list[Sample | None]:
        """Return the samples of the batch: None for requests that are not sampled, or whose draws have no scores.

        Args:
            rows: Items in the order of the answers (B, N).
            scores: Their scores.
            counts: The number of items of each answer (B,).
        """
        answered = self._answered(rows[self._places], scores[self._places], counts[self._places])
        parts = [answered, *self._parts]
        joined = [np.hstack([getattr(part, name) for part in parts]) for name in ("rows", "ranks", "scores")]
        inclusion = np.hstack([np.broadcast_to(part.inclusion[:, None], part.rows.shape) for part in parts])
        stages = np.repeat([part.stage for part in parts], [part.rows.shape[1] for part in parts]).astype(np.int8)
        columns = joined[0], joined[1].astype(np.int32), joined[2], inclusion
        samples: list[Sample | None] = [None] * len(rows)
        for place, failed, of_rows, of_ranks, of_scores, of_inclusion in zip(
            self._places.tolist(), self._failed.tolist(), *columns, strict=True
        ):
            if not failed:
                samples[place] = Sample(of_rows, stages, of_ranks, of_scores, of_inclusion)
        return samples

    def _answered(self, rows: Rows, scores: Scores, counts: Rows) -> _Part:
        places = np.arange(rows.shape[1])
        answered = np.where(places < counts[:, None], rows, NO_ITEM)
        ranks = np.broadcast_to(places, rows.shape)
        return _Part(len(self._parts), answered, ranks, scores, np.ones(len(rows), np.float32))

    def _scored(self, stage: Stage, rows: Rows) -> Scores:
        """Score draws. A request whose draws have scores that are not finite is answered, but not sampled."""
        while True:
            try:
                return stage.score(self._encoded, rows)
            except NotFiniteError as error:
                rows = rows.copy()
                rows[error.place] = NO_ITEM
                self._failed[error.place] = True

    def _of_stage(self, number: int) -> tuple[Seeds, int]:
        """Return the seeds of a stage, and how many items to draw."""
        return _mix(_mix(self._seeds) + np.uint64(number)), self._counts[min(number, len(self._counts) - 1)]


@dataclass(frozen=True, slots=True)
class _Part:
    """Items of one stage for each sampled request (S, n), with the probability of its draws (S,)."""

    stage: int
    rows: Rows
    ranks: NDArray[Any]
    scores: Scores
    inclusion: NDArray[np.float32]


def _draw_from_lists(number: int, rows: Rows, scores: Scores, kept: Rows, seeds: Seeds, count: int) -> _Part:
    """Draw from what follows the first `kept` items of each list, which is in the order of its scores."""
    first = int(kept.min())
    positions = np.arange(first, rows.shape[1])
    is_dropped = (positions >= kept[:, None]) & (rows[:, first:] != NO_ITEM)
    chosen = first + _choose(rows[:, first:], is_dropped, seeds, count)
    drawn = np.where(by_row(is_dropped, chosen - first), by_row(rows, chosen), NO_ITEM)
    return _Part(number, drawn, chosen, by_row(scores, chosen), _inclusion(count, is_dropped.sum(axis=1)))


def draw_from_all(
    items: int, taken: Rows, exclude: Sequence[Rows], seeds: Seeds, count: int
) -> tuple[Rows, NDArray[np.float32]]:
    """Draw from all items except for some.

    Args:
        items: Number of items.
        taken: Items that are not drawn (S, N), and -1.
        exclude: Further items for each request, none of which is in `taken`.
        seeds: A random number for each request.
        count: Number of items to draw for each request.

    Returns:
        The items (S, count), -1 where too few are left, and the probability with which each was drawn (S,).
    """
    without = [np.concatenate([of[of != NO_ITEM], also]) for of, also in zip(taken, exclude, strict=True)]
    left = items - np.array([len(rows) for rows in without])
    drawn = np.full((len(taken), count), NO_ITEM, np.int64)
    by_number = left > np.maximum(items // 2, _FEW * count)  # otherwise most random rows would be drawn in vain
    for draw_some, places in ((_draw_rows, np.flatnonzero(by_number)), (_draw_by_keys, np.flatnonzero(~by_number))):
        if len(places) and count:
            drawn[places] = draw_some(items, [without[place] for place in places.tolist()], seeds[places], count)
    return drawn, _inclusion(count, left)


def _draw_rows(items: int, without: Sequence[Rows], seeds: Seeds, count: int) -> Rows:
    """Draw random rows, and skip those that were drawn before or may not be drawn; at least half of all may."""
    offsets = items * np.arange(len(without))  # make the rows of different requests distinct
    skipped = np.concatenate([rows + offset for rows, offset in zip(without, offsets.tolist(), strict=True)])
    tries = 3 * count + 8
    while True:
        numbers = _mix(seeds[:, None] + _GOLDEN * np.arange(1, tries + 1, dtype=np.uint64))
        rows = ((numbers >> np.uint64(11)) * 2.0**-53 * items).astype(np.int64)
        keys = (rows + offsets[:, None]).ravel()
        is_new = np.zeros(len(keys), np.bool_)
        is_new[np.unique(keys, return_index=True)[1]] = True
        is_good = (is_new & ~np.isin(keys, skipped)).reshape(rows.shape)
        place = is_good.cumsum(axis=1)
        if place[:, -1].min() >= count:
            return rows[is_good & (place <= count)].reshape(-1, count)
        tries *= 2


def _draw_by_keys(items: int, without: Sequence[Rows], seeds: Seeds, count: int) -> Rows:
    """Draw the items with the smallest random keys."""
    drawn = np.full((len(without), count), NO_ITEM, np.int64)
    all_rows = np.arange(items)
    step = max(1, _MOST_KEYS // max(1, items))
    for start in range(0, len(without), step):
        part = without[start : start + step]
        may_be_drawn = np.ones((len(part), items), np.bool_)
        for place, rows in enumerate(part):
            may_be_drawn[place, rows] = False
        rows = np.broadcast_to(all_rows, may_be_drawn.shape)
        chosen = _choose(rows, may_be_drawn, seeds[start : start + step], count)
        drawn[start : start + step, : chosen.shape[1]] = np.where(by_row(may_be_drawn, chosen), chosen, NO_ITEM)
    return drawn


def _choose(rows: Rows, allowed: NDArray[np.bool_], seeds: Seeds, count: int) -> Rows:
    """Return the positions of `count` random allowed items of each request, ascending; others if too few are allowed.

    The items with the smallest keys are chosen, which are a function of seed and item.
    """
    keys = _mix(seeds[:, None] + _GOLDEN * (rows.astype(np.uint64) + np.uint64(1))) >> np.uint64(1)
    keys = np.where(allowed, keys, np.uint64(2**64 - 1))
    if count < keys.shape[1]:
        chosen = np.argpartition(keys, max(0, count - 1), axis=1)[:, :count]
    else:
        chosen = np.broadcast_to(np.arange(keys.shape[1]), keys.shape)
    return np.sort(chosen, axis=1)


def _copy_found(part: _Part, rows: Rows, scores: Scores) -> None:
    """Set rank and score of draws that a search found, but that are not in the answer, to those of the search."""
    is_same = (part.rows[:, :, None] == rows[:, None, :]) & (part.rows != NO_ITEM)[:, :, None]
    request, draw, rank = np.nonzero(is_same)
    part.ranks[request, draw] = rank
    part.scores[request, draw] = scores[request, rank]


def _inclusion(count: int, dropped: NDArray[Any]) -> NDArray[np.float32]:
    inclusion: NDArray[np.float32] = np.minimum(1.0, count / np.maximum(1, dropped)).astype(np.float32)
    return inclusion


def _mix(numbers: Seeds) -> Seeds:
    """Return the output function of SplitMix64: distinct numbers, also similar ones, have unrelated results."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
