"""Reduce a long table part by part, in memory that grows with the result only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

_MERGE_AT = 2**20  # pending rows that trigger a merge


class IncrementalMerge:
    """A table that is reduced by `merge` while its parts are added.

    Args:
        merge: Reduces a table. It must give the same result for a whole table as for its reduced parts together.
    """

    def __init__(self, merge: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._merge = merge
        self._parts: list[pl.DataFrame] = []
        self._pending = 0
        self._merge_at = _MERGE_AT

    def add(self, part: pl.DataFrame) -> None:
        """Add rows; the order of parts is kept."""
        self._parts.append(self._merge(part))
        self._pending += len(self._parts[-1])
        if self._pending > self._merge_at:
            merged = self.result()
            self._parts, self._pending = [merged], len(merged)
            self._merge_at = max(_MERGE_AT, 2 * len(merged))

    def result(self) -> pl.DataFrame:
        """Return the reduced table of all parts."""
        return self._merge(pl.concat(self._parts))


def distinct(frame: pl.DataFrame) -> pl.DataFrame:
    """Return every row once, in the order of first occurrence."""
    return frame.unique(maintain_order=True)
