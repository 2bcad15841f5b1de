"""A raw log: files of rows and tables to join, with one type per column over all files."""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.encoding import BadValueError
from rankfall.data.sources.rows.column_types import (
    element_type,
    joint_text_type,
    joint_type,
    plain_type,
    text_type,
    to_type,
    used_type,
)
from rankfall.data.sources.rows.columns import (
    Origin,
    column_uses,
    columns_sharing_ids,
    find_columns,
    time_units,
    with_columns,
)
from rankfall.data.sources.rows.row_files import InvalidRow, RowFile, find_row_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Role

    Types = dict[tuple[Origin, str], pl.DataType]
    Tables = Mapping[Origin, Path | list[RowFile] | None]
    Headers = dict[RowFile, dict[str, pl.DataType]]
    OnProblem = Callable[[str | None, str, Sequence[RowFile]], None]

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
            raise ValueError(f"{self.file}: column {column!r}: found no value in row {row + 1}")


@dataclass(frozen=True)
class RawLog:
    """The files of a log, and the origin and type of each column that its description needs.

    `spec` names columns as :func:`find_columns` does; `stored` has the names in the files that differ.
    """

    spec: Spec
    files: dict[Origin, list[RowFile]]
    origins: dict[str, Origin]
    types: Types
    stored: dict[str, str]

    @classmethod
    def open(
        cls,
        spec: Spec,
        sources: Sequence[Path | RowFile],
        tables: Tables,
        on_text: Report,
        engine: Engine,
        on_problem: OnProblem | None = None,
        types: Types | None = None,
    ) -> RawLog:
        """Find the files, and the origin and type of every column.

        Args:
            spec: The description of the log.
            sources: Files or directories with the rows of the log.
            tables: The files of the tables that are joined.
            on_text: Receives the number of rows of text files that were read to find their types.
            engine: Runs the work on the files.
            on_problem: Receives the column and the message of every problem, and the files that have it; files that
                cannot be read and columns that cannot be used are then left out. By default a problem is an error.
            types: The types of the columns, if earlier days of the log decided them; by default the files decide.

        Raises:
            ValueError: If a file cannot be read, or a column is missing or has values of a wrong type.
        """
        files: dict[Origin, list[RowFile]] = {"log": find_row_files(sources)}
        for origin, table in tables.items():
            if table is not None:
                files[origin] = find_row_files(table if isinstance(table, list) else [table])
        headers = {origin: _headers(found, on_problem) for origin, found in files.items()}
        columns = {
            origin: list(dict.fromkeys(name for header in some.values() for name in header))
            for origin, some in headers.items()
        }
        names = {origin: str(found[0]) for origin, found in files.items()}
        on_missing = None if on_problem is None else lambda use, text: on_problem(use.column, text, [])
        used = find_columns(spec, columns, names, on_missing)
        log = cls(used.spec, files, used.origins, {}, used.stored)
        for origin in files:
            log._check_columns(origin, headers[origin], on_problem)
            files[origin] = [file for file in files[origin] if file in headers[origin]]
        if any(log.key(origin) not in log.origins for origin in files):
            return log  # an error, or reported; without a key no row can be read
        if types is not None:
            log._take_types(types, headers)
            return log
        unusable = log._decide_types(headers, on_text, engine, on_problem)
        return log.without(unusable) if unusable else log

    def without(self, columns: Collection[str]) -> RawLog:
        """Return the log without the keys of its description that need these columns."""
        changes = {(use.key, use.column): None for use in column_uses(self.spec) if use.column in columns}
        spec = with_columns(self.spec, changes)
        used = {use.column for use in column_uses(spec)}
        return replace(
            self,
            spec=spec,
            origins={name: origin for name, origin in self.origins.items() if name in used},
            types={which: kind for which, kind in self.types.items() if which[1] in used},
        )

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
            stored = {name: name if file.typed else self.stored.get(name, name) for name in columns}
            start = 0
            for frame in file.batches(list(dict.fromkeys(stored.values()))):
                typed = frame.select(
                    self._typed(origin, frame[stored[name]].alias(name), file, start) for name in columns
                )
                yield RowBatch(file, start, typed)
                start += len(frame)

    def stored_names(self, columns: Iterable[str]) -> list[str]:
        """Return the names that columns have in the files, each once."""
        return list(dict.fromkeys(self.stored.get(name, name) for name in columns))

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
            path = self.files[origin][0]
            raise ValueError(f"{path}: {key} {table[key].filter(repeated).min()!r} occurs twice")
        return table

    def _typed(self, origin: Origin, values: pl.Series, file: RowFile, start: int) -> pl.Series:
        with _prefixing(str(file)):
            try:
                return to_type(
                    values, self.types[origin, values.name], self.spec.zone, time_units(self.spec).get(values.name)
                )
            except BadValueError as error:
                raise ValueError(f"{error} (row {start + error.position + 1})") from None

    def _check_columns(self, origin: Origin, headers: Headers, on_problem: OnProblem | None) -> None:
        """Check that every file has all columns; with `on_problem` remove the headers of those that have not."""
        for file, header in [entry for entry in headers.items() if not entry[0].typed]:
            for column in self.stored_names(self.columns(origin)):
                if column in header:
                    continue
                message = f"found no column {column!r}{did_you_mean(column, header)}"
                if on_problem is None:
                    raise ValueError(f"{file}: {message}; the columns are {', '.join(header)}")
                on_problem(column, f"{message}, which other files have", [file])
                headers.pop(file, None)

    # --- types ---

    def _take_types(self, types: Types, headers: Mapping[Origin, Headers]) -> None:
        """Use the types of earlier days, after checking that the columns come from the same places.

        Numbers that were whole so far need not stay so: with all days at once, they would have been floats.
        """
        for origin in self.files:
            for column in self.columns(origin):
                if (origin, column) not in types:
                    known = next((place for place, name in types if name == column), None)
                    expected = "no such table as before" if known is None else f"it in {known!r} as before"
                    file = self.files[origin][0]
                    raise ValueError(f"{file}: column {column!r}: found in {origin!r}, expected {expected}")
                self.types[origin, column] = types[origin, column]
        uses = list(column_uses(self.spec))
        others = {use.column for use in uses if use.role != "number"}
        for column in {use.column for use in uses} - others:
            origin, stored = self.origins[column], self.stored.get(column, column)
            if any(header[stored].is_float() for header in headers[origin].values() if stored in header):
                self.types[origin, column] = pl.Float64()

    def _decide_types(
        self, headers: Mapping[Origin, Headers], on_text: Report, engine: Engine, on_problem: OnProblem | None
    ) -> set[str]:
        """Decide the types of all columns; return those whose types are wrong, if `on_problem` allows any."""
        unusable: set[str] = set()

        @contextmanager
        def about(column: str, *files: RowFile, of: str = "") -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                where = f"{files[0]}: " if files else ""
                if on_problem is None:
                    raise ValueError(f"{where}{of or f'column {column!r}'}: {error}") from None
                if column not in unusable:
                    on_problem(column, str(error), files)
                unusable.add(column)

        roles: dict[str, set[Role]] = {}
        for use in column_uses(self.spec):
            roles.setdefault(use.column, set()).add(use.role)
        for origin in self.files:
            columns = self.columns(origin)
            of_origin = {column: roles.get(column, {"id"}) for column in columns}  # without a use: the key of a table
            kinds = self._text_types(origin, of_origin, on_text, engine, lenient=on_problem is not None)
            for file, header in headers[origin].items():
                for column in columns:
                    kind = header[self.stored.get(column, column)]
                    if file.is_text and kind == pl.String():
                        continue  # decided by the values
                    with about(column, file):
                        kinds[column] = joint_type([kinds[column], plain_type(kind)])
            self.types.update({(origin, column): kind for column, kind in kinds.items()})
        self._unify(about)
        for (origin, column), kind in self.types.items():
            with about(column):
                self.types[origin, column] = used_type(kind, roles.get(column, {"id"}))
        return unusable

    def _text_types(
        self, origin: Origin, roles: Mapping[str, set[Role]], on_text: Report, engine: Engine, *, lenient: bool
    ) -> dict[str, pl.DataType]:
        kinds: dict[str, pl.DataType] = dict.fromkeys(roles, pl.Null())
        texts = [text for part in self.parts(origin) if (text := [file for file in part if file.is_text])]
        work = partial(_types_of_text, roles, self.stored, lenient)
        with closing(engine.map(work, texts, on_text)) as found:
            for some in found:
                kinds = {column: joint_text_type(kinds[column], some[column]) for column in kinds}
        return kinds

    def _unify(self, about: Callable[..., AbstractContextManager[None]]) -> None:
        """Give keys one type in the log and in tables, and values one type that share an embedding table."""
        keys = {origin: self.key(origin) for origin in self.files}
        groups = [{(origin, key), (self.origins[key], key)} for origin, key in keys.items()]
        groups += [{(self.origins[column], column) for column in columns} for columns in columns_sharing_ids(self.spec)]
        for _ in groups:  # a column may be in several groups, so types propagate step by step
            for group in groups:
                members = sorted({column for _, column in group})
                with about(members[-1], of=f"column {' and '.join(members)}"):
                    joint = joint_type(element_type(self.types[which]) for which in sorted(group))
                    for which in group:
                        is_list = isinstance(self.types[which], pl.List)
                        self.types[which] = pl.List(joint) if is_list else joint


def _headers(files: Sequence[RowFile], on_problem: OnProblem | None) -> Headers:
    """Return the columns of each file; with `on_problem` files that cannot be read are left out."""
    headers: Headers = {}
    for file in files:
        try:
            headers[file] = file.columns()
        except ValueError as error:
            if on_problem is None:
                raise
            on_problem(None, str(error).removeprefix(f"{file} ").removeprefix(f"{file}: "), [file])
    return headers


def _types_of_text(
    roles: Mapping[str, set[Role]],
    stored: Mapping[str, str],
    lenient: bool,
    files: Sequence[RowFile],
    report: Report,
) -> dict[str, pl.DataType]:
    """Return the narrowest type of each column in text files; `lenient` ignores what cannot be read."""
    kinds: dict[str, pl.DataType] = dict.fromkeys(roles, pl.Null())
    names = {column: stored.get(column, column) for column in roles}
    for file in files:
        with suppress(*[ValueError] * lenient):
            for frame in file.batches(list(dict.fromkeys(names.values())), _ignore if lenient else None):
                for column, name in names.items():
                    if frame[name].dtype == pl.String():  # not a list
                        kinds[column] = text_type(frame[name], kinds[column], roles[column])
                report(len(frame))
    return kinds


def _ignore(row: InvalidRow) -> None:
    pass


@contextmanager
def _prefixing(where: str) -> Iterator[None]:
    """Add a prefix to the messages of errors."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
