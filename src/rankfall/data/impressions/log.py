"""Impression logs: full-stage logs ready for training, in columns that are mapped into memory.

A directory holds one part a day, every part one row an impression::

    DIR/manifest.json                       spec, stages, features, how it was made
    DIR/items.arrow                         every item of the log with its features
    DIR/vocabularies/TABLE.arrow            the values that got ids: the first has id 2
    DIR/days/2024-01-13/impressions.arrow   Arrow IPC, uncompressed, in blocks of 4,096 impressions
    DIR/days/2024-01-13/manifest.json       counts and checksum of the day; a day with a manifest is whole

The columns of an impression:

=========================  ===========================  =======================================================
``request``                int64 or string              the id of the request
``time``                   timestamp[ms, UTC]           when it was made
``user.F``, ``context.F``  int32, float32 or a vector   features by name: ids of embedding rows, or numbers
``sequence.S.F``           list of int32                feature F of the events of sequence S, oldest first
``item``                   list of int32                the candidates, in no order that tells anything
``item.F``                 list                         their features
``depth``                  list of int8                 the number of the deepest stage reached, -1: a random negative
``rank``                   list of int32                logged rank in that stage, smaller is better, -1: none
``relevance``              list of float32              above 0: relevant
``grade``                  list of int32                full-stage grade: deeper is better, then better ranked
``feedback.F``             list of float32              what the user did
``left_out``               list of int32                relevant items of the request that the sample left out, sorted
``truth``                  list of float32              true relevance, in simulated logs that were asked for it
=========================  ===========================  =======================================================

All lists of items of one impression have the same length, except ``left_out``, which is usually empty: its items are
no candidates of the impression, but must not be taken for irrelevant ones. Manifests are written last and the directory
gets its name after that: what looks finished is. Days may be added later (:mod:`rankfall.data.impressions.append`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rankfall import _manifest
from rankfall._files import checksum, new_content, sync, write_file
from rankfall._manifest import MANIFEST, has_format
from rankfall._suggest import did_you_mean
from rankfall.data.impressions.spec import Features, Spec, is_dense, validate_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankfall.data.impressions.spec import Dense, FeatureConfig

FORMAT = "rankfall impression log"
VERSION = 1
BLOCK = 4096  # impressions of a record batch

_DAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_IDS = pa.int32()
_NUMBERS = pa.float32()


def impression_schema(spec: Spec, *, request: pa.DataType) -> pa.Schema:
    """The columns of the impressions of a log with this description."""
    columns = [("request", request), ("time", pa.timestamp("ms", "UTC"))]
    for group, name, feature in spec.features:
        if group != "item":
            columns.append((f"{group}.{name}", _type_of(feature)))
    for name, sequence in spec.sequences.items():
        columns += [(f"sequence.{name}.{feature}", _list(_IDS)) for feature in sequence.features]
    columns.append(("item", _list(_IDS)))
    columns += [(f"item.{name}", _list(_type_of(feature))) for name, feature in spec.features.item.items()]
    columns += [("depth", _list(pa.int8())), ("rank", _list(pa.int32())), ("relevance", _list(_NUMBERS))]
    columns.append(("grade", _list(pa.int32())))
    columns += [(f"feedback.{name}", _list(_NUMBERS)) for name in spec.feedback]
    columns.append(("left_out", _list(_IDS)))
    if spec.truth is not None:
        columns.append(("truth", _list(_NUMBERS)))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def item_schema(spec: Spec, *, ids: pa.DataType | None = None) -> pa.Schema:
    """The columns of the table of items. `ids` is the type of their ids in the source, where those were no int32."""
    columns = [("item", _IDS)] + ([("id", ids)] if ids is not None else [])
    columns += [(f"item.{name}", _type_of(feature)) for name, feature in spec.features.item.items()]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def _type_of(feature: FeatureConfig) -> pa.DataType:
    if not is_dense(feature):
        return _IDS
    size = _dense(feature).size
    return _NUMBERS if size == 1 else pa.list_(pa.field("value", _NUMBERS, nullable=False), size)


def _dense(feature: FeatureConfig) -> Dense:
    return feature  # type: ignore[return-value]  # is_dense said so


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


# --- writing ----------------------------------------------------------------------------------------------------


class LogWriter:
    """Writes an impression log into a directory, day by day, a bounded number of impressions in memory.

    The bytes depend on the impressions alone, not on the portions in which they come.
    """

    def __init__(self, directory: Path, spec: Spec, features: Features, schema: pa.Schema) -> None:
        self.directory = directory
        self.spec = spec
        self.features = features
        self.schema = schema
        self._days: dict[str, dict[str, Any]] = {}
        self._open: _DayWriter | None = None

    def write(self, day: str, impressions: pa.Table) -> None:
        """Add impressions to a day. A day's impressions come one portion after the other, before the next day's."""
        if self._open is None or self._open.day != day:
            self._close_day()
            if day in self._days:
                raise ValueError(f"day: {day} is finished, impressions of a day must come together")
            if not _DAY_NAME.fullmatch(day):
                raise ValueError(f"day: found {day!r}, expected a name of letters, digits, '_' and '-'")
            self._open = _DayWriter(self.directory / "days" / day, day, self.schema)
        self._open.write(impressions)

    def finish(self, items: pa.Table, vocabularies: Mapping[str, pa.Array], about: Mapping[str, Any]) -> None:
        """Close the last day, write everything that belongs to the whole log, and its manifest last.

        `about` says how the log was made; the manifest keeps it.
        """
        days = self.close()
        if not days:
            raise ValueError("no impression was left to write")
        checksums = {}
        for name, values in vocabularies.items():
            path = self.directory / "vocabularies" / f"{name}.arrow"
            path.parent.mkdir(exist_ok=True)
            _write_table(path, pa.table({"value": values}))
            checksums[name] = checksum(path)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "rankfall": installed_version("rankfall"),
            "days": {name: day["sha256"] for name, day in days.items()},
            "impressions": sum(day["impressions"] for day in days.values()),
            "items": write_items(self.directory, items),
            "vocabularies": checksums,
            "stages": self.spec.stage_names,
            "features": self.features.to_json(),
            "spec": self.spec.model_dump(mode="json", exclude_none=True),
            "about": dict(about),
        }
        write_file(self.directory / MANIFEST, json.dumps(manifest, indent=1) + "\n")

    def close(self) -> dict[str, dict[str, Any]]:
        """Close the last day; what each of them holds."""
        self._close_day()
        return self._days

    def _close_day(self) -> None:
        if self._open is not None:
            self._days[self._open.day] = self._open.close()
            self._open = None


class _DayWriter:
    """One day's impressions, in blocks of one size."""

    def __init__(self, directory: Path, day: str, schema: pa.Schema) -> None:
        directory.mkdir(parents=True)
        self.day = day
        self._directory = directory
        self._schema = schema
        self._path = directory / "impressions.arrow"
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._waiting: list[pa.Table] = []
        self._count = 0
        self._impressions = self._items = 0
        self._times: list[int] = []

    def write(self, impressions: pa.Table) -> None:
        self._waiting.append(impressions.cast(self._schema))
        self._count += len(impressions)
        if self._count >= BLOCK:
            table = pa.concat_tables(self._waiting)
            whole = len(table) // BLOCK * BLOCK
            for start in range(0, whole, BLOCK):
                self._write_block(table.slice(start, BLOCK))
            self._waiting = [table.slice(whole)]
            self._count -= whole

    def close(self) -> dict[str, Any]:
        """Write what is left and say what the day holds."""
        if self._count:
            self._write_block(pa.concat_tables(self._waiting))
        self._writer.close()
        self._file.close()
        about = {
            "day": self.day,
            "impressions": self._impressions,
            "items": self._items,
            "first_time": min(self._times, default=None),
            "last_time": max(self._times, default=None),
            "bytes": self._path.stat().st_size,
            "sha256": checksum(self._path),
        }
        sync(self._path)
        write_file(self._directory / MANIFEST, json.dumps(about, indent=1) + "\n")
        return about

    def _write_block(self, table: pa.Table) -> None:
        (block,) = table.combine_chunks().to_batches()
        check_no_nulls(block, f"day {self.day}")
        # offsets of a slice start anywhere; those of a block start at 0, whatever it was cut from
        self._writer.write_batch(_compact(block))
        times = block["time"].cast(pa.int64()).to_numpy()
        self._times += [int(times.min()), int(times.max())]
        self._impressions += len(block)
        self._items += len(block["item"].flatten())


def _compact(block: pa.RecordBatch) -> pa.RecordBatch:
    return block.take(pa.array(range(len(block)), pa.int64()))


def check_no_nulls(block: pa.RecordBatch, where: str) -> None:
    """Impressions have no nulls, not even inside lists, where Arrow's own schemas do not look."""
    for name, values in zip(block.schema.names, block.columns, strict=True):
        if _has_nulls(values):
            raise ValueError(f"{where}: column {name!r} has nulls, which no column may have")


def _has_nulls(values: pa.Array) -> bool:
    nested = pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type)
    return values.null_count > 0 or (nested and _has_nulls(values.flatten()))


def write_items(directory: Path, items: pa.Table) -> dict[str, Any]:
    """Write the table of items, in one step where there is one already; what a manifest says of it."""
    path = directory / "items.arrow"
    with new_content(path) as temporary:
        _write_table(temporary, items.combine_chunks())
    return {"count": len(items), "sha256": checksum(path)}


def _write_table(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


# --- reading ----------------------------------------------------------------------------------------------------


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

    def table(self) -> pa.Table:
        """The impressions, mapped into memory: nothing is read before it is used."""
        return _map_table(self.path / "impressions.arrow")


@dataclass(frozen=True, slots=True)
class ImpressionLog:
    """A prepared log: ``ImpressionLog.load("log").days["2024-01-13"].table()``."""

    path: Path
    manifest: dict[str, Any]
    spec: Spec
    features: Features
    days: dict[str, Day]

    def __repr__(self) -> str:
        """One line: what there is, not what is in it."""
        impressions = sum(len(day) for day in self.days.values())
        return f"ImpressionLog({self.path}: {len(self.days)} days, {impressions:,} impressions)"

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> ImpressionLog:
        """Open a prepared log; with `verify` its files are read and compared with their checksums."""
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
        """Of everything a model may see, wherever the log lies and however it was made."""
        content = {key: self.manifest[key] for key in ("days", "items", "vocabularies", "stages", "features")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def verify(self) -> None:
        """Read every file and compare it with its checksum."""
        files = {day.path / "impressions.arrow": day.manifest["sha256"] for day in self.days.values()}
        files[self.path / "items.arrow"] = self.manifest["items"]["sha256"]
        for name, expected in self.manifest["vocabularies"].items():
            files[self.path / "vocabularies" / f"{name}.arrow"] = expected
        for file, expected in files.items():
            if not file.is_file():
                raise ValueError(f"path: {file} is not there any more")
            if checksum(file) != expected:
                raise ValueError(f"path: {file} has changed since it was written")

    def items(self) -> pa.Table:
        """The table of items, mapped into memory and sorted by `item`."""
        return _map_table(self.path / "items.arrow")

    def vocabulary(self, table: str) -> pa.Array:
        """The values with ids of an embedding table: the first has id 2."""
        return _map_table(self.path / "vocabularies" / f"{table}.arrow")["value"].combine_chunks()

    def choose(self, names: Iterable[str]) -> list[Day]:
        """Days by their names, or by ranges ``FIRST..LAST`` that include both ends, in the order given."""
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
            hint = "" if _DATE.fullmatch(name) else did_you_mean(name, self.days)  # any date looks like any other
            raise ValueError(f"days: {self.path} has no day {name!r}{of}{hint}; it has {_listed(self.days)}")
        return name


def is_log(path: Path) -> bool:
    """Whether a directory holds an impression log of any version."""
    return has_format(path / MANIFEST, FORMAT)


def read_manifest(path: Path) -> dict[str, Any]:
    """What a log says of itself."""
    kind = "an impression log (see 'rankfall prepare' and 'rankfall simulate')"
    keys = ("days", "items", "vocabularies", "features", "spec")
    return _manifest.read_manifest(path, FORMAT, VERSION, kind=kind, remedy="prepare it again", keys=keys)


def open_day(path: Path, name: str) -> Day:
    """A day whose file is as long as its manifest says."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        expected = manifest["bytes"]
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"path: {path} should be a day of the log but has no readable {MANIFEST}") from None
    file = path / "impressions.arrow"
    found = file.stat().st_size if file.is_file() else 0
    if found != expected:
        raise ValueError(f"path: {file} has {found:,} bytes, its manifest says {expected:,}; it was cut off")
    return Day(name, path, manifest)


def _map_table(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise ValueError(f"path: {path} is missing, damaged or cut off ({error})") from None


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} .. {names[-1]} ({len(names)} days)"
