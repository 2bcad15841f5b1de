"""Reducing a long table portion by portion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

_MERGE_AT = 2**20  # rows that wait before they are brought together


class Collector:
    """Portions of a table, reduced by `merge`, so that memory grows with what is left of them.

    `merge` must give the same for a table as for the reduced portions of it.
    """

    def __init__(self, merge: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._merge = merge
        self._portions: list[pl.DataFrame] = []
        self._waiting = 0
        self._merge_at = _MERGE_AT

    def add(self, portion: pl.DataFrame) -> None:
        """Add rows; portions stay in their order."""
        self._portions.append(self._merge(portion))
        self._waiting += len(self._portions[-1])
        if self._waiting > self._merge_at:
            merged = self.result()
            self._portions, self._waiting = [merged], len(merged)
            self._merge_at = max(_MERGE_AT, 2 * len(merged))

    def result(self) -> pl.DataFrame:
        """All portions as one."""
        return self._merge(pl.concat(self._portions))


def distinct(frame: pl.DataFrame) -> pl.DataFrame:
    """Every row once."""
    return frame.unique(maintain_order=True)
