"""Days of a log: dates in its time zone, and how long records of a day are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import polars as pl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FIRST = date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal() - _FIRST - 2


@dataclass(frozen=True)
class LogDays:
    """The days of a log, as numbers from 1970-01-01 on.

    Args:
        zone: The time zone of the log.
        wait: How long records are waited for after the end of their day, in milliseconds.
    """

    zone: str
    wait: int

    def of(self, times: pl.Series) -> NDArray[np.int32]:
        """Return the day of each time."""
        local = times.dt.convert_time_zone(self.zone).dt.date()
        return local.cast(pl.Int32).to_numpy()

    def limit(self, day: int) -> int:
        """Return the last moment at which a record of a day is received in time, in milliseconds since 1970."""
        following = date.fromordinal(_FIRST + min(day, _LAST_DAY)) + timedelta(1)
        end = datetime.combine(following, time(), ZoneInfo(self.zone))
        return round(end.timestamp() * 1000) + self.wait


def day_name(day: int) -> str:
    """Return the name that a day has in a log.

    >>> day_name(19_000)
    '2022-01-08'
    """
    return str(date.fromordinal(_FIRST + day))


def day_number(name: str) -> int | None:
    """Return the day of a name, None if it is not the name of a date.

    >>> day_number("2022-01-08"), day_number("monday")
    (19000, None)
    """
    try:
        return date.fromisoformat(name).toordinal() - _FIRST
    except ValueError:
        return None
