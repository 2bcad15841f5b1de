"""More days for a log that others may be reading.

A day is written beside the others under a name that nobody takes for a day, and gets its own in one step when it is on
disk; the table of items is replaced before that and the manifest of the log after it, one step each. So whoever looks
finds all of a day or nothing of it, and the items of every day that is there. Features stay as they are: what a model
has no row for is never seen, id 1.
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
from rankfall.data.impressions.log import ImpressionLog, LogWriter, open_day, write_items
from rankfall.data.impressions.log_watcher import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa


class Growth:
    """What is added to a log: days by :meth:`write`, as a :class:`LogWriter` takes them, then :meth:`finish`."""

    def __init__(self, log: ImpressionLog, directory: Path) -> None:
        self.log = log
        self._directory = directory
        self._writer: LogWriter | None = None

    def write(self, day: str, impressions: pa.Table) -> None:
        """Add impressions to a day that the log does not have."""
        if day in self.log.days:
            raise ValueError(f"day: {self.log.path} has {day} already")
        check_schema(impressions.schema, self.log.spec, f"impressions: what should become {day}")
        if self._writer is None:
            self._writer = LogWriter(self._directory, self.log.spec, self.log.features, impressions.schema)
        self._writer.write(day, impressions)

    def finish(self, items: pa.Table, about: Mapping[str, Any]) -> None:
        """Let others see the days, with the table of all items; `about` says how the log was made, from now on."""
        if self._writer is None:
            raise ValueError("no impression was left to write")
        days = self._writer.close()
        path, manifest = self.log.path, self.log.manifest
        added = write_items(path, items)
        for name in days:
            _put(self._directory / "days" / name, path / "days" / name)
        began = {name: day.manifest["first_time"] for name, day in self.log.days.items()}
        began |= {name: day["first_time"] for name, day in days.items()}
        named = manifest["days"] | {name: day["sha256"] for name, day in days.items()}
        manifest = manifest | {
            "days": {name: named[name] for name in sorted(named, key=lambda name: began[name])},
            "impressions": manifest["impressions"] + sum(day["impressions"] for day in days.values()),
            "items": added,
            "about": dict(about),
        }
        write_file(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")


@contextmanager
def growing(path: Path) -> Iterator[Growth]:
    """Add days to a log; nobody else does at the same time. If that fails, nothing is seen of those not finished."""
    ImpressionLog.load(path)  # which refuses what is no log
    with locked(path, busy=f"another process adds days to {path}"):
        log = ImpressionLog.load(path)
        for left in path.glob(".*.unfinished"):  # by a process that was killed
            shutil.rmtree(left)
        directory = Path(tempfile.mkdtemp(prefix=".", suffix=".unfinished", dir=path))
        try:
            yield Growth(log, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _put(written: Path, path: Path) -> None:
    """Give a day its name. It may have it already, if a process ended before the log's manifest named the day."""
    if not path.exists():
        for file in (*written.iterdir(), written):
            sync(file)
        written.rename(path)
        sync(path.parent)
        return
    ours, theirs = (open_day(place, path.name).manifest["sha256"] for place in (written, path))
    if ours != theirs:
        raise ValueError(f"{path} is there already, with other content, though {path.parent.parent} does not name it")
