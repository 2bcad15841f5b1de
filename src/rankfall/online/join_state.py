"""What joining stores beside a log, in ``LOG.join``.

::

    LOG.join/days/DAY/report.json           what became of the records of a day
    LOG.join/days/DAY/served.arrow          hashes of the requests that were received while the day was open
    LOG.join/days/DAY/apart.parquet         requests and events that are set apart, if there are any
    LOG.join/days/DAY/next/samples.arrow    of the newest day: records of later days that were received already,
    LOG.join/days/DAY/next/events.arrow
    LOG.join/days/DAY/next/segments.json    and the segments that need not be read again

All files of a day are written before the log gets the day, under the name ``LOG.join/closing``. They count once the log
has the day. A process that dies before leaves a log without the day, and the next one closes the day again, with the
same result.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import polars as pl

from rankfall._errors import RankfallError
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.sources.rows.prepare_rows import remove_leftovers
from rankfall.online.join_results import DayReport
from rankfall.storage.disk import delete_tree, make_directory, rename, sync
from rankfall.storage.files import fresh_directory, locked, read_json_file, remove_directory, sweep, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


REPORT, SERVED, APART, NEXT = "report.json", "served.arrow", "apart.parquet", "next"
_SEGMENTS = "segments.json"


@dataclass(frozen=True)
class UsedSegments:
    """Segments whose records were used until the newest day was closed.

    Attributes:
        finished: Names of segments that have nothing else.
        begun: Names of segments that have records that came later, too.
    """

    finished: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JoinState:
    """What is known before the next day is closed.

    Attributes:
        last: The newest day of the log, None if there is no log or its days are not dates.
        reports: The reports of joined days, oldest first.
        served: The files of requests, oldest first.
        carried: The files of records of later days, by their kind.
        used: The segments that were read.
    """

    last: int | None = None
    reports: list[DayReport] = field(default_factory=list)
    served: list[Path] = field(default_factory=list)
    carried: dict[str, Path] = field(default_factory=dict)
    used: UsedSegments = field(default_factory=UsedSegments)

    @property
    def limit(self) -> int | None:
        """The limit of the newest joined day."""
        return self.reports[-1].limit if self.reports else None


class JoinDirectory:
    """The directory beside a log.

    Args:
        log: The directory of the log.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self.path = log.with_name(f"{log.name}.join")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory, which is created if it is missing, and remove what a process left that died.

        Raises:
            ValueError: If another process joins records to the log.
        """
        make_directory(self.path)
        with locked(self.path, busy=f"out: another process joins records to {self._log}"):
            sweep(self.path)
            if is_log(self._log):
                remove_leftovers(self._log)
            yield

    def load(self) -> JoinState:
        """Return the state, after a day that the log has got is completed."""
        days = list(ImpressionLog.load(self._log).days) if is_log(self._log) else []
        self._complete(days)
        joined = sorted(path for path in (self.path / "days").glob("*") if path.is_dir())
        reports = [DayReport.load(path / REPORT) for path in joined]
        if not days and any(report.items for report in reports):
            raise RankfallError(
                f"out: {self._log} does not exist, but {self.path} has reports of its days; delete them to join all "
                "records again"
            )
        for earlier in joined[:-1]:
            delete_tree(earlier / NEXT, missing_ok=True)
        newest = [number for day in days if (number := day_number(day)) is not None]
        served = [path / SERVED for path in joined]
        last = max([*newest, *(number for one in reports if (number := day_number(one.day)) is not None)], default=None)
        if not joined:
            return JoinState(last)
        following = joined[-1] / NEXT
        carried = {path.stem: path for path in sorted(following.glob("*.arrow"))}
        names = read_json_file(following / _SEGMENTS)
        used = UsedSegments(frozenset(names["finished"]), frozenset(names["begun"]))
        return JoinState(last, reports, served, carried, used)

    @contextmanager
    def closing(self) -> Iterator[Path]:
        """Yield a directory for the files of a day; they count after :meth:`load` if the log has the day."""
        with fresh_directory(self._closing, lambda path: (path / REPORT).is_file(), force=True) as directory:
            make_directory(directory / NEXT)
            yield directory

    def abandon(self) -> None:
        """Delete the files of a day that the log did not get."""
        if self._closing.exists():
            remove_directory(self._closing)

    @property
    def _closing(self) -> Path:
        return self.path / "closing"

    def _complete(self, days: list[str]) -> None:
        """Give the files of a day their place if the log has the day, or if it has no rows; delete them otherwise."""
        if not self._closing.exists():
            return
        report = DayReport.load(self._closing / REPORT)
        if report.items and report.day not in days:
            self.abandon()
            return
        make_directory(self.path / "days")
        rename(self._closing, self.path / "days" / report.day)
        sync(self.path / "days")


def save_used(directory: Path, used: UsedSegments) -> None:
    """Write the names of segments into the directory of a day that is being closed."""
    content = {"finished": sorted(used.finished), "begun": sorted(used.begun)}
    write_file(directory / NEXT / _SEGMENTS, json.dumps(content) + "\n")
