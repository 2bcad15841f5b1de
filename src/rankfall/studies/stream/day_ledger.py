"""The days of a stream and their order, fixed once for all runs.

A day is recorded in ``days.json``, with its checksum and first time, before any run is trained on it. An interrupted
stream therefore continues where it was, and a stream whose log has grown continues with the new days.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rankfall._files import write_file
from rankfall._yaml_config import ConfigError
from rankfall.data.impressions.log import Day
from rankfall.data.impressions.log_watcher import LogWatcher
from rankfall.training.run_directory import Stopped, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rankfall.data import ImpressionLog

LEDGER = "days.json"
_STOP_INTERVAL = 0.2  # seconds between calls of `stop` while waiting


class DayLedger:
    """Days of a stream: those recorded in its directory, and new days of the log.

    Args:
        directory: directory of the stream.
        log: path of the log.
        days: names and ranges of days that belong to the stream.
        follows: whether the stream waits for new days.
        on_notice: receives messages about days that are left out.
    """

    def __init__(
        self, directory: Path, log: Path, days: Sequence[str], *, follows: bool, on_notice: Callable[[str], None]
    ) -> None:
        self._file, self._chosen, self._follows, self._on_notice = directory / LEDGER, days, follows, on_notice
        self.recorded: dict[str, dict[str, Any]] = {}  # checksum and first time of each day
        self._noticed: set[str] = set()
        suffix = "; it is read again when it changes" if follows else "; it is left out"
        self._watcher = LogWatcher(log, lambda why: on_notice(why + suffix))

    @property
    def days(self) -> dict[str, str]:
        """Checksum of each recorded day, in order."""
        return {day: about["sha256"] for day, about in self.recorded.items()}

    def load(self) -> None:
        """Read the days that an earlier process recorded."""
        if self._file.is_file():
            self.recorded = read_json(self._file)

    def open_log(self) -> ImpressionLog:
        """Open the log with its present days."""
        try:
            log = self._watcher.scan(trusted=self.recorded)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for day, why in self._watcher.refused.items():
            if day in log.manifest["days"] and day not in self.recorded and not self._follows:
                raise ConfigError(f"data.path: {why}")
        return log

    def record(self, log: ImpressionLog) -> bool:
        """Record the new days of a log after those known before; return whether there are any."""
        new = self.new_days(log)
        if new:
            self.recorded |= {day.name: {key: day.manifest[key] for key in ("sha256", "first_time")} for day in new}
            write_file(self._file, json.dumps(self.recorded, indent=1) + "\n")
        return bool(new)

    def wait(self, seconds: float, stop: Callable[[], int]) -> ImpressionLog:
        """Look for new days at intervals of `seconds`, record them and return the log.

        Raises:
            Stopped: `stop` returned a true value.
        """
        while True:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if stop():
                    last = list(self.recorded)[-1]
                    raise Stopped(f"stopped after {last}; the same command with --resume continues")
                time.sleep(min(_STOP_INTERVAL, max(0.0, until - time.monotonic())))
            log = self.open_log()
            if self.record(log):
                return log

    def new_days(self, log: ImpressionLog) -> list[Day]:
        """Return the days of a log that belong to the stream and are not recorded yet."""
        try:
            chosen = self._with_recorded(log).choose(self._chosen)
        except ValueError as error:
            raise ConfigError(f"data.{error}") from None
        for day, after in pairwise(chosen):
            if after.manifest["first_time"] < day.manifest["first_time"]:
                raise ConfigError(
                    f"data.days: found {day.name} before {after.name}, which is older; expected days in order of time, "
                    "in which a stream trains on them"
                )
        return [day for day in chosen if not self._is_recorded(day) and not self._is_late(day)]

    def _with_recorded(self, log: ImpressionLog) -> ImpressionLog:
        """Return the log with recorded days that it no longer has, so that a range may begin with one of them."""
        recorded = {name: Day(name, log.path / "days" / name, about) for name, about in self.recorded.items()}
        days = sorted((recorded | log.days).values(), key=lambda day: day.manifest["first_time"])
        return replace(log, days={day.name: day for day in days})

    def _is_recorded(self, day: Day) -> bool:
        recorded = self.recorded.get(day.name)
        if recorded is not None and recorded["sha256"] != day.manifest["sha256"]:
            self._notice_once(f"{day.path} has changed since the stream accepted it; no day is trained on twice")
        return recorded is not None

    def _is_late(self, day: Day) -> bool:
        """Whether a day is older than a recorded one, and is left out."""
        newer = [name for name, known in self.recorded.items() if known["first_time"] > day.manifest["first_time"]]
        if newer:
            self._notice_once(f"{day.name} arrived after {newer[-1]}, which is newer, and is left out")
        return bool(newer)

    def _notice_once(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            self._on_notice(text)
