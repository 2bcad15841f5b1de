"""Open and read impression logs; :mod:`rankfall.data.impressions.schema` documents their files and columns.

Days may be appended to a log later (:mod:`rankfall.data.impressions.append`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall import _manifest
from rankfall._files import checksum
from rankfall._manifest import MANIFEST, has_format
from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.schema import FORMAT, IMPRESSIONS, VERSION
from rankfall.data.impressions.spec import Features, Spec, validate_spec

if TYPE_CHECKING:
    from collections.abc import Iterable

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Day:
    """The impressions of one day."""

    name: str
    path: Path
    manifest: dict[str, Any]

    def __len__(self) -> int:
        """The number of impressions."""
        count: int = self.manifest["impressions"]
        return count

    @property
    def file(self) -> Path:
        """The Arrow file of the day's impressions."""
        return self.path / IMPRESSIONS

    def table(self) -> pa.Table:
        """Map the impressions into memory; nothing is read before it is used."""
        return _map_table(self.file)


@dataclass(frozen=True, slots=True)
class ImpressionLog:
    """A prepared impression log: ``ImpressionLog.load("log").days["2024-01-13"].table()``."""

    path: Path
    manifest: dict[str, Any]
    spec: Spec
    features: Features
    days: dict[str, Day]

    def __repr__(self) -> str:
        """Path and size, in one line."""
        impressions = sum(len(day) for day in self.days.values())
        return f"ImpressionLog({self.path}: {len(self.days)} days, {impressions:,} impressions)"

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> ImpressionLog:
        """Open a prepared log.

        Args:
            path: The directory of the log.
            verify: Read all files and compare them with their checksums.

        Raises:
            ValueError: If the directory is not an impression log, or if one of its files is damaged.
        """
        path = Path(path)
        manifest = read_manifest(path)
        days = {name: open_day(path / "days" / name, name) for name in manifest["days"]}
        spec = validate_spec(manifest["spec"], where=str(path / MANIFEST))
        log = cls(path, manifest, spec, Features.from_json(manifest["features"]), days)
        if verify:
            log.verify()
        return log

    @property
    def checksum(self) -> str:
        """Checksum of everything a model may read; it does not depend on the path or the provenance of the log."""
        content = {key: self.manifest[key] for key in ("days", "items", "vocabularies", "stages", "features")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def verify(self) -> None:
        """Read every file and compare it with its checksum.

        Raises:
            ValueError: If a file is missing or has changed.
        """
        files = {day.file: day.manifest["sha256"] for day in self.days.values()}
        files[self.path / "items.arrow"] = self.manifest["items"]["sha256"]
        for name, expected in self.manifest["vocabularies"].items():
            files[self.path / "vocabularies" / f"{name}.arrow"] = expected
        for file, expected in files.items():
            if not file.is_file():
                raise ValueError(f"path: {file} no longer exists")
            if checksum(file) != expected:
                raise ValueError(f"path: {file} has changed since it was written")

    def items(self) -> pa.Table:
        """Map the item table into memory; it is sorted by `item`."""
        return _map_table(self.path / "items.arrow")

    def vocabulary(self, table: str) -> pa.Array:
        """Return the vocabulary of an embedding table; its first value has id 2."""
        return _map_table(self.path / "vocabularies" / f"{table}.arrow")["value"].combine_chunks()

    def choose(self, names: Iterable[str]) -> list[Day]:
        """Return days in the given order.

        Args:
            names: Names of days, and ranges ``FIRST..LAST`` that include both ends.

        Raises:
            ValueError: If a day does not exist or is chosen twice.
        """
        chosen: list[str] = []
        for name in names:
            first, dots, last = name.partition("..")
            chosen += self._between(first, last, name) if dots else [self._known(name, name)]
        for name in chosen:
            if chosen.count(name) > 1:
                raise ValueError(f"days: {name!r} is chosen twice")
        return [self.days[name] for name in chosen]

    def _between(self, first: str, last: str, where: str) -> list[str]:
        order = list(self.days)
        start = order.index(self._known(first, where)) if first else 0
        stop = order.index(self._known(last, where)) if last else len(order) - 1
        if start > stop:
            raise ValueError(f"days: {where!r} ends before it begins")
        return order[start : stop + 1]

    def _known(self, name: str, where: str) -> str:
        if name not in self.days:
            of = f" (in {where!r})" if where != name else ""
            hint = "" if _DATE.fullmatch(name) else did_you_mean(name, self.days)  # all dates are similar
            raise ValueError(f"days: {self.path} has no day {name!r}{of}{hint}; it has {_listed(self.days)}")
        return name


def is_log(path: Path) -> bool:
    """Return whether a directory is an impression log of any version."""
    return has_format(path / MANIFEST, FORMAT)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of a log."""
    kind = "an impression log (see 'rankfall prepare' and 'rankfall simulate')"
    keys = ("days", "items", "vocabularies", "features", "spec")
    return _manifest.read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again", keys=keys)


def open_day(path: Path, name: str) -> Day:
    """Open a day and check that its file has the size that its manifest states.

    Raises:
        ValueError: If the manifest is not readable or the file is truncated.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        expected = manifest["bytes"]
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"path: {path} should be a day of the log but has no readable {MANIFEST}") from None
    file = path / IMPRESSIONS
    found = file.stat().st_size if file.is_file() else 0
    if found != expected:
        raise ValueError(f"path: {file} has {found:,} bytes, its manifest states {expected:,}; the file is truncated")
    return Day(name, path, manifest)


def _map_table(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise ValueError(f"path: {path} is missing, damaged or truncated ({error})") from None


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} .. {names[-1]} ({len(names)} days)"
