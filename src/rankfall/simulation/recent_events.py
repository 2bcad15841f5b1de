"""The last views of users."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from rankfall.data.sources.recflow_spec import HISTORY_LENGTH
from rankfall.simulation.matching import NO_ITEM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Views:
    """Effective views, in the order of time."""

    user: Integers
    item: Integers
    time: Integers  # of the request, ms since 1970
    playing_time: Integers
    request: Integers


@dataclass(frozen=True, slots=True)
class RecentViews:
    """The last views of users, (users, 50) each, the newest last; item NO_ITEM and time 0 before the first view."""

    item: NDArray[np.int32]
    time: Integers
    playing_time: Integers
    request: Integers

    @classmethod
    def empty(cls, users: int) -> Self:
        """Return the views of users without any."""
        shape = (users, HISTORY_LENGTH)
        return cls(np.full(shape, NO_ITEM, np.int32), *(np.zeros(shape, np.int64) for _ in range(3)))

    def of(self, users: Integers | slice) -> RecentViews:
        """Return a copy for some users, who may occur several times."""
        return RecentViews(*(getattr(self, field.name)[users] for field in fields(self)))

    def add(self, events: Views) -> None:
        """Append views to those of their users."""
        order = np.argsort(events.user, kind="stable")
        user = events.user[order]
        users, first, count = np.unique(user, return_index=True, return_counts=True)
        from_end = np.repeat(first + count, count) - np.arange(len(user))  # 1 for a user's newest
        kept = from_end <= HISTORY_LENGTH
        place = (user[kept], HISTORY_LENGTH - from_end[kept])
        comes_from = np.minimum(np.arange(HISTORY_LENGTH) + count[:, None], HISTORY_LENGTH - 1)
        for field in fields(self):
            table = getattr(self, field.name)
            table[users] = np.take_along_axis(table[users], comes_from, axis=1)  # older views move to the front
            table[place] = getattr(events, field.name)[order][kept]
