"""The files of a raw log (CSV, JSON lines, Parquet, Arrow), read a bounded number of rows at a time."""

from __future__ import annotations

import codecs
import io
import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from rankfall.data.sources.rows.json_lines import JSON_SUFFIXES, json_batches, json_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Defaults = tuple[tuple[str, pl.DataType, Any], ...]  # names, types and values of columns

_CSV_SUFFIXES = (".csv", ".csv.gz")
SUFFIXES = (*_CSV_SUFFIXES, *JSON_SUFFIXES, ".parquet", ".feather", ".arrow", ".ipc")
BATCH_ROWS = 2**18
_BLOCK_BYTES = 2**24  # of text, which is read in whole lines
ROW = "\1row"  # a column that every file has: the index of each row, from 0


class InvalidRow(NamedTuple):
    """A row of a text file that has not as many values as the file has columns, or is not a JSON object."""

    row: int  # its index, from 0
    problem: str
    found: str


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of rows. Columns of text files are strings; their types are decided over all files together.

    Args:
        path: The file.
        skipped: The indices of rows that are not read, in increasing order.
        label: The name of the file in messages; by default its path.
        typed: Whether the columns have the names and types that the log gives them, as in files that it stores itself.
        defaults: Columns that the file may lack, with one value for all its rows.
    """

    path: Path
    skipped: tuple[int, ...] = field(default=(), kw_only=True, repr=False)
    label: str | None = field(default=None, kw_only=True)
    typed: bool = field(default=False, kw_only=True)
    defaults: Defaults = field(default=(), kw_only=True, repr=False)

    def __str__(self) -> str:
        """The name of the file in messages."""
        return self.label or str(self.path)

    @property
    def is_text(self) -> bool:
        """Whether the file is text, which has no column types except for lists in JSON."""
        return self.path.name.endswith((*_CSV_SUFFIXES, *JSON_SUFFIXES))

    def columns(self) -> dict[str, pl.DataType]:
        """Return the names and types of the columns."""
        return {name: kind for name, kind, _ in self.defaults} | self._stored_columns()

    def _stored_columns(self) -> dict[str, pl.DataType]:
        with _naming_file(self):
            if self._is_json:
                return self._json_columns()
            if self.is_text:
                return dict.fromkeys(self._header(), pl.String())
            schema = pa_parquet.read_schema(self.path) if self._is_parquet else self._ipc([]).schema
            _check_metadata([schema, *schema])
            empty = pl.from_arrow(schema.empty_table())
            assert isinstance(empty, pl.DataFrame)
            return dict(empty.schema)

    def batches(
        self, columns: Sequence[str], on_invalid: Callable[[InvalidRow], None] | None = None
    ) -> Iterator[pl.DataFrame]:
        """Iterate over the rows of the file, restricted to these columns.

        Args:
            columns: The columns to read, among them `ROW` for the indices of rows.
            on_invalid: Receives the rows that have too many or too few values or are no JSON objects, which then are
                left out; by default they are an error.
        """
        invalid: list[int] = []  # rows that the reader left out
        read, added = self._read_and_added([name for name in columns if name != ROW])
        with _naming_file(self):
            start = 0
            for batch in self._arrow_batches(read, invalid, on_invalid):
                frame = batch if isinstance(batch, pl.DataFrame) else pl.from_arrow(batch)
                assert isinstance(frame, pl.DataFrame)
                frame = frame.with_columns(added) if added else frame
                if ROW in columns or self.skipped:
                    numbers = _row_numbers(start, len(batch), invalid)
                    frame = frame.with_columns(pl.Series(ROW, numbers))
                    frame = frame.filter(pl.Series(~np.isin(numbers, self.skipped))) if self.skipped else frame
                start += len(batch)
                yield frame.select(columns)

    def _read_and_added(self, columns: list[str]) -> tuple[list[str], list[pl.Expr]]:
        """Return the columns to read, and the columns with one value that the file lacks."""
        if not self.defaults:
            return columns, []
        stored = self._stored_columns()
        added = [
            pl.lit(value, kind).alias(name)
            for name, kind, value in self.defaults
            if name in columns and name not in stored
        ]
        # without any column a frame would have no rows
        return [name for name in columns if name in stored] or list(stored)[:1], added

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix == ".parquet"

    @property
    def _is_json(self) -> bool:
        return self.path.name.endswith(JSON_SUFFIXES)

    def _arrow_batches(
        self, columns: list[str], invalid: list[int], on_invalid: Callable[[InvalidRow], None] | None
    ) -> Iterator[pa.RecordBatch | pl.DataFrame]:
        if self.is_text:
            decide = self._invalid_rows(invalid, on_invalid)
            yield from self._json(columns, decide) if self._is_json else self._csv(columns, decide)
        elif self._is_parquet:
            with pa_parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                yield from file.iter_batches(BATCH_ROWS, columns=columns)
        else:
            reader = self._ipc(columns)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)  # invalid string offsets would crash the process instead of raising
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)

    def _ipc(self, columns: list[str]) -> Any:
        file = pa.memory_map(str(self.path))
        reader = pa.ipc.open_file(file)
        if not columns:
            return reader
        indices = [reader.schema.get_field_index(name) for name in columns]
        return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=indices))

    def _json(self, columns: list[str], on_invalid: Callable[[InvalidRow], str] | None) -> Iterator[pl.DataFrame]:
        def on_bad(row: int, found: str) -> None:
            if on_invalid is None or on_invalid(InvalidRow(row, "found no JSON object", found)) == "error":
                raise ValueError(f"{self}: row {row + 1}: {found}, expected a JSON object")

        return json_batches(self.path, columns, on_bad)

    def _json_columns(self) -> dict[str, pl.DataType]:
        try:
            return json_columns(self.path)
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from None

    def _csv(self, columns: list[str] | None, on_invalid: Callable[[InvalidRow], str] | None = None) -> Any:
        stream = pa.input_stream(str(self.path), compression="detect")
        if on_invalid is not None:  # Arrow prints a traceback if the text of an invalid row is not UTF-8
            stream = pa.PythonFile(_Utf8(stream), "r")
        handler = None if on_invalid is None else lambda found: on_invalid(_csv_row(found))
        names = self._given_names() if columns is not None and any(map(_is_unnamed, columns)) else None
        return pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(
                block_size=_BLOCK_BYTES,
                column_names=names,
                skip_rows=1 if names else 0,
                use_threads=on_invalid is None,  # rows have numbers only if one thread reads them
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=handler),
            convert_options=pa_csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns or [], pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    def _invalid_rows(
        self, invalid: list[int], on_invalid: Callable[[InvalidRow], None] | None
    ) -> Callable[[InvalidRow], str] | None:
        """Return the function that decides on an invalid row, or None if all are errors."""
        if on_invalid is None and not self.skipped:
            return None
        skipped = set(self.skipped)

        def decide(found: InvalidRow) -> str:
            if on_invalid is None and found.row not in skipped:
                return "error"
            invalid.append(found.row)
            if on_invalid is not None and found.row not in skipped:
                on_invalid(found)
            return "skip"

        return decide

    def _header(self) -> list[str]:
        names = self._given_names()
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{self}: the column {name!r} occurs twice")
        return names

    def _given_names(self) -> list[str]:
        """Return the names of columns; a column without one gets the name that pandas gives it."""
        names = self._csv(None, lambda row: "skip").schema.names  # rows are not read here
        return [name or f"{_UNNAMED}{place}" for place, name in enumerate(names)]


def _csv_row(found: Any) -> InvalidRow:
    row = found.number - 2  # Arrow counts from 1 and counts the header
    text = f"{found.actual_columns} values for {found.expected_columns} columns"
    return InvalidRow(row, "found another number of values than the file has columns", text)


class _Utf8(io.RawIOBase):
    """A stream that raises UnicodeDecodeError at the first byte that is not UTF-8."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._decoder.decode(data, final=not data)
        return data


_UNNAMED = "Unnamed: "


def _is_unnamed(column: str) -> bool:
    return column.startswith(_UNNAMED)


def _row_numbers(start: int, count: int, invalid: list[int]) -> NDArray[np.int64]:
    """Return the indices of rows in a file, from their indices among the valid rows."""
    numbers = np.arange(start, start + count)
    before = np.array(invalid, np.int64) - np.arange(len(invalid))  # valid rows before each invalid one
    return numbers + np.searchsorted(before, numbers, side="right")


def find_row_files(paths: Sequence[Path | RowFile]) -> list[RowFile]:
    """Return the files among `paths` and in the directories among them.

    Args:
        paths: Files, directories of files, and row files, which are returned unchanged. Files in directories whose
            names begin with ``.`` or ``_`` are left out.

    Raises:
        ValueError: If a file, given or in a directory, does not exist, has an unknown suffix or is given twice, or if a
            directory has no file.
    """
    found: list[Path] = []
    given: dict[Path, RowFile] = {}
    for path in paths:
        if isinstance(path, RowFile):
            given[path.path] = path
            found.append(path.path)
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if is_visible(file.relative_to(path)))
            inside = [file for file in inside if file.is_symlink() or not file.is_dir()]  # no linked ones are searched
            if not inside:
                raise ValueError(f"{path}: found no file that ends in {', '.join(SUFFIXES)}")
            found += inside
        else:
            found.append(path)
    seen: set[Path] = set()
    for path in found:
        _check_file(path)
        if path.resolve() in seen:
            raise ValueError(f"{given.get(path, path)} is given twice")
        seen.add(path.resolve())
    return [given.get(path, RowFile(path)) for path in found]


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    known_suffix(path.name, str(path))


def known_suffix(name: str, where: str) -> str:
    """Return the suffix of a file of rows.

    Args:
        name: The name of the file.
        where: The file in messages.

    Raises:
        ValueError: If no reader has this suffix.
    """
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    found = PurePath(name).suffix or "no suffix"
    raise ValueError(
        f"{where}: found {found!r}, expected one of {', '.join(SUFFIXES)}; files in directories whose names begin with "
        "'.' or '_' are left out"
    )


def is_visible(file: PurePath) -> bool:
    """Return whether a file is data; other programs write markers and checksums under names with ``.`` or ``_``.

    Args:
        file: Its path in the directory that is searched.
    """
    return not any(part.startswith((".", "_")) for part in file.parts)


def _check_metadata(described: Iterable[Any]) -> None:
    """Raise UnicodeDecodeError for metadata of a schema or a field that are not UTF-8, at which polars panics."""
    for one in described:
        for text in itertools.chain.from_iterable((one.metadata or {}).items()):
            text.decode("utf-8")
        inner = getattr(one, "type", None)
        if inner is not None:
            _check_metadata(inner.field(place) for place in range(inner.num_fields))


@contextmanager
def _naming_file(file: RowFile) -> Iterator[None]:
    """Add the file to errors of the libraries that read it."""
    try:
        yield
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeError, OSError) as error:
        raise ValueError(f"{file} is damaged, truncated or not of the type of its suffix ({error})") from None
