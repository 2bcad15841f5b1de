"""The full-stage sampler: a sample of the items of every stage of a request, and their grades.

The sample depends on the seed, the request and its items only, so a log may be split anywhere between requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.data.impressions.column_hashing import combine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

# Different streams of one seed; ordering items by their sampling keys would put the items of crowded stages first.
_SAMPLE, _ORDER, _NEGATIVE = (np.uint64(use) for use in (1, 2, 3))


def check_seed(seed: int) -> None:
    """Raise an error for a seed that the hash functions do not accept."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: found {seed}, expected a whole number from 0 to 2^63 - 1")


def sample_keys(seed: int, requests: Hashes, items: Hashes) -> Hashes:
    """Return random keys of items; those with the smallest keys of a stage are sampled."""
    return combine(np.uint64(seed), _SAMPLE, requests, items)


def order_keys(seed: int, requests: Hashes, items: Hashes) -> Hashes:
    """Return random keys that order the items of an impression without any information about them."""
    return combine(np.uint64(seed), _ORDER, requests, items)


def full_stage_sample(requests: Integers, depth: Integers, keys: Hashes, sizes: Sequence[int | None]) -> Integers:
    """Return the rows of the sample, sorted by request, then by depth, then by key.

    Args:
        requests: The index of the request of each row.
        depth: The depth of each row.
        keys: The random key of each row. The rows with the smallest keys of each request and stage are kept.
        sizes: The sample size of each stage; None keeps all rows.
    """
    order = np.lexsort((keys, depth, requests))
    starts = _run_starts(requests[order], depth[order])
    lengths = np.diff(np.append(starts, len(order)))
    places = np.arange(len(order)) - np.repeat(starts, lengths)
    limits = np.array([len(order) if size is None else size for size in sizes], np.int64)
    kept: Integers = order[places < limits[depth[order]]]
    return kept


def full_stage_grades(
    requests: Integers, depth: Integers, rank: Integers, relevance: NDArray[np.float32] | None = None
) -> Integers:
    """Return the grade of each item within its request, 0 for the worst: deeper is better, then the smaller rank.

    Items of the same depth and rank have the same grade; those without a rank (-1) have the lowest of their depth.

    Args:
        requests: The index of the request of each row.
        depth: The depth of each row.
        rank: The rank of each row, -1 for none.
        relevance: For logs without a funnel, the relevance of each row, which then counts before the rank.
    """
    badness = np.where(rank < 0, np.iinfo(np.int64).max, rank)
    value = np.zeros(len(rank), np.float32) if relevance is None else relevance
    order = np.lexsort((-badness, value, depth, requests))
    first = np.zeros(len(order), np.bool_)
    first[_run_starts(requests[order])] = True
    step = np.zeros(len(order), np.int64)
    step[_run_starts(requests[order], depth[order], value[order], badness[order])] = 1
    total = np.cumsum(step)
    base = np.maximum.accumulate(np.where(first, total, 0))
    grades = np.empty(len(order), np.int64)
    grades[order] = total - base
    return grades


def draw_negatives(
    requests: Hashes, taken_request: Integers, taken_item: Integers, *, items: int, count: int, seed: int
) -> tuple[Integers, Integers]:
    """Draw `count` different items of a table for each request, excluding those that the request has.

    Args:
        requests: The hash of each request.
        taken_request: The index of a request, for each pair of a request and an item to exclude.
        taken_item: The row of the item in the table, for each of these pairs.
        items: The number of rows of the table.
        count: The number of items per request; requests get fewer if the table has not enough.
        seed: The seed.

    Returns:
        Pairs as two arrays: indices of requests, and rows of the table.
    """
    taken = np.unique(taken_request * items + taken_item)
    free = items - np.bincount(taken // items, minlength=len(requests))
    wanted = np.minimum(free, count)
    number = np.arange(len(requests))
    chosen = np.empty(0, np.int64)
    first, width = 0, count + 8
    # Draws are numbered and the first valid ones are taken, so the number of draws per round does not matter.
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
    """Return where a new combination of keys begins in sorted rows."""
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
