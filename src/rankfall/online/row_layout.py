"""The columns of joined rows, and the place of each: the rows, the table of requests, or a table of items or users.

A log that exists decides this by the places that its columns had before. A new log has everything that describes a
request in a table of requests, so that it is not repeated for each item.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankfall.data.impressions.spec import Time, column_of
from rankfall.data.sources.rows.row_files import find_row_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

    from rankfall.data.impressions.spec import FeatureConfig, Spec
    from rankfall.data.sources.rows.columns import Origin
    from rankfall.data.sources.rows.raw_log import Types

_RENAMED = " (as "  # a column that is used in several ways, see find_columns


@dataclass(frozen=True)
class RequestColumn:
    """A column that describes requests.

    Attributes:
        name: The column.
        origin: ``"log"`` or ``"requests"``.
        kind: Its type in the log, None if that is not decided yet.
        fields: The features of the body whose values it has, as group and name.
        feature: The first of these features, None for time and day.
    """

    name: str
    origin: Origin
    kind: pl.DataType | None
    fields: tuple[tuple[str, str], ...] = ()
    feature: FeatureConfig | None = None


@dataclass(frozen=True)
class SequenceColumn:
    """A column with the values of a feature of the events of a sequence."""

    name: str
    origin: Origin
    kind: pl.DataType | None
    sequence: str
    feature: str


@dataclass(frozen=True)
class RowLayout:
    """The columns of joined rows.

    Attributes:
        spec: The description of the log.
        requests: Columns that come from bodies.
        sequences: Columns of sequences, which come from bodies, too.
        item_columns: Columns of items that the rows have, from the table of items.
        request_kind: The type of ids of requests in the log, None if it is not decided yet.
        item_kind: The type of ids of items in the log, None if it is not decided yet.
        stage_kind: The type of the column of stages.
        tables: The tables that are joined when the rows are encoded.
        scalings: Mean and deviation of features that are standardised, if the log exists.
    """

    spec: Spec
    requests: list[RequestColumn]
    sequences: list[SequenceColumn]
    item_columns: list[str]
    request_kind: pl.DataType | None
    item_kind: pl.DataType | None
    stage_kind: pl.DataType | None
    tables: dict[Origin, Path]
    scalings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def make_layout(spec: Spec, types: Types | None, items: Path | None, users: Path | None) -> RowLayout:
    """Decide where columns are.

    Args:
        spec: The description of the log.
        types: The columns of a log that exists, with their types.
        items: The table of items.
        users: The table of users.

    Raises:
        ValueError: If requests cannot have a column that the description names, or a table is missing.
    """
    if spec.time is None:
        raise ValueError("spec: time: missing; the days of joined logs are dates of the time of requests")
    given: dict[Origin, Path | None] = {"items": items, "users": users}
    columns = {origin: _columns(path) for origin, path in given.items() if path is not None}
    origins = _Origins(types, columns)
    requests = {
        spec.time.column: RequestColumn(
            spec.time.column, *origins.of(spec.time.column, ("log", "requests")), feature=None
        )
    }
    if spec.day is not None:
        requests[spec.day] = RequestColumn(spec.day, *origins.of(spec.day, ("log", "requests")), feature=None)
    for group, name, feature in spec.features:
        follows_time = isinstance(feature, Time) and feature.column is None
        if group == "item" or follows_time:
            continue
        column = column_of(spec, name, feature)
        allowed: tuple[Origin, ...] = ("log", "requests") if column == spec.user else ("log", "users", "requests")
        origin, kind = origins.of(column, allowed if group == "user" else ("log", "requests"))
        if origin == "users":
            continue
        known = requests.get(column)
        fields = ((group, name),) if known is None else (*known.fields, (group, name))
        requests[column] = RequestColumn(column, origin, kind, fields, known.feature if known else feature)
    if spec.user is not None and spec.user not in requests:
        raise ValueError(
            f"spec: user: no feature of users has the column {spec.user!r}, so that requests do not have its values"
        )
    sequences = [
        SequenceColumn(column, *origins.of(column, ("log", "requests")), name, feature_name)
        for name, sequence in spec.sequences.items()
        for feature_name, column in (sequence.columns or {}).items()
    ]
    places = {
        column: origins.of(column, ("log", "items"))[0]
        for name, feature in spec.features.item.items()
        if (column := column_of(spec, name, feature)) != spec.item
    }
    _check_tables(spec, types, given, places, columns)
    used: set[Origin] = {use for use in origins.used if use in given}
    return RowLayout(
        spec,
        list(requests.values()),
        sequences,
        [column for column, origin in places.items() if origin == "log"],
        origins.kind("log", spec.request),
        origins.kind("log", spec.item),
        None if spec.stage is None else origins.kind("log", spec.stage),
        {origin: path for origin, path in given.items() if path is not None and origin in used},
    )


class _Origins:
    """Decides on places: those of a log that exists, or those of a new one."""

    def __init__(self, types: Types | None, columns: dict[Origin, list[str]]) -> None:
        self._types = None if types is None else {(place, _stored(name)): kind for (place, name), kind in types.items()}
        self._columns = columns
        self.used: set[Origin] = set()

    def of(self, column: str, allowed: tuple[Origin, ...]) -> tuple[Origin, pl.DataType | None]:
        """Return the place and the type of a column, if it is known."""
        if self._types is not None:
            found = next((place for place in allowed if (place, column) in self._types), allowed[0])
        else:
            tables: list[Origin] = [place for place in allowed if place in ("items", "users")]
            in_table = next((place for place in tables if column in self._columns.get(place, ())), None)
            found = in_table or ("requests" if "requests" in allowed else "items")
        self.used.add(found)
        return found, self.kind(found, column)

    def kind(self, place: Origin, column: str) -> pl.DataType | None:
        """Return the type of a column, None if it is not decided yet."""
        return None if self._types is None else self._types.get((place, column))


def _stored(name: str) -> str:
    return name.partition(_RENAMED)[0]


def _columns(path: Path) -> list[str]:
    return list(dict.fromkeys(name for file in find_row_files([path]) for name in file.columns()))


def _check_tables(
    spec: Spec,
    types: Types | None,
    given: dict[Origin, Path | None],
    places: dict[str, Origin],
    columns: dict[Origin, list[str]],
) -> None:
    """Check that there are the tables that have the columns of items and users."""
    for column in places:
        if given["items"] is None:
            raise ValueError(f"items: missing, expected a table of items with the column {column!r} of the description")
        if column not in columns["items"]:
            raise ValueError(
                f"items: {given['items']} has no column {column!r}, which the description names; it has "
                f"{', '.join(columns['items'])}"
            )
    if places and spec.item not in columns["items"]:
        raise ValueError(f"items: {given['items']} has no column {spec.item!r}, the ids of items")
    if given["users"] is None and types is not None and any(place == "users" for place, _ in types):
        raise ValueError("users: missing, expected a table of users as the one that the log was prepared with")
