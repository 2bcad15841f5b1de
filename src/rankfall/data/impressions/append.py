"""Append days to an impression log while other processes read it.

A day is written under a hidden name and renamed in one step when it is on disk. The item table is replaced before that
and the manifest of the log after it, one step each. A reader therefore finds a day completely or not at all, and always
finds the items of every day. Features do not change: values without an embedding row get id 1, never seen.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._files import locked, sync, write_file
from rankfall._manifest import MANIFEST
from rankfall.data.impressions.log import ImpressionLog, open_day
from rankfall.data.impressions.log_writer import LogWriter, write_items
from rankfall.data.impressions.schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa


class LogAppender:
    """Appends days to a log: :meth:`write` them as with a :class:`LogWriter`, then :meth:`finish`."""

    def __init__(self, log: ImpressionLog, directory: Path) -> None:
        self.log = log
        self._directory = directory
        self._writer: LogWriter | None = None

    def write(self, day: str, impressions: pa.Table) -> None:
        """Append impressions to a new day.

        Raises:
            ValueError: If the log has the day already, or if the impressions have other columns than the log.
        """
        if day in self.log.days:
            raise ValueError(f"day: {self.log.path} already has {day}")
        check_schema(impressions.schema, self.log.spec, f"impressions of {day}")
        if self._writer is None:
            self._writer = LogWriter(self._directory, self.log.spec, self.log.features, impressions.schema)
        self._writer.write(day, impressions)

    def finish(self, items: pa.Table, about: Mapping[str, Any]) -> None:
        """Make the new days visible to readers.

        Args:
            items: The item table of all days.
            about: The new provenance of the log.
        """
        if self._writer is None:
            raise ValueError("there are no impressions to write")
        days = self._writer.close()
        path, manifest = self.log.path, self.log.manifest
        written = write_items(path, items)
        for name in days:
            _publish(self._directory / "days" / name, path / "days" / name)
        first_times = {name: day.manifest["first_time"] for name, day in self.log.days.items()}
        first_times |= {name: day["first_time"] for name, day in days.items()}
        checksums = manifest["days"] | {name: day["sha256"] for name, day in days.items()}
        manifest = manifest | {
            "days": {name: checksums[name] for name in sorted(checksums, key=lambda name: first_times[name])},
            "impressions": manifest["impressions"] + sum(day["impressions"] for day in days.values()),
            "items": written,
            "about": dict(about),
        }
        write_file(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")


@contextmanager
def appending(path: Path) -> Iterator[LogAppender]:
    """Lock a log for appending days. If the body fails, readers see none of the unfinished days.

    Raises:
        ValueError: If `path` is not a log, or if another process appends to it.
    """
    ImpressionLog.load(path)  # raises if this is not a log, before a lock file is created
    with locked(path, busy=f"another process adds days to {path}"):
        log = ImpressionLog.load(path)
        for leftover in path.glob(".*.unfinished"):  # of a process that was killed
            shutil.rmtree(leftover)
        directory = Path(tempfile.mkdtemp(prefix=".", suffix=".unfinished", dir=path))
        try:
            yield LogAppender(log, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _publish(written: Path, path: Path) -> None:
    """Move a day to its name. It exists already if a process died before the manifest of the log was written."""
    if not path.exists():
        for file in (*written.iterdir(), written):
            sync(file)
        written.rename(path)
        sync(path.parent)
        return
    ours, theirs = (open_day(place, path.name).manifest["sha256"] for place in (written, path))
    if ours != theirs:
        raise ValueError(f"{path} exists with other content, although the manifest of {path.parent.parent} lacks it")
