"""The full-stage sampler: some items of every stage of a request, and how good each of them is.

What is kept depends on the seed, the request and its items alone, so a log may be cut into parts anywhere between
requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.data.impressions.hashing import combine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

# Different uses of one seed; an order by the hash that sampled would put the items of crowded stages first.
_SAMPLE, _ORDER, _NEGATIVE = (np.uint64(use) for use in (1, 2, 3))


def check_seed(seed: int) -> None:
    """An error for a seed that the hashes cannot take, before anything is read."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: found {seed}, expected a whole number from 0 to 2^63 - 1")


def sample_keys(seed: int, requests: Hashes, items: Hashes) -> Hashes:
    """Random keys of items in requests: the smallest of a stage are kept."""
    return combine(np.uint64(seed), _SAMPLE, requests, items)


def order_keys(seed: int, requests: Hashes, items: Hashes) -> Hashes:
    """Random keys by which the items of an impression are put in an order that says nothing about them."""
    return combine(np.uint64(seed), _ORDER, requests, items)


def full_stage_sample(requests: Integers, depth: Integers, keys: Hashes, sizes: Sequence[int | None]) -> Integers:
    """The rows that are kept: of each request and stage those with the smallest keys, as many as its size says.

    `requests` are numbers; the rows come back by request, then by depth, then by key.
    """
    order = np.lexsort((keys, depth, requests))
    starts = _run_starts(requests[order], depth[order])
    lengths = np.diff(np.append(starts, len(order)))
    places = np.arange(len(order)) - np.repeat(starts, lengths)
    limits = np.array([len(order) if size is None else size for size in sizes], np.int64)
    kept: Integers = order[places < limits[depth[order]]]
    return kept


def full_stage_grades(requests: Integers, depth: Integers, rank: Integers) -> Integers:
    """The place of each item among those of its request, 0 for the worst: deeper is better, then the smaller rank.

    Items of one depth and rank share a place; those without a rank (-1) share the lowest of their depth.
    """
    badness = np.where(rank < 0, np.iinfo(np.int64).max, rank)
    order = np.lexsort((-badness, depth, requests))
    first = np.zeros(len(order), np.bool_)
    first[_run_starts(requests[order])] = True
    step = np.zeros(len(order), np.int64)
    step[_run_starts(requests[order], depth[order], badness[order])] = 1
    total = np.cumsum(step)
    base = np.maximum.accumulate(np.where(first, total, 0))
    grades = np.empty(len(order), np.int64)
    grades[order] = total - base
    return grades


def draw_negatives(
    requests: Hashes, taken_request: Integers, taken_item: Integers, *, items: int, count: int, seed: int
) -> tuple[Integers, Integers]:
    """`count` different items of a table of `items` for each request, none of those it has already.

    `requests` are the hashes of the requests, which are numbered by their place; `taken_request` and `taken_item` the
    pairs that are taken, items by their rows in the table. Gives pairs of the numbers of requests and of rows. A
    request gets fewer where the table has not enough.
    """
    taken = np.unique(taken_request * items + taken_item)
    free = items - np.bincount(taken // items, minlength=len(requests))
    wanted = np.minimum(free, count)
    number = np.arange(len(requests))
    chosen = np.empty(0, np.int64)
    first, width = 0, count + 8
    # Draws have numbers and the first good ones count, so it does not matter how many are made at once.
    while len(number):
        draws = combine(
            np.uint64(seed), _NEGATIVE, requests[number, None], np.arange(first, first + width, dtype=np.uint64)
        )
        pairs = (number[:, None] * items + (draws % np.uint64(items)).astype(np.int64)).ravel()
        fresh = _first_of_each(pairs) & ~np.isin(pairs, taken) & ~np.isin(pairs, chosen)
        pairs = np.concatenate([chosen, pairs[fresh]])
        pairs = pairs[np.argsort(pairs // items, kind="stable")]
        chosen = pairs[_place_in_run(pairs // items) < wanted[pairs // items]]
        found = np.bincount(chosen // items, minlength=len(requests))
        number = np.flatnonzero(found < wanted)
        first, width = first + width, width * 2
    return chosen // items, chosen % items


def _run_starts(*keys: NDArray[Any]) -> Integers:
    """Where in sorted rows a new combination of keys begins."""
    if len(keys[0]) == 0:
        return np.empty(0, np.int64)
    new = np.zeros(len(keys[0]), np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _place_in_run(sorted_keys: Integers) -> Integers:
    starts = _run_starts(sorted_keys)
    return np.arange(len(sorted_keys)) - np.repeat(starts, np.diff(np.append(starts, len(sorted_keys))))


def _first_of_each(values: Integers) -> NDArray[np.bool_]:
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first
