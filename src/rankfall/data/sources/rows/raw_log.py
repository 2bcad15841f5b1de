"""A raw log: files of rows and tables to join, with one type per column over all files."""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import polars as pl

from rankfall._errors import RankfallError, did_you_mean
from rankfall.data.impressions.spec import Categorical, Time, column_of, table_of
from rankfall.data.sources.rows.row_files import (
    ROW,
    RowFile,
    element_type,
    joint_text_type,
    joint_type,
    plain_type,
    text_type,
    to_type,
    used_type,
)
from rankfall.encoding import BadValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.requests import BadRows
    from rankfall.data.impressions.spec import FeatureConfig, Group, Spec, Unit
    from rankfall.data.sources.rows.row_files import InvalidRow

    Types = dict[tuple["Origin", str], pl.DataType]
    Headers = dict[RowFile, dict[str, pl.DataType]]
    OnProblem = Callable[[str | None, str, Sequence[RowFile]], None]

Origin = Literal["log", "items", "users", "requests"]  # the rows of the log, or one of the tables joined to them
Role = Literal["id", "whole", "number", "vector", "time", "day", "sequence"]
_OF_ROW: tuple[Origin, ...] = ("log",)
_OF_REQUEST: tuple[Origin, ...] = ("log", "requests")
_OF_GROUP: dict[Group, tuple[Origin, ...]] = {
    "user": ("log", "users", "requests"),
    "context": _OF_REQUEST,
    "item": ("log", "items"),
}


# the keys of a spec that name columns, beside features and sequences
_KEYS: dict[str, tuple[Role, tuple[Origin, ...]]] = {
    "request": ("id", _OF_ROW),
    "item": ("id", _OF_ROW),
    "user": ("id", _OF_REQUEST),
    "time": ("time", _OF_REQUEST),
    "day": ("day", _OF_REQUEST),
    "stage": ("id", _OF_ROW),
    "rank": ("whole", _OF_ROW),
    "stages": ("number", _OF_ROW),
    "relevant": ("number", _OF_ROW),
    "position": ("whole", _OF_ROW),
    "inclusion": ("number", _OF_ROW),
    "truth": ("number", _OF_ROW),
    "feedback": ("number", _OF_ROW),
}


class ColumnUse(NamedTuple):
    """A column that one key of the spec needs."""

    key: str
    column: str
    role: Role
    origins: tuple[Origin, ...]  # where the column may be, in the order of the search


def column_uses(spec: Spec) -> Iterator[ColumnUse]:
    """Iterate over everything that a spec needs."""
    for key, (role, origins) in _KEYS.items():
        value = getattr(spec, key)
        if key == "stages":
            yield from (
                ColumnUse(f"stages.{one.name}", one.flag, role, origins) for one in value if one.flag is not None
            )
        elif key == "feedback":
            yield from (ColumnUse(key, column, role, origins) for column in value)
        elif (column := getattr(value, "column", value)) is not None:
            yield ColumnUse(key, column, role, origins)
    for group, name, feature in spec.features:
        column = column_of(spec, name, feature)
        of_request = isinstance(feature, Time) and feature.column is None
        yield ColumnUse(f"{group}.{name}", column, _role(feature), _OF_REQUEST if of_request else _OF_GROUP[group])
    for name, sequence in spec.sequences.items():
        for feature_name, column in (sequence.columns or {}).items():
            yield ColumnUse(f"sequences.{name}.{feature_name}", column, "sequence", _OF_REQUEST)


def _role(feature: FeatureConfig) -> Role:
    if isinstance(feature, Time):
        return "time"
    if isinstance(feature, Categorical):
        return "id" if feature.num_buckets is None else "whole"
    return "number" if feature.size == 1 else "vector"


def time_units(spec: Spec) -> dict[str, Unit | None]:
    """Return the columns of times, and the unit of those that are whole numbers."""
    units = {} if spec.time is None else {spec.time.column: spec.time.unit}
    for _, _, feature in spec.features:
        if isinstance(feature, Time) and feature.column is not None:
            units[feature.column] = feature.unit
    return units


def columns_sharing_ids(spec: Spec) -> list[set[str]]:
    """Return sets of columns whose values get their ids in one embedding table and must have one type."""
    tables: dict[str, set[str]] = {}
    for group, name, feature in spec.features:
        if isinstance(feature, Categorical):
            tables.setdefault(table_of(group, name, feature), set()).add(column_of(spec, name, feature))
    for sequence in spec.sequences.values():
        for name, column in (sequence.columns or {}).items():
            feature = spec.features.item[name]
            if isinstance(feature, Categorical):
                tables[table_of("item", name, feature)].add(column)
    return list(tables.values())


class Columns(NamedTuple):
    """The columns of a log by the names that its spec uses.

    A column that is used in several ways has one name for each of them: ``price``, and ``price (as number)``.
    """

    spec: Spec  # with these names
    origins: dict[str, Origin]  # the log or the table that each is read from
    stored: dict[str, str]  # the name in the files, if it is another one


def find_columns(
    spec: Spec,
    found: Mapping[Origin, Sequence[str]],
    names: Mapping[Origin, str],
    on_missing: Callable[[ColumnUse, str], None] | None = None,
) -> Columns:
    """Find every column that a spec needs.

    Args:
        spec: The spec of the log.
        found: The columns of the log and of each table.
        names: The names of the log and of each table in error messages.
        on_missing: Receives what the spec needs and no file has; these keys are then left out. By default this
            is an error.

    Raises:
        ValueError: If a column is missing, or a key and another column of the same name would be read from two origins.
    """
    ways: dict[str, tuple[str, Origin]] = {}
    origins: dict[str, Origin] = {}
    stored: dict[str, str] = {}
    names_of: dict[str, str] = {}  # by key of the spec
    for use in sorted(column_uses(spec), key=_can_be_renamed):  # those that cannot keep the names of the files
        _, known = ways.get(use.column, (None, None))
        here = (one for one in use.origins if use.column in found.get(one, ()))
        origin = known if known in use.origins else next(here, None)
        if origin is None:
            searched = [one for one in use.origins if one in found]
            available = [column for one in searched for column in found[one]]
            message = (
                f"{' and '.join(names[one] for one in searched)}: found no column {use.column!r} ({use.key} of the "
                f"spec){did_you_mean(use.column, available)}; the columns are "
                f"{', '.join(dict.fromkeys(available))}"
            )
            if on_missing is None:
                raise RankfallError(message)
            on_missing(use, message)
            continue
        way, first = ways.setdefault(use.column, (_way(use.role), origin))
        # whole numbers are ids and numbers, too, so a column that is used in such ways is read once
        same = way == _way(use.role) or {way, _way(use.role)} in ({"whole number", "id"}, {"whole number", "number"})
        if first == origin and same:
            origins[use.column] = origin
            continue
        if not _can_be_renamed(use):
            if first == origin:
                continue  # the type of the key decides
            raise RankfallError(
                f"the column {use.column!r} is needed from {names[first]} and from {names[origin]} ({use.key}); "
                "rename one of them"
            )
        name = f"{use.column} (as {_way(use.role)}{'' if first == origin else f', of {origin}'})"
        names_of[use.key] = name
        origins[name], stored[name] = origin, use.column
    return Columns(_with_columns(spec, names_of), origins, stored)


def _way(role: Role) -> str:
    """Return how a column is used, for its name: `price (as number)`."""
    return {"day": "id", "whole": "whole number"}.get(role, role)


def _can_be_renamed(use: ColumnUse) -> bool:
    """Return whether a column may have another name here: keys join tables, and feedback is written by its name."""
    fixed = ("request", "item", "user", "stage", "feedback")
    return use.key not in fixed and use.role != "sequence" and not use.key.startswith("stages.")


def _with_columns(spec: Spec, names: Mapping[str, str]) -> Spec:
    """Return a spec whose keys use columns of other names; it is not validated again."""
    new: dict[str, Any] = {}
    groups: dict[str, dict[str, FeatureConfig]] = {}
    for key, name in names.items():
        first, _, feature_name = key.partition(".")
        if not feature_name:
            value = getattr(spec, key)
            new[key] = name if isinstance(value, str) else value.model_copy(update={"column": name})
            continue
        features = groups.setdefault(first, dict(getattr(spec.features, first)))
        feature = features[feature_name]
        if not (isinstance(feature, Time) and feature.column is None):  # which follows the time of the request
            features[feature_name] = feature.model_copy(update={"column": name})
    return spec.model_copy(update={**new, "features": spec.features.model_copy(update=groups)})


_PART_BYTES = 2**25  # of files that are processed together


class RowBatch(NamedTuple):
    """Consecutive rows of a file, and their indices in it."""

    file: RowFile
    numbers: pl.Series
    rows: pl.DataFrame
    lost: Sequence[BadRows] = ()  # values of another type than their column, in whose place `rows` has nulls

    def check_not_null(self, column: str) -> None:
        """Raise an error that names the file and the row if the column has a null."""
        values = self.rows[column]
        if values.has_nulls():
            row = self.numbers[int(values.is_null().arg_max() or 0)] + 1
            raise RankfallError(f"{self.file}: column {column!r}: found no value in row {row}")


@dataclass(frozen=True)
class RawLog:
    """The files of a log, and the origin and type of each column that its spec needs.

    `spec` names columns as :func:`find_columns` does; `stored` has the names in the files that differ. Columns that the
    spec needs and no file has are in `spec` only.
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
        files: Mapping[Origin, list[RowFile]],
        on_text: Report,
        engine: Engine,
        on_problem: OnProblem | None = None,
        types: Types | None = None,
    ) -> RawLog:
        """Find the origin and type of every column.

        Args:
            spec: The spec of the log.
            files: The files of the log and of the tables that are joined.
            on_text: Receives the number of rows of text files that were read to find their types.
            engine: Runs the work on the files.
            on_problem: Receives the column and the message of every problem, and the files that have it; files that
                cannot be read and columns that cannot be used are then left out. By default a problem is an error.
            types: The types of the columns, if earlier days of the log decided them; by default the files decide.

        Raises:
            ValueError: If a file cannot be read, or a column is missing or has values of a wrong type.
        """
        files = dict(files)
        headers: dict[Origin, Headers] = {}
        for origin, found in files.items():
            headers[origin] = {}
            for file in found:
                try:
                    headers[origin][file] = file.columns()
                except ValueError as error:
                    if on_problem is None:
                        raise
                    on_problem(None, str(error).removeprefix(str(file)).lstrip(": "), [file])
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
        """Return the log without some of its columns."""
        return replace(
            self,
            origins={name: origin for name, origin in self.origins.items() if name not in columns},
            types={which: kind for which, kind in self.types.items() if which[1] not in columns},
        )

    def key(self, origin: Origin) -> str:
        """Return the column by which the rows of a table are joined; for the log, the column of the request."""
        keys: dict[Origin, str | None] = {"items": self.spec.item, "users": self.spec.user}
        key = keys.get(origin, self.spec.request)
        if key is None:
            raise RankfallError(f"{origin}: the spec has no `user`, the column by which this table is joined")
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
        self,
        origin: Origin,
        columns: Sequence[str],
        files: Sequence[RowFile] | None = None,
        on_invalid: Callable[[InvalidRow], None] | None = None,
    ) -> Iterator[RowBatch]:
        """Iterate over the rows of the log or of a table, with typed columns.

        Args:
            origin: The log or one of its tables.
            columns: The columns to read.
            files: The files to read; by default all of them.
            on_invalid: Receives rows that cannot be read, which are left out; values that cannot be converted are then
                part of the batches. By default both are errors.
        """
        units = time_units(self.spec)
        for file in self.files[origin] if files is None else files:
            stored = {name: name if file.typed else self.stored.get(name, name) for name in columns}
            for frame in file.batches([ROW, *dict.fromkeys(stored.values())], on_invalid):
                lost: list[BadRows] = []
                bad = None if on_invalid is None else lost
                try:
                    rows = frame.select(
                        to_type(
                            frame[stored[name]].alias(name),
                            self.types[origin, name],
                            self.spec.zone,
                            units.get(name),
                            bad,
                        )
                        for name in columns
                    )
                except ValueError as error:
                    row = f" (row {frame[ROW][error.position] + 1})" if isinstance(error, BadValueError) else ""
                    raise RankfallError(f"{file}: {error}{row}") from None
                yield RowBatch(file, frame[ROW], rows, lost)

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
            raise RankfallError(f"{path}: {key} {table[key].filter(repeated).min()!r} occurs twice")
        return table

    def _check_columns(self, origin: Origin, headers: Headers, on_problem: OnProblem | None) -> None:
        """Check that every file has all columns; with `on_problem` remove the headers of those that have not."""
        for file, header in [entry for entry in headers.items() if not entry[0].typed]:
            for column in self.stored_names(self.columns(origin)):
                if column in header:
                    continue
                message = f"found no column {column!r}{did_you_mean(column, header)}"
                if on_problem is None:
                    raise RankfallError(f"{file}: {message}; the columns are {', '.join(header)}")
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
                    raise RankfallError(f"{file}: column {column!r}: found in {origin!r}, expected {expected}")
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
                    raise RankfallError(f"{where}{of or f'column {column!r}'}: {error}") from None
                if column not in unusable:
                    on_problem(column, str(error), files)
                unusable.add(column)

        roles: dict[str, set[Role]] = {}
        for use in column_uses(self.spec):
            roles.setdefault(use.column, set()).add(use.role)
        for origin in self.files:
            columns = self.columns(origin)
            of_origin = {column: roles.get(column, {"id"}) for column in columns}  # without a use: the key of a table
            kinds: dict[str, pl.DataType] = dict.fromkeys(columns, pl.Null())
            texts = [text for part in self.parts(origin) if (text := [file for file in part if file.is_text])]
            work = partial(_types_of_text, of_origin, self.stored, on_problem is not None)
            with closing(engine.map(work, texts, on_text)) as found:
                for some in found:
                    kinds = {column: joint_text_type(kinds[column], some[column]) for column in columns}
            for file, header in headers[origin].items():
                for column in columns:
                    kind = header[self.stored.get(column, column)]
                    if file.is_text and kind == pl.String():
                        continue  # decided by the values
                    with about(column, file):
                        kinds[column] = joint_type([kinds[column], plain_type(kind)])
            self.types.update({(origin, column): kind for column, kind in kinds.items()})
        # keys have one type in the log and in tables, and so have values that share an embedding table
        keys = {origin: self.key(origin) for origin in self.files}
        groups = [{(origin, key), (self.origins[key], key)} for origin, key in keys.items()]
        sharing = [[name for name in names if name in self.origins] for names in columns_sharing_ids(self.spec)]
        groups += [{(self.origins[column], column) for column in columns} for columns in sharing if columns]
        for group in groups * len(groups):  # a column may be in several groups, so types propagate step by step
            members = sorted({column for _, column in group})
            with about(members[-1], of=f"column {' and '.join(members)}"):
                joint = joint_type(element_type(self.types[which]) for which in sorted(group))
                for which in group:
                    self.types[which] = pl.List(joint) if isinstance(self.types[which], pl.List) else joint
        for (origin, column), kind in self.types.items():
            with about(column):
                self.types[origin, column] = used_type(kind, roles.get(column, {"id"}))
        return unusable


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
            for frame in file.batches(list(dict.fromkeys(names.values())), (lambda row: None) if lenient else None):
                for column, name in names.items():
                    if frame[name].dtype == pl.String():  # not a list
                        kinds[column] = text_type(frame[name], kinds[column], roles[column])
                report(len(frame))
    return kinds
