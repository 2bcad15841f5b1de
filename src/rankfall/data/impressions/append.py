"""Append days to an impression log while other processes read it.

A day is written under a hidden name and renamed in one step when it is on disk. The versions of items and then the item
table are replaced before that and the manifest of the log after it, one step each. A reader therefore finds a day
completely or not at all, and always finds the items of every day. The manifest announces the checksums of the next item
table and versions, and of a day that is written again, before they are replaced.

Vocabularies may grow at their ends. Readers with an older manifest use the values that it knows. While vocabularies are
replaced, the manifest has a key `growing`, and days that it does not list are not complete: their ids may be new.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rankfall._disk import exchange, rename, sync
from rankfall._files import checksum, locked, scratch_directory
from rankfall._manifest import MANIFEST
from rankfall._seal import SEAL, write_manifest
from rankfall.data.impressions.log import GROWING, NEXT, REOPENED, ImpressionLog, open_day
from rankfall.data.impressions.log_writer import LogWriter, write_items, write_vocabularies
from rankfall.data.impressions.schema import ITEMS, VERSIONS, VOCABULARIES, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from rankfall.data.impressions.encoding import Encoding


_NEW_DAYS = "new-days"  # name of the hidden directory in which days are written


class LogAppender:
    """Appends days to a log: :meth:`write` them as with a :class:`LogWriter`, then :meth:`finish`.

    Args:
        log: The log.
        directory: A temporary directory inside the log.

    Attributes:
        reopened: The newest day, if it is written again and replaces the present one.
    """

    def __init__(self, log: ImpressionLog, directory: Path) -> None:
        self.log = log
        self.directory = directory
        self.reopened: str | None = None
        self._writer: LogWriter | None = None

    def write(self, day: str, impressions: pa.Table) -> None:
        """Append impressions to a new day.

        Raises:
            ValueError: If the log has the day already, or if the impressions have other columns than the log.
        """
        if day in self.log.days and day != self.reopened:
            raise ValueError(f"day: {self.log.path} already has {day}")
        check_schema(impressions.schema, self.log.spec, f"impressions of {day}")
        if self._writer is None:
            self._writer = LogWriter(self.directory, self.log.spec, self.log.features, impressions.schema)
        self._writer.write(day, impressions)

    def finish(
        self,
        items: pa.Table,
        about: Mapping[str, Any],
        encoding: Encoding | None = None,
        extra: Mapping[str, Any] = MappingProxyType({}),
        versions: pa.Table | None = None,
    ) -> None:
        """Make the new days visible to readers.

        Args:
            items: The item table of all days.
            about: The new provenance of the log.
            encoding: The encoding of the last day, if vocabularies may have grown.
            extra: Further entries of the manifest.
            versions: The versions of items that changed.
        """
        if self._writer is None:
            raise ValueError("there are no impressions to write")
        days, path = self._writer.close(), self.log.path
        vocabularies = {} if encoding is None else write_vocabularies(self.directory, encoding.arrays)
        grown = {table: found for table, found in vocabularies.items() if found != checksum(self._vocabulary(table))}
        written = write_items(path, items, versions, lambda entry: self._announce(entry, days, grown))
        for table in grown:
            _replace(self.directory / VOCABULARIES / f"{table}.arrow", self._vocabulary(table))
        for name in days:
            _publish(self.directory / "days" / name, path / "days" / name, replace=name == self.reopened)
        # the seal is written anew, behind entries that the manifest did not have
        manifest = {key: value for key, value in self.log.manifest.items() if key not in (REOPENED, GROWING, SEAL)}
        manifest |= {**self._days(days), "items": written, "about": dict(about)}
        if encoding is not None:
            manifest |= {VOCABULARIES: vocabularies, "features": encoding.features.to_json()}
        write_manifest(path / MANIFEST, manifest | dict(extra))

    def _vocabulary(self, table: str) -> Path:
        return self.log.path / VOCABULARIES / f"{table}.arrow"

    def _announce(
        self, items: Mapping[str, Any], days: Mapping[str, Mapping[str, Any]], grown: Mapping[str, str]
    ) -> None:
        """Name the checksums of what will be replaced in the manifest, so that readers accept both in the meantime."""
        manifest = {key: value for key, value in self.log.manifest.items() if key != GROWING}
        now = manifest["items"] | {"sha256": checksum(self.log.path / ITEMS), NEXT: items["sha256"]}
        if "versions" in items:
            file = self.log.path / VERSIONS
            present = {"sha256": checksum(file)} if file.is_file() else {}
            now["versions"] = {**now.get("versions", {}), **present, NEXT: items["versions"]["sha256"]}
        reopened = {} if self.reopened is None else {REOPENED: {self.reopened: days[self.reopened]["sha256"]}}
        both = {table: [checksum(self._vocabulary(table)), found] for table, found in grown.items()}
        growing = {GROWING: both} if both else {}
        write_manifest(self.log.path / MANIFEST, manifest | {"items": now, **reopened, **growing})

    def _days(self, new: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the entries of the manifest about days: their checksums in the order of time, and their size."""
        kept = {name: day.manifest for name, day in self.log.days.items() if name != self.reopened}
        days = {**kept, **new}
        ordered = sorted(days, key=lambda name: days[name]["first_time"])
        return {
            "days": {name: days[name]["sha256"] for name in ordered},
            "impressions": sum(day["impressions"] for day in days.values()),
        }


@contextmanager
def appending(path: Path) -> Iterator[LogAppender]:
    """Lock a log for appending days. If the body fails, readers see none of the unfinished days.

    Raises:
        ValueError: If `path` is not a log, or if another process appends to it.
    """
    ImpressionLog.load(path)  # raises if this is not a log, before a lock file is created
    with locked(path, busy=f"another process adds days to {path}"):
        log = ImpressionLog.load(path)
        with scratch_directory(_NEW_DAYS, path) as directory:
            yield LogAppender(log, directory)


def _replace(written: Path, path: Path) -> None:
    """Replace a file by one that is on disk."""
    sync(written)
    rename(written, path)
    sync(path.parent)


def _publish(written: Path, path: Path, *, replace: bool) -> None:
    """Move a day to its name. It exists already if a process died before the manifest of the log was written."""
    if path.exists():
        ours, theirs = (open_day(place, path.name).manifest["sha256"] for place in (written, path))
        if ours == theirs:
            return
        if not replace:
            raise ValueError(f"{path} exists with other content, and the manifest of {path.parent.parent} lacks it")
    for file in (*written.iterdir(), written):
        sync(file)
    if not (path.exists() and exchange(written, path)):
        if path.exists():
            rename(path, written.with_name(f".{path.name}"))
        rename(written, path)
    sync(path.parent)
