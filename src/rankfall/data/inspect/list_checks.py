"""Checks for common mistakes in ranking data: lists from which nothing can be learned or measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rankfall.data.inspect.inspection import LogWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankfall.data.lists.ranking_data import RankingData, RankingSplit

    Check = Callable[[RankingSplit], Iterator[str]]

NOTICEABLE = 0.01  # a share of lists


def find_warnings(data: RankingData) -> list[LogWarning]:
    """Run all checks on every split and return their warnings."""
    return [
        LogWarning(check.__name__, message)
        for check in LIST_CHECKS
        for split in data.splits.values()
        for message in check(split)
    ]


def lists_without_relevant(split: RankingSplit) -> Iterator[str]:
    """Lists without a relevant document, on which recall and NDCG are not defined."""
    count = int(np.count_nonzero(_per_list(np.maximum, split) <= 0))
    if count > NOTICEABLE * len(split):
        share = f"{count / len(split):.1%}"
        yield (
            f"split {split.name!r}: {count:,} of {len(split):,} lists, {share}, have no relevant document; metrics are "
            "not defined for them, and means leave them out"
        )


def lists_of_one_label(split: RankingSplit) -> Iterator[str]:
    """Lists whose documents all have the same label, above 0, in which there is nothing to rank."""
    best, worst = _per_list(np.maximum, split), _per_list(np.minimum, split)
    count = int(np.count_nonzero((best == worst) & (best > 0)))
    if count > NOTICEABLE * len(split):
        share = f"{count / len(split):.1%}"
        yield (
            f"split {split.name!r}: {count:,} of {len(split):,} lists, {share}, have documents of one label only; "
            "they cannot be ranked better or worse"
        )


LIST_CHECKS: list[Check] = [lists_without_relevant, lists_of_one_label]


def _per_list(reduce: np.ufunc, split: RankingSplit) -> np.ndarray:
    """Reduce the labels of each list to one value. Prepared lists are never empty."""
    found: np.ndarray = reduce.reduceat(np.asarray(split.labels), split.offsets[:-1])
    return found
