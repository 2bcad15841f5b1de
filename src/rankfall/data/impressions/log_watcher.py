"""Watch a log for days that arrive one by one.

A log grows by directories ``days/NAME``. A day is complete once it has a manifest and its file has the size that the
manifest states; manifests are therefore written last. The manifest of the log need not list it. If some days have a
file ``_SUCCESS``, as some tools write it when they are done, a day without one is complete only if the manifest of the
log lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from rankfall._files import checksum
from rankfall._manifest import MANIFEST
from rankfall.data.impressions.log import ImpressionLog, open_day, read_manifest
from rankfall.data.impressions.schema import IMPRESSIONS, check_schema
from rankfall.data.impressions.spec import Features, validate_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from rankfall.data.impressions.log import Day
    from rankfall.data.impressions.spec import Spec

SUCCESS = "_SUCCESS"
_REQUIRED = {"impressions": int, "sha256": str, "first_time": int}  # keys of the manifest of a day


class LogWatcher:
    """Scans a log for complete days.

    Args:
        path: The directory of the log.
        on_notice: Receives a message for each day that is refused, once per state of its files.

    Attributes:
        refused: The days that the last scan refused, with the reasons.
    """

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        self.path, self.on_notice = path, on_notice
        self.refused: dict[str, str] = {}
        # by day, the state of its files
        self._content_checked: dict[str, object] = {}
        self._checksum_matched: dict[str, object] = {}
        self._checksum_failed: dict[str, object] = {}
        self._reported: dict[str, object] = {}  # with the reason

    def scan(self, *, trusted: Container[str] = (), verify: bool = True) -> ImpressionLog:
        """Return the log with all complete days, in the order of time.

        Args:
            trusted: Days that are not checked again.
            verify: Compare the other days with their checksums, again whenever their files change.
        """
        manifest = read_manifest(self.path)
        spec = validate_spec(manifest["spec"], where=str(self.path / MANIFEST))
        self.refused = {}
        finished = self._finished(manifest["days"])
        for name in manifest["days"]:
            path = self.path / "days" / name
            if path not in finished and name not in trusted:
                self._refuse(path, f"{path} is listed as a day of the log but is missing or not finished")
        days = []
        for path in finished:
            try:
                day = self._open(path, manifest["days"].get(path.name))
                if path.name not in trusted:
                    if verify:
                        self._check_checksum(day)
                    self._check_content(day, spec)
            except (ValueError, OSError) as error:  # a day may be removed meanwhile; the others are still valid
                self._refuse(path, str(error).removeprefix("path: "))
            else:
                days.append(day)
        days.sort(key=lambda day: day.manifest["first_time"])
        features = Features.from_json(manifest["features"])
        return ImpressionLog(self.path, manifest, spec, features, {day.name: day for day in days})

    def _finished(self, listed: Container[str]) -> list[Path]:
        """Return the directories of days that are marked as finished."""
        found = self._stable_listing()
        successful = [path for path in found if (path / SUCCESS).exists()]
        return [path for path in found if path in successful or path.name in listed] if successful else found

    def _stable_listing(self) -> list[Path]:
        """List the days with a manifest until two listings agree.

        A listing made while two days arrive may have the second one only.
        """
        before, found = None, self._listing()
        while found != before:
            before, found = found, self._listing()
        return found

    def _listing(self) -> list[Path]:
        return sorted(path.parent for path in self.path.glob(f"days/[!.]*/{MANIFEST}"))

    def _open(self, path: Path, listed: str | None) -> Day:
        day = open_day(path, path.name)
        if missing := [key for key, kind in _REQUIRED.items() if type(day.manifest.get(key)) is not kind]:
            raise ValueError(f"{path / MANIFEST} has no valid {', '.join(missing)}")
        if listed is not None and listed != day.manifest["sha256"]:
            raise ValueError(f"{path} has another checksum than {self.path / MANIFEST} lists")
        if not len(day):
            raise ValueError(f"{path} has no impressions")
        return day

    def _check_content(self, day: Day, spec: Spec) -> None:
        """Check the columns and the number of impressions of a day."""
        state = _state(day.path)
        if self._content_checked.get(day.name) == state:
            return
        table = day.table()
        check_schema(table.schema, spec, str(day.file))
        if len(table) != len(day):
            raise ValueError(f"{day.file} has {len(table):,} impressions, its manifest states {len(day):,}")
        if not pc.any(pc.greater(pc.list_value_length(table["item"]), 0)).as_py():
            raise ValueError(f"{day.file} has no items")
        self._content_checked[day.name] = state

    def _check_checksum(self, day: Day) -> None:
        """Compare a day with its checksum; files are read again only after they changed."""
        state = _state(day.path)
        if self._checksum_matched.get(day.name) == state:
            return
        if self._checksum_failed.get(day.name) == state or checksum(day.file) != day.manifest["sha256"]:
            self._checksum_failed[day.name] = state
            raise ValueError(f"{day.file} does not have the checksum of its manifest")
        self._checksum_matched[day.name] = state

    def _refuse(self, path: Path, reason: str) -> None:
        self.refused[path.name] = reason
        report = (_state(path), reason)
        if self._reported.get(path.name) != report:
            self._reported[path.name] = report
            self.on_notice(reason)


def _state(path: Path) -> object:
    """Return the identity, size and modification time of a day's files, which change when it is written again."""
    found = []
    for name in (MANIFEST, IMPRESSIONS):
        try:
            status = (path / name).stat()
        except OSError:
            continue
        found.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    return found
