"""Samples of what a cascade did with requests: what it answered, and random draws of what each stage dropped.

Samples are drawn from the trails of requests that are answered already, many at once, so that no answer waits for them.
Items are drawn uniformly, without replacement. The draws of a request are a function of its seed: the batch in which it
was computed, and the number of threads and processes, have no effect on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.serving.bundle import Trails
from rankfall.serving.onnx_stages import NotFiniteError, by_row
from rankfall.serving.request_encoder import NO_ITEM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankfall.serving.bundle import StageItems, Trail
    from rankfall.serving.onnx_stages import Rows, Scores

    Seeds = NDArray[np.uint64]

UNKNOWN_RANK = -1
_MOST_KEYS = 2**20  # random numbers at once
_FEW = 4  # an index is drawn from by row numbers if it has more than this many times the items to draw
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64 (Steele et al. 2014)


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


def draw_samples(trails: Sequence[Trail], seeds: Seeds, counts: Sequence[int]) -> list[Sample | None]:
    """Draw the samples of requests.

    Args:
        trails: Their trails.
        seeds: A random number for each of them.
        counts: Number of items to draw from what each stage dropped; further stages have that of the last one.

    Returns:
        The samples; None for a request whose draws have scores that are not finite.
    """
    samples: list[Sample | None] = [None] * len(trails)
    shapes = [_shape(trail.trails) for trail in trails]
    for shape in dict.fromkeys(shapes):
        places = [place for place, one in enumerate(shapes) if one == shape]
        drawn = _draw([trails[place] for place in places], seeds[places], counts)
        for place, sample in zip(places, drawn, strict=True):
            samples[place] = sample
    return samples


def _shape(trails: Trails) -> tuple[int, bool, int]:
    """Return what trails share that are drawn from together: their bundle, and lists of similar length."""
    first = trails.stages[0]
    return id(first.stage), first.is_search, first.rows.shape[1].bit_length()


def _draw(given: Sequence[Trail], seeds: Seeds, counts: Sequence[int]) -> list[Sample | None]:
    """Draw the samples of requests with the same shape, whose trails are joined to those of one batch."""
    batches = []
    for _, group in groupby(given, key=lambda trail: id(trail.trails)):
        of_batch = list(group)
        whole, places = of_batch[0].trails, [trail.place for trail in of_batch]
        batches.append(whole if places == list(range(len(whole.rows))) else whole.take(places))
    trails = Trails.join(batches)
    failed = np.zeros(len(seeds), np.bool_)
    answered = np.broadcast_to(np.arange(trails.rows.shape[1]), trails.rows.shape)
    parts = [_Part(len(trails.stages), trails.rows, answered, trails.scores, np.ones(len(seeds), np.float32))]
    for number, stage in enumerate(trails.stages):
        of_stage = _mix(_mix(seeds) + np.uint64(number))
        count = counts[min(number, len(counts) - 1)]
        if stage.is_search:
            parts.append(_draw_from_search(trails, number, of_stage, count, failed))
        else:
            parts.append(_draw_from_list(stage, number, of_stage, count))
    rows, ranks, scores = (np.hstack([getattr(part, name) for part in parts]) for name in ("rows", "ranks", "scores"))
    inclusion = np.hstack([np.broadcast_to(part.inclusion[:, None], part.rows.shape) for part in parts])
    stages = np.repeat([part.stage for part in parts], [part.rows.shape[1] for part in parts]).astype(np.int8)
    return [
        None if has_failed else Sample(of_rows, stages, of_ranks, of_scores, of_inclusion)
        for has_failed, of_rows, of_ranks, of_scores, of_inclusion in zip(
            failed.tolist(), rows, ranks.astype(np.int32), scores, inclusion, strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """Items of one stage for each request (S, n), with the probability of its draws (S,)."""

    stage: int
    rows: Rows
    ranks: NDArray[Any]
    scores: Scores
    inclusion: NDArray[np.float32]


def _draw_from_list(of_stage: StageItems, number: int, seeds: Seeds, count: int) -> _Part:
    """Draw from what follows the first `kept` items of each list, which is in the order of its scores."""
    rows, scores, kept = of_stage.rows, of_stage.scores, of_stage.kept
    assert scores is not None  # lists have scores
    first = int(kept.min())
    positions = np.arange(first, rows.shape[1])
    is_dropped = (positions >= kept[:, None]) & (rows[:, first:] != NO_ITEM)
    chosen = first + _choose(rows[:, first:], is_dropped, seeds, count)
    drawn = np.where(by_row(is_dropped, chosen - first), by_row(rows, chosen), NO_ITEM)
    return _Part(number, drawn, chosen, by_row(scores, chosen), _inclusion(count, is_dropped.sum(axis=1)))


def _draw_from_search(trails: Trails, number: int, seeds: Seeds, count: int, failed: NDArray[np.bool_]) -> _Part:
    """Draw from all items that a stage did not keep, and score them; set `failed` where that is impossible."""
    of_stage = trails.stages[number]
    rows = of_stage.rows
    taken = np.where(np.arange(rows.shape[1]) < of_stage.kept[:, None], rows, NO_ITEM)
    drawn, inclusion = draw_from_all(trails.items, taken, trails.encoded.exclude, seeds, count)
    scored = drawn
    while True:
        try:
            scores = of_stage.stage.score(trails.encoded, scored)
            break
        except NotFiniteError as error:
            if failed[error.place]:  # its draws were taken out already
                raise
            scored = scored.copy()
            scored[error.place] = NO_ITEM
            failed[error.place] = True
    part = _Part(number, drawn, np.full(drawn.shape, UNKNOWN_RANK), scores, inclusion)
    if of_stage.scores is not None:
        _copy_found(part, rows, of_stage.scores)
    return part


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
    for draw_some, chosen, keys in ((_draw_rows, by_number, _tries(count)), (_draw_by_keys, ~by_number, items)):
        step, some = max(1, _MOST_KEYS // max(1, keys)), np.flatnonzero(chosen)
        for start in range(0, len(some) if count else 0, step):
            places = some[start : start + step]
            drawn[places] = draw_some(items, [without[place] for place in places.tolist()], seeds[places], count)
    return drawn, _inclusion(count, left)


def _tries(count: int) -> int:
    """Return how many random rows are enough for most requests if at least half of all rows may be drawn."""
    return 3 * count + 8


def _draw_rows(items: int, without: Sequence[Rows], seeds: Seeds, count: int) -> Rows:
    """Draw random rows, and skip those that were drawn before or may not be drawn; at least half of all may."""
    offsets = items * np.arange(len(without))  # make the rows of different requests distinct
    skipped = np.sort(np.concatenate([rows + offset for rows, offset in zip(without, offsets.tolist(), strict=True)]))
    tries = _tries(count)
    while True:
        numbers = _mix(seeds[:, None] + _GOLDEN * np.arange(1, tries + 1, dtype=np.uint64))
        rows = ((numbers >> np.uint64(11)) * 2.0**-53 * items).astype(np.int64)
        keys = (rows + offsets[:, None]).ravel()
        is_new = np.zeros(len(keys), np.bool_)
        is_new[np.unique(keys, return_index=True)[1]] = True
        is_good = (is_new & ~_is_in(skipped, keys)).reshape(rows.shape)
        place = is_good.cumsum(axis=1)
        if place[:, -1].min() >= count:
            return rows[is_good & (place <= count)].reshape(-1, count)
        tries *= 2


def _is_in(ascending: Rows, keys: Rows) -> NDArray[np.bool_]:
    """Return which keys are among sorted ones; several times faster than np.isin."""
    places = np.searchsorted(ascending, keys)
    places[places == len(ascending)] = 0
    return ascending[places] == keys if len(ascending) else np.zeros(len(keys), np.bool_)


def _draw_by_keys(items: int, without: Sequence[Rows], seeds: Seeds, count: int) -> Rows:
    """Draw the items with the smallest random keys."""
    drawn = np.full((len(without), count), NO_ITEM, np.int64)
    may_be_drawn = np.ones((len(without), items), np.bool_)
    for place, rows in enumerate(without):
        may_be_drawn[place, rows] = False
    chosen = _choose(np.broadcast_to(np.arange(items), may_be_drawn.shape), may_be_drawn, seeds, count)
    drawn[:, : chosen.shape[1]] = np.where(by_row(may_be_drawn, chosen), chosen, NO_ITEM)
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
    offsets = (1 + max(rows.max(initial=0), part.rows.max(initial=0))) * np.arange(len(rows))[:, None]
    found, drawn = np.nonzero(rows != NO_ITEM), np.nonzero(part.rows != NO_ITEM)
    keys, sought = (rows + offsets)[found], (part.rows + offsets)[drawn]
    order = np.argsort(keys)
    is_found = _is_in(keys[order], sought)
    places = order[np.searchsorted(keys, sought[is_found], sorter=order)]
    request, draw, rank = drawn[0][is_found], drawn[1][is_found], found[1][places]
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
