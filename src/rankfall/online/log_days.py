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

AHEAD = 3_600_000  # milliseconds by which the clock of a client may be ahead of that of the service
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

    def of(self, samples: pl.DataFrame) -> NDArray[np.int32]:
        """Return the day of each sample: that of its time, or of its receipt if its time is in the future then."""
        times = samples.select(pl.when(in_future()).then("received").otherwise("time")).to_series()
        local = times.dt.convert_time_zone(self.zone).dt.date()
        return local.cast(pl.Int32).to_numpy()

    def limit(self, day: int) -> int:
        """Return the last moment at which a record of a day is received in time, in milliseconds since 1970."""
        following = date.fromordinal(_FIRST + min(day, _LAST_DAY)) + timedelta(1)
        end = datetime.combine(following, time(), ZoneInfo(self.zone))
        return round(end.timestamp() * 1000) + self.wait


def in_future() -> pl.Expr:
    """Return whether a sample has a time that is later than the clock of the service that received it."""
    return pl.col("time").to_physical() > pl.col("received").to_physical() + AHEAD


def day_name(day: int) -> str:
    """Return the name that a day has in a log.

    >>> day_name(19_000)
    '2022-01-08'
    """
    return str(date.fromordinal(max(1, _FIRST + day)))


def day_number(name: str) -> int | None:
    """Return the day of a name, None if it is not the name of a date.

    >>> day_number("2022-01-08"), day_number("monday")
    (19000, None)
    """
    try:
        return date.fromisoformat(name).toordinal() - _FIRST
    except ValueError:
        return None
