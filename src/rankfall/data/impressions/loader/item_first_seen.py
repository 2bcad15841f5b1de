"""On which day each item came up first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from rankfall.data.impressions.loader.window import LEFT_OUT, LIST, Blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from rankfall.data.impressions.log import Day, ImpressionLog


class FirstDays:
    """The items of days of a log, each with the number of the first day on which an impression has or leaves it out.

    A day is read once, whoever asks for it and for days before or behind it, as long as these have the same order.
    """

    def __init__(self) -> None:
        self._days: list[tuple[str, str]] = []  # names and checksums
        self._items = np.empty(0, np.int32)  # sorted
        self._first = np.empty(0, np.int32)

    def numbers(self, log: ImpressionLog, days: Iterable[str], items: NDArray[np.int32]) -> NDArray[np.int32]:
        """Of each of these items its first day, by its place among `days`; their count where none has it."""
        chosen = [log.days[name] for name in days]
        for number, day in enumerate(chosen):
            told = day.name, str(day.manifest["sha256"])
            if self._days[number : number + 1] != [told]:
                self._forget(number)
                self._read(log, day)
                self._days.append(told)
        if not len(self._items):
            return np.full(len(items), len(chosen), np.int32)
        places = np.minimum(np.searchsorted(self._items, items), len(self._items) - 1)
        found = np.where(self._items[places] == items, self._first[places], len(chosen))
        return np.minimum(found, len(chosen)).astype(np.int32)

    def _forget(self, number: int) -> None:
        """Whatever was read from this day on."""
        kept = self._first < number
        self._days, self._items, self._first = self._days[:number], self._items[kept], self._first[kept]

    def _read(self, log: ImpressionLog, day: Day) -> None:
        blocks = Blocks(log, day)
        there = np.concatenate([pc.unique(blocks.items(column)).to_numpy() for column in (LIST, LEFT_OUT)])
        new = np.setdiff1d(there, self._items)
        places = np.searchsorted(self._items, new)
        self._items = np.insert(self._items, places, new)
        self._first = np.insert(self._first, places, len(self._days))
