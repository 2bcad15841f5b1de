"""Days that arrive one by one, while somebody waits for them.

A log grows by directories ``days/NAME``. A day counts once its manifest stands there and its file is as long as that
says, which is why a manifest is written last; the manifest of the log need not name it. If days of the log have a file
``_SUCCESS``, as some tools leave it when they are done, one without it counts only if the log's manifest names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rankfall._files import checksum
from rankfall._manifest import MANIFEST
from rankfall.data.impressions.log import ImpressionLog, impression_schema, open_day, read_manifest
from rankfall.data.impressions.spec import Features, validate_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from rankfall.data.impressions.log import Day
    from rankfall.data.impressions.spec import Spec

SUCCESS = "_SUCCESS"
_NEEDED = {"impressions": int, "sha256": str, "first_time": int}  # in the manifest of a day


class Arrivals:
    """The days of a log that are there, whenever one looks."""

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        self.path, self.on_notice = path, on_notice
        self.refused: dict[str, str] = {}  # the days that did not count the last time, and why
        self._content: dict[str, object] = {}  # days that hold what they should, as they were when that was looked at
        self._whole: dict[str, object] = {}  # those that have their checksum, as they were when they were read
        self._damaged: dict[str, object] = {}  # those that do not
        self._said: dict[str, object] = {}  # what there was to say, and of which state of a day

    def look(self, *, trusted: Container[str] = (), verify: bool = True) -> ImpressionLog:
        """The log with all whole days, in the order of time; `on_notice` hears of each that is damaged, once.

        A day that is not `trusted` is read and compared with its checksum, again whenever it has changed.
        """
        manifest = read_manifest(self.path)
        spec = validate_spec(manifest["spec"], where=str(self.path / MANIFEST))
        self.refused = {}
        finished = self._finished(manifest["days"])
        for name in manifest["days"]:
            path = self.path / "days" / name
            if path not in finished and name not in trusted:
                self._refuse(path, f"{path} should be a day of the log, but is not there or not finished")
        days = []
        for path in finished:
            try:
                day = self._open(path, manifest["days"].get(path.name))
                if path.name not in trusted:
                    if verify:
                        self._check_whole(day)
                    self._check_content(day, spec)
            except (ValueError, OSError) as error:  # it may be taken away meanwhile; the others count
                self._refuse(path, str(error).removeprefix("path: "))
            else:
                days.append(day)
        days.sort(key=lambda day: day.manifest["first_time"])
        features = Features.from_json(manifest["features"])
        return ImpressionLog(self.path, manifest, spec, features, {day.name: day for day in days})

    def _finished(self, named: Container[str]) -> list[Path]:
        """The directories of days that say they are finished."""
        found = self._listed()
        successful = [path for path in found if (path / SUCCESS).exists()]
        return [path for path in found if path in successful or path.name in named] if successful else found

    def _listed(self) -> list[Path]:
        """All days with a manifest. A list made while two days come may have the second alone, so it is made twice."""
        before, found = None, self._list()
        while found != before:
            before, found = found, self._list()
        return found

    def _list(self) -> list[Path]:
        return sorted(path.parent for path in self.path.glob(f"days/[!.]*/{MANIFEST}"))

    def _open(self, path: Path, listed: str | None) -> Day:
        day = open_day(path, path.name)
        if missing := [key for key, kind in _NEEDED.items() if type(day.manifest.get(key)) is not kind]:
            raise ValueError(f"{path / MANIFEST} does not say {', '.join(missing)}")
        if listed is not None and listed != day.manifest["sha256"]:
            raise ValueError(f"{path} has another checksum than {self.path / MANIFEST} says")
        if not len(day):
            raise ValueError(f"{path} has no impressions")
        return day

    def _check_content(self, day: Day, spec: Spec) -> None:
        """Refuse what has its checksum, maybe, but is no day of this log."""
        state = _state(day.path)
        if self._content.get(day.name) == state:
            return
        table, file = day.table(), day.path / "impressions.arrow"
        check_schema(table.schema, spec, str(file))
        if len(table) != len(day):
            raise ValueError(f"{file} has {len(table):,} impressions, its manifest says {len(day):,}")
        if not pc.any(pc.greater(pc.list_value_length(table["item"]), 0)).as_py():
            raise ValueError(f"{file} has no items")
        self._content[day.name] = state

    def _check_whole(self, day: Day) -> None:
        """Refuse what does not have its checksum; nothing is read twice as it is."""
        state, file = _state(day.path), day.path / "impressions.arrow"
        if self._whole.get(day.name) == state:
            return
        if self._damaged.get(day.name) == state or checksum(file) != day.manifest["sha256"]:
            self._damaged[day.name] = state
            raise ValueError(f"{file} does not have the checksum of its manifest")
        self._whole[day.name] = state

    def _refuse(self, path: Path, why: str) -> None:
        self.refused[path.name] = why
        said = (_state(path), why)
        if self._said.get(path.name) != said:
            self._said[path.name] = said
            self.on_notice(why)


def check_schema(schema: pa.Schema, spec: Spec, where: str) -> None:
    """Refuse impressions that have other columns than those of their log."""
    kind = schema.field("request").type if "request" in schema.names else None
    expected = impression_schema(spec, request=kind if kind == pa.string() else pa.int64())
    if schema.equals(expected):
        return
    missing = [name for name in expected.names if name not in schema.names]
    unknown = [name for name in schema.names if name not in expected.names]
    both = [name for name in expected.names if name in schema.names]
    other = [name for name in both if not schema.field(name).equals(expected.field(name))]
    parts = (("missing are", missing), ("unknown", unknown), ("of another type", other))
    said = "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names)
    raise ValueError(f"{where} does not have the columns of its log: {said or 'their order is another'}")


def _state(path: Path) -> object:
    """What changes when a day is written again."""
    found = []
    for name in (MANIFEST, "impressions.arrow"):
        try:
            about = (path / name).stat()
        except OSError:
            continue
        found.append((name, about.st_ino, about.st_size, about.st_mtime_ns))
    return found
