"""Rows that are no plain local files: objects in object storage, which are downloaded, and Delta tables."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rankfall._files import scratch_directory
from rankfall.data.sources.object_storage import download, is_url, list_objects, parse_url
from rankfall.data.sources.rows.delta_table import LOG, delta_files
from rankfall.data.sources.rows.row_files import SUFFIXES, RowFile, is_visible, known_suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rankfall._engine import Report
    from rankfall.data.sources.object_storage import Location, StoredObject
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.raw_log import Tables
    from rankfall.data.sources.rows.row_files import Defaults

    Source = Path | str | RowFile  # text is a URL
    GivenTables = Mapping[Origin, Path | str | list[RowFile] | None]
    OnStep = Callable[[str, int | None], Report]

_STEP = "downloading (bytes)"
_VERSION = "version"  # an option of URLs of Delta tables


@contextmanager
def local_rows(
    sources: Sequence[Source],
    tables: GivenTables,
    on_step: OnStep,
    inside: Path | None = None,
) -> Iterator[tuple[list[Path | RowFile], Tables]]:
    """Yield sources and tables as local files and directories; copies of objects are deleted at the end.

    Files have their URL as label, which messages and the provenance show.

    Args:
        sources: Files, directories and URLs of rows.
        tables: Files, directories and URLs of the tables that are joined.
        on_step: Returns the function that receives the progress of a step, from its name and its total.
        inside: The directory of the temporary directory; by default that of the system.

    Raises:
        ValueError: If a URL is wrong, or its objects or a Delta table cannot be read.
    """
    given = [*sources, *tables.values()]
    if not any(is_url(one) and not str(one).startswith("file:") for one in given):
        yield _resolved(sources, tables, None)
        return
    with scratch_directory("rankfall-objects", inside) as directory:
        copies = _Copies(directory, on_step)
        found = _resolved(sources, tables, copies)
        copies.download()
        yield found


def _resolved(
    sources: Sequence[Source], tables: GivenTables, copies: _Copies | None
) -> tuple[list[Path | RowFile], Tables]:
    files: list[Path | RowFile] = []
    for source in sources:
        found = [source] if isinstance(source, RowFile) else _local_files(source, copies)
        files += [found] if isinstance(found, Path) else found
    return files, {
        origin: table if table is None or isinstance(table, list) else _local_files(table, copies)
        for origin, table in tables.items()
    }


def _local_files(source: Path | str, copies: _Copies | None) -> Path | list[RowFile]:
    """Return the local files of a URL or of a Delta table; another path is returned as it is."""
    if isinstance(source, Path) or not is_url(source):
        return _from_disk(Path(source), None)
    location = parse_url(source, [_VERSION])
    version = _version(location)
    if location.scheme == "file":
        return _from_disk(Path(location.path), version)
    assert copies is not None
    return _from_storage(location, version, copies)


def _version(location: Location) -> int | None:
    text = location.options.get(_VERSION)
    if text is not None and not (text.isdecimal() and text.isascii() and len(text) < 19):
        raise ValueError(f"{location}: found version={text}, expected a whole number")
    return None if text is None else int(text)


def _from_disk(path: Path, version: int | None) -> Path | list[RowFile]:
    if (path / LOG).is_dir():
        return [RowFile(path / file.path, defaults=file.defaults) for file in delta_files(path, str(path), version)]
    _check_no_delta(str(path), version, [file.relative_to(path).as_posix() for file in path.rglob(LOG)])
    return path


def _from_storage(location: Location, version: int | None, copies: _Copies) -> list[RowFile]:
    objects = {_name(one, location): one for one in list_objects(location)}
    log = {name: one for name, one in objects.items() if name.rpartition("/")[0] == LOG}
    if log:
        table = copies.copy_log(log)
        found = delta_files(table, str(location), version)
        for file in found:
            if file.path not in objects:
                raise ValueError(f"{location}/{file.path}: there is no such object, but the Delta table has it")
        return [copies.add(objects[file.path], ".parquet", file.defaults) for file in found]
    _check_no_delta(str(location), version, [name for name in objects if LOG in name.split("/")])
    if [*objects] == [""]:
        return [copies.add(objects[""], known_suffix(str(location), str(location)))]
    known = [name for name in objects if is_visible(PurePosixPath(name))]
    if not known:
        raise ValueError(f"{location}: found no object that ends in {', '.join(SUFFIXES)}")
    return [copies.add(objects[name], known_suffix(name, f"{location}/{name}")) for name in known]


def _name(one: StoredObject, location: Location) -> str:
    """Return the key of an object below a location, "" for the object at the location itself."""
    return one.location.path[len(location.path) + 1 :]


def _check_no_delta(name: str, version: int | None, logs: Sequence[str]) -> None:
    """Check that a source which is no Delta table has none inside, whose removed files would be read, too."""
    if version is not None:
        raise ValueError(f"{name}: found version={version}, but no Delta table there")
    if logs:
        inner = logs[0].partition(f"/{LOG}")[0]
        raise ValueError(f"{name}: found a Delta table in {inner}, expected the path of the table itself")


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
