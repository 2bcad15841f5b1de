"""Write an impression log day by day; :mod:`rankfall.data.impressions.items` documents the files."""

from __future__ import annotations

import re
import weakref
from importlib.metadata import version as installed_version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall._errors import RankfallError
from rankfall.data.impressions.items import (
    BLOCK,
    DAY_SEAL,
    FORMAT,
    IMPRESSIONS,
    ITEMS,
    VERSION,
    VERSIONS,
    VOCABULARIES,
    check_no_nulls,
)
from rankfall.storage.disk import make_directory, open_new, sync
from rankfall.storage.files import checksum, new_content
from rankfall.storage.manifests import MANIFEST, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rankfall.data.impressions.spec import Features, Spec

DAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class LogWriter:
    """Writes an impression log into a directory, day by day, with a bounded number of impressions in memory.

    The bytes written depend on the impressions only, not on the portions in which they arrive.

    Args:
        directory: An existing, empty directory.
        spec: The spec of the log.
        features: The features of the impressions, as a model receives them.
        schema: The columns of the impressions.
    """

    def __init__(self, directory: Path, spec: Spec, features: Features, schema: pa.Schema) -> None:
        self.directory = directory
        self.spec = spec
        self.features = features
        self.schema = schema
        self._days: dict[str, dict[str, Any]] = {}
        self._open: _DayWriter | None = None

    def write(self, day: str, impressions: pa.Table) -> None:
        """Append impressions to a day. All impressions of a day are written before those of the next day.

        Raises:
            ValueError: If the day is already finished or has an invalid name.
        """
        if self._open is None or self._open.day != day:
            self._close_day()
            if day in self._days:
                raise RankfallError(f"day: {day} is finished; the impressions of a day must be written together")
            if not DAY_NAME.fullmatch(day):
                raise RankfallError(f"day: found {day!r}, expected a name of letters, digits, '_' and '-'")
            self._open = _DayWriter(self.directory / "days" / day, day, self.schema)
        self._open.write(impressions)

    def finish(
        self,
        items: pa.Table,
        vocabularies: Mapping[str, pa.Array],
        about: Mapping[str, Any],
        extra: Mapping[str, Any] = MappingProxyType({}),
        versions: pa.Table | None = None,
    ) -> None:
        """Close the last day and write the files of the whole log, its manifest last.

        Args:
            items: The item table.
            vocabularies: The values of each embedding table with a vocabulary, in the order of their ids.
            about: The provenance of the log, which is stored in the manifest.
            extra: Further entries of the manifest.
            versions: The versions of items that changed.

        Raises:
            ValueError: If no impression was written.
        """
        days = self.close()
        if not days:
            raise RankfallError("there are no impressions to write")
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "rankfall": installed_version("rankfall"),
            "days": {name: day["sha256"] for name, day in days.items()},
            "impressions": sum(day["impressions"] for day in days.values()),
            "items": write_items(self.directory, items, versions),
            VOCABULARIES: write_vocabularies(self.directory, vocabularies),
            "stages": self.spec.stage_names,
            "features": self.features.to_json(),
            "spec": self.spec.model_dump(mode="json", exclude_none=True),
            "about": dict(about),
            **extra,
        }
        write_manifest(self.directory / MANIFEST, manifest)

    def close(self) -> dict[str, dict[str, Any]]:
        """Close the last day and return the manifest of every day."""
        self._close_day()
        return self._days

    def _close_day(self) -> None:
        if self._open is not None:
            self._days[self._open.day] = self._open.close()
            self._open = None


class _DayWriter:
    """Writes the impressions of one day in blocks of equal size."""

    def __init__(self, directory: Path, day: str, schema: pa.Schema) -> None:
        make_directory(directory, exist_ok=False)
        self.day = day
        self._directory = directory
        self._schema = schema
        self._path = directory / IMPRESSIONS
        self._file = open_new(self._path)
        weakref.finalize(self, self._file.close)  # after an error the day is not closed otherwise
        self._writer = pa.ipc.new_file(self._file, schema)
        self._pending: list[pa.Table] = []
        self._count = 0
        self._impressions = self._items = 0
        self._times: list[int] = []

    def write(self, impressions: pa.Table) -> None:
        self._pending.append(impressions.cast(self._schema))
        self._count += len(impressions)
        if self._count >= BLOCK:
            table = pa.concat_tables(self._pending)
            whole = len(table) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._write_block(table.slice(start, BLOCK))
            self._pending = [table.slice(whole)]
            self._count -= whole

    def close(self) -> dict[str, Any]:
        """Write the remaining impressions and the manifest of the day, and return the manifest."""
        if self._count:
            self._write_block(pa.concat_tables(self._pending))
        self._writer.close()
        self._file.close()
        manifest = {
            "day": self.day,
            "impressions": self._impressions,
            "items": self._items,
            "first_time": min(self._times, default=None),
            "last_time": max(self._times, default=None),
            "bytes": self._path.stat().st_size,
            "sha256": checksum(self._path),
        }
        sync(self._path)
        write_manifest(self._directory / MANIFEST, manifest, key=DAY_SEAL)
        return manifest

    def _write_block(self, table: pa.Table) -> None:
        (block,) = table.combine_chunks().to_batches()
        check_no_nulls(block, f"day {self.day}")
        # the offsets of a slice start anywhere; those of a written block start at 0, whatever it was cut from
        self._writer.write_batch(_compact(block))
        times = block["time"].cast(pa.int64()).to_numpy()
        self._times += [int(times.min()), int(times.max())]
        self._impressions += len(block)
        self._items += len(block["item"].flatten())


def _compact(block: pa.RecordBatch) -> pa.RecordBatch:
    return block.take(pa.array(range(len(block)), pa.int64()))


def write_items(
    directory: Path,
    items: pa.Table,
    versions: pa.Table | None = None,
    before: Callable[[Mapping[str, Any]], object] = lambda entry: None,
) -> dict[str, Any]:
    """Write the item table and its versions, replacing existing ones atomically; return their entry in the manifest.

    The versions are replaced first: with them, the old table and the new one have the same features on earlier days.

    Args:
        directory: The directory of the log.
        items: The item table.
        versions: The versions of items that changed.
        before: Called with the entry before the tables get their names.
    """
    with new_content(directory / ITEMS) as temporary:
        write_table(temporary, items.combine_chunks())
        entry: dict[str, Any] = {"count": len(items), "sha256": checksum(temporary)}
        if versions is None:
            before(entry)
            return entry
        with new_content(directory / VERSIONS) as other:
            write_table(other, versions.combine_chunks())
            entry["versions"] = {"count": len(versions), "sha256": checksum(other)}
            before(entry)
    return entry


def write_vocabularies(directory: Path, vocabularies: Mapping[str, pa.Array]) -> dict[str, str]:
    """Write vocabularies, and return their entry in the manifest."""
    checksums = {}
    for name, values in vocabularies.items():
        path = directory / VOCABULARIES / f"{name}.arrow"
        make_directory(path.parent)
        write_table(path, pa.table({"value": values}))
        checksums[name] = checksum(path)
    return checksums


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow file that can be mapped into memory."""
    with open_new(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
