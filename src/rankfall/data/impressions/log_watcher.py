"""Watch a log for days that arrive one by one.

A log grows by directories ``days/NAME``. A day is complete once it has a manifest and its file has the size that the
manifest states; manifests are therefore written last. The manifest of the log need not list it. If some days have a
file ``_SUCCESS``, as some tools write it when they are done, a day without one is complete only if the manifest of the
log lists it. The same holds while the vocabularies of the log grow, since the ids of such a day may be new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from rankfall._manifest import MANIFEST
from rankfall._seal import SEAL, verifies
from rankfall.data.impressions.log import GROWING, ImpressionLog, check_listed, limits_of, open_day, read_manifest
from rankfall.data.impressions.schema import IMPRESSIONS, check_schema
from rankfall.data.impressions.spec import Features, validate_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
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
        self._accepted: dict[str, object] = {}
        self._failed: dict[str, tuple[object, str]] = {}  # with the reason
        self._reported: dict[str, object] = {}  # with the reason

    def scan(self, *, trusted: Container[str] = ()) -> ImpressionLog:
        """Return the log with all complete days, in the order of time.

        Each day is compared with its checksum, and again whenever its files change.

        Args:
            trusted: Days that are not checked again.
        """
        manifest, found = self._snapshot()
        spec = validate_spec(manifest["spec"], where=str(self.path / MANIFEST))
        self.refused = {}
        finished = self._finished(found, manifest)
        for name in manifest["days"]:
            path = self.path / "days" / name
            if path not in finished and name not in trusted:
                self._refuse(path, f"{path} is listed as a day of the log but is missing or not finished")
        days = []
        for path in finished:
            try:
                day = self._open(path, manifest, sealed=SEAL in manifest)
                if path.name not in trusted:
                    self._check(day, spec)
            except (ValueError, OSError) as error:  # a day may be removed meanwhile; the others are still valid
                self._refuse(path, str(error).removeprefix("path: "))
            else:
                days.append(day)
        days.sort(key=lambda day: day.manifest["first_time"])
        features = Features.from_json(manifest["features"])
        named, limits = {day.name: day for day in days}, limits_of(manifest, features)
        return ImpressionLog(self.path, manifest, spec, features, named, verifies(), limits)

    def _snapshot(self) -> tuple[dict[str, Any], list[Path]]:
        """Return the manifest of the log and the directories of days, read while the manifest did not change."""
        manifest = read_manifest(self.path)
        while True:
            before, found = manifest, self._stable_listing()
            manifest = read_manifest(self.path)
            if manifest == before:
                return manifest, found

    def _finished(self, found: list[Path], manifest: Mapping[str, Any]) -> list[Path]:
        """Return the directories of days that are marked as finished."""
        successful = [path for path in found if (path / SUCCESS).exists()]
        if not successful and GROWING not in manifest:
            return found
        marked = [] if GROWING in manifest else successful
        return [path for path in found if path in marked or path.name in manifest["days"]]

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

    def _open(self, path: Path, manifest: Mapping[str, Any], *, sealed: bool) -> Day:
        day = open_day(path, path.name, verify=verifies(), sealed=sealed and path.name in manifest["days"])
        if missing := [key for key, kind in _REQUIRED.items() if type(day.manifest.get(key)) is not kind]:
            raise ValueError(f"{path / MANIFEST} has no valid {', '.join(missing)}")
        if path.name in manifest["days"]:
            check_listed(self.path, day, manifest)
            if GROWING in manifest and day.manifest["sha256"] != manifest["days"][path.name]:
                raise ValueError(f"{path} was replaced, but the vocabularies of the log are not complete")
        if not len(day):
            raise ValueError(f"{path} has no impressions")
        return day

    def _check(self, day: Day, spec: Spec) -> None:
        """Check the checksum and the content of a day; its file is read again only after it changed."""
        state = _state(day.path)
        if self._accepted.get(day.name) == state:
            return
        before, reason = self._failed.get(day.name, (None, ""))
        if before == state:
            raise ValueError(reason)
        try:
            _check_content(day, spec)
        except ValueError as error:
            self._failed[day.name] = (state, str(error))
            raise
        self._accepted[day.name] = state

    def _refuse(self, path: Path, reason: str) -> None:
        self.refused[path.name] = reason
        report = (_state(path), reason)
        if self._reported.get(path.name) != report:
            self._reported[path.name] = report
            self.on_notice(reason)


def _check_content(day: Day, spec: Spec) -> None:
    """Check the checksum, the columns and the number of impressions of a day."""
    table = day.table()
    check_schema(table.schema, spec, str(day.file))
    if len(table) != len(day):
        raise ValueError(f"{day.file} has {len(table):,} impressions, its manifest states {len(day):,}")
    if not pc.any(pc.greater(pc.list_value_length(table["item"]), 0)).as_py():
        raise ValueError(f"{day.file} has no items")


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
