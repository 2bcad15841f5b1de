"""A raw log: files of rows and tables to join, with one type per column over all files."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall._suggestions import did_you_mean
from rankfall.data.sources.rows.column_types import (
    element_type,
    joint_text_type,
    joint_type,
    plain_type,
    text_type,
    to_type,
    used_type,
)
from rankfall.data.sources.rows.columns import Origin, column_uses, columns_sharing_ids, find_origins
from rankfall.data.sources.rows.row_files import RowFile, find_row_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Role

    Types = dict[tuple[Origin, str], pl.DataType]

_PART_BYTES = 2**25  # of files that are processed together


class RowBatch(NamedTuple):
    """Consecutive rows of a file; `start` is the index of the first one."""

    file: RowFile
    start: int
    rows: pl.DataFrame

    def check_not_null(self, column: str) -> None:
        """Raise an error that names the file and the row if the column has a null."""
        values = self.rows[column]
        if values.has_nulls():
            row = self.start + int(values.is_null().arg_max() or 0)
            raise ValueError(f"{self.file.path}: column {column!r}: found no value in row {row + 1}")


@dataclass(frozen=True)
class RawLog:
    """The files of a log, and the origin and type of each column that its description needs."""

    spec: Spec
    files: dict[Origin, list[RowFile]]
    origins: dict[str, Origin]
    types: Types

    @classmethod
    def open(
        cls,
        spec: Spec,
        sources: Sequence[Path | RowFile],
        tables: Mapping[Origin, Path | None],
        on_text: Report,
        engine: Engine,
    ) -> RawLog:
        """Find the files, and the origin and type of every column.

        Args:
            spec: The description of the log.
            sources: Files or directories with the rows of the log.
            tables: The files of the tables that are joined.
            on_text: Receives the number of rows of text files that were read to find their types.
            engine: Runs the work on the files.

        Raises:
            ValueError: If a file cannot be read, or a column is missing or has values of a wrong type.
        """
        files: dict[Origin, list[RowFile]] = {"log": find_row_files(sources)}
        for origin, path in tables.items():
            if path is not None:
                files[origin] = find_row_files([path])
        headers = {origin: [file.columns() for file in found] for origin, found in files.items()}
        columns = {
            origin: list(dict.fromkeys(name for header in some for name in header)) for origin, some in headers.items()
        }
        names = {origin: str(found[0].path) for origin, found in files.items()}
        log = cls(spec, files, find_origins(spec, columns, names), {})
        for origin in files:
            log._check_columns(origin, headers[origin])
        log._decide_types(headers, on_text, engine)
        return log

    def key(self, origin: Origin) -> str:
        """Return the column by which the rows of a table are joined; for the log, the column of the request."""
        keys: dict[Origin, str | None] = {"items": self.spec.item, "users": self.spec.user}
        key = keys.get(origin, self.spec.request)
        if key is None:
            raise ValueError(f"{origin}: the description has no `user`, the column by which this table is joined")
        return key

    def columns(self, origin: Origin) -> list[str]:
        """Return the columns that are read from there, the key first."""
        key = self.key(origin)
        return [key] + [column for column, found in self.origins.items() if found == origin and column != key]

    def parts(self, origin: Origin) -> list[list[RowFile]]:
        """Return the files of the log or of a table in groups, small files together."""
        parts: list[list[RowFile]] = []
        size = _PART_BYTES
        for file in self.files[origin]:
            if size >= _PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(file)
            size += file.path.stat().st_size
        return parts

    def batches(
        self, origin: Origin, columns: Sequence[str], files: Sequence[RowFile] | None = None
    ) -> Iterator[RowBatch]:
        """Iterate over the rows of the log or of a table, with typed columns.

        Args:
            origin: The log or one of its tables.
            columns: The columns to read.
            files: The files to read; by default all of them.
        """
        for file in self.files[origin] if files is None else files:
            start = 0
            for frame in file.batches(columns):
                typed = frame.select(self._typed(origin, frame[name], file) for name in columns)
                yield RowBatch(file, start, typed)
                start += len(frame)

    def table(self, origin: Origin, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns of a table, the key among them.

        Raises:
            ValueError: If a key is missing or occurs twice.
        """
        key = self.key(origin)
        rows = [pl.DataFrame(schema={name: self.types[origin, name] for name in columns})]
        for batch in self.batches(origin, columns):
            batch.check_not_null(key)
            rows.append(batch.rows)
        table = pl.concat(rows)
        if (repeated := table[key].is_duplicated()).any():
            path = self.files[origin][0].path
            raise ValueError(f"{path}: {key} {table[key].filter(repeated).min()!r} occurs twice")
        return table

    def _typed(self, origin: Origin, values: pl.Series, file: RowFile) -> pl.Series:
        with _prefixing(str(file.path)):
            return to_type(values, self.types[origin, values.name], self.spec.zone)

    def _check_columns(self, origin: Origin, headers: Sequence[Mapping[str, pl.DataType]]) -> None:
        for file, header in zip(self.files[origin], headers, strict=True):
            for column in self.columns(origin):
                if column not in header:
                    raise ValueError(
                        f"{file.path}: found no column {column!r}{did_you_mean(column, header)}; "
                        f"the columns are {', '.join(header)}"
                    )

    # --- types ---

    def _decide_types(
        self, headers: Mapping[Origin, Sequence[Mapping[str, pl.DataType]]], on_text: Report, engine: Engine
    ) -> None:
        roles: dict[str, set[Role]] = {}
        for use in column_uses(self.spec):
            roles.setdefault(use.column, set()).add(use.role)
        for origin, files in self.files.items():
            columns = self.columns(origin)
            kinds = self._text_types(origin, {column: roles[column] for column in columns}, on_text, engine)
            for file, header in zip(files, headers[origin], strict=True):
                for column in columns if not file.is_text else []:
                    with _prefixing(f"{file.path}: column {column!r}"):
                        kinds[column] = joint_type([kinds[column], plain_type(header[column])])
            self.types.update({(origin, column): kind for column, kind in kinds.items()})
        self._unify()
        for (origin, column), kind in self.types.items():
            with _prefixing(f"column {column!r}"):
                self.types[origin, column] = used_type(kind, roles[column])

    def _text_types(
        self, origin: Origin, roles: Mapping[str, set[Role]], on_text: Report, engine: Engine
    ) -> dict[str, pl.DataType]:
        kinds: dict[str, pl.DataType] = dict.fromkeys(roles, pl.Null())
        texts = [text for part in self.parts(origin) if (text := [file for file in part if file.is_text])]
        with closing(engine.map(partial(_types_of_text, roles), texts, on_text)) as found:
            for some in found:
                kinds = {column: joint_text_type(kinds[column], some[column]) for column in kinds}
        return kinds

    def _unify(self) -> None:
        """Give keys one type in the log and in tables, and values one type that share an embedding table."""
        keys = {origin: self.key(origin) for origin in self.files}
        groups = [{(origin, key), (self.origins[key], key)} for origin, key in keys.items()]
        groups += [{(self.origins[column], column) for column in columns} for columns in columns_sharing_ids(self.spec)]
        for _ in groups:  # a column may be in several groups, so types propagate step by step
            for group in groups:
                with _prefixing(f"column {' and '.join(sorted({column for _, column in group}))}"):
                    joint = joint_type(element_type(self.types[which]) for which in sorted(group))
                for which in group:
                    is_list = isinstance(self.types[which], pl.List)
                    self.types[which] = pl.List(joint) if is_list else joint


def _types_of_text(roles: Mapping[str, set[Role]], files: Sequence[RowFile], report: Report) -> dict[str, pl.DataType]:
    """Return the narrowest type of each column in text files."""
    kinds: dict[str, pl.DataType] = dict.fromkeys(roles, pl.Null())
    for file in files:
        for frame in file.batches(list(roles)):
            for column in roles:
                kinds[column] = text_type(frame[column], kinds[column], roles[column])
            report(len(frame))
    return kinds


@contextmanager
def _prefixing(where: str) -> Iterator[None]:
    """Add a prefix to the messages of errors."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
