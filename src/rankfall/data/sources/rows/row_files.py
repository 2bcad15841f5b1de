"""The files of a raw log (CSV, JSON lines, Parquet, Arrow), read a bounded number of rows at a time."""

from __future__ import annotations

import codecs
import functools
import io
import itertools
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from rankfall._errors import RankfallError
from rankfall.data.impressions.encoding import expected_times, parse_times, to_times
from rankfall.data.impressions.requests import BadRows
from rankfall.encoding import BadValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from rankfall.data.impressions.spec import Unit
    from rankfall.data.sources.rows.raw_log import Role

    Defaults = tuple[tuple[str, pl.DataType, Any], ...]  # names, types and values of columns

_ORDER: list[pl.DataType] = [pl.Null(), pl.Boolean(), pl.Int64(), pl.Float64(), pl.String()]  # from narrow to wide
_TRUTH_VALUES = ["true", "false", "True", "False"]
_EXACT = 2**53  # floats represent whole numbers below this exactly
TIME = pl.Datetime("ms", "UTC")


# --- types of one file -------------------------------------------------------------------------------------------


def plain_type(kind: pl.DataType) -> pl.DataType:
    """Return the type that represents all types of a kind, such as Int64 for integers."""
    if kind.is_integer():
        return pl.Int64()
    if kind.is_float() or kind.is_decimal():
        return pl.Float64()
    if isinstance(kind, pl.Categorical | pl.Enum):
        return pl.String()
    if isinstance(kind, pl.Date | pl.Datetime):
        return TIME
    if isinstance(kind, pl.List | pl.Array):
        return pl.List(plain_type(element_type(kind)))
    if kind not in _ORDER:
        raise RankfallError(f"found {kind}, expected numbers, text, times or lists of them")
    return kind


def text_type(values: pl.Series, known: pl.DataType, roles: Collection[Role]) -> pl.DataType:
    """Return the narrowest type of strings.

    Args:
        values: The strings.
        known: The narrowest type of the strings before these.
        roles: The uses of the column.

    >>> text_type(pl.Series(["1", "2.5"]), pl.Int64(), {"number"})
    Float64
    """
    values = values.drop_nulls()
    if len(values) == 0:
        return known
    return next(kind for kind in _ORDER[1:] if _can_become(known, kind) and _all_are(values, kind, roles))


def joint_text_type(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """Return the narrowest type of strings of which some have the one type and the rest the other.

    >>> joint_text_type(pl.Int64(), pl.Float64()), joint_text_type(pl.Int64(), pl.Boolean())
    (Float64, String)
    """
    narrow, wide = sorted((one, other), key=_ORDER.index)
    return wide if _can_become(narrow, wide) else pl.String()


def _can_become(known: pl.DataType, kind: pl.DataType) -> bool:
    if known == pl.Boolean() and kind in (pl.Int64(), pl.Float64()):
        return False  # a column with both true/false and 0/1 is text
    return _ORDER.index(known) <= _ORDER.index(kind)


def _all_are(values: pl.Series, kind: pl.DataType, roles: Collection[Role]) -> bool:
    if kind == pl.String():
        return True
    if kind == pl.Boolean():
        return values.is_in(_TRUTH_VALUES).all()
    if "id" not in roles and "day" not in roles:
        return not values.cast(kind, strict=False).has_nulls()
    # canonical whole numbers, for Float64 also with a trailing .0, as programs write them as floats; 007 is text
    digits = values.str.strip_suffix(".0") if kind == pl.Float64() else values
    return (digits.cast(pl.Int64, strict=False).cast(pl.String) == digits).fill_null(False).all()


# --- types of all files together ---------------------------------------------------------------------------------


def joint_type(kinds: Iterable[pl.DataType]) -> pl.DataType:
    """Return the type that can represent values of all these types."""
    joint: pl.DataType = pl.Null()
    return functools.reduce(_join, kinds, joint)


def _join(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    if one in _ORDER and other in _ORDER:
        return max(one, other, key=_ORDER.index)
    if pl.Null() in (one, other):
        return other if one == pl.Null() else one
    if one == other:
        return one
    if isinstance(one, pl.List) and isinstance(other, pl.List):
        return pl.List(_join(element_type(one), element_type(other)))
    if {one, other} == {TIME, pl.String()}:
        return TIME
    raise RankfallError(f"found {one} and {other}, expected one type in all files")


def element_type(kind: pl.DataType) -> pl.DataType:
    """Return the type of the elements of lists, or the type itself if it is not a list."""
    if not isinstance(kind, pl.List | pl.Array):
        return kind
    return kind.inner() if isinstance(kind.inner, type) else kind.inner


def used_type(kind: pl.DataType, roles: Collection[Role]) -> pl.DataType:
    """Return the type in which a column is used.

    Args:
        kind: The joint type of its files.
        roles: The uses of the column.

    Raises:
        ValueError: If the type does not fit the roles.
    """
    if "sequence" in roles:
        if kind != pl.Null() and (not isinstance(kind, pl.List) or element_type(kind) == pl.Float64()):
            raise RankfallError(f"found {kind}, expected lists of whole numbers or of text")
        return pl.List(pl.Int64()) if element_type(kind) == pl.Null() else kind
    if "vector" in roles:
        return pl.List(pl.Float64())
    if isinstance(kind, pl.List):
        raise RankfallError(f"found {kind}, expected single values")
    if "id" in roles or "day" in roles:
        if kind == TIME:
            if "day" in roles:
                return pl.String()
            raise RankfallError("found times, expected whole numbers or text")
        return pl.String() if kind == pl.String() else pl.Int64()
    if "whole" in roles:
        return pl.Int64()
    if "number" in roles:
        return pl.Int64() if kind in (pl.Boolean(), pl.Int64()) else pl.Float64()
    return pl.Int64() if kind == pl.Int64() else TIME


# --- conversion --------------------------------------------------------------------------------------------------


def to_type(
    values: pl.Series, kind: pl.DataType, zone: str, unit: Unit | None = None, bad: list[BadRows] | None = None
) -> pl.Series:
    """Convert values to the type of their column.

    Args:
        values: The values.
        kind: The type.
        zone: The time zone of times without one.
        unit: The unit of times that are whole numbers.
        bad: Receives the values that cannot be converted, in whose place the result has nulls. By default they are an
            error.

    Raises:
        BadValueError: If a value cannot be converted; the message shows it.
        ValueError: If no value of this type can be converted.
    """
    changed, expected = _converted(values, kind, zone, unit)
    if changed.null_count() == values.null_count():
        return changed
    missing = values.is_null() | values.is_nan() if values.dtype.is_float() else values.is_null()
    lost = changed.is_null() & ~missing
    if not lost.any():
        return changed
    if bad is None:
        position = int(lost.arg_max() or 0)
        message = f"column {values.name!r}: found {values[position]!r}, expected {expected}"
        raise BadValueError(message, position)
    bad.append(BadRows(values.name, f"found other values, expected {expected}", lost, values))
    return changed


def _converted(values: pl.Series, kind: pl.DataType, zone: str, unit: Unit | None) -> tuple[pl.Series, str]:
    """Return values in another type, with nulls for those that cannot be converted, and what the others are."""
    if values.dtype in (kind, pl.Null()):
        return values.cast(kind), ""
    if kind == TIME:
        return _to_times(values, zone, unit)
    if kind == pl.String() and isinstance(values.dtype, pl.Date | pl.Datetime):
        return to_times(values, None, zone).dt.strftime("%Y-%m-%d"), ""
    if values.dtype == pl.String and kind != pl.String() and values.is_in(_TRUTH_VALUES).any():
        values = values.replace({"true": "1", "True": "1", "false": "0", "False": "0"})
    if kind == pl.Int64() and not values.dtype.is_integer():
        return _to_whole(values), "a whole number"
    return values.cast(kind, strict=False), _WORDS.get(kind, str(kind))


_WORDS: dict[pl.DataType, str] = {pl.Float64(): "a number", pl.Int64(): "a whole number below 2^63"}


def _to_times(values: pl.Series, zone: str, unit: Unit | None) -> tuple[pl.Series, str]:
    times = parse_times(values, None, zone).dt.convert_time_zone("UTC")
    if unit is None or values.dtype != pl.String:
        return times, expected_times(zone)
    # one value that is no time makes a column of numbers one of text
    numbers = values.cast(pl.Int64, strict=False)
    counted = parse_times(numbers, unit, zone).dt.convert_time_zone("UTC")
    return times.zip_with(numbers.is_null(), counted), f"whole numbers of {unit} or {expected_times(zone)}"


def _to_whole(values: pl.Series) -> pl.Series:
    """Convert to whole numbers; some may be written as floats."""
    if values.dtype == pl.String:
        return values.str.strip_suffix(".0").cast(pl.Int64, strict=False)
    numbers = values.cast(pl.Float64)
    exact = (numbers == numbers.floor()) & (numbers.abs() < _EXACT)
    return pl.select(pl.when(exact).then(numbers)).to_series().cast(pl.Int64).alias(values.name)


JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_BLOCK_BYTES = 2**24
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OBJECTS = pl.Object()  # the type of columns of objects, which no feature can use


@functools.lru_cache(maxsize=1024)  # every reader of lists needs their types, which are known after the last line only
def _json_columns(path: Path, name: str, size: int, changed: int) -> dict[str, pl.DataType]:
    """Return the keys of all objects in a file, and their types: String, lists, or Object for other values."""
    kinds: dict[str, pl.DataType] = {}
    bad: list[InvalidRow] = []
    for frame in _json_frames(path, None, bad.append):
        for key, kind in frame.schema.items():
            kinds[key] = _joint(kinds.get(key, pl.Null()), kind)
    if not kinds:
        raise RankfallError(f"{name}: {_not_an_object(bad[0]) if bad else 'found no rows'}")
    return {key: pl.String() if kind == pl.Null() else kind for key, kind in kinds.items()}


def _not_an_object(row: InvalidRow) -> str:
    return f"row {row.row + 1}: {row.found}, expected a JSON object"


def _joint(known: pl.DataType, kind: pl.DataType) -> pl.DataType:
    """Return the type of lists or objects that has all values; Null for values that stay text."""
    if not kind.is_nested():
        return known
    try:
        return joint_type([known, plain_type(kind)])
    except ValueError:
        return _OBJECTS


def _json_frames(
    path: Path, schema: dict[str, pl.DataType] | None, on_bad: Callable[[InvalidRow], object]
) -> Iterator[pl.DataFrame]:
    """Iterate over the rows of a file; `on_bad` receives each line that is no object, which then is left out."""
    for first, lines in _blocks(path):
        yield from _parse(lines, schema, first, on_bad)


def _parse(
    lines: list[bytes], schema: dict[str, pl.DataType] | None, first: int, on_bad: Callable[[InvalidRow], object]
) -> list[pl.DataFrame]:
    """Parse lines, at once if all of them are objects, otherwise in halves until the bad ones are alone."""
    try:
        for line in filter(_SURROGATE.search, lines):  # polars reads half a pair as NUL
            json.dumps(json.loads(line), ensure_ascii=False).encode()
        frame = pl.read_ndjson(b"\n".join(lines), schema=schema, infer_schema_length=None)
        problem = "" if len(frame) == len(lines) else "found several values"
    except (ValueError, RecursionError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        problem = f"found {lines[0][:40].decode(errors='replace')!r} ({str(error).partition(chr(10))[0]})"
    if not problem:
        return [frame]
    if len(lines) == 1:
        on_bad(InvalidRow(first, "found no JSON object", problem))
        return []
    middle = len(lines) // 2
    return [
        *_parse(lines[:middle], schema, first, on_bad),
        *_parse(lines[middle:], schema, first + middle, on_bad),
    ]


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lines that are not blank in blocks, and the index of the first line of each."""
    first, rest, ended = 0, b"", False
    with pa.input_stream(str(path), compression="detect") as stream:
        rest = stream.read(3).removeprefix(codecs.BOM_UTF8)
        while not ended:
            data = stream.read(_BLOCK_BYTES)
            ended = not data
            # the last line of a block may go on in the next one
            *complete, rest = (rest + data + b"\n" * ended).split(b"\n")
            if lines := [line for line in complete if line.strip()]:
                yield first, lines
                first += len(lines)


_CSV_SUFFIXES = (".csv", ".csv.gz")
SUFFIXES = (*_CSV_SUFFIXES, *JSON_SUFFIXES, ".parquet", ".feather", ".arrow", ".ipc")
BATCH_ROWS = 2**18
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
                about = self.path.stat()
                return dict(_json_columns(self.path, str(self), about.st_size, about.st_mtime_ns))
            if self.is_text:
                return dict.fromkeys(self._given_names(), pl.String())
            schema = pa_parquet.read_schema(self.path) if self._is_parquet else self._ipc([]).schema
            _check_metadata([schema, *schema])
            empty = pl.DataFrame(schema.empty_table())
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
        skipped, invalid = {*self.skipped}, list[int]()  # rows to leave out, and rows that the reader left out

        def decide(found: InvalidRow) -> str:
            if on_invalid is None and found.row not in skipped:
                return "error"
            invalid.append(found.row)
            if on_invalid is not None and found.row not in skipped:
                on_invalid(found)
            return "skip"

        read, added = [name for name in columns if name != ROW], list[pl.Expr]()
        if self.defaults:
            stored = self._stored_columns()
            constant = [one for one in self.defaults if one[0] in read and one[0] not in stored]
            added = [pl.lit(value, kind).alias(name) for name, kind, value in constant]
            # without any column a frame would have no rows
            read = [name for name in read if name in stored] or list(stored)[:1]
        with _naming_file(self):
            start = 0
            for batch in self._arrow_batches(read, decide if skipped or on_invalid is not None else None):
                frame = batch if isinstance(batch, pl.DataFrame) else pl.DataFrame(batch)
                frame = frame.with_columns(added)
                if ROW in columns or skipped:
                    numbers = np.arange(start, start + len(batch))
                    before = np.array(invalid, np.int64) - np.arange(len(invalid))  # valid rows before each invalid one
                    numbers += np.searchsorted(before, numbers, side="right")
                    frame = frame.with_columns(pl.Series(ROW, numbers))
                    frame = frame.filter(pl.Series(~np.isin(numbers, self.skipped))) if skipped else frame
                start += len(batch)
                yield frame.select(columns)

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix == ".parquet"

    @property
    def _is_json(self) -> bool:
        return self.path.name.endswith(JSON_SUFFIXES)

    def _arrow_batches(
        self, columns: list[str], on_invalid: Callable[[InvalidRow], str] | None
    ) -> Iterator[pa.RecordBatch | pl.DataFrame]:
        if self.is_text:
            yield from self._json(columns, on_invalid) if self._is_json else self._csv(columns, on_invalid)
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
        """Iterate over the rows; a key that an object lacks, null and empty text are missing values."""

        def on_bad(row: InvalidRow) -> None:
            if on_invalid is None or on_invalid(row) == "error":
                raise RankfallError(f"{self}: {_not_an_object(row)}")

        kinds = self._stored_columns()
        schema = {name: pl.String() if kinds[name] == _OBJECTS else kinds[name] for name in columns}
        for frame in _json_frames(self.path, schema, on_bad):
            yield frame.with_columns(pl.col(pl.String).replace("", None))

    def _csv(self, columns: list[str] | None, on_invalid: Callable[[InvalidRow], str] | None = None) -> Any:
        stream = pa.input_stream(str(self.path), compression="detect")
        if on_invalid is not None:  # Arrow prints a traceback if the text of an invalid row is not UTF-8
            stream = pa.PythonFile(_Utf8(stream), "r")

        def handler(found: Any) -> str:
            assert on_invalid is not None
            row = found.number - 2  # Arrow counts from 1 and counts the header
            text = f"{found.actual_columns} of {found.expected_columns} columns"
            return on_invalid(InvalidRow(row, "wrong number of columns", text))

        has_unnamed = any(name.startswith(_UNNAMED) for name in columns or ())
        names = self._given_names() if has_unnamed else None
        return pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(
                block_size=_BLOCK_BYTES,
                column_names=names,
                skip_rows=1 if names else 0,
                use_threads=on_invalid is None,  # rows have numbers only if one thread reads them
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_invalid and handler),
            convert_options=pa_csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns or [], pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    def _given_names(self) -> list[str]:
        """Return the names of columns; a column without one gets the name that pandas gives it."""
        names = self._csv(None, lambda row: "skip").schema.names  # rows are not read here
        names = [name or f"{_UNNAMED}{place}" for place, name in enumerate(names)]
        for name in names:
            if names.count(name) > 1:
                raise RankfallError(f"{self}: the column {name!r} occurs twice")
        return names


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
                raise RankfallError(f"{path}: found no file that ends in {', '.join(SUFFIXES)}")
            found += inside
        else:
            found.append(path)
    seen: set[Path] = set()
    for path in found:
        if not path.exists():
            raise RankfallError(f"{path} does not exist")
        if not path.is_file():
            raise RankfallError(f"{path} is not a file")
        known_suffix(path.name, str(path))
        if path.resolve() in seen:
            raise RankfallError(f"{given.get(path, path)} is given twice")
        seen.add(path.resolve())
    return [given.get(path, RowFile(path)) for path in found]


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
    raise RankfallError(
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
        raise RankfallError(f"{file} cannot be read as a file of its suffix: {error}") from None


LOG = "_delta_log"
INSTALL = "pip install 'rankfall[delta]'"
_READABLE = {"timestampNtz", "vacuumProtocolCheck"}  # features that do not change how data files are read


class DeltaFile(NamedTuple):
    """A data file: its path in the directory of the table, and the columns that only the log has."""

    path: str
    defaults: Defaults


def delta_files(directory: Path, name: str, version: int | None = None) -> list[DeltaFile]:
    """Return the data files of a Delta table, in the order of their paths.

    Args:
        directory: A directory with the log of the table; the data files may be elsewhere.
        name: The table in messages.
        version: The version to read; by default the newest.

    Raises:
        ValueError: If there is no such version, or the table has features that change how files are read.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError:
        raise RankfallError(f"{name}: is a Delta table, which needs deltalake: {INSTALL}") from None
    try:
        table = DeltaTable(directory, version=version)
        protocol = table.protocol()
        features = {*(protocol.reader_features or ())} - _READABLE
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            features.add("columnMapping")  # readers of version 2 have it without naming it
        if features:
            found = ", ".join(sorted(features))
            raise RankfallError(
                f"{name}: the Delta table uses {found}, which rankfall does not read; write a copy without"
            )
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    except DeltaError as error:
        wanted = "" if version is None else f" in version {version}"
        raise RankfallError(f"{name}: the Delta table cannot be read{wanted} ({error})") from None
    if not actions:
        raise RankfallError(f"{name}: found no data file in version {table.version()} of the Delta table")
    types = pl.DataFrame(pa.schema(table.schema().to_arrow()).empty_table()).schema
    files = []
    for action in actions:
        path = unquote(action["path"])
        if "://" in path or path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise RankfallError(f"{name}: found the data file {path!r}, expected files in the directory of the table")
        # all columns of the table: values of partitions are in the log, columns that a file lacks are null
        values = tuple((column, kind, action.get(f"partition.{column}")) for column, kind in types.items())
        files.append(DeltaFile(path, values))
    return sorted(files, key=lambda file: file.path)
