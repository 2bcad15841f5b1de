"""Requests as the stages of a bundle take them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]  # positions of items in the table of a bundle

NO_ITEM = -1  # in rows
_MOST_PADDED = 2**20  # candidates of all requests that are ranked at once, padding included


@dataclass(frozen=True, slots=True)
class EncodedRequests:
    """Validated requests, ready for the models. Items are given as rows of the bundle's table.

    Attributes:
        arrays: The inputs of the models by name, one row per request: ``user.age`` (B,), ``sequence.history.video_id``
            and ``sequence.history.mask`` (B, L).
        k: The number of items to return for each request.
        candidates: The items to rank for each request, distinct and without excluded ones; None for all items.
        exclude: The items that must not be returned.
        given: The candidates as given, -1 for those that the bundle does not have.
        unknown: The ids of these.
        notes: Remarks on each request, such as values that were never seen in training.
    """

    arrays: dict[str, NDArray[Any]]
    k: Rows
    candidates: list[Rows | None]
    exclude: list[Rows]
    given: list[Rows | None]
    unknown: list[list[int | str]]
    notes: list[list[str]]

    @classmethod
    def with_candidates(cls, arrays: dict[str, NDArray[Any]], candidates: Sequence[Rows], k: int) -> EncodedRequests:
        """Return requests that rank distinct candidates and exclude nothing."""
        count = len(candidates)
        nothing = [np.empty(0, np.int64)] * count
        none: tuple[list[list[Any]], ...] = ([[] for _ in range(count)], [[] for _ in range(count)])
        return cls(arrays, np.full(count, k), [*candidates], nothing, [*candidates], *none)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.k)

    def take(self, places: Sequence[int] | Rows) -> EncodedRequests:
        """Return the requests at these indices."""
        places = np.asarray(places, np.int64)  # an empty list has no integer type
        return EncodedRequests(
            {name: array[places] for name, array in self.arrays.items()},
            self.k[places],
            [self.candidates[place] for place in places],
            [self.exclude[place] for place in places],
            [self.given[place] for place in places],
            [self.unknown[place] for place in places],
            [self.notes[place] for place in places],
        )

    def inputs(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a range of requests."""
        return {name: array[start:stop] for name, array in self.arrays.items()}

    def without_candidates(self) -> EncodedRequests:
        """Return the same requests for all items."""
        nothing: list[Rows | None] = [None] * len(self)
        return replace(self, candidates=nothing, given=nothing, unknown=[[] for _ in range(len(self))])

    @classmethod
    def join(cls, parts: Sequence[EncodedRequests]) -> EncodedRequests:
        """Concatenate requests; shorter sequences are padded."""
        names = parts[0].arrays
        return cls(
            {name: _concatenate([part.arrays[name] for part in parts], name) for name in names},
            np.concatenate([part.k for part in parts]),
            [rows for part in parts for rows in part.candidates],
            [rows for part in parts for rows in part.exclude],
            [rows for part in parts for rows in part.given],
            [ids for part in parts for ids in part.unknown],
            [notes for part in parts for notes in part.notes],
        )


def padded(lists: Sequence[Rows | None]) -> Rows:
    """Return lists of rows as one array (B, N) with -1 after the shorter ones; None is an empty list."""
    given = [np.empty(0, np.int64) if rows is None else rows for rows in lists]
    lengths = np.array([len(rows) for rows in given])
    rows = np.full((len(lists), max(1, lengths.max())), NO_ITEM, np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = np.concatenate(given)
    return rows


def _concatenate(parts: Sequence[NDArray[Any]], name: str) -> NDArray[Any]:
    if not name.startswith("sequence.") or len({part.shape[1] for part in parts}) == 1:
        return np.concatenate(parts)
    longest = max(part.shape[1] for part in parts)
    joined = np.zeros((sum(map(len, parts)), longest), parts[0].dtype)
    start = 0
    for part in parts:
        joined[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return joined


def parts_of(lists: Sequence[Rows | None]) -> list[list[int]]:
    """Return the indices of requests to compute together: those without a list, and lists of similar length."""
    parts = [without] if (without := [place for place, rows in enumerate(lists) if rows is None]) else []
    lengths = {place: len(rows) for place, rows in enumerate(lists) if rows is not None}
    if len(lengths) * max(lengths.values(), default=0) <= _MOST_PADDED:
        return [*parts, list(lengths)] if lengths else parts
    part: list[int] = []
    for place in sorted(lengths, key=lambda place: lengths[place]):
        if part and (len(part) + 1) * lengths[place] > _MOST_PADDED:
            parts.append(part)
            part = []
        part.append(place)
    return [*parts, part]


def distinct(rows: Rows, excluded: Rows) -> Rows:
    """Return every known row once, in the order of first occurrence, without excluded ones."""
    rows = rows[rows != NO_ITEM]
    _, first = np.unique(rows, return_index=True)
    rows = rows[np.sort(first)]
    left: Rows = rows[~np.isin(rows, excluded)]
    return left
