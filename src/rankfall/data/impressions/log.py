"""Open and read impression logs; :mod:`rankfall.data.impressions.schema` documents their files and columns.

Days may be appended to a log later (:mod:`rankfall.data.impressions.append`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from errno import EINVAL, ENOENT
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall import _manifest
from rankfall._argument_types import checked
from rankfall._files import open_regular
from rankfall._json_reader import read_json_file
from rankfall._manifest import MANIFEST, check_counts, check_mappings, check_names, has_format
from rankfall._seal import SEAL, check_file, check_seal, compare_file, once, verifies
from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.items import are_versions, items_on
from rankfall.data.impressions.schema import DAY_SEAL, FORMAT, IMPRESSIONS, ITEMS, VERSION, VERSIONS, VOCABULARIES
from rankfall.data.impressions.spec import Features, Spec, validate_spec
from rankfall.encoding import FIRST_KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REOPENED = "reopened"  # key of the checksums of days that are being replaced
GROWTH = "growth"  # key of the numbers of new values of vocabularies, by day and embedding table
GROWING = "growing"  # key of the checksums of vocabularies that are being replaced
NEXT = "next"  # key of the checksum of the item table that is being written, in the entry of the item table
PER_REQUEST = "per_request"  # key of the item features that depend on the request, in the provenance
JOINED = "the joined rows of "  # begins the name of a source, before the day, in the provenance
REMEDY = "prepare the log again, or restore the file from a copy"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Day:
    """The impressions of one day."""

    name: str
    path: Path
    manifest: dict[str, Any]
    verifies: bool = True  # whether the file is compared with its checksum when it is mapped

    def __len__(self) -> int:
        """The number of impressions."""
        count: int = self.manifest["impressions"]
        return count

    @property
    def file(self) -> Path:
        """The Arrow file of the day's impressions."""
        return self.path / IMPRESSIONS

    def table(self) -> pa.Table:
        """Map the impressions into memory, after comparing the file with its checksum if that was not done before.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        if self.verifies:
            check_file(self.file, self.manifest["sha256"], remedy=REMEDY)
        return map_table(self.file)


@dataclass(frozen=True, slots=True)
class ImpressionLog:
    """A prepared impression log: ``ImpressionLog.load("log").days["2024-01-13"].table()``."""

    path: Path
    manifest: dict[str, Any]
    spec: Spec
    features: Features
    days: dict[str, Day]
    verifies: bool = True  # whether files are compared with their checksums when they are mapped
    limits: Mapping[str, int] = field(default_factory=dict)  # rows of embedding tables that are read as smaller ones

    def __repr__(self) -> str:
        """Path and size, in one line."""
        impressions = sum(len(day) for day in self.days.values())
        return f"ImpressionLog({self.path}: {len(self.days)} days, {impressions:,} impressions)"

    @classmethod
    @checked
    def load(cls, path: str | Path, *, verify: bool | None = None) -> ImpressionLog:
        """Open a prepared log.

        Args:
            path: The directory of the log.
            verify: True reads all files at once and compares them with their checksums, False compares none. Default:
                compare each file when it is first mapped.

        Raises:
            ValueError: If the directory is not an impression log, or if one of its files is damaged.
        """
        path = Path(path)
        manifest = read_manifest(path)
        lazily = verifies() if verify is None else verify
        sealed = SEAL in manifest  # otherwise one note about the log is enough
        days = {name: open_day(path / "days" / name, name, verify=lazily, sealed=sealed) for name in manifest["days"]}
        for day in days.values():
            check_listed(path, day, manifest)
        spec, features = _described(path, manifest)
        log = cls(path, manifest, spec, features, days, lazily, limits_of(manifest, features))
        if verify:
            log.verify()
        return log

    @property
    def checksum(self) -> str:
        """Checksum of everything a model may read; it does not depend on the path or the provenance of the log."""
        content = {key: self.manifest[key] for key in ("days", "items", "vocabularies", "stages", "features")}
        content["items"] = _without_next(content["items"])
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def verify(self) -> None:
        """Read every file and compare it with its checksum.

        Raises:
            ValueError: If a file is missing or has changed.
        """
        self._check_items(compare_file)
        if "sha256" in self.manifest["items"].get("versions", {}):
            self._check_versions(compare_file)
        for table in self.manifest[VOCABULARIES]:
            self._check_vocabulary(table, compare_file)
        for day in self.days.values():
            compare_file(day.file, day.manifest["sha256"], remedy=REMEDY)

    def items(self) -> pa.Table:
        """Map the item table into memory; it is sorted by `item` and has the newest features of each item."""
        if self.verifies:
            self._check_items(check_file)
        return map_table(self.path / ITEMS)

    def item_versions(self) -> pa.Table | None:
        """Map the earlier versions of items into memory; None if the features of no item changed.

        Read it after :meth:`items`: if the log grows, newer versions fit an older item table, but not the reverse.
        """
        entry = read_manifest(self.path)["items"].get("versions")
        if entry is None or ("sha256" not in entry and not (self.path / VERSIONS).is_file()):  # announced only
            return None
        if self.verifies:
            self._check_versions(check_file)
        versions = map_table(self.path / VERSIONS)
        if not are_versions(versions):
            raise ValueError(
                f"path: {self.path / VERSIONS} has no names of days or is not sorted by item and day; {REMEDY}"
            )
        return versions

    def items_on(self, day: str) -> pa.Table:
        """Return the item table with the features that requests of a day see: those before the day."""
        table = self.items()
        return items_on(table, self.item_versions(), day)

    @property
    def per_request(self) -> list[str]:
        """The item features that depend on the request, such as ``item.distance``; no other request may use them."""
        about = self.manifest["about"]
        if about.get("item_features") == "per request":
            return [f"item.{feature.name}" for feature in self.features.of("item")]
        return list(about.get(PER_REQUEST, ()))

    @property
    def joined_days(self) -> list[str]:
        """The days that were joined from what a service recorded: users saw only what its cascade had answered."""
        sources = {source.get("path") for source in self.manifest["about"].get("sources", ())}
        return [day for day in self.days if f"{JOINED}{day}" in sources]

    @checked
    def vocabulary(self, table: str) -> pa.Array:
        """Return the vocabulary of an embedding table; its first value has id 2.

        Values that were added after the log was opened are left out.
        """
        if self.verifies and table in self.manifest[VOCABULARIES]:
            self._check_vocabulary(table, check_file)
        values = map_table(self._vocabulary_file(table))["value"].combine_chunks()
        return values.slice(0, self.features.tables.get(table, FIRST_KNOWN + len(values)) - FIRST_KNOWN)

    def _vocabulary_file(self, table: str) -> Path:
        return self.path / VOCABULARIES / f"{table}.arrow"

    def _check_items(self, check: Callable[..., None]) -> None:
        self._check_current(self.path / ITEMS, lambda manifest: _checksums(manifest["items"]), check)

    def _check_versions(self, check: Callable[..., None]) -> None:
        file = self.path / VERSIONS
        self._check_current(file, lambda manifest: _checksums(manifest["items"].get("versions", {})), check)

    def _check_vocabulary(self, table: str, check: Callable[..., None]) -> None:
        def checksums(manifest: Mapping[str, Any]) -> list[str]:
            return [*manifest.get(GROWING, {}).get(table, ()), manifest[VOCABULARIES].get(table, "")]

        self._check_current(self._vocabulary_file(table), checksums, check)

    def _check_current(
        self, file: Path, checksums: Callable[[Mapping[str, Any]], list[str]], check: Callable[..., None]
    ) -> None:
        """Compare a file with its checksums; those of a log which has grown since it was opened are newer."""
        known = checksums(self.manifest)
        try:
            check(file, *known, remedy=REMEDY)
        except ValueError:
            now = checksums(read_manifest(self.path))
            if now == known:
                raise
            check(file, *now, remedy=REMEDY)

    def limited_to(self, rows: Mapping[str, int]) -> ImpressionLog:
        """Return the log as a model with smaller embedding tables reads it: newer values count as never seen.

        Args:
            rows: The number of rows of embedding tables. Only tables of vocabularies are limited, since their values
                have ids in the order in which they were added.
        """
        known = {table: self.features.tables[table] for table in self.manifest[VOCABULARIES]}
        limits = {table: rows[table] for table, count in known.items() if rows.get(table, count) < count}
        if not limits:
            return self
        features = self.features.with_rows(limits)
        return replace(self, features=features, limits={**self.limits, **limits})

    def as_of(self, day: str) -> ImpressionLog:
        """Return the log with the vocabularies that it had after a day; days that it does not list have the newest."""
        order = list(self.manifest["days"])
        if day not in order:
            return self
        rows = Counter(Features.from_json(self.manifest["features"]).tables)
        for grown, tables in self.manifest.get(GROWTH, {}).items():
            if grown in order and order.index(grown) > order.index(day):  # earlier days may have been deleted
                rows.subtract(tables)
        return self.limited_to(rows)

    @checked
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
    manifest = _manifest.read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again", keys=keys)
    check_seal(path / MANIFEST, manifest, remedy="prepare the log again")
    check_mappings(path / MANIFEST, manifest, "days", "items", "vocabularies", "spec")
    check_names(path, "a day or a table", [*manifest["days"], *manifest["vocabularies"]])
    return manifest


def open_day(path: Path, name: str, *, verify: bool = True, sealed: bool = False) -> Day:
    """Open a day and check that its file has the size that its manifest states.

    Args:
        path: The directory of the day.
        name: The name of the day.
        verify: Compare the file with its checksum when it is mapped.
        sealed: Note a manifest without a seal. Other tools write such days.

    Raises:
        ValueError: If the manifest is not readable or has changed, or the file is truncated.
    """
    try:
        manifest = read_json_file(path / MANIFEST)
        expected, _ = manifest["bytes"], manifest["sha256"]
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"path: {path} should be a day of the log but has no readable {MANIFEST}") from None
    if DAY_SEAL in manifest or sealed:
        check_seal(path / MANIFEST, manifest, remedy=REMEDY, key=DAY_SEAL)
    check_counts(path / MANIFEST, manifest, "impressions", "bytes")
    file = path / IMPRESSIONS
    found = file.stat().st_size if file.is_file() else 0
    if found != expected:
        raise ValueError(f"path: {file} has {found:,} bytes, its manifest states {expected:,}; the file is truncated")
    return Day(name, path, manifest, verify)


def check_listed(path: Path, day: Day, manifest: Mapping[str, Any]) -> None:
    """Raise ValueError if the manifest of a log lists another checksum of a day than the day itself has."""
    listed = (manifest["days"].get(day.name), manifest.get(REOPENED, {}).get(day.name))
    if day.manifest["sha256"] not in listed:
        raise ValueError(f"path: {day.path} has another checksum than {path / MANIFEST} lists; {REMEDY}")


def _described(path: Path, manifest: dict[str, Any]) -> tuple[Spec, Features]:
    """Return the description and the features of a log from its manifest."""
    spec = validate_spec(manifest["spec"], where=str(path / MANIFEST))
    try:
        features = Features.from_json(manifest["features"])
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"path: {path / MANIFEST} is damaged in 'features' ({error!r}); {REMEDY}") from None
    content = features.to_json()
    for feature in content["features"]:
        check_counts(path / MANIFEST, feature, "rows", "size", inside="features.")
    for sequence in content["sequences"]:
        check_counts(path / MANIFEST, sequence, "max_length", inside="sequences.")
    return spec, features


def limits_of(manifest: Mapping[str, Any], features: Features) -> dict[str, int]:
    """Return the present sizes of tables that are growing: files may have newer ids than the manifest."""
    return {table: rows for table, rows in features.tables.items() if table in manifest.get(GROWING, {})}


def _without_next(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the item table without what is announced."""
    found = {key: _without_next(value) if key == "versions" else value for key, value in items.items() if key != NEXT}
    return {key: value for key, value in found.items() if value != {}}


def _checksums(items: dict[str, Any]) -> list[str]:
    """Return the checksums of the item table: its own, and while days are appended that of the next one."""
    return [items[key] for key in ("sha256", NEXT) if key in items]


def map_table(path: Path) -> pa.Table:
    """Map a table into memory, and check its structure, since invalid offsets must not be dereferenced.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    try:
        open_regular(path).close()
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) not in (None, ENOENT, EINVAL):  # no statement about the content
            raise
        raise ValueError(f"path: {path} is missing, damaged or truncated ({error}); {REMEDY}") from None
    once(("structure",), path, partial(_check_structure, path, table))
    return table


def _check_structure(path: Path, table: pa.Table) -> None:
    for name, column in zip(table.column_names, table.columns, strict=True):
        for number, block in enumerate(column.chunks):
            try:
                block.validate(full=True)
            except pa.ArrowInvalid as error:
                raise ValueError(f"path: {path} is damaged in block {number}, column {name!r}: {error}") from None


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} .. {names[-1]} ({len(names)} days)"
