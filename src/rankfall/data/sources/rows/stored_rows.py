"""Rows that are no plain local files: objects in object storage, which are downloaded, and Delta tables."""

from __future__ import annotations

import traceback
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from pydantic import ValidationError

from rankfall import registry
from rankfall._config import ConfigError, explain, shown
from rankfall._errors import RankfallError
from rankfall.data.sources.object_storage import download, is_url, list_objects, parse_url
from rankfall.data.sources.rows.row_files import (
    LOG,
    SUFFIXES,
    RowFile,
    delta_files,
    find_row_files,
    is_visible,
    known_suffix,
)
from rankfall.registry.references import absolute, source_of
from rankfall.storage.disk import open_new
from rankfall.storage.files import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rankfall._engine import Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.object_storage import Location, StoredObject
    from rankfall.data.sources.rows.raw_log import Origin
    from rankfall.data.sources.rows.row_files import Defaults

    Source = Path | str | RowFile  # text is a URL
    GivenTables = Mapping[Origin, Path | str | list[RowFile] | None]
    OnStep = Callable[[str, int | None], Report]

_STEP = "downloading (bytes)"
_VERSION = "version"  # an option of URLs of Delta tables


@contextmanager
def local_rows(
    sources: Sequence[Source], tables: GivenTables, on_step: OnStep, inside: Path | None = None
) -> Iterator[dict[Origin, list[RowFile]]]:
    """Yield the files of a log and of its tables as local files; copies of objects are deleted at the end.

    Files have their URL as label, which messages and the provenance show.

    Args:
        sources: Files, directories and URLs of rows.
        tables: Files, directories and URLs of the tables that are joined.
        on_step: Returns the function that receives the progress of a step, from its name and its total.
        inside: The directory of the temporary directory; by default that of the system.

    Raises:
        ValueError: If a URL is wrong, or files, objects or a Delta table cannot be read.
    """
    given: dict[Origin, list[Source]] = {"log": [*sources]}
    for origin, table in tables.items():
        if table is not None:
            given[origin] = [*table] if isinstance(table, list) else [table]
    copies: _Copies | None = None
    with ExitStack() as stack:
        if any(is_url(one) and not str(one).startswith("file:") for some in given.values() for one in some):
            copies = _Copies(stack.enter_context(scratch_directory("rankfall-objects", inside)), on_step)
        found = {origin: [file for one in some for file in _local(one, copies)] for origin, some in given.items()}
        if copies is not None:
            copies.download()
        yield {origin: find_row_files(some) for origin, some in found.items()}


def _local(source: Source, copies: _Copies | None) -> Sequence[Path | RowFile]:
    """Return the local files of a URL or of a Delta table; another source is returned as it is."""
    if isinstance(source, RowFile):
        return [source]
    if isinstance(source, Path) or not is_url(source):
        return _from_disk(Path(source), None)
    location = parse_url(source, [_VERSION])
    text = location.options.get(_VERSION)
    if text is not None and not (text.isdecimal() and text.isascii() and len(text) < 19):
        raise RankfallError(f"{location}: found version={text}, expected a whole number")
    version = None if text is None else int(text)
    if location.scheme == "file":
        return _from_disk(Path(location.path), version)
    assert copies is not None
    return _from_storage(location, version, copies)


def _from_disk(path: Path, version: int | None) -> Sequence[Path | RowFile]:
    if (path / LOG).is_dir():
        return [RowFile(path / file.path, defaults=file.defaults) for file in delta_files(path, str(path), version)]
    _check_no_delta(str(path), version, [file.relative_to(path).as_posix() for file in path.rglob(LOG)])
    return [path]


def _from_storage(location: Location, version: int | None, copies: _Copies) -> list[RowFile]:
    # by the key below the location, "" for an object at the location itself
    objects = {one.location.path[len(location.path) + 1 :]: one for one in list_objects(location)}
    log = {name: one for name, one in objects.items() if name.rpartition("/")[0] == LOG}
    if log:
        table = copies.copy_log(log)
        found = delta_files(table, str(location), version)
        for file in found:
            if file.path not in objects:
                raise RankfallError(f"{location}/{file.path}: there is no such object, but the Delta table has it")
        return [copies.add(objects[file.path], ".parquet", file.defaults) for file in found]
    _check_no_delta(str(location), version, [name for name in objects if LOG in name.split("/")])
    if [*objects] == [""]:
        return [copies.add(objects[""], known_suffix(str(location), str(location)))]
    known = [name for name in objects if is_visible(PurePosixPath(name))]
    if not known:
        raise RankfallError(f"{location}: found no object that ends in {', '.join(SUFFIXES)}")
    return [copies.add(objects[name], known_suffix(name, f"{location}/{name}")) for name in known]


def _check_no_delta(name: str, version: int | None, logs: Sequence[str]) -> None:
    """Check that a source which is no Delta table has none inside, whose removed files would be read, too."""
    if version is not None:
        raise RankfallError(f"{name}: found version={version}, but no Delta table there")
    if logs:
        inner = logs[0].partition(f"/{LOG}")[0]
        raise RankfallError(f"{name}: found a Delta table in {inner}, expected the path of the table itself")


class _Copies:
    """Local copies of objects, each object once."""

    def __init__(self, directory: Path, on_step: OnStep) -> None:
        self._directory = directory
        self._on_step = on_step
        self._objects: dict[Path, StoredObject] = {}
        self._paths: dict[str, Path] = {}
        self._logs = 0

    def add(self, one: StoredObject, suffix: str, defaults: Defaults = ()) -> RowFile:
        """Return the file in which the object will be."""
        # keys of objects may be longer than names of files, and may have parts such as ".."
        path = self._paths.setdefault(str(one), self._directory / f"{len(self._paths):06}{suffix}")
        self._objects[path] = one
        return RowFile(path, label=str(one), defaults=defaults)

    def copy_log(self, log: Mapping[str, StoredObject]) -> Path:
        """Download the log of a Delta table at once, and return the directory of the table."""
        table = self._directory / f"table-{self._logs}"
        self._logs += 1
        download({table / name: one for name, one in log.items()}, lambda count: None)
        return table

    def download(self) -> None:
        """Download all objects."""
        total = sum(one.size for one in self._objects.values())
        download(self._objects, self._on_step(_STEP, total))


_EXPECTED = "pyarrow tables or polars frames of rows"


def with_absolute_source(spec: Spec) -> Spec:
    """Return a spec whose source, if it is a file, has its absolute path."""
    if spec.source is None:
        return spec
    return spec.model_copy(update={"source": {**spec.source, "name": absolute(spec.source["name"])}})


@contextmanager
def rows_of_source(
    spec: Spec, on_rows: Report, inside: Path | None = None
) -> Iterator[tuple[list[RowFile], dict[str, Any] | None]]:
    """Yield the rows of the source that a spec names in temporary files, and the entry of the manifest about it.

    Args:
        spec: The spec. If it names no source, there are no files and no entry.
        on_rows: Receives the number of rows of each table.
        inside: The directory of the temporary directory; by default that of the system.

    Raises:
        ConfigError: If there is no such function, or it has no such options.
        ValueError: If it fails, or yields something else than tables.
    """
    if spec.source is None:
        yield [], None
        return
    name, options = spec.source["name"], {key: value for key, value in spec.source.items() if key != "name"}
    function = _checked(name, options)
    paths: list[Path] = []
    schema: pa.Schema | None = None
    with scratch_directory("rankfall-source", inside) as directory:
        with ExitStack() as stack:
            for table in _tables(name, function, options):
                if schema is None or not table.schema.equals(schema):  # a file has columns of one type
                    stack.close()
                    schema = table.schema
                    paths.append(directory / f"source-{len(paths)}.arrow")
                    writer = stack.enter_context(pa.ipc.new_file(stack.enter_context(open_new(paths[-1])), schema))
                writer.write_table(table, max_chunksize=2**17)
                on_rows(table.num_rows)
        if not paths:
            raise RankfallError(f"source: {name} yields no table")
        labels = [name] if len(paths) == 1 else [f"{name} (part {n})" for n in range(1, 1 + len(paths))]
        files = [RowFile(path, label=label) for path, label in zip(paths, labels, strict=True)]
        code = source_of("source", name)
        about = {"path": name, **({} if code is None else {"file": code.file, "sha256": code.sha256})}
        yield files, about | {"options": options, "bytes": sum(path.stat().st_size for path in paths)}


def _checked(name: str, options: Mapping[str, Any]) -> Callable[..., object]:
    """Return the function, after checking its options by its signature."""
    try:
        registry.check_options("source", name, options)
        known = registry.options("source", name)
        function = registry.get("source", name)
    except ValueError as error:
        raise ConfigError(f"source: {error}") from None
    for option, value in options.items():
        if option in known and value is not None:
            try:
                known[option].check(value)
            except ValidationError as error:
                raise ConfigError(explain(error, f"source.{option}")) from None
    return function


def _tables(name: str, function: Callable[..., object], options: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yield what the function yields, as Arrow tables."""
    number = 0
    try:
        result: Any = function(**options)
        if isinstance(result, pa.Table | pa.RecordBatch | pl.DataFrame):  # a frame could be iterated, by columns
            result = [result]
        if isinstance(result, str | bytes | dict) or not hasattr(result, "__iter__"):
            raise _WrongTableError(f"source: {name} returns {shown(result)}, expected an iterable of {_EXPECTED}")
        for number, table in enumerate(result, start=1):
            if isinstance(table, pl.DataFrame):
                yield table.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
            elif isinstance(table, pa.Table | pa.RecordBatch):
                yield table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
            else:
                kind = type(table).__name__
                raise _WrongTableError(f"source: {name} yields {kind} as table {number:,}, expected {_EXPECTED}")
    except _WrongTableError:
        raise
    except Exception as error:  # the code of a user may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise RankfallError(
            f"source: {name} fails after {number:,} tables: {type(error).__name__}: {error} "
            f"({place.filename}, line {place.lineno}); nothing was written"
        ) from error


class _WrongTableError(RankfallError):
    """Something else than tables."""
