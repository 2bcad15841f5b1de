"""Rows from a function of the user instead of files: ``source: {name: "./my_source.py:read", day: 3}`` in a spec.

The function is called once. The tables that it yields are written to Arrow files in a temporary directory, a table at
a time, and are then read as any other files, as often as necessary and by any process.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import pyarrow as pa
from pydantic import ValidationError

from rankfall import registry
from rankfall._disk import open_new
from rankfall._files import scratch_directory
from rankfall._yaml_config import ConfigError, explain, shown
from rankfall.data.sources.rows.row_files import RowFile
from rankfall.registry.option_values import check_value
from rankfall.registry.references import absolute, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from rankfall._engine import Report
    from rankfall.data.impressions.spec import Spec

_EXPECTED = "pyarrow tables or polars frames of rows"


@dataclass(frozen=True)
class SourceRows:
    """The rows of a source in files, and where they come from."""

    name: str
    files: list[RowFile]
    options: dict[str, Any]
    code: dict[str, str]  # the file of the function and its checksum

    def about(self, rows: int) -> dict[str, Any]:
        """Return the entry of the manifest, with the number of rows that were used."""
        size = sum(file.path.stat().st_size for file in self.files)
        return {"path": self.name, **self.code, "options": self.options, "bytes": size, "rows": rows}


@contextmanager
def rows_of_source(spec: Spec, on_rows: Report, inside: Path | None = None) -> Iterator[SourceRows | None]:
    """Yield the rows of the source that a description names, in temporary files, or None if it names none.

    Args:
        spec: The description.
        on_rows: Receives the number of rows of each table.
        inside: The directory of the temporary directory; by default that of the system.
    """
    if spec.source is None:
        yield None
        return
    with scratch_directory("rankfall-source", inside) as directory:
        yield read_source(spec.source, directory, on_rows)


def with_absolute_source(spec: Spec) -> Spec:
    """Return a description whose source, if it is a file, has its absolute path."""
    if spec.source is None:
        return spec
    return spec.model_copy(update={"source": {**spec.source, "name": absolute(spec.source["name"])}})


def read_source(source: Mapping[str, Any], directory: Path, on_rows: Report) -> SourceRows:
    """Call a function that yields tables, and write their rows to files.

    Args:
        source: The name of the function, and its options.
        directory: An existing directory for the files.
        on_rows: Receives the number of rows of each table.

    Raises:
        ConfigError: If there is no such function, or it has no such options.
        ValueError: If it fails, or yields something else than tables.
    """
    name, options = source["name"], {key: value for key, value in source.items() if key != "name"}
    function = _checked(name, options)
    with _TableWriter(directory) as writer:
        for table in _tables(name, function, options):
            writer.write(table)
            on_rows(table.num_rows)
    if not writer.files:
        raise ValueError(f"source: {name} yields no table")
    labels = [name] if len(writer.files) == 1 else [f"{name} (part {n})" for n in range(1, 1 + len(writer.files))]
    files = [RowFile(path, label=label) for path, label in zip(writer.files, labels, strict=True)]
    code = source_of("source", name)
    return SourceRows(name, files, options, {} if code is None else {"file": code.file, "sha256": code.sha256})


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
                check_value(known[option], value)
            except ValidationError as error:
                raise ConfigError(explain(error, f"source.{option}")) from None
    return function


def _tables(name: str, function: Callable[..., object], options: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yield what the function yields, as Arrow tables."""
    number = 0
    try:
        result = function(**options)
        for number, table in enumerate(_iterated(name, result), start=1):
            yield _as_table(name, table, number)
    except _WrongTableError:
        raise
    except Exception as error:  # the code of a user may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"source: {name} fails after {number:,} tables: {type(error).__name__}: {error} "
            f"({place.filename}, line {place.lineno}); nothing was written"
        ) from error


class _WrongTableError(ValueError):
    """Something else than tables."""


def _iterated(name: str, result: object) -> Iterable[object]:
    if isinstance(result, pa.Table | pa.RecordBatch | pl.DataFrame):  # a frame could be iterated, column by column
        return [result]
    if isinstance(result, str | bytes | dict) or not hasattr(result, "__iter__"):
        raise _WrongTableError(f"source: {name} returns {shown(result)}, expected an iterable of {_EXPECTED}")
    return result


def _as_table(name: str, table: object, number: int) -> pa.Table:
    if isinstance(table, pl.DataFrame):
        return table.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        return table
    kind = type(table).__name__
    raise _WrongTableError(f"source: {name} yields {kind} as table {number:,}, expected {_EXPECTED}")


class _TableWriter:
    """Writes tables to Arrow files, a new one whenever the columns or their types change."""

    def __init__(self, directory: Path) -> None:
        self.files: list[Path] = []
        self._directory = directory
        self._schema: pa.Schema | None = None
        self._open: Any = None
        self._stack = ExitStack()

    def write(self, table: pa.Table) -> None:
        if self._schema is None or not table.schema.equals(self._schema):
            self._stack.close()
            self.files.append(self._directory / f"source-{len(self.files)}.arrow")
            self._schema = table.schema
            file = self._stack.enter_context(open_new(self.files[-1]))
            self._open = self._stack.enter_context(pa.ipc.new_file(file, table.schema))
        self._open.write_table(table, max_chunksize=2**17)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
