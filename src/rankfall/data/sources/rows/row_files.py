"""The files of a raw log (CSV, Parquet, Arrow), read a bounded number of rows at a time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".feather", ".arrow", ".ipc")
BATCH_ROWS = 2**18
_BLOCK_BYTES = 2**24  # of text, which is read in whole lines


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of rows. Columns of text files are strings; their types are decided over all files together."""

    path: Path

    @property
    def is_text(self) -> bool:
        """Whether the file is text, which has no column types."""
        return self.path.name.endswith((".csv", ".csv.gz"))

    def columns(self) -> dict[str, pl.DataType]:
        """Return the names and types of the columns."""
        with _naming_file(self.path):
            if self.is_text:
                return dict.fromkeys(self._header(), pl.String())
            schema = pa_parquet.read_schema(self.path) if self._is_parquet else self._ipc([]).schema
            empty = pl.from_arrow(schema.empty_table())
            assert isinstance(empty, pl.DataFrame)
            return dict(empty.schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Iterate over the rows of the file, restricted to these columns."""
        with _naming_file(self.path):
            for batch in self._arrow_batches(list(columns)):
                frame = pl.from_arrow(batch)
                assert isinstance(frame, pl.DataFrame)
                yield frame.select(columns)

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix == ".parquet"

    def _arrow_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self.is_text:
            yield from self._csv(columns)
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

    def _csv(self, columns: list[str] | None) -> Any:
        stream = pa.input_stream(str(self.path), compression="detect")
        return pa_csv.open_csv(
            stream,
            read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns or [], pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    def _header(self) -> list[str]:
        names: list[str] = self._csv(None).schema.names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{self.path}: the column {name!r} occurs twice")
        return names


def find_row_files(paths: Sequence[Path | RowFile]) -> list[RowFile]:
    """Return the files among `paths` and in the directories among them.

    Args:
        paths: Files, directories that are searched for files with a known suffix, and row files, which are returned
            unchanged.

    Raises:
        ValueError: If a file does not exist, has an unknown suffix or is given twice, or if a directory has no file.
    """
    found: list[Path] = []
    given: dict[Path, RowFile] = {}
    for path in paths:
        if isinstance(path, RowFile):
            given[path.path] = path
            found.append(path.path)
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if _is_visible(file, path) and _is_known(file))
            if not inside:
                raise ValueError(f"{path}: found no file that ends in {', '.join(SUFFIXES)}")
            found += inside
        else:
            found.append(path)
    seen: set[Path] = set()
    for path in found:
        _check_file(path)
        if path.resolve() in seen:
            raise ValueError(f"{path} is given twice")
        seen.add(path.resolve())
    return [given.get(path, RowFile(path)) for path in found]


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if not _is_known(path):
        raise ValueError(f"{path}: found {path.suffix or 'no suffix'!r}, expected one of {', '.join(SUFFIXES)}")


def _is_known(path: Path) -> bool:
    return path.is_file() and path.name.endswith(SUFFIXES)


def _is_visible(file: Path, directory: Path) -> bool:
    """Return whether a file is data; other programs write markers and checksums under names with ``.`` or ``_``."""
    return not any(part.startswith((".", "_")) for part in file.relative_to(directory).parts)


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Add the file to errors of the libraries that read it."""
    try:
        yield
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path} is damaged, truncated or not of the type of its suffix ({error})") from None
