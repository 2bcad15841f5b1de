"""The first day of each item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from rankfall.data.impressions.loader.window import LEFT_OUT, LIST, DayBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day, ImpressionLog


class ItemFirstSeen:
    """The index of the first day on which an item is in an impression, as a candidate or among the left-out items.

    Each day is read once, also if several loaders share the object, as long as the days before it stay the same.
    """

    def __init__(self) -> None:
        self._days: list[tuple[str, str]] = []  # names and checksums
        self._items = np.empty(0, np.int32)  # sorted
        self._first = np.empty(0, np.int32)

    def numbers(self, log: ImpressionLog, days: Iterable[str], items: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the first day of each item as an index into `days`, or the number of days if no day has it."""
        chosen = [log.days[name] for name in days]
        for number, day in enumerate(chosen):
            key = day.name, str(day.manifest["sha256"])
            if self._days[number : number + 1] != [key]:
                self._discard(number)
                self._read(log, day)
                self._days.append(key)
        if not len(self._items):
            return np.full(len(items), len(chosen), np.int32)
        places = np.minimum(np.searchsorted(self._items, items), len(self._items) - 1)
        found = np.where(self._items[places] == items, self._first[places], len(chosen))
        return np.minimum(found, len(chosen)).astype(np.int32)

    def _discard(self, number: int) -> None:
        """Discard everything that was read from this day on."""
        kept = self._first < number
        self._days, self._items, self._first = self._days[:number], self._items[kept], self._first[kept]

    def _read(self, log: ImpressionLog, day: Day) -> None:
        blocks = DayBlocks(log, day)
        found = np.concatenate([pc.unique(blocks.items(column)).to_numpy() for column in (LIST, LEFT_OUT)])
        new = np.setdiff1d(found, self._items)
        places = np.searchsorted(self._items, new)
        self._items = np.insert(self._items, places, new)
        self._first = np.insert(self._first, places, len(self._days))
