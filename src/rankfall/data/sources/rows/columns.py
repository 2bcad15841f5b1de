"""The columns that the description of a log names, and the file or table that each of them is read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from rankfall._suggestions import did_you_mean
from rankfall.data.impressions.spec import Categorical, Time, column_of, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankfall.data.impressions.spec import FeatureConfig, Group, Spec

Origin = Literal["log", "items", "users", "requests"]  # the rows of the log, or one of the tables joined to them
Role = Literal["id", "whole", "number", "vector", "time", "day", "sequence"]
_OF_ROW: tuple[Origin, ...] = ("log",)
_OF_REQUEST: tuple[Origin, ...] = ("log", "requests")
_OF_GROUP: dict[Group, tuple[Origin, ...]] = {
    "user": ("log", "users", "requests"),
    "context": _OF_REQUEST,
    "item": ("log", "items"),
}


class ColumnUse(NamedTuple):
    """A column that one key of the description needs."""

    key: str
    column: str
    role: Role
    origins: tuple[Origin, ...]  # where the column may be, in the order of the search


def column_uses(spec: Spec) -> Iterator[ColumnUse]:
    """Iterate over everything that a description needs."""
    yield ColumnUse("request", spec.request, "id", _OF_ROW)
    yield ColumnUse("item", spec.item, "id", _OF_ROW)
    if spec.user is not None:
        yield ColumnUse("user", spec.user, "id", _OF_REQUEST)
    if spec.time is not None:
        yield ColumnUse("time", spec.time.column, "time", _OF_REQUEST)
    if spec.day is not None:
        yield ColumnUse("day", spec.day, "day", _OF_REQUEST)
    if spec.stage is not None:
        yield ColumnUse("stage", spec.stage, "id", _OF_ROW)
    if spec.rank is not None:
        yield ColumnUse("rank", spec.rank, "whole", _OF_ROW)
    for stage in spec.stages:
        if stage.flag is not None:
            yield ColumnUse(f"stages.{stage.name}", stage.flag, "number", _OF_ROW)
    if spec.relevant.column is not None:
        yield ColumnUse("relevant", spec.relevant.column, "number", _OF_ROW)
    if spec.position is not None:
        yield ColumnUse("position", spec.position, "whole", _OF_ROW)
    if spec.truth is not None:
        yield ColumnUse("truth", spec.truth, "number", _OF_ROW)
    for column in spec.feedback:
        yield ColumnUse("feedback", column, "number", _OF_ROW)
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


def find_origins(spec: Spec, found: Mapping[Origin, Sequence[str]], names: Mapping[Origin, str]) -> dict[str, Origin]:
    """Find the origin of every column that a description needs.

    Args:
        spec: The description of the log.
        found: The columns of the log and of each table.
        names: The names of the log and of each table in error messages.

    Raises:
        ValueError: If a column is missing or would be read from two origins.
    """
    origins: dict[str, Origin] = {}
    for use in column_uses(spec):
        if origins.get(use.column) in use.origins:
            continue
        origin = next((origin for origin in use.origins if use.column in found.get(origin, ())), None)
        if origin is None:
            raise ValueError(_missing(use, found, names))
        if (other := origins.setdefault(use.column, origin)) != origin:
            raise ValueError(
                f"the column {use.column!r} is needed from {names[other]} and from {names[origin]} ({use.key}); "
                "rename one of them"
            )
    return origins


def _missing(use: ColumnUse, found: Mapping[Origin, Sequence[str]], names: Mapping[Origin, str]) -> str:
    searched = [origin for origin in use.origins if origin in found]
    available = [column for origin in searched for column in found[origin]]
    return (
        f"{' and '.join(names[origin] for origin in searched)}: found no column {use.column!r} ({use.key} of the "
        f"description){did_you_mean(use.column, available)}; the columns are {', '.join(dict.fromkeys(available))}"
    )
