"""Open and read impression logs; :mod:`rankfall.data.impressions.items` documents their files and columns.

Days may be appended to a log later (:mod:`rankfall.data.impressions.log`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from errno import EINVAL, ENOENT
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rankfall._errors import RankfallError, checked, did_you_mean
from rankfall.data.impressions.items import (
    DAY_SEAL,
    FORMAT,
    IMPRESSIONS,
    ITEMS,
    VERSION,
    VERSIONS,
    VOCABULARIES,
    are_versions,
    check_schema,
    items_on,
)
from rankfall.data.impressions.log_writer import LogWriter, write_items, write_vocabularies
from rankfall.data.impressions.spec import Features, Spec, validate_spec
from rankfall.encoding import FIRST_KNOWN
from rankfall.storage import manifests
from rankfall.storage.disk import exchange, rename, sync
from rankfall.storage.files import checksum, locked, open_regular, read_json_file, scratch_directory
from rankfall.storage.manifests import MANIFEST, SEAL, once, verifies, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from rankfall.data.impressions.encoding import Encoding


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
            manifests.check_file(self.file, self.manifest["sha256"], remedy=REMEDY)
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
        self._check_items(manifests.compare_file)
        if "sha256" in self.manifest["items"].get("versions", {}):
            self._check_versions(manifests.compare_file)
        for table in self.manifest[VOCABULARIES]:
            self._check_vocabulary(table, manifests.compare_file)
        for day in self.days.values():
            manifests.compare_file(day.file, day.manifest["sha256"], remedy=REMEDY)

    def items(self) -> pa.Table:
        """Map the item table into memory; it is sorted by `item` and has the newest features of each item."""
        if self.verifies:
            self._check_items(manifests.check_file)
        return map_table(self.path / ITEMS)

    def item_versions(self) -> pa.Table | None:
        """Map the earlier versions of items into memory; None if the features of no item changed.

        Read it after :meth:`items`: if the log grows, newer versions fit an older item table, but not the reverse.
        """
        entry = read_manifest(self.path)["items"].get("versions")
        if entry is None or ("sha256" not in entry and not (self.path / VERSIONS).is_file()):  # announced only
            return None
        if self.verifies:
            self._check_versions(manifests.check_file)
        versions = map_table(self.path / VERSIONS)
        if not are_versions(versions):
            raise RankfallError(
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
        stored = self.manifest[VOCABULARIES]
        if table not in stored:
            raise RankfallError(f"table: found {table!r}, expected one of {', '.join(sorted(stored)) or 'none'}")
        if self.verifies:
            self._check_vocabulary(table, manifests.check_file)
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
                raise RankfallError(f"days: {name!r} is chosen twice")
        return [self.days[name] for name in chosen]

    def _between(self, first: str, last: str, where: str) -> list[str]:
        order = list(self.days)
        start = order.index(self._known(first, where)) if first else 0
        stop = order.index(self._known(last, where)) if last else len(order) - 1
        if start > stop:
            raise RankfallError(f"days: {where!r} ends before it begins")
        return order[start : stop + 1]

    def _known(self, name: str, where: str) -> str:
        if name not in self.days:
            of = f" (in {where!r})" if where != name else ""
            hint = "" if _DATE.fullmatch(name) else did_you_mean(name, self.days)  # all dates are similar
            raise RankfallError(f"days: {self.path} has no day {name!r}{of}{hint}; it has {_listed(self.days)}")
        return name


def is_log(path: Path) -> bool:
    """Return whether a directory is an impression log of any version."""
    return manifests.has_format(path / MANIFEST, FORMAT)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of a log."""
    kind = "an impression log (see 'rankfall prepare' and 'rankfall simulate')"
    keys = ("days", "items", "vocabularies", "features", "spec")
    manifest = manifests.read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again", keys=keys)
    manifests.check_seal(path / MANIFEST, manifest, remedy="prepare the log again")
    manifests.check_mappings(path / MANIFEST, manifest, "days", "items", "vocabularies", "spec")
    manifests.check_names(path, "a day or a table", [*manifest["days"], *manifest["vocabularies"]])
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
        raise RankfallError(f"path: {path} should be a day of the log but has no readable {MANIFEST}") from None
    if DAY_SEAL in manifest or sealed:
        manifests.check_seal(path / MANIFEST, manifest, remedy=REMEDY, key=DAY_SEAL)
    manifests.check_counts(path / MANIFEST, manifest, "impressions", "bytes")
    file = path / IMPRESSIONS
    found = file.stat().st_size if file.is_file() else 0
    if found != expected:
        raise RankfallError(
            f"path: {file} has {found:,} bytes, its manifest states {expected:,}; the file is truncated"
        )
    return Day(name, path, manifest, verify)


def check_listed(path: Path, day: Day, manifest: Mapping[str, Any]) -> None:
    """Raise ValueError if the manifest of a log lists another checksum of a day than the day itself has."""
    listed = (manifest["days"].get(day.name), manifest.get(REOPENED, {}).get(day.name))
    if day.manifest["sha256"] not in listed:
        raise RankfallError(f"path: {day.path} has another checksum than {path / MANIFEST} lists; {REMEDY}")


def _described(path: Path, manifest: dict[str, Any]) -> tuple[Spec, Features]:
    """Return the spec and the features of a log from its manifest."""
    spec = validate_spec(manifest["spec"], where=str(path / MANIFEST))
    try:
        features = Features.from_json(manifest["features"])
    except (LookupError, TypeError, AttributeError) as error:
        raise RankfallError(f"path: {path / MANIFEST} is damaged in 'features' ({error!r}); {REMEDY}") from None
    content = features.to_json()
    for feature in content["features"]:
        manifests.check_counts(path / MANIFEST, feature, "rows", "size", inside="features.")
    for sequence in content["sequences"]:
        manifests.check_counts(path / MANIFEST, sequence, "max_length", inside="sequences.")
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
        raise RankfallError(f"path: {path} is missing, damaged or truncated ({error}); {REMEDY}") from None
    once(("structure",), path, partial(_check_structure, path, table))
    return table


def _check_structure(path: Path, table: pa.Table) -> None:
    for name, column in zip(table.column_names, table.columns, strict=True):
        for number, block in enumerate(column.chunks):
            try:
                block.validate(full=True)
            except pa.ArrowInvalid as error:
                raise RankfallError(f"path: {path} is damaged in block {number}, column {name!r}: {error}") from None


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} .. {names[-1]} ({len(names)} days)"


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
            raise RankfallError(f"{path / MANIFEST} has no valid {', '.join(missing)}")
        if path.name in manifest["days"]:
            check_listed(self.path, day, manifest)
            if GROWING in manifest and day.manifest["sha256"] != manifest["days"][path.name]:
                raise RankfallError(f"{path} was replaced, but the vocabularies of the log are not complete")
        if not len(day):
            raise RankfallError(f"{path} has no impressions")
        return day

    def _check(self, day: Day, spec: Spec) -> None:
        """Check the checksum and the content of a day; its file is read again only after it changed."""
        state = _state(day.path)
        if self._accepted.get(day.name) == state:
            return
        before, reason = self._failed.get(day.name, (None, ""))
        if before == state:
            raise RankfallError(reason)
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
        raise RankfallError(f"{day.file} has {len(table):,} impressions, its manifest states {len(day):,}")
    if not pc.any(pc.greater(pc.list_value_length(table["item"]), 0)).as_py():
        raise RankfallError(f"{day.file} has no items")


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
            raise RankfallError(f"day: {self.log.path} already has {day}")
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
            raise RankfallError("there are no impressions to write")
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
            raise RankfallError(f"{path} exists with other content, and the manifest of {path.parent.parent} lacks it")
    for file in (*written.iterdir(), written):
        sync(file)
    if not (path.exists() and exchange(written, path)):
        if path.exists():
            rename(path, written.with_name(f".{path.name}"))
        rename(written, path)
    sync(path.parent)
