"""A raw log: files of rows and tables to join, behind one set of typed columns."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rankfall._suggest import did_you_mean
from rankfall.data.sources.rows.column_types import (
    element_type,
    joint_text_type,
    joint_type,
    plain_type,
    text_type,
    to_type,
    used_type,
)
from rankfall.data.sources.rows.columns import Place, locate, shared_ids, uses
from rankfall.data.sources.rows.row_files import Source, find_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rankfall._engine import Engine, Report
    from rankfall.data.impressions.spec import Spec
    from rankfall.data.sources.rows.columns import Role

    Types = dict[tuple[Place, str], pl.DataType]

_PART_BYTES = 2**25  # of files that are worked on together


class Batch(NamedTuple):
    """Some rows of a file, the first of which has the number `start`."""

    source: Source
    start: int
    rows: pl.DataFrame

    def refuse_nulls(self, column: str) -> None:
        """An error if the column has a row without a value."""
        values = self.rows[column]
        if values.has_nulls():
            row = self.start + int(values.is_null().arg_max() or 0)
            raise ValueError(f"{self.source.path}: column {column!r}: found nothing in row {row + 1}")


@dataclass(frozen=True)
class RawLog:
    """The files of a log, and for each of the columns that are needed its place and its type."""

    spec: Spec
    sources: dict[Place, list[Source]]
    places: dict[str, Place]
    types: Types

    @classmethod
    def open(
        cls,
        spec: Spec,
        sources: Sequence[Path | Source],
        tables: Mapping[Place, Path | None],
        on_text: Report,
        engine: Engine,
    ) -> RawLog:
        """Find every column and its type. Text is read for that; `on_text` hears how many rows were."""
        files: dict[Place, list[Source]] = {"log": find_sources(sources)}
        for place, path in tables.items():
            if path is not None:
                files[place] = find_sources([path])
        headers = {place: [source.columns() for source in found] for place, found in files.items()}
        found = {
            place: list(dict.fromkeys(name for header in some for name in header)) for place, some in headers.items()
        }
        names = {place: str(found_files[0].path) for place, found_files in files.items()}
        places = locate(spec, found, names)
        log = cls(spec, files, places, {})
        for place in files:
            log._check_columns(place, headers[place])
        log._decide_types(headers, on_text, engine)
        return log

    def key(self, place: Place) -> str:
        """The column that tells which row of a table, or which request of the log, something belongs to."""
        keys: dict[Place, str | None] = {"items": self.spec.item, "users": self.spec.user}
        key = keys.get(place, self.spec.request)
        if key is None:
            raise ValueError(f"{place}: the description names no column `user` by which they could be found")
        return key

    def columns(self, place: Place) -> list[str]:
        """The columns that are taken from there, the key first."""
        key = self.key(place)
        return [key] + [column for column, where in self.places.items() if where == place and column != key]

    def parts(self, place: Place) -> list[list[Source]]:
        """The files of the log or of a table, small ones together."""
        parts: list[list[Source]] = []
        size = _PART_BYTES
        for source in self.sources[place]:
            if size >= _PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(source)
            size += source.path.stat().st_size
        return parts

    def batches(self, place: Place, columns: Sequence[str], sources: Sequence[Source] | None = None) -> Iterator[Batch]:
        """The rows of the log or of a table, in their types; of all its files or of these."""
        for source in self.sources[place] if sources is None else sources:
            start = 0
            for frame in source.batches(columns):
                yield Batch(source, start, frame.select(self._typed(place, frame[name], source) for name in columns))
                start += len(frame)

    def table(self, place: Place, columns: Sequence[str]) -> pl.DataFrame:
        """Those columns of a table, the key among them, which must have every key once."""
        key = self.key(place)
        rows = [pl.DataFrame(schema={name: self.types[place, name] for name in columns})]
        for batch in self.batches(place, columns):
            batch.refuse_nulls(key)
            rows.append(batch.rows)
        table = pl.concat(rows)
        if (again := table[key].is_duplicated()).any():
            path = self.sources[place][0].path
            raise ValueError(f"{path}: {key} {table[key].filter(again).min()!r} stands there twice")
        return table

    def _typed(self, place: Place, values: pl.Series, source: Source) -> pl.Series:
        with _naming(str(source.path)):
            return to_type(values, self.types[place, values.name], self.spec.zone)

    def _check_columns(self, place: Place, headers: Sequence[Mapping[str, pl.DataType]]) -> None:
        for source, header in zip(self.sources[place], headers, strict=True):
            for column in self.columns(place):
                if column not in header:
                    raise ValueError(
                        f"{source.path}: there is no column {column!r}{did_you_mean(column, header)}; "
                        f"there are {', '.join(header)}"
                    )

    # --- types ---

    def _decide_types(
        self, headers: Mapping[Place, Sequence[Mapping[str, pl.DataType]]], on_text: Report, engine: Engine
    ) -> None:
        roles: dict[str, set[Role]] = {}
        for use in uses(self.spec):
            roles.setdefault(use.column, set()).add(use.role)
        for place, sources in self.sources.items():
            columns = self.columns(place)
            kinds = self._text_types(place, {column: roles[column] for column in columns}, on_text, engine)
            for source, header in zip(sources, headers[place], strict=True):
                for column in columns if not source.is_text else []:
                    with _naming(f"{source.path}: column {column!r}"):
                        kinds[column] = joint_type([kinds[column], plain_type(header[column])])
            self.types.update({(place, column): kind for column, kind in kinds.items()})
        self._unify()
        for (place, column), kind in self.types.items():
            with _naming(f"column {column!r}"):
                self.types[place, column] = used_type(kind, roles[column])

    def _text_types(
        self, place: Place, roles: Mapping[str, set[Role]], on_text: Report, engine: Engine
    ) -> dict[str, pl.DataType]:
        kinds: dict[str, pl.DataType] = dict.fromkeys(roles, pl.Null())
        texts = [text for part in self.parts(place) if (text := [source for source in part if source.is_text])]
        with closing(engine.map(partial(_types_of_text, roles), texts, on_text)) as found:
            for some in found:
                kinds = {column: joint_text_type(kinds[column], some[column]) for column in kinds}
        return kinds

    def _unify(self) -> None:
        """Keys have one type in the log and in tables, and so have values that get their ids in one table."""
        groups = [{(place, self.key(place)), (self.places[self.key(place)], self.key(place))} for place in self.sources]
        groups += [{(self.places[column], column) for column in columns} for columns in shared_ids(self.spec)]
        for _ in groups:  # a column may be in several of them
            for group in groups:
                with _naming(f"column {' and '.join(sorted({column for _, column in group}))}"):
                    joint = joint_type(element_type(self.types[which]) for which in sorted(group))
                for which in group:
                    is_list = isinstance(self.types[which], pl.List)
                    self.types[which] = pl.List(joint) if is_list else joint


def _types_of_text(roles: Mapping[str, set[Role]], sources: Sequence[Source], report: Report) -> dict[str, pl.DataType]:
    """The narrowest type of each column in files of text."""
    kinds: dict[str, pl.DataType] = dict.fromkeys(roles, pl.Null())
    for source in sources:
        for frame in source.batches(list(roles)):
            for column in roles:
                kinds[column] = text_type(frame[column], kinds[column], roles[column])
            report(len(frame))
    return kinds


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Say where it is that something is wrong."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
